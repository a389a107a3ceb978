"""The table of the ranks at the end of a run: idle time, exposed communication and memory of each."""

from __future__ import annotations

import numpy as np

from chimerac.interpreter.runtime.measured import MeasuredTimes

HEAD = ("rank", "bubble", "waits for values", "for sends", "for sums", "peak memory")


class RankSummary:
    """The mean figures of each rank over all iterations. The first iteration is slower, and left out if there are others."""

    def __init__(self) -> None:
        self._count = 0
        self._sums = np.zeros(0)
        self._last: MeasuredTimes | None = None

    def add(self, measured: MeasuredTimes) -> None:
        """Add one iteration."""
        figures = np.array([measured.bubbles, measured.value_waits_s, measured.send_waits_s, measured.sum_waits_s])
        self._count += 1
        self._sums = figures if self._count <= 2 else self._sums + figures
        self._last = measured

    def table(self) -> str:
        """Return the table as text: bubbles as shares, waits in milliseconds of an iteration, memory in megabytes."""
        if self._last is None:
            return ""
        means = (self._sums / max(1, self._count - 1)).T
        peaks = self._last.peak_memory_bytes
        rows = [
            (str(rank), f"{bubble:.3f}", *(f"{1000 * wait:.2f} ms" for wait in waits), f"{peak / 1e6:,.0f} MB")
            for rank, ((bubble, *waits), peak) in enumerate(zip(means.tolist(), peaks, strict=True))
        ]
        widths = [max(len(row[k]) for row in (HEAD, *rows)) for k in range(len(HEAD))]
        return "\n".join("   ".join(f"{cell:>{w}}" for cell, w in zip(row, widths, strict=True)) for row in (HEAD, *rows))
