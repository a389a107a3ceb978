"""The table of the ranks at the end of a run: idle time, recomputation, waits and memory of each."""

from __future__ import annotations

import numpy as np

from chimerac.interpreter.runtime.measured import MeasuredTimes

HEAD = ("rank", "bubble", "recomputes", "waits for values", "for sends", "for all-reduces", "peak memory")


class RankSummary:
    """The figures of each rank: means over the iterations, and the peak memory.

    The first iteration is slower. It is left out of the means if there are others.
    """

    def __init__(self) -> None:
        self._count = 0
        self._sums = np.zeros(0)
        self._last: MeasuredTimes | None = None

    def add(self, measured: MeasuredTimes) -> None:
        """Add one iteration."""
        waits = (measured.value_waits_s, measured.send_waits_s, measured.all_reduce_waits_s)
        figures = np.array([measured.bubbles, measured.recompute_s, *waits])
        self._count += 1
        self._sums = figures if self._count <= 2 else self._sums + figures  # the second iteration replaces the first one
        self._last = measured

    def table(self) -> str:
        """Return the table as text: bubbles as shares, times of an iteration in milliseconds, memory in megabytes.

        The column of recomputation is left out if no rank ran a forward again. Without an iteration the text is empty.
        """
        if self._last is None:
            return ""
        means = (self._sums / max(1, self._count - 1)).T  # (ranks, figures): the columns between the rank and the memory
        peaks = self._last.peak_memory_bytes
        rows = [
            (str(rank), f"{bubble:.3f}", *(f"{1000 * s:.2f} ms" for s in times), f"{peak / 1e6:,.0f} MB")
            for rank, ((bubble, *times), peak) in enumerate(zip(means.tolist(), peaks, strict=True))
        ]
        column = HEAD.index("recomputes")
        hidden = None if means[:, column - 1].any() else column
        lines = [[cell for k, cell in enumerate(row) if k != hidden] for row in (HEAD, *rows)]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        return "\n".join("   ".join(f"{cell:>{w}}" for cell, w in zip(line, widths, strict=True)) for line in lines)
