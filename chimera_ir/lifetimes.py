"""Lifetimes: what a rank holds besides its weights and gradients, from which instruction to which.

The one place of the rule of docs/semantics.md, "Buffers". Counts (a header's limits, the report) and bytes (`--memory`, the
report) are sums over the same columns. The interpreter knows nothing of them, and holds just what they say: tests measure it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.boundary import Tensor, message_bytes
from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.machines import open_sends
from chimerac.chimera_ir.model import StageSum
from chimerac.chimera_ir.program import RECOMPUTE, Ints, Program

Amounts = npt.NDArray[Any]  # int64, or Python's integers where a sum may need more


class Kind(IntEnum):
    """What is held. Activations are of a stage's work on one micro-batch, the others of a value; all but ALIVE have bytes."""

    ALIVE = 0  # an activation, as limits count it
    KEPT = 1  # what a BWD needs
    FOR_INPUT = 2  # what only the BWD_INPUT of a split backward needs: held before it
    FOR_BOTH = 3  # as many bytes as are held before it and after it
    FOR_WEIGHT = 4  # what only the BWD_WEIGHT needs: held after it
    LEFT = 5  # all that the BWD_WEIGHT needs: where the BWD_INPUT runs the forward again
    RECEIVED = 6  # the buffer of a message
    MADE = 7  # a value where it was made, until its last reader on this rank or its SEND
    SENT = 8  # a message, until its send is complete
    AS_MADE = 9  # less than nothing: a message of a single tensor is that tensor, which the SEND must not count twice


ACTIVATIONS = (Kind.KEPT, Kind.FOR_INPUT, Kind.FOR_BOTH, Kind.FOR_WEIGHT, Kind.LEFT)


@dataclass(frozen=True, slots=True)
class Lives:
    """What is held, as columns of equal length: it is there while rows `born` to `freed` run, and gone after `freed`.

    value, stage: of what it is; a value's stage is its reader's. count: values of a message, else 1. freed: for what the
    epilogue frees, the row after the stream's last.
    """

    kind: Ints
    value: Ints
    stage: Ints
    count: Ints
    born: Ints
    freed: Ints

    @staticmethod
    def of(kind: Kind, stage: Ints, born: Ints, freed: Ints, value: Value = Value.act, count: Ints | None = None) -> Lives:
        """Return the columns of lives of one kind."""
        same = [np.full(len(born), x, np.int64) for x in (kind, value)]
        return Lives(same[0], same[1], stage, np.ones(len(born), np.int64) if count is None else count, born, freed)

    @staticmethod
    def concatenate(lives: Sequence[Lives]) -> Lives:
        return Lives(*(np.concatenate([getattr(x, f.name) for x in lives]) for f in fields(Lives)))

    def take(self, rows: npt.NDArray[Any]) -> Lives:
        """Return the lives selected by an index or a mask."""
        return Lives(*(getattr(self, f.name)[rows] for f in fields(Lives)))

    def is_of(self, *kinds: Kind) -> npt.NDArray[np.bool_]:
        """Return which lives are of these kinds."""
        return np.isin(self.kind, kinds)


def activations(program: Program) -> Lives:
    """Return the activations of a verified program. A FWD with recompute keeps nothing: its backward makes it anew."""
    h, t, at = program.header, program.table, _Places(program)
    rows, keys = at.entries(np.flatnonzero(t.op == Op.FWD))
    stage = t.stage[rows]
    if h.kind == "evaluation":
        return Lives.of(Kind.ALIVE, stage, rows, rows)
    first, last = at.input[keys], at.weight[keys]
    again, split = (t.flags[rows] & RECOMPUTE).astype(bool), first != last
    lives = [Lives.of(Kind.ALIVE, stage, rows, last)]
    for kind, which, born, freed in (
        (Kind.KEPT, ~again & ~split, rows, first),
        (Kind.FOR_INPUT, ~again & split, rows, first),
        (Kind.FOR_BOTH, ~again & split, rows, last),
        (Kind.FOR_WEIGHT, ~again & split, first, last),
        (Kind.LEFT, again & split, first, last),
    ):
        lives.append(Lives.of(kind, stage[which], born[which], freed[which]))
    # The forwards of a group are run again one micro-batch after the other.
    for kind, which in ((Kind.KEPT, again & ~split), (Kind.FOR_INPUT, again & split)):
        backwards = np.unique(first[which])
        lives.append(Lives.of(kind, t.stage[backwards], backwards, backwards))
    return Lives.concatenate(lives)


