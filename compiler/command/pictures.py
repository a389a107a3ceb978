"""Options of pictures: where one is written, its width, and the ranks that it and a timeline show (E002)."""

from __future__ import annotations

import re
import sys

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.compiler.command.files import suffix
from chimerac.compiler.given import shown_text

PICTURES = ("svg", "png", "pdf")  # choices of --emit
_INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4}  # by unit of length
MAX_INCHES = 40.0
_RANKS = re.compile(r"([0-9]{1,9})(?: *\.\. *([0-9]{1,9}))?")  # a rank, or a range such as 4..7


def check_picture_output(emit: str, output: str | None) -> None:
    """Raise ChimeraError E002 for a path with another suffix than that of the format, and for bytes to a terminal."""
    found = suffix(output).lower()
    if found not in ("", f".{emit}"):
        help = f"give --emit {found[1:]}" if found[1:] in PICTURES else f"let the path end in .{emit}"
        raise refuse("E002", f"-o {output}: the picture is written as {emit.upper()}", help=help)
    if emit != "svg" and output is None and sys.stdout is not None and sys.stdout.isatty():
        message = f"--emit {emit}: {emit.upper()} is not text, so it is not written to a terminal"
        raise refuse("E002", message, help=f"give a path, -o picture.{emit}; --emit timeline draws in the terminal")


def inches(text: str | None) -> float | None:
    """Return the width that --picture-width gives, in inches; None without it. Raises ChimeraError E002."""
    if text is None:
        return None
    found = re.fullmatch(r"([0-9]{1,4}(?:\.[0-9]{1,4})?) *(in|cm|mm)", text.strip())
    width = float(found[1]) * _INCHES[found[2]] if found else 0.0
    if not 0 < width <= MAX_INCHES:
        expected = f"expected a length of at most {MAX_INCHES:g}in, for instance 7in, 17.8cm or 84mm"
        raise refuse("E002", f"--picture-width {shown_text(text)}: {expected}")
    return width


def ranks_of(text: str | None, world: int) -> tuple[int, ...] | None:
    """Return the global ranks that --ranks lists, such as 0,4..7, ascending; None without it. Raises ChimeraError E002.

    Args:
        world: how many global ranks there are.
    """
    if text is None:
        return None
    chosen: set[int] = set()
    for part in text.split(","):
        found = _RANKS.fullmatch(part.strip())
        if found is None:
            help = "give a list such as 0,4..7, where 4..7 includes 7"
            raise refuse("E002", f"--ranks {shown_text(text)}: {shown_text(part.strip())!r} is no rank", help=help)
        low, high = int(found[1]), int(found[2] or found[1])
        if low > high:
            raise refuse("E002", f"--ranks {shown_text(text)}: {low}..{high} is empty", help=f"write {high}..{low}")
        if high >= world:
            last = f"ranks are 0 .. {world - 1}" if world > 1 else "rank 0 is the only one"
            raise refuse("E002", f"--ranks {shown_text(text)}: there is no rank {high}", help=last)
        chosen.update(range(low, high + 1))
    return tuple(sorted(chosen))
