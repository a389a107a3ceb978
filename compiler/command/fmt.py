"""`chimerac fmt`: format schedules in place."""

from __future__ import annotations

from collections.abc import Sequence

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, visible
from chimerac.chimera_ir.files import read, write, write_stdout
from chimerac.compiler.command.files import print_findings, stdin
from chimerac.compiler.command.verbs import format_parser


def run(argv: Sequence[str]) -> int:
    """Format schedules, and return the exit status: the largest of the statuses of the files.

    The status of a file with findings is that of the findings. Otherwise it is 1 if --check finds that the file
    is not formatted, else 0. After a file with findings the others are still formatted, or checked.
    """
    options = format_parser().parse_args(argv)
    status = 0
    for name in dict.fromkeys(options.files):  # each once: stdin can be read only once
        try:
            status = max(status, _format_one(name, options.check))
        except ChimeraError as error:
            status = max(status, print_findings(error))
    return status


def _format_one(name: str, check: bool) -> int:
    from chimerac.compiler.format import format_schedule  # start-up: 7 ms, for this verb only

    source = stdin() if name == "-" else Source(name, read(name))
    text = format_schedule(source)
    is_formatted = text == source.text
    if check:
        if not is_formatted:
            write_stdout(f"{visible(source.name)} is not formatted\n")
        return int(not is_formatted)
    if name == "-":
        write_stdout(text)
    elif not is_formatted:
        write(text, name)
        write_stdout(f"formatted {visible(name)}\n")
    return 0
