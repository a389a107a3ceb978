"""How wide the time axis of a picture is, and which times are drawn: all, or the beginning and the end of a long iteration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chimerac.compiler.draw.panels import Boxes, Panel

FONT, LEAST_FONT = 7.0, 5.0  # points: the largest and the smallest size of the numbers in boxes
POINTS_PER_INCH = 72
DIGIT = 0.64  # the width of a digit, as a part of the font's size
# The widths of a short task (see `extent`) in inches:
COMFORTABLE = 0.22  # wanted at least, where no width of the picture is given
LEAST = 0.03  # if it would be narrower, a part of the time is left out
READABLE = 0.16  # in a picture that leaves out a part of the time
NARROWEST, WIDEST = 3.3, 13.0  # inches of the time axis, where no width of the picture is given
MAX_ROWS = 128  # ranks of all panels together
BREAK = 0.2  # inches between the two parts of a time axis


@dataclass(frozen=True, slots=True)
class Extent:
    """Which times are drawn, and how wide.

    Attributes:
        parts: (from, to) in units: all of the time, or its beginning and its end.
    """

    parts: tuple[tuple[float, float], ...]
    inches_per_unit: float

    def widths(self) -> list[float]:
        """Return the width of each part in inches."""
        return [(b - a) * self.inches_per_unit for a, b in self.parts]

    @property
    def left_out(self) -> tuple[float, float] | None:
        """Return the beginning and the end of the time that is not drawn; None if all is drawn."""
        return None if len(self.parts) == 1 else (self.parts[0][1], self.parts[1][0])

    def shows(self, start: float, end: float) -> bool:
        """Return whether a part of the time from `start` to `end` is drawn."""
        return any(start < b and end > a for a, b in self.parts)


def text_inches(text: str, points: float) -> float:
    """Return the approximate width of a text in inches: as if all its characters were digits.

    Args:
        points: the size of its font.
    """
    return DIGIT * points / POINTS_PER_INCH * len(text)


def extent(panels: Sequence[Panel], boxes: Sequence[Boxes], inches: float | None) -> Extent:
    """Return the extent of panels with one time axis.

    Args:
        boxes: of each panel, those of the ranks that are drawn.
        inches: the width of the axis; None for as wide as the tasks need, from NARROWEST to WIDEST.

    A short task takes the tenth percentile of the times of all boxes. If it would be narrower than `LEAST`, the middle of the
    iteration is left out.
    """
    longest = max((p.length for p in panels), default=0.0)
    lengths = np.concatenate([b.end - b.start for b in boxes] or [np.zeros(0)])
    if not len(lengths) or longest <= 0:
        return Extent(((0.0, longest or 1.0),), (NARROWEST if inches is None else inches) / (longest or 1.0))
    short = float(np.quantile(lengths, 0.1))
    if inches is None:
        digits = int(np.quantile([len(number) for b in boxes for number in b.number], 0.9))
        wanted = longest / short * max(COMFORTABLE, text_inches("0" * digits, FONT) + 0.06)
        inches = min(max(wanted, NARROWEST), WIDEST)
    if short * inches / longest >= LEAST:
        return Extent(((0.0, longest),), inches / longest)
    shown = (inches - BREAK) * short / READABLE  # in units: 0.6 of it for the beginning, 0.4 for the end
    return Extent(((0.0, 0.6 * shown), (longest - 0.4 * shown, longest)), (inches - BREAK) / shown)


def font_size(boxes: Sequence[Boxes], drawn: Extent) -> float:
    """Return the largest size in points at which nine of ten numbers fit into their boxes, limited to LEAST_FONT .. FONT."""
    shares = [  # of each number in a font of one point: the part of the width of its box that it takes
        text_inches(number, 1.0) / max((end - start) * drawn.inches_per_unit - 0.03, 1e-9)
        for b in boxes
        for number, start, end in zip(b.number, b.start.tolist(), b.end.tolist(), strict=True)
    ]
    fits = 1 / float(np.quantile(shares, 0.9)) if shares else FONT
    return min(max(fits, LEAST_FONT), FONT)
