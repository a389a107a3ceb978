"""What the ranks of a program would need under any partition: the peaks of compiler/analyze/memory.py as sums over stages.

At each instruction a rank holds a number of entries of each kind (chimera_ir/lifetimes.py). Only the bytes of an entry depend
on the partition, not these numbers. So the peak of a rank is the largest of several sums, one for each instruction. Most can be
left out: those with no more entries of any kind than another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.instructions import Value
from chimerac.chimera_ir.lifetimes import ACTIVATIONS, Kind, Lifetimes, boundary_of, lifetimes, value_bytes
from chimerac.chimera_ir.model import ModelDescription, gradient_bytes
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.workspace import Run
from chimerac.compiler.analyze.memory import OptimizerState, stages_of
from chimerac.compiler.plan.ranges import Floats, ranges_of

# A kind of entry: its kind, its value, the stage (of a value its consumer's), and its count as in Lifetimes.
Entry = tuple[Kind, Value, int, int]
Where = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # the first layers of ranges, and those after their last


@dataclass(frozen=True, slots=True)
class Group:
    """Local ranks that hold the same stages. moments: the number of entries, by moment of some of these ranks and by entry."""

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    entries: tuple[Entry, ...]
    moments: Floats


class Needs:
    """The bytes that ranks need, as sums over their stages, of tables of all ranges of layers."""

    def __init__(self, program: Program, model: ModelDescription, state: OptimizerState) -> None:
        self.program, self.model, self.state = program, model, state
        self.ranges = ranges_of(model)
        self.groups = tuple(_groups(program))
        self._by_cut: dict[tuple[Kind, Value, int], Floats] = {}

    def held(self, stage: int, where: Where, tied: bool) -> Floats:
        """Return the bytes of weights, gradients and optimizer state of a stage. tied: count tied parameters, too."""
        r = self.ranges
        weights, gradients = (r.weights, r.gradients) if tied else (r.untied_weights, r.untied_gradients)
        if self.program.header.kind != "training":
            return np.asarray(weights[where])
        return np.asarray(weights[where] + gradients[where] + self._state(gradients[where], stage))

    def moments(self, group: Group, stage: int, where: Where, values: bool = True, only: slice = slice(None)) -> Floats:
        """Return the bytes of the entries of a stage, by moment and range. All stages of the group together have every entry.

        values: with the values and messages at its boundaries. Without them, a longer range never needs less. only: of these
        moments.
        """
        begins, ends = where
        columns, tables = [], []
        for column, (kind, value, of, count) in enumerate(group.entries):
            if kind in ACTIVATIONS:
                if of == stage:
                    columns.append(column)
                    tables.append(self.ranges.activations[kind][where])
                continue
            if kind == Kind.WORKSPACE:
                if of == stage:
                    columns.append(column)
                    tables.append((self.ranges.workspace if values else self.ranges.least_workspace)[Run(count)][where])
                continue
            cut = boundary_of(value, of) + 1  # the first stage after the boundary
            if values and (cut == stage or (cut == stage + 1 and cut not in group.stages)):
                columns.append(column)
                tables.append(self._values(kind, value, count)[begins if cut == stage else ends])
        if not columns:
            return np.zeros((len(group.moments[only]), *np.shape(begins)))
        return np.asarray(np.tensordot(group.moments[only][:, columns], np.stack(tables), 1))

    def peaks(self, cuts: Sequence[int]) -> list[tuple[int, int]]:
        """Return, for each group, the most that one of its ranks needs, and at which moment.

        cuts: the first layer of each stage, and the number of layers.
        """
        found = []
        for group in self.groups:
            columns = np.array([self._entry_bytes(entry, cuts) for entry in group.entries], np.float64)
            totals = group.moments @ columns
            moment = int(totals.argmax())
            found.append((self._held_by(group, cuts) + int(totals[moment]), moment))
        return found

    def most(self, cuts: Sequence[int]) -> int:
        """Return the bytes of the rank that needs most."""
        return max(peak for peak, _ in self.peaks(cuts))

    def alone(self, stage: int, layer: int) -> int:
        """Return the least bytes of a rank that holds a stage of this layer only, without its other stages."""
        needs, where = [], (np.array(layer), np.array(layer + 1))
        for group in self.groups:
            if stage in group.stages:
                needs.append(int(self.held(stage, where, tied=True) + self.moments(group, stage, where).max()))
        return min(needs)

    def _held_by(self, group: Group, cuts: Sequence[int]) -> int:
        """Return the bytes of weights, gradients and optimizer state on a rank of a group."""
        total = sum(int(self.held(s, (np.array(cuts[s]), np.array(cuts[s + 1])), tied=True)) for s in group.stages)
        training = self.program.header.kind == "training"
        for tied in self.model.tied:  # one copy for all stages of the rank
            for s in [s for s in group.stages if any(cuts[s] <= k < cuts[s + 1] for k in tied.layers)][1:]:
                size = gradient_bytes(tied)
                total -= tied.weight_bytes + training * (size + int(self._state(np.array(size, np.float64), s)))
        return total

    def _entry_bytes(self, entry: Entry, cuts: Sequence[int]) -> float:
        kind, value, stage, count = entry
        if kind in ACTIVATIONS:
            return float(self.ranges.activations[kind][cuts[stage], cuts[stage + 1]])
        if kind == Kind.WORKSPACE:
            return float(self.ranges.workspace[Run(count)][cuts[stage], cuts[stage + 1]])
        return float(self._values(kind, value, count)[cuts[boundary_of(value, stage) + 1]])

    def _values(self, kind: Kind, value: Value, count: int) -> Floats:
        """Return the bytes of an entry for each cut: the tensors are the output of the layer before it."""
        if (kind, value, count) not in self._by_cut:
            found = [0, *(value_bytes(kind, value, k.boundary, count) for k in self.model.layers)]
            self._by_cut[kind, value, count] = np.array(found, np.float64)
        return self._by_cut[kind, value, count]

    def _state(self, gradients: Floats, stage: int) -> Floats:
        share = self.state.per_gradient / self.state.shares(len(self.program.header.holders([stage])))
        return np.ceil(gradients * share.numerator / share.denominator)


def _groups(program: Program) -> Iterator[Group]:
    """Yield the groups of ranks that hold the same stages, with what they hold."""
    h, lives = program.header, lifetimes(program)
    lives = lives.take(lives.kind != Kind.ALIVE)
    by_stages: dict[tuple[int, ...], list[int]] = {}
    for rank in range(h.ranks):
        by_stages.setdefault(tuple(stages_of(h, rank)), []).append(rank)
    lives = lives.take(np.argsort(lives.allocated, kind="stable"))  # so that those of a rank are together
    first = np.searchsorted(lives.allocated, program.offsets)
    for stages, ranks in by_stages.items():
        streams = [w * h.ranks + r for w in range(h.width) for r in ranks]
        own = [lives.take(np.arange(first[g], first[g + 1])) for g in streams]
        columns = np.concatenate([np.stack([x.kind, x.value, x.stage, x.count]) for x in own], axis=1)
        _, representatives, entry_of = np.unique(_numbers(columns), return_index=True, return_inverse=True)
        entries = columns[:, representatives]
        parts = np.split(entry_of, np.cumsum([len(x.kind) for x in own])[:-1])
        held = [_moments(program, *x, entries.shape[1]) for x in zip(streams, own, parts, strict=True)]
        kinds = tuple((Kind(k), Value(v), s, n) for k, v, s, n in entries.T.tolist())
        sign = np.where(entries[0] == Kind.SENT_UNCOPIED, -1, 1)  # bytes to subtract
        rows = np.concatenate([np.zeros((1, len(kinds))), *held])
        yield Group(stages, tuple(ranks), kinds, _largest(rows, sign))


def _numbers(columns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a number for each column, equal for equal columns."""
    found = columns[0]
    for row in columns[1:]:
        found = found * (int(row.max(initial=0)) + 1) + row
    return np.asarray(found)


def _moments(program: Program, rank: int, lives: Lifetimes, which: npt.NDArray[np.int64], entries: int) -> Floats:
    """Return the numbers of entries that a rank holds, for each of its instructions. which: the column of each entry."""
    begin, end = program.offsets[rank : rank + 2].tolist()
    change = np.zeros((end - begin + 1, entries))
    np.add.at(change, (lives.allocated - begin, which), 1)
    np.subtract.at(change, (np.minimum(lives.freed + 1, end) - begin, which), 1)
    return np.cumsum(change, axis=0)[:-1]


def _largest(rows: Floats, sign: npt.NDArray[np.int64]) -> Floats:
    """Return the rows that are not at most as large as another one in every column, each once."""
    kept: list[Floats] = []
    left = rows[np.argsort(-(rows * sign).sum(axis=1), kind="stable")] * sign
    while len(left):
        kept.append(left[0])
        left = left[(left > left[0]).any(axis=1)]
    return np.array(kept) * sign
