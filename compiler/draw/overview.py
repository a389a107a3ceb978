"""Timelines of several programs to one scale: a line of characters per rank, each for an equal part of the time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from chimerac.chimera_ir.instructions import FORMS
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline

MAX_RANKS = 16  # of a program that are drawn
COLUMNS = 100  # characters of a line


def draw_overview(
    program: Program,
    timeline: Timeline,
    end: Fraction,
    longest: Fraction,
    columns: int | None = None,
    ranks: Sequence[int] | None = None,
) -> str:
    """Return the drawing of a timeline that ends at `end`, in units.

    A character is the letter of the task that takes most of its part of the time, or a dot where the rank is idle for most of
    it. longest: the time, in units, for which a line has `columns` characters, the name of the rank and the borders included.
    columns: default COLUMNS. ranks: those to draw, default the first MAX_RANKS.
    """
    shown = range(min(program.world, MAX_RANKS)) if ranks is None else ranks
    margin = len(f"rank {max(shown)} |")
    width = max(20, (COLUMNS if columns is None else columns) - margin - 1)
    used = max(1, round(width * end / longest)) if longest else 1
    step = end * timeline.scale / used if end else Fraction(1)
    lines = []
    for rank in shown:
        bars = timeline.take((timeline.rank == rank) & program.table.is_task[timeline.row] & (timeline.end > timeline.start))
        text = _line(program, bars, used, float(step))
        lines.append(f"{f'rank {rank} |':>{margin}}{text}|")
    more = program.world - len(shown) if ranks is None else 0
    return "\n".join([*lines, *([f"... and {more} more ranks"] if more else [])])


def _line(program: Program, bars: Timeline, used: int, step: float) -> str:
    """Return the characters of a rank. used: their number; step: the time of each, in integers of the timeline."""
    filled = np.zeros((len(FORMS), used))
    for row, start, end in zip(bars.row.tolist(), bars.start.tolist(), bars.end.tolist(), strict=True):
        op = int(program.table.op[row])
        first, last = min(int(start / step), used - 1), min(int(end / step), used - 1)
        for k in range(first, last + 1):
            filled[op, k] += max(0.0, min(end, (k + 1) * step) - max(start, k * step)) / step
    idle = 1 - filled.sum(axis=0)
    best = filled.argmax(axis=0)
    return "".join("." if idle[k] > filled[best[k], k] else FORMS[best[k]].letter or "." for k in range(used))
