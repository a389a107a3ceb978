"""program -> another program of its tasks, lowered again: arranged for a machine, or only its forwards."""

from __future__ import annotations

import numpy as np

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler.lower.lower import lower
from chimerac.compiler.lower.width import forwards_only, tasks_only
from chimerac.compiler.tasks import task_times


def arranged(program: Program, machine: Machine) -> Program | None:
    """Return the program that runs the same tasks in the same order, its transfers and sums arranged for a machine; it is
    not verified yet. None if its replicas run in different orders, or if its tasks wait for each other in a circle.

    program: right but for its machine. If all its sums come after the tasks of their rank, they stay there; else they
    are launched early. A value that FREE released is released after its last reader.
    """
    tasks = tasks_only(program)
    timing = task_times(tasks)
    if timing.stuck:
        return None
    rank, op = program.rank_of, program.table.op
    rows, sums = np.flatnonzero(program.table.is_task), np.flatnonzero(op == Op.ALLREDUCE)
    last = np.zeros(program.world, np.int64)
    np.maximum.at(last, rank[rows], rows)
    at_end = bool((sums > last[rank[sums]]).all())
    result = lower(tasks, timing, "at end" if at_end else "eager", program.header.width, machine, arrange=True)
    before, after = (np.column_stack(p.table.columns())[p.table.is_task] for p in (program, result))
    return result if np.array_equal(before, after) else None


def evaluation(program: Program) -> Program:
    """Return the program that runs only the forwards of a training program, in its order; it is not verified yet."""
    tasks, h = forwards_only(program), program.header
    return lower(tasks, task_times(tasks), "at end", h.width, h.machine, arrange=True)
