"""The table of a program: its instructions as columns, one row each, rank after rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.instructions import FIELDS, FORMS, Task

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

# Bits of the column `flags`.
RECOMPUTE = 1
OVERLAP = 2
FLAGS = {"recompute": RECOMPUTE, "overlap": OVERLAP}  # by the field that each bit stores

# By op: whether it is a task; and for each field, whether the instructions of this op have it.
_IS_TASK: Mask = np.array([issubclass(form.cls, Task) for form in FORMS])
_HAS: dict[str, Mask] = {name: np.array([name in form.fields for form in FORMS]) for name in FIELDS}


@dataclass(frozen=True, slots=True)
class Table:
    """Instructions as columns of equal length (int64).

    Attributes:
        operand: an index into `Program.micro_batch_lists` (program.py); of an instruction with `ranks`, into
            `Program.collectives`.

    A column without a meaning for an operation is 0.
    """

    op: Ints
    value: Ints
    pipe: Ints
    stage: Ints
    operand: Ints
    peer: Ints
    flags: Ints

    @staticmethod
    def of(op: Ints, **columns: Ints) -> Table:
        """Return a table with these columns, the others 0."""
        zero = np.zeros(len(op), np.int64)
        return Table(op, *(columns.get(f.name, zero) for f in fields(Table)[1:]))

    def __len__(self) -> int:
        return len(self.op)

    @property
    def is_task(self) -> Mask:
        """Return which rows are tasks."""
        return _IS_TASK[self.op]

    def has(self, field: str) -> Mask:
        """Return which rows are instructions with this field, one of `instructions.FIELDS`."""
        return _HAS[field][self.op]

    def columns(self) -> list[Ints]:
        """Return the columns, in the order of the fields."""
        return [self.op, self.value, self.pipe, self.stage, self.operand, self.peer, self.flags]

    def take(self, rows: npt.NDArray[Any]) -> Table:
        """Return the rows selected by an index or a mask."""
        return Table(*(c[rows] for c in self.columns()))

    @staticmethod
    def concatenate(tables: Sequence[Table]) -> Table:
        """Return the rows of these tables, one table after another; there is at least one."""
        return Table(*(np.concatenate(c) for c in zip(*(t.columns() for t in tables), strict=True)))