def received(program: Program) -> Lives:
    """Return the buffers of received messages: all of a message until the last of its values is given up."""
    at = _Places(program)
    return Lives.concatenate([_received(program, at, value) for value in Value])


def values(program: Program) -> Lives:
    """Return the values that a rank makes itself, and its sends."""
    t, at = program.table, _Places(program)
    sends, complete = _sends(program)
    lives = []
    for value in Value:
        made = at.made(value)  # by the reader's key
        sent = np.full(len(made), -1, np.int64)
        here = t.value[sends] == value
        rows, keys = at.entries(sends[here])
        sent[keys] = rows
        keys = np.flatnonzero(made >= 0)
        freed = np.where(sent[keys] >= 0, sent[keys], at.given_up(value)[keys])
        lives.append(Lives.of(Kind.MADE, at.stage(keys), made[keys], freed, value))
        rows, count = sends[here], at.count(sends[here])
        lives.append(Lives.of(Kind.SENT, t.stage[rows], rows, complete[here], value, count))
        lives.append(Lives.of(Kind.AS_MADE, t.stage[rows], rows, rows, value, count))
    return Lives.concatenate(lives)


def lifetimes(program: Program) -> Lives:
    """Return all that the ranks of a verified program hold besides weights and gradients."""
    return Lives.concatenate([activations(program), received(program), values(program)])


def held(program: Program, lives: Lives, amounts: Amounts) -> Amounts:
    """Return the sum of the amounts of what is held while each row of the program runs."""
    ends = program.offsets[1:][program.rank_of[lives.born]] if len(program) else lives.born
    change = np.zeros(len(program) + 1, amounts.dtype)
    np.add.at(change, lives.born, amounts)
    np.subtract.at(change, np.minimum(lives.freed + 1, ends), amounts)
    return np.cumsum(change)[:-1]


def sizes(lives: Lives, stages: Sequence[StageSum]) -> Amounts:
    """Return the bytes of each life; as Python's integers where their sum might not fit into 64 bits."""
    table = np.stack([lives.kind, lives.value, lives.stage, lives.count])
    # One number for each combination: there are few.
    combined, base = table[0], 1
    for column in table[1:]:
        base = int(column.max(initial=0)) + 1
        combined = combined * base + column
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    each = [_bytes(Kind(k), Value(v), s, n, stages) for k, v, s, n in table[:, first].T.tolist()]
    fits = max(map(abs, each), default=0) * max(1, len(inverse)) < 2**62
    return np.array(each, np.int64 if fits else object)[inverse]


def _bytes(kind: Kind, value: Value, stage: int, count: int, stages: Sequence[StageSum]) -> int:
    kept, left = stages[stage].split_kept_bytes, stages[stage].weight_kept_bytes
    match kind:
        case Kind.ALIVE:
            return 0
        case Kind.KEPT:
            return stages[stage].kept_bytes
        case Kind.FOR_INPUT:
            return kept - min(kept, left)
        case Kind.FOR_BOTH:
            return min(kept, left)
        case Kind.FOR_WEIGHT:
            return left - min(kept, left)
        case Kind.LEFT:
            return left
        case Kind.MADE:
            return stages[stage - 1].act_bytes if value == Value.act else stages[stage].grad_bytes
        case Kind.AS_MADE:
            tensors = _tensors(stages, value, stage)
            return -tensors[0].bytes if len(tensors) * count == 1 else 0
        case _:
            return message_bytes(_tensors(stages, value, stage), count)


