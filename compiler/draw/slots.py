"""A drawing in which idle time can be counted: equal slots, a number in each idle one.

rank 0 |  F0  F1 [1]  B0 [2]  B1 |  2 idle
rank 1 | [1]  F0  B0  F1  B1 [2] |  2 idle
"""

from __future__ import annotations

import numpy as np

from chimerac.chimera_ir.instructions import FORMS
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.draw.timeline import ids_text


def draw_slots(program: Program, timeline: Timeline) -> str:
    """Return a row for each rank, with a slot for each unit of time. The idle slots are numbered.

    Raises ValueError unless every task takes one unit. In the timeline a unit must be the integer 1.
    """
    bars = timeline.take(program.table.is_task[timeline.row])
    if (bars.end - bars.start != 1).any():
        raise ValueError("slots can be drawn only if every task takes one unit")
    slots = int(bars.end.max(initial=0))
    rows: list[list[str]] = []
    for rank in range(program.world):
        own = bars.take(bars.rank == rank)
        tasks = dict(zip(own.start.tolist(), own.row.tolist(), strict=True))
        idle = iter(range(1, slots + 1))
        rows.append([_task(program, tasks[k]) if k in tasks else f"[{next(idle)}]" for k in range(slots)])
    width = max((len(cell) for row in rows for cell in row), default=0)
    margin = len(f"rank {program.world - 1}")
    lines = []
    for rank, row in enumerate(rows):
        cells = " ".join(f"{cell:>{width}}" for cell in row)
        lines.append(f"{f'rank {rank}':<{margin}} | {cells} |  {sum(cell.startswith('[') for cell in row)} idle")
    return "\n".join(lines) + "\n"


def idle_slots(timeline: Timeline, program: Program) -> tuple[int, ...]:
    """Return for each rank how many units of time it runs no task, up to the last end of a task of any rank.

    In the timeline a unit must be the integer 1.
    """
    bars = timeline.take(program.table.is_task[timeline.row])
    busy = np.zeros(program.world, np.int64)
    np.add.at(busy, bars.rank, bars.end - bars.start)
    return tuple((int(bars.end.max(initial=0)) - busy).tolist())


def _task(program: Program, row: int) -> str:
    t = program.table
    return f"{FORMS[t.op[row]].letter}{ids_text(program.micro_batch_lists[int(t.operand[row])])}"
