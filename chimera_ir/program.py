"""Programs: what every rank executes, one stream per global rank.

A stream can be read as a tuple of instruction values (`Program.stream`). All streams together are stored as one table of
columns, with a row for each instruction, rank after rank. So a pass over a program of a million instructions is a few numpy
calls.

The types of a program's header, costs and table can also be imported from this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from chimerac.chimera_ir.canonical import json_lines
from chimerac.chimera_ir.costs import Costs
from chimerac.chimera_ir.header import FORMAT, LIMITS, VERSION, Header, Pipe, Tied
from chimerac.chimera_ir.instructions import FORMS, Collective, Instruction, Op, Value
from chimerac.chimera_ir.machines import Machine
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.table import FLAGS, OVERLAP, RECOMPUTE, Ints, Mask, Table
from chimerac.chimera_ir.textline import instruction_text

__all__ = [
    "FORMAT",
    "LIMITS",
    "OVERLAP",
    "RECOMPUTE",
    "VERSION",
    "Costs",
    "Header",
    "Ints",
    "Machine",
    "Mask",
    "Pipe",
    "Program",
    "Table",
    "Tied",
]

_VALUES = [value.name for value in Value]


@dataclass(frozen=True)
class Program:
    """A header and the streams, with the assumed costs of tasks and transfers.

    Equality ignores the costs and the partition.

    Attributes:
        offsets: stream g is rows offsets[g] .. offsets[g + 1] - 1 of `table`.
        micro_batch_lists: the distinct tuples of micro-batch ids. For each micro-batch m of the header, entry m is (m,); the
            others follow.
        collectives: the distinct instructions with a field `ranks`.
        partition: the layers of each stage; None if the program does not name them.

    The column `operand` of the table is an index into `micro_batch_lists` or `collectives` (`Table`).
    """

    header: Header
    costs: Costs
    table: Table
    offsets: Ints
    micro_batch_lists: tuple[tuple[int, ...], ...]
    collectives: tuple[Collective, ...]
    partition: Partition | None = None

    def __len__(self) -> int:
        """Return the number of instructions of all ranks."""
        return len(self.table)

    @property
    def world(self) -> int:
        """Return the number of streams: width x ranks."""
        return len(self.offsets) - 1

    @cached_property
    def rank_of(self) -> Ints:
        """Return the global rank of every row."""
        return np.repeat(np.arange(self.world), np.diff(self.offsets))

    @cached_property
    def recomputed_stages(self) -> tuple[int, ...]:
        """Return the stages some of whose forwards have `recompute`, ascending; in an evaluation program it has no effect."""
        t = self.table
        return tuple(np.unique(t.stage[(t.op == Op.FWD) & (t.flags & RECOMPUTE > 0)]).tolist())

    @cached_property
    def pipe_names(self) -> tuple[str, ...]:
        """Return the names of the pipes, by their numbers."""
        return tuple(p.name for p in self.header.pipes)

    def instructions(self, rows: Iterable[int]) -> list[Instruction]:
        """Return the instructions at these rows as values."""
        numbers = np.fromiter(rows, np.int64)
        columns = zip(*(c[numbers].tolist() for c in self.table.columns()), strict=True)
        return [self._instruction(*row) for row in columns]

    def _instruction(self, op: int, value: int, pipe: int, stage: int, operand: int, peer: int, flags: int) -> Instruction:
        form = FORMS[op]
        if "ranks" in form.fields:
            return self.collectives[operand]
        values = {
            "value": _VALUES[value],
            "pipe": pipe,
            "stage": stage,
            "micro_batches": self.micro_batch_lists[operand],
            "peer": peer,
        }
        return cast(Instruction, form.cls(**{k: values[k] if k in values else bool(flags & FLAGS[k]) for k in form.fields}))

    def stream(self, rank: int) -> tuple[Instruction, ...]:
        """Return the instructions of one global rank, in order."""
        return tuple(self.instructions(range(self.offsets[rank], self.offsets[rank + 1])))

    def text(self, row: int) -> str:
        """Return the compact text of one instruction."""
        return instruction_text(self.instructions([row])[0], self.pipe_names)

    def place(self, row: int) -> str:
        """Return the place of a row as text for findings: its rank, its number in the stream and its text."""
        rank = int(self.rank_of[row])
        return f"rank {rank}, instruction {row - int(self.offsets[rank])}: {self.text(row)}"

    @cached_property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical JSON without costs and partition: equal exactly for equal programs.

        The ranks of a run compare it, to be sure that all have the same program.
        """
        return hashlib.sha256(self.json().encode()).hexdigest()

    def json(self, costs: Costs | None = None, partition: Partition | None = None) -> str:
        """Return the canonical JSON of this program with these costs and this partition.

        None leaves them out: the program's own are not taken.
        """
        parts = (self.table, self.offsets, self.micro_batch_lists, self.collectives)
        return "".join(json_lines(self.header, costs, partition, *parts))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def with_partition(self, partition: Partition | None) -> Program:
        """Return this program with another partition, or without one."""
        return replace(self, partition=partition)

    def with_header(self, **changes: Any) -> Program:
        """Return this program under a changed header."""
        return replace(self, header=replace(self.header, **changes))