def _tensors(stages: Sequence[StageSum], value: Value, stage: int) -> tuple[Tensor, ...]:
    """Return the tensors of a value; of a grad, those that carry one. stage: its reader's; an act comes from the one before."""
    if value == Value.act:
        return stages[stage - 1].boundary
    return tuple(t for t in stages[stage].boundary if t.gradient)


def _received(program: Program, at: _Places, value: Value) -> Lives:
    t = program.table
    messages = np.flatnonzero((t.op == Op.RECV) & (t.value == value))
    rows, keys = at.entries(messages)
    freed = np.full(len(program), -1, np.int64)
    np.maximum.at(freed, rows, at.given_up(value)[keys])
    return Lives.of(Kind.RECEIVED, t.stage[messages], messages, freed[messages], value, at.count(messages))


def _sends(program: Program) -> tuple[Ints, Ints]:
    """Return the rows of all SENDs, and by which row each is complete."""
    h, t = program.header, program.table
    rows = np.flatnonzero(t.op == Op.SEND)
    rank = program.rank_of[rows]
    complete = program.offsets[1:][rank]
    window = open_sends(h.machine, h.window)
    if window is not None:
        channel = rank * program.world + t.peer[rows]
        order = np.argsort(channel, kind="stable")
        ahead = order[window:]  # of two SENDs of one channel, the one that is so many later waits for the other
        order = order[: len(ahead)]
        same = channel[order] == channel[ahead]
        complete[order[same]] = rows[ahead[same]]
    return rows, complete


class _Places:
    """Rows by key = (replica x stages + stage) x micro-batches + id, -1 where there is none; for a value the reader's."""

    def __init__(self, program: Program) -> None:
        self.program, t = program, program.table
        h = program.header
        self._sizes = np.array([len(b) for b in program.batches], np.int64)
        self._total = h.width * h.stages * h.micro_batches
        self.forward = self._rows(t.op == Op.FWD)
        self.input = self._rows((t.op == Op.BWD) | (t.op == Op.BWD_INPUT))
        self.weight = self._rows((t.op == Op.BWD) | (t.op == Op.BWD_WEIGHT))

    def count(self, rows: Ints) -> Ints:
        """Return how many micro-batches each row is about."""
        return self._sizes[self.program.table.batch[rows]]

    def entries(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return (row, key), one entry per micro-batch of these rows."""
        h, t = self.program.header, self.program.table
        batch = t.batch[rows]
        base = (self.program.rank_of[rows] // h.ranks * h.stages + t.stage[rows]) * h.micro_batches
        if not len(rows) or int(batch.max()) < h.micro_batches:  # batch m is (m,) there (chimera_ir.program)
            return rows, base + batch
        members, count = self.program.batches, self.count(rows)
        ids = np.array([m for b in batch.tolist() for m in members[b]], np.int64)
        return np.repeat(rows, count), np.repeat(base, count) + ids

    def stage(self, keys: Ints) -> Ints:
        h = self.program.header
        return keys // h.micro_batches % h.stages

    def made(self, value: Value) -> Ints:
        """Return the task that makes each value."""
        by_maker, step = (self.forward, 1) if value == Value.act else (self.input, -1)
        h, result = self.program.header, np.full(self._total, -1, np.int64)
        makers = np.flatnonzero(by_maker >= 0)
        makers = makers[self.stage(makers) != (h.stages - 1 if value == Value.act else 0)]
        result[makers + step * h.micro_batches] = by_maker[makers]
        return result

    def given_up(self, value: Value) -> Ints:
        """Return the row after which each value is needed no more: its FREE, or the last task that reads it."""
        t = self.program.table
        readers = self.weight if self.program.header.kind == "training" else self.forward
        free = self._rows((t.op == Op.FREE) & (t.value == value))
        return np.where(free >= 0, free, readers if value == Value.act else self.input)

    def _rows(self, which: npt.NDArray[np.bool_]) -> Ints:
        rows, keys = self.entries(np.flatnonzero(which))
        where = np.full(self._total, -1, np.int64)
        where[keys] = rows
        return where
