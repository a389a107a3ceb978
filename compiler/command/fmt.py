"""`chimerac fmt`: format schedules in place."""

from __future__ import annotations

from collections.abc import Sequence

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, visible
from chimerac.chimera_ir.files import read, write, write_stdout
from chimerac.compiler.command.files import refused, stdin
from chimerac.compiler.command.usage import format_parser


def run(argv: Sequence[str]) -> int:
    """Format schedules, and return the exit status. A file with findings does not keep the others from being formatted."""
    options = format_parser().parse_args(argv)
    status = 0
    for name in options.files:
        try:
            status = max(status, _format_one(name, options.check))
        except ChimeraError as error:
            status = max(status, refused(error))
    return status


def _format_one(name: str, check: bool) -> int:
    from chimerac.compiler.format import format_schedule  # start-up: 7 ms, for this verb only

    source = stdin() if name == "-" else Source(name, read(name))
    text = format_schedule(source)
    if check:
        write_stdout("" if text == source.text else f"{visible(source.name)} is not formatted\n")
        return int(text != source.text)
    if name == "-":
        write_stdout(text)
    elif text != source.text:
        write(text, name)
        write_stdout(f"formatted {visible(name)}\n")
    return 0
