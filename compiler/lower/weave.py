"""Weave new instructions into a program of tasks.

Transfers and gradient sync are both planned on the program of tasks, each for itself, and woven in together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chimera_ir.program import Ints, Program, Table


@dataclass(frozen=True, slots=True)
class Insertion:
    """Instructions to insert, one entry each: on `rank`, before row `slot` of the program; in one slot the lower
    `priority` first, then the lower `tie`."""

    table: Table
    rank: Ints
    slot: Ints
    priority: Ints
    tie: Ints


def weave(program: Program, insertions: list[Insertion]) -> Program:
    """Return the program with the insertions between its rows."""
    # A slot at the end of a stream is also the first row of the next one: the rank tells them apart.
    rank = np.concatenate([program.rank_of, *(i.rank for i in insertions)])
    slot = np.concatenate([np.arange(len(program)), *(i.slot for i in insertions)])
    tie = np.concatenate([np.zeros(len(program), np.int64), *(i.tie for i in insertions)])
    last = max((int(i.priority.max(initial=0)) for i in insertions), default=0) + 1
    priority = np.concatenate([np.full(len(program), last), *(i.priority for i in insertions)])
    inserted = Table.concatenate([i.table for i in insertions])
    order = np.lexsort((tie, priority, slot, rank))
    table = Table.concatenate([program.table, inserted]).take(order)
    offsets = np.searchsorted(rank[order], np.arange(program.world + 1))
    return replace(program, table=table, offsets=offsets)
