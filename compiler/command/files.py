"""Input and output of the command: stdin, products, findings, and the terminal's width and colours."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse, render
from chimerac.chimera_ir.files import check_not_overwritten, read, write, write_stderr, write_stdout

# Options that may name a file that is read -> their attributes in the parsed options.
INPUTS = {
    "model": "model",
    "profile": "profile",
    "partition": "partition",
    "costs": "costs_path",
    "measured": "measured",
}
MIN_COLUMNS = 20  # of a timeline


def stdin() -> Source:
    """Return the text on stdin as a source. Raises ChimeraError E001 if stdin is closed or cannot be read."""
    if sys.stdin is None:
        raise refuse("E001", "<stdin> is closed")
    return Source("<stdin>", read("<stdin>", sys.stdin.buffer))


def write_product(product: str | bytes, path: str | None) -> None:
    """Write a product to a file, or to stdout if the path is None. Raises as `write` and `write_stdout`."""
    if path is None:
        write_stdout(product)
    else:
        write(product, path)


def check_is_file(output: str | None, on_stdout: str) -> None:
    """Raise ChimeraError E002 if -o is `-`.

    Args:
        on_stdout: what stdout gets instead, for the message.
    """
    if output == "-":
        raise refuse("E002", f"-o -: stdout gets {on_stdout}", help="give the path of a file")


def check_inputs_not_overwritten(output: str | None, schedules: Iterable[Source], options: argparse.Namespace) -> None:
    """Raise ChimeraError E002 if -o names a file that is read: a schedule, or the file of one of the options `INPUTS`."""
    inputs = [("the schedule itself", source.name) for source in schedules]
    named = [(name, getattr(options, attribute, None)) for name, attribute in INPUTS.items()]  # some verbs have fewer
    named += [("profile", path) for path in getattr(options, "profiles", ())]  # of chimerac plan
    inputs += [(f"the file of --{name}", path) for name, path in named if path is not None]
    check_not_overwritten(output, inputs)


def print_findings(error: ChimeraError, colour: str = "auto") -> int:
    """Print findings and return the exit status: 2 if all are about the command line or files (E0xx), else 1.

    On a terminal the last line names the command that explains their codes.
    """
    text = render(error.diagnostics, coloured(colour, sys.stderr))
    if sys.stderr is not None and sys.stderr.isatty():
        text += f"\nfor more: chimerac explain {' '.join(sorted({d.code for d in error.diagnostics}))}\n"
    write_stderr(text)
    return 2 if all(d.code.startswith("E0") for d in error.diagnostics) else 1


def suffix(path: str | None) -> str:
    """Return the suffix of a path, '' if there is none."""
    return Path(path).suffix if path else ""


def coloured(choice: str, stream: object) -> bool:
    """Return whether a stream gets colours.

    Args:
        choice: of --color, 'always', 'never' or 'auto'.

    With 'auto', it gets them if it is a terminal, unless NO_COLOR is set or TERM is dumb.
    """
    if choice != "auto":
        return choice == "always"
    is_terminal = bool(getattr(stream, "isatty", lambda: False)())
    return is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def check_columns(chosen: int, has_width: bool, readers: str) -> None:
    """Raise ChimeraError E002 unless the product has a width, and the chosen one is enough.

    Args:
        readers: the options whose products have a width, for the message.
    """
    if not has_width:
        raise refuse("E002", f"--columns is for {readers}")
    if chosen < MIN_COLUMNS:
        raise refuse("E002", f"--columns {chosen}: a timeline needs at least {MIN_COLUMNS}")


def columns(chosen: int | None, output: str | None) -> int | None:
    """Return the width that a product is drawn for: the chosen one, else the terminal's; None if the product goes elsewhere.

    Args:
        chosen: of --columns.
        output: the path of -o.
    """
    if chosen is not None:
        return chosen
    is_terminal = not output and sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if is_terminal else None
