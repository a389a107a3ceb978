"""Several timelines to one scale: a line per rank, in which each character stands for an equal part of the time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.instructions import FORMS
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.draw.timeline import background, paint

MAX_RANKS = 16  # the most ranks of a program that are drawn by default
COLUMNS = 100  # the characters of a line by default


def draw_overview(
    program: Program,
    timeline: Timeline,
    end: Fraction,
    longest: Fraction,
    columns: int | None = None,
    ranks: Sequence[int] | None = None,
    colour: bool = False,
) -> str:
    """Return the drawing of a timeline that ends at `end`, in units.

    A character is the letter of the kind of task that takes the most of its part of the time, or a dot if the rank is idle for
    longer than that.

    Args:
        longest: the time, in units, for which a line has `columns` characters, the name of the rank and the borders included.
        columns: default COLUMNS; a small number is raised, so that `longest` has at least 20 characters.
        ranks: those to draw, default the first MAX_RANKS.
        colour: with the background colours of timeline.py, and blanks in place of dots. The colour of a letter is that of the
            pipe whose tasks of this kind take the most of the character's part of the time.
    """
    shown = range(min(program.world, MAX_RANKS)) if ranks is None else ranks
    margin = len(f"rank {max(shown)} |")
    width = max(20, (COLUMNS if columns is None else columns) - margin - 1)
    used = max(1, round(width * end / longest)) if longest else 1
    step = end * timeline.scale / used if end else Fraction(1)
    lines = []
    for rank in shown:
        bars = timeline.take((timeline.rank == rank) & program.table.is_task[timeline.row] & (timeline.end > timeline.start))
        text = _line(program, bars, used, float(step), colour)
        lines.append(f"{f'rank {rank} |':>{margin}}{text}|")
    more = program.world - len(shown) if ranks is None else 0
    return "\n".join([*lines, *([f"... and {count_text(more, 'more rank')}"] if more else [])])


def _line(program: Program, bars: Timeline, used: int, step: float, colour: bool) -> str:
    """Return the characters of a rank.

    Args:
        used: their number.
        step: the time of each, in integers of the timeline.
    """
    # By pipe, Op of the task and character: the share of the character's time that these tasks take.
    by_pipe = np.zeros((len(program.header.pipes), len(FORMS), used))
    for row, start, end in zip(bars.row.tolist(), bars.start.tolist(), bars.end.tolist(), strict=True):
        shares = by_pipe[program.table.pipe[row], program.table.op[row]]
        first, last = min(int(start / step), used - 1), min(int(end / step), used - 1)
        for k in range(first, last + 1):
            shares[k] += max(0.0, min(end, (k + 1) * step) - max(start, k * step)) / step
    filled = by_pipe.sum(axis=0)
    idle = 1 - filled.sum(axis=0)
    best = filled.argmax(axis=0)
    text = "".join("." if idle[k] > filled[best[k], k] else FORMS[best[k]].letter for k in range(used))
    if not colour:
        return text
    pipes = by_pipe.argmax(axis=0)
    shades = (0 if text[k] == "." else background(int(pipes[best[k], k]), int(best[k])) for k in range(used))
    return paint(text.replace(".", " "), bytes(shades))
