"""program -> its tasks, lowered again: with transfers arranged for a machine, or the forwards alone."""

from __future__ import annotations

import numpy as np

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler.lower.lower import lower
from chimerac.compiler.lower.width import forwards_only, tasks_only
from chimerac.compiler.tasks import task_times


def arranged(program: Program, machine: Machine) -> Program | None:
    """Return a program of the same tasks in the same order, with its transfers and collectives arranged for a machine.

    The result is not verified. There are two reasons for None: the tasks wait for each other in a cycle, or the replicas do not
    have the same tasks in the same order. If all collectives of `program` come after the tasks of their ranks, those of the
    result do too; else they are launched as with `sync eager`. The result has no FREE.

    Args:
        program: correct, except that it may hang on this machine.
    """
    tasks = tasks_only(program)
    timing = task_times(tasks)
    if timing.stuck:
        return None
    at_end = launches_at_end(program)
    result = lower(tasks, timing, "at end" if at_end else "eager", program.header.width, machine, arrange=True)
    before, after = (np.column_stack(p.table.columns())[p.table.is_task] for p in (program, result))
    return result if np.array_equal(before, after) else None  # every replica of the result has the order of the first one


def launches_at_end(program: Program) -> bool:
    """Return whether all all-reduces come after the tasks of their ranks."""
    rank = program.rank_of
    tasks, all_reduces = np.flatnonzero(program.table.is_task), np.flatnonzero(program.table.op == Op.ALLREDUCE)
    last_task = np.full(program.world, -1, np.int64)  # by rank, the row of its last task
    np.maximum.at(last_task, rank[tasks], tasks)
    return bool((all_reduces > last_task[rank[all_reduces]]).all())


def evaluation(program: Program) -> Program:
    """Return the program of the forwards alone, in the order of the first replica. It is not verified yet.

    Args:
        program: of kind training.
    """
    tasks, h = forwards_only(program), program.header
    return lower(tasks, task_times(tasks), "at end", h.width, h.machine, arrange=True)
