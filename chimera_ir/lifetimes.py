"""Lifetimes: what a rank holds besides weights, gradients and optimizer state, and from which instruction to which.

This is the rule of docs/semantics.md, "Buffers". The counts of activations and of receive buffers (a header's limits, the
report) and the bytes (`--memory`, the report) are sums over the columns of `Lifetimes`. The interpreter does not read these
columns. Tests measure that the interpreter holds exactly these bytes after each instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.boundary import Tensor, message_bytes
from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.machines import max_incomplete_sends
from chimerac.chimera_ir.model import StageSum
from chimerac.chimera_ir.program import RECOMPUTE, Ints, Program
from chimerac.chimera_ir.workspace import Run, all_bytes

Amounts = npt.NDArray[Any]  # int64, or Python integers if a sum may exceed them


class Kind(IntEnum):
    """What is held. The first six are activations, of one stage and one micro-batch. The others belong to values or tasks."""

    ALIVE = 0  # an activation as limits count it, without bytes: the next five kinds have them
    KEPT = 1  # what a BWD needs
    FOR_INPUT = 2  # what only the BWD_INPUT of a split backward needs: held until it ends
    FOR_BOTH = 3  # what both halves of a split backward need: held until the BWD_WEIGHT ends
    FOR_WEIGHT = 4  # what only the BWD_WEIGHT needs: held from the BWD_INPUT on
    FOR_WEIGHT_RECOMPUTED = 5  # all that the BWD_WEIGHT needs, if the BWD_INPUT runs the forward again
    RECEIVED = 6  # the buffer of a message
    OUTPUT = 7  # an output of a task, until its last consumer on this rank or its SEND
    SENT = 8  # a message, until its send is complete
    SENT_UNCOPIED = 9  # bytes to subtract at a SEND: a message of one tensor is the output itself, and SENT counts it again
    WORKSPACE = 10  # what a task needs only while it runs; its `count` is the Run of chimera_ir/workspace.py


# The kinds of an activation that have bytes.
ACTIVATIONS = (Kind.KEPT, Kind.FOR_INPUT, Kind.FOR_BOTH, Kind.FOR_WEIGHT, Kind.FOR_WEIGHT_RECOMPUTED)


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """What is held, as columns of equal length: each entry is held while rows `allocated` to `freed` run, both included.

    Attributes:
        stage: of an activation or a workspace; of a value, that of its consumer.
        count: the number of values of a message, the Run of a workspace, else 1.
        freed: the row after the stream's last for what is freed at the end of the iteration.
    """

    kind: Ints
    value: Ints
    stage: Ints
    count: Ints
    allocated: Ints
    freed: Ints

    @staticmethod
    def of(
        kind: Kind, stage: Ints, allocated: Ints, freed: Ints, value: Value = Value.act, count: Ints | None = None
    ) -> Lifetimes:
        """Return entries of one kind.

        Args:
            value: of all of them; not used for activations and workspaces.
            count: None for 1.
        """
        same = [np.full(len(allocated), x, np.int64) for x in (kind, value)]
        return Lifetimes(
            same[0], same[1], stage, np.ones(len(allocated), np.int64) if count is None else count, allocated, freed
        )

    @staticmethod
    def concatenate(lives: Sequence[Lifetimes]) -> Lifetimes:
        """Return the entries of all of these, one after another; there is at least one."""
        return Lifetimes(*(np.concatenate([getattr(x, f.name) for x in lives]) for f in fields(Lifetimes)))

    def take(self, entries: npt.NDArray[Any]) -> Lifetimes:
        """Return the entries selected by an index or a mask."""
        return Lifetimes(*(getattr(self, f.name)[entries] for f in fields(Lifetimes)))

    def is_of(self, *kinds: Kind) -> npt.NDArray[np.bool_]:
        """Return which entries are of these kinds."""
        return np.isin(self.kind, kinds)


def activations(program: Program) -> Lifetimes:
    """Return the activations of a verified program.

    What a FWD with recompute does not keep is held from its RECOMPUTE on. Without a RECOMPUTE, it is held from the backward
    that runs the forward again. In an evaluation program no FWD keeps anything.
    """
    h, t, by_key = program.header, program.table, _RowsByKey(program)
    rows, keys = by_key.entries(np.flatnonzero(t.op == Op.FWD))
    stage = t.stage[rows]
    if h.kind == "evaluation":
        return Lifetimes.of(Kind.ALIVE, stage, rows, rows)
    first, last = by_key.input_gradient[keys], by_key.weight_gradient[keys]
    recomputation = by_key.recomputation[keys]
    # recomputed: the backward itself runs the forward again. Otherwise the RECOMPUTE or, without one, the FWD makes what the
    # backward reads: `made` is the row of that task.
    recomputed, split = (t.flags[rows] & RECOMPUTE).astype(bool) & (recomputation < 0), first != last
    made = np.where(recomputation < 0, rows, recomputation)
    lives = [Lifetimes.of(Kind.ALIVE, stage, rows, last)]
    for kind, which, allocated, freed in (
        (Kind.KEPT, ~recomputed & ~split, made, first),
        (Kind.FOR_INPUT, ~recomputed & split, made, first),
        (Kind.FOR_BOTH, ~recomputed & split, made, last),
        (Kind.FOR_WEIGHT, ~recomputed & split, first, last),
        (Kind.FOR_WEIGHT_RECOMPUTED, recomputed & split, first, last),
    ):
        lives.append(Lifetimes.of(kind, stage[which], allocated[which], freed[which]))
    # A backward runs the forwards of a group again one micro-batch after the other, so each backward has one entry.
    for kind, which in ((Kind.KEPT, recomputed & ~split), (Kind.FOR_INPUT, recomputed & split)):
        backwards, _ = np.unique(first[which], return_index=True)  # without return_index numpy imports numpy.ma: 13 ms
        lives.append(Lifetimes.of(kind, t.stage[backwards], backwards, backwards))
    return Lifetimes.concatenate(lives)


def received(program: Program) -> Lifetimes:
    """Return the buffers of received messages: a whole message is held until its last value is freed."""
    by_key = _RowsByKey(program)
    return Lifetimes.concatenate([_buffers_of(program, by_key, value) for value in Value])


def values(program: Program) -> Lifetimes:
    """Return the values that tasks compute for other stages, and the messages that are sent."""
    t, by_key = program.table, _RowsByKey(program)
    sends, complete = _sends(program)
    lives = []
    for value in Value:
        producer = by_key.producer(value)
        sent = np.full(len(producer), -1, np.int64)
        of_value = t.value[sends] == value
        rows, keys = by_key.entries(sends[of_value])
        sent[keys] = rows
        keys = np.flatnonzero(producer >= 0)
        freed = np.where(sent[keys] >= 0, sent[keys], by_key.last_use(value)[keys])
        lives.append(Lifetimes.of(Kind.OUTPUT, by_key.stage(keys), producer[keys], freed, value))
        rows, count = sends[of_value], by_key.count(sends[of_value])
        lives.append(Lifetimes.of(Kind.SENT, t.stage[rows], rows, complete[of_value], value, count))
        lives.append(Lifetimes.of(Kind.SENT_UNCOPIED, t.stage[rows], rows, rows, value, count))
    return Lifetimes.concatenate(lives)


def workspaces(program: Program) -> Lifetimes:
    """Return what each task needs while it runs. A task over several micro-batches runs them one after the other."""
    h, t, by_key = program.header, program.table, _RowsByKey(program)
    run = np.full(len(program), -1, np.int64)
    run[t.op == Op.FWD] = Run.NO_GRAPH
    if h.kind == "training":
        split = by_key.input_gradient != by_key.weight_gradient
        kept = (t.flags & RECOMPUTE) == 0
        # for_full, for_split: the Run of a forward with a full backward, and of one with a split backward.
        for op, which, for_full, for_split in (
            (Op.FWD, kept, Run.FORWARD, Run.SPLIT_FORWARD),
            (Op.RECOMPUTE, True, Run.RECOMPUTE, Run.SPLIT_RECOMPUTE),
        ):
            rows, keys = by_key.entries(np.flatnonzero((t.op == op) & which))
            run[rows] = np.where(split[keys], for_split, for_full)
        for op, backward in ((Op.BWD, Run.BACKWARD), (Op.BWD_INPUT, Run.INPUT), (Op.BWD_WEIGHT, Run.WEIGHT)):
            run[t.op == op] = backward
        # A backward itself runs the forward again if the FWD keeps only its input, and no RECOMPUTE has run it.
        keys = np.flatnonzero((by_key.forward >= 0) & (by_key.recomputation < 0))
        recomputing = by_key.input_gradient[keys[~kept[by_key.forward[keys]]]]
        run[recomputing] = np.where(t.op[recomputing] == Op.BWD, Run.RECOMPUTED_BACKWARD, Run.RECOMPUTED_INPUT)
    rows = np.flatnonzero(run >= 0)
    return Lifetimes.of(Kind.WORKSPACE, t.stage[rows], rows, rows, count=run[rows])


def lifetimes(program: Program) -> Lifetimes:
    """Return all that the ranks of a verified program hold besides weights, gradients and optimizer state."""
    return Lifetimes.concatenate([activations(program), received(program), values(program), workspaces(program)])


def held(program: Program, lives: Lifetimes, amounts: Amounts) -> Amounts:
    """Return, for each row of the program, the sum of the amounts that its rank holds while the row runs.

    Args:
        amounts: one for each entry of `lives`.
    """
    ends = program.offsets[1:][program.rank_of[lives.allocated]]
    change = np.zeros(len(program) + 1, amounts.dtype)
    np.add.at(change, lives.allocated, amounts)
    np.subtract.at(change, np.minimum(lives.freed + 1, ends), amounts)
    return np.cumsum(change)[:-1]


def sizes(lives: Lifetimes, stages: Sequence[StageSum]) -> Amounts:
    """Return the bytes of each entry, as Python integers if their sum might exceed 64 bits."""
    table = np.stack([lives.kind, lives.value, lives.stage, lives.count])
    # The numbers of an entry are combined into one number. There are few combinations: the bytes of each are computed once.
    combined = table[0]
    for column in table[1:]:
        base = int(column.max(initial=0)) + 1
        combined = combined * base + column
    _, first, inverse = np.unique(combined, return_index=True, return_inverse=True)
    bytes_of_each = [_bytes(Kind(k), Value(v), s, n, stages) for k, v, s, n in table[:, first].T.tolist()]
    fits = max(map(abs, bytes_of_each), default=0) * max(1, len(inverse)) < 2**62
    return np.array(bytes_of_each, np.int64 if fits else object)[inverse]


def _bytes(kind: Kind, value: Value, stage: int, count: int, stages: Sequence[StageSum]) -> int:
    """Return the bytes of an entry with these numbers in its columns."""
    if kind in ACTIVATIONS:
        of = stages[stage]
        return int(activation_bytes(of.kept_bytes, of.split_kept_bytes, of.weight_kept_bytes)[kind])
    if kind == Kind.WORKSPACE:
        return stages[stage].workspace[count]
    return 0 if kind == Kind.ALIVE else value_bytes(kind, value, stages[boundary_of(value, stage)].boundary, count)


def activation_bytes(kept: Any, split_kept: Any, weight_kept: Any, least: Callable[[Any, Any], Any] = min) -> dict[Kind, Any]:
    """Return the bytes of an activation of each kind, from the bytes of its stage. Arrays need np.minimum as `least`.

    FOR_BOTH gets the smaller of the two amounts of a split backward. So the larger one counts while a BWD_INPUT runs.
    """
    both = least(split_kept, weight_kept)
    return {
        Kind.KEPT: kept,
        Kind.FOR_INPUT: split_kept - both,
        Kind.FOR_BOTH: both,
        Kind.FOR_WEIGHT: weight_kept - both,
        Kind.FOR_WEIGHT_RECOMPUTED: weight_kept,
    }


def boundary_of(value: Value, stage: int) -> int:
    """Return the stage whose output is this act, or has this grad as its gradient.

    Args:
        stage: the consumer's.
    """
    return stage - 1 if value == Value.act else stage


def value_bytes(kind: Kind, value: Value, boundary: Sequence[Tensor], count: int) -> int:
    """Return the bytes of an entry for `count` values with these tensors; a grad has only those with a gradient."""
    tensors = [t for t in boundary if t.gradient or value == Value.act]
    match kind:
        case Kind.OUTPUT:
            return all_bytes(tensors)
        case Kind.SENT_UNCOPIED:
            return -tensors[0].bytes if len(tensors) * count == 1 else 0
        case _:
            return message_bytes(tensors, count)


def _buffers_of(program: Program, by_key: _RowsByKey, value: Value) -> Lifetimes:
    """Return the buffers of the received messages with this kind of value."""
    t = program.table
    messages = np.flatnonzero((t.op == Op.RECV) & (t.value == value))
    rows, keys = by_key.entries(messages)
    freed = np.full(len(program), -1, np.int64)
    np.maximum.at(freed, rows, by_key.last_use(value)[keys])
    return Lifetimes.of(Kind.RECEIVED, t.stage[messages], messages, freed[messages], value, by_key.count(messages))


def _sends(program: Program) -> tuple[Ints, Ints]:
    """Return the rows of all SENDs, and for each the row at which it is known to be complete.

    That is the row of the SEND that waits for it, or the row after the stream's last if it is complete only in the epilogue.
    """
    h, t = program.header, program.table
    rows = np.flatnonzero(t.op == Op.SEND)
    rank = program.rank_of[rows]
    complete = program.offsets[1:][rank]
    window = max_incomplete_sends(h.machine, h.window)
    if window is not None:
        channel = rank * program.world + t.peer[rows]
        order = np.argsort(channel, kind="stable")
        later = order[window:]  # a SEND waits for the one that is `window` before it in its channel
        earlier = order[: len(later)]
        same = channel[earlier] == channel[later]
        complete[earlier[same]] = rows[later[same]]
    return rows, complete


class _RowsByKey:
    """The rows of a program's instructions, indexed by key; -1 for no row.

    The key is (replica x stages + stage) x micro-batches + micro-batch. A value has the key of its consumer.
    """

    def __init__(self, program: Program) -> None:
        self.program, t = program, program.table
        h = program.header
        self._sizes = np.array([len(ids) for ids in program.micro_batch_lists], np.int64)
        self._total = h.width * h.stages * h.micro_batches
        self.forward = self._rows(t.op == Op.FWD)
        self.input_gradient = self._rows((t.op == Op.BWD) | (t.op == Op.BWD_INPUT))
        self.weight_gradient = self._rows((t.op == Op.BWD) | (t.op == Op.BWD_WEIGHT))
        self.recomputation = self._rows(t.op == Op.RECOMPUTE)

    def count(self, rows: Ints) -> Ints:
        """Return the number of micro-batches of each row."""
        return self._sizes[self.program.table.operand[rows]]

    def entries(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return (row, key), one entry per micro-batch of these rows."""
        h, t = self.program.header, self.program.table
        operand = t.operand[rows]
        base = (self.program.rank_of[rows] // h.ranks * h.stages + t.stage[rows]) * h.micro_batches
        if not len(rows) or int(operand.max()) < h.micro_batches:  # no groups: list m is (m,)
            return rows, base + operand
        lists, count = self.program.micro_batch_lists, self.count(rows)
        ids = np.array([m for k in operand.tolist() for m in lists[k]], np.int64)
        return np.repeat(rows, count), np.repeat(base, count) + ids

    def stage(self, keys: Ints) -> Ints:
        """Return the stage of each key."""
        h = self.program.header
        return keys // h.micro_batches % h.stages

    def producer(self, value: Value) -> Ints:
        """Return, indexed by the consumer's key, the row of the task that produces each value."""
        by_producer, step = (self.forward, 1) if value == Value.act else (self.input_gradient, -1)
        h, result = self.program.header, np.full(self._total, -1, np.int64)
        producers = np.flatnonzero(by_producer >= 0)
        # The last stage produces no act, and the first no grad.
        producers = producers[self.stage(producers) != (h.stages - 1 if value == Value.act else 0)]
        result[producers + step * h.micro_batches] = by_producer[producers]
        return result

    def last_use(self, value: Value) -> Ints:
        """Return, indexed by the consumer's key, the row of each value's last use: its FREE, or the last task that uses it."""
        t = self.program.table
        consumers = self.weight_gradient if self.program.header.kind == "training" else self.forward
        free = self._rows((t.op == Op.FREE) & (t.value == value))
        return np.where(free >= 0, free, consumers if value == Value.act else self.input_gradient)

    def _rows(self, which: npt.NDArray[np.bool_]) -> Ints:
        """Return, indexed by key, the row that has this key among the rows that the mask selects."""
        rows, keys = self.entries(np.flatnonzero(which))
        row_of_key = np.full(self._total, -1, np.int64)
        row_of_key[keys] = rows
        return row_of_key
