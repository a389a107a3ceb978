"""Repeats a program for all data-parallel replicas: rank r of replica w is global rank w x ranks + r.

`tasks_only` and `forwards_only` go from a program over replicas back to the tasks of one replica, or to its forwards.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program, Table


def widen(program: Program, width: int) -> Program:
    """Return the program over `width` replicas; collectives span all of them, and those of a single rank are removed.

    Args:
        program: of one replica.
    """
    h = replace(program.header, width=width)
    collectives = tuple(
        replace(c, ranks=tuple(w * h.ranks + r for w in range(width) for r in c.ranks)) for c in program.collectives
    )
    kept_collectives = np.flatnonzero([len(c.ranks) > 1 for c in collectives])
    renumbered = np.full(len(collectives), -1, np.int64)
    renumbered[kept_collectives] = np.arange(len(kept_collectives))
    t = program.table
    is_collective = t.has("ranks")
    is_kept = np.ones(len(t), bool)
    is_kept[is_collective] = renumbered[t.operand[is_collective]] >= 0
    operand = t.operand.copy()
    operand[is_collective] = renumbered[t.operand[is_collective]]
    replica = replace(t, operand=operand)
    if not is_kept.all():
        replica = replica.take(is_kept)
    counts = np.bincount(program.rank_of[is_kept], minlength=program.world)
    replicas = [replace(replica, peer=np.where(replica.has("peer"), replica.peer + w * h.ranks, 0)) for w in range(width)]
    offsets = np.concatenate([[0], np.cumsum(np.tile(counts, width))])
    return replace(
        program,
        header=h,
        table=Table.concatenate(replicas),
        offsets=offsets,
        collectives=tuple(collectives[k] for k in kept_collectives),
    )


def tasks_only(program: Program) -> Program:
    """Return the tasks of the first replica, without transfers and collectives."""
    rows = np.flatnonzero(program.table.is_task)
    rows = rows[program.rank_of[rows] < program.header.ranks]
    offsets = np.searchsorted(program.rank_of[rows], np.arange(program.header.ranks + 1))
    header = replace(program.header, width=1)
    return replace(program, header=header, table=program.table.take(rows), offsets=offsets, collectives=())


def forwards_only(program: Program) -> Program:
    """Return the forwards of the first replica as a program of tasks for evaluation.

    No forward recomputes or is in an overlapped pair, and there are no limits.
    """
    tasks = tasks_only(program)
    rows = np.flatnonzero(tasks.table.op == Op.FWD)
    table = tasks.table.take(rows)
    offsets = np.searchsorted(tasks.rank_of[rows], np.arange(tasks.world + 1))
    header = replace(tasks.header, kind="evaluation", limits={})
    return replace(tasks, header=header, table=replace(table, flags=np.zeros(len(table), np.int64)), offsets=offsets)
