"""An index of a program for the checks: tasks and transfers by replica, stage and micro-batch instead of by row."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.program import Ints, Program

# The most findings of one kind that a check reports, the most ranks that E440 lists, and the most groups that E453 lists.
MAX_FOUND = 10

# Indices into ProgramIndex.tasks: the kind of work. A BWD makes both gradients.
FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT, RECOMPUTATION = 0, 1, 2, 3


class ProgramIndex:
    """A well-formed program, looked up by key.

    key = (replica x stages + stage) x micro-batches + micro-batch: one stage's work on one micro-batch. For a SEND, RECV or
    FREE the stage is the consumer's. Arrays by key hold rows, -1 where there is none; only `owner` holds ranks.
    """

    def __init__(self, program: Program):
        self.program = program
        self.header = program.header
        self.op = program.table.op
        self.rank = program.rank_of
        self.key_count = self.header.width * self.header.stages * self.header.micro_batches

    def entries(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return (row, key), one entry per micro-batch of these rows."""
        h, t = self.header, self.program.table
        operand = t.operand[rows]
        base = (self.rank[rows] // h.ranks * h.stages + t.stage[rows]) * h.micro_batches
        if not len(rows) or int(operand.max()) < h.micro_batches:
            # No row names a group of micro-batches. Lists 0, 1, ... are those of single micro-batches: list m is (m,)
            # (chimera_ir/streams.py).
            return rows, base + operand
        lists = self.program.micro_batch_lists
        count = np.array([len(lists[k]) for k in operand.tolist()], np.int64)
        ids = np.array([m for k in operand.tolist() for m in lists[k]], np.int64)
        return np.repeat(rows, count), np.repeat(base, count) + ids

    def rows(self, *ops: Op) -> Ints:
        """Return the rows of these operations, in ascending order."""
        selected = np.zeros(len(Op), bool)
        selected[list(ops)] = True
        return np.flatnonzero(selected[self.op])

    @cached_property
    def tasks(self) -> tuple[tuple[Ints, Ints], ...]:
        """Return the entries of forwards, input gradients, weight gradients and recomputations."""
        return (
            self.entries(self.rows(Op.FWD)),
            self.entries(self.rows(Op.BWD, Op.BWD_INPUT)),
            self.entries(self.rows(Op.BWD, Op.BWD_WEIGHT)),
            self.entries(self.rows(Op.RECOMPUTE)),
        )

    def by_key(self, entries: tuple[Ints, Ints]) -> Ints:
        """Return the row of each key, -1 if it has none, the last one if it has several.

        Args:
            entries: (row, key).
        """
        rows, keys = entries
        result = np.full(self.key_count, -1, np.int64)
        result[keys] = rows
        return result

    @cached_property
    def forward(self) -> Ints:
        return self.by_key(self.tasks[FORWARD])

    @cached_property
    def input_gradient(self) -> Ints:
        return self.by_key(self.tasks[INPUT_GRADIENT])

    @cached_property
    def weight_gradient(self) -> Ints:
        return self.by_key(self.tasks[WEIGHT_GRADIENT])

    @cached_property
    def recomputation(self) -> Ints:
        return self.by_key(self.tasks[RECOMPUTATION])

    @cached_property
    def value_instructions(self) -> dict[tuple[Op, Value], tuple[Ints, Ints]]:
        """Return the entries of the SENDs, RECVs and FREEs of activations and of gradients."""
        kind_of_value = self.program.table.value
        return {
            (op, value): self.entries(np.flatnonzero((self.op == op) & (kind_of_value == value)))
            for op in (Op.SEND, Op.RECV, Op.FREE)
            for value in Value
        }

    def reader(self, value: Value) -> Ints:
        """Return, indexed by key, the row that first reads a value of this kind."""
        return self.forward if value == Value.act else self.input_gradient

    @cached_property
    def owner(self) -> Ints:
        """Return, indexed by key, the global rank on which the pipe of the micro-batch places the stage."""
        h = self.header
        placement = np.array([p.placement for p in h.pipes], np.int64)  # [pipes, stages]
        pipe_of = np.zeros(h.micro_batches, np.int64)
        for p, pipe in enumerate(h.pipes):
            pipe_of[list(pipe.micro_batches)] = p
        local = placement[pipe_of].T.reshape(-1)  # [stages x micro-batches]
        return (np.arange(h.width)[:, None] * h.ranks + local).reshape(-1)

    def name(self, key: int) -> str:
        """Return the name of a key for messages."""
        h = self.header
        rest, m = divmod(int(key), h.micro_batches)
        replica, stage = divmod(rest, h.stages)
        pipe = next(p.name for p in h.pipes if m in p.micro_batches)
        return f"{pipe} s{stage} m{m}" + (f" of replica {replica}" if h.width > 1 else "")
