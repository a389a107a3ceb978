"""Replicate a program over data-parallel replicas: rank r of replica w is global rank w x ranks + r.

And the way back, as far as evaluation needs it: the forwards of one replica.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chimera_ir.instructions import Op
from chimera_ir.program import Program, Table


def widen(program: Program, width: int) -> Program:
    """Return the program over `width` replicas; collectives span all of them, those of a single rank are dropped."""
    h = replace(program.header, width=width)
    collectives = tuple(
        replace(c, ranks=tuple(w * h.ranks + r for w in range(width) for r in c.ranks)) for c in program.collectives
    )
    kept = np.flatnonzero([len(c.ranks) > 1 for c in collectives])
    renumbered = np.full(len(collectives), -1, np.int64)
    renumbered[kept] = np.arange(len(kept))
    t = program.table
    collective = t.op == Op.ALLREDUCE
    keep = np.ones(len(t), bool)
    keep[collective] = renumbered[t.batch[collective]] >= 0
    batch = t.batch.copy()
    batch[collective] = renumbered[t.batch[collective]]
    one = replace(t, batch=batch)
    if not keep.all():
        one = one.take(keep)
    counts = np.bincount(program.rank_of[keep], minlength=program.world)
    transfer = (one.op == Op.SEND) | (one.op == Op.RECV)
    replicas = [replace(one, peer=np.where(transfer, one.peer + w * h.ranks, 0)) for w in range(width)]
    offsets = np.concatenate([[0], np.cumsum(np.tile(counts, width))])
    return replace(
        program,
        header=h,
        table=Table.concatenate(replicas),
        offsets=offsets,
        collectives=tuple(collectives[k] for k in kept),
    )


def forwards_only(program: Program) -> Program:
    """Return the forwards of the first replica as a program of tasks for evaluation: nothing is kept or synchronized."""
    forwards = np.flatnonzero(program.table.op == Op.FWD)
    forwards = forwards[program.rank_of[forwards] < program.header.ranks]
    table = program.table.take(forwards)
    offsets = np.searchsorted(program.rank_of[forwards], np.arange(program.header.ranks + 1))
    header = replace(program.header, width=1, kind="evaluation", limits={})
    return Program(header, replace(table, flags=np.zeros(len(table), np.int64)), offsets, program.batches, ())
