"""Timelines: when the instructions of a program ran, or are predicted to run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.table import Ints

COLUMNS = ("rank", "row", "start", "end")


@dataclass(frozen=True, slots=True)
class Timeline:
    """Bars as columns of equal length: on global rank `rank`, row `row` of the program runs from `start` to `end`.

    Times are integers; the time t is t / scale units.

    Attributes:
        unit: the name of the unit, '' for the unit of costs.
        finish: when the iteration ended, with its all-reduces; None: the timeline does not say it, and `makespan` is the end of
            the last bar.
    """

    rank: Ints
    row: Ints
    start: Ints
    end: Ints
    scale: int = 1
    unit: str = ""
    finish: int | None = None

    def __len__(self) -> int:
        return len(self.row)

    def take(self, bars: npt.NDArray[Any] | slice) -> Timeline:
        """Return the bars selected by indices, a mask or a slice."""
        return replace(self, rank=self.rank[bars], row=self.row[bars], start=self.start[bars], end=self.end[bars])

    @staticmethod
    def concatenate(timelines: Sequence[Timeline]) -> Timeline:
        """Return the bars of all these timelines: at least one, and all with one unit and one scale."""
        first = timelines[0]
        assert all((t.scale, t.unit) == (first.scale, first.unit) for t in timelines)
        rank, row, start, end = (np.concatenate([getattr(t, name) for t in timelines]) for name in COLUMNS)
        ends = [t.finish for t in timelines if t.finish is not None]
        return Timeline(rank, row, start, end, first.scale, first.unit, max(ends, default=None))

    @property
    def makespan(self) -> int:
        """Return when the iteration ended, as a time of this timeline. The iteration began at 0."""
        last = int(self.end.max(initial=0))
        return last if self.finish is None else max(last, self.finish)
