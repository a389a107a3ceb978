"""Insertion of instructions into a program of tasks.

Transfers and gradient sync are planned independently on the program of tasks, and inserted together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chimerac.chimera_ir.program import Ints, Program, Table


@dataclass(frozen=True, slots=True)
class Insertion:
    """Instructions to insert: each on `rank`, before row `slot` of the program.

    If `slot` is where the stream of `rank` ends, the instruction comes at its end. In one slot, the instructions of a rank are
    ordered by `priority`, then by `tie`.
    """

    table: Table
    rank: Ints
    slot: Ints
    priority: Ints
    tie: Ints


def insert(program: Program, insertions: list[Insertion]) -> Program:
    """Return the program with the insertions between its rows."""
    rank, slot, priority, tie = (
        np.concatenate([getattr(i, name) for i in insertions]) for name in ("rank", "slot", "priority", "tie")
    )
    # A slot at the end of a stream is also the first row of the next one: the rank tells them apart.
    order = np.lexsort((tie, priority, rank, slot))
    inserted = Table.concatenate([i.table for i in insertions]).take(order)
    # Inserted instruction number i comes after i other inserted ones and all rows before its slot.
    place = slot[order] + np.arange(len(order))
    old = np.ones(len(program) + len(order), bool)
    old[place] = False

    def column(rows: Ints, new: Ints) -> Ints:
        result = np.empty(len(old), np.int64)
        result[old], result[place] = rows, new
        return result

    table = Table(*map(column, program.table.columns(), inserted.columns()))
    added = np.bincount(rank, minlength=program.world)
    offsets = program.offsets + np.concatenate([[0], np.cumsum(added)])
    return replace(program, table=table, offsets=offsets)
