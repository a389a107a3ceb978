"""What the ranks of a program would need under any partition: the peaks of compiler/analyze/memory.py as sums over stages.

At each instruction a rank holds a number of entries of each type (chimera_ir/lifetimes.py). Only the bytes of an entry depend
on the partition, not these numbers. So the peak of a rank is the largest of several sums, one for each instruction. Most
instructions can be left out: those at which the rank holds no more entries of any type than at another one (of SENT_UNCOPIED,
whose bytes are subtracted: no fewer). The instructions that are left are called moments.
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

# What equal entries have in common, as in Lifetimes: the kind, the value, the stage (of a value its consumer's) and the count.
EntryType = tuple[Kind, Value, int, int]
Where = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # ranges: the first layer of each, and the layer after its last


@dataclass(frozen=True, slots=True)
class Group:
    """Local ranks that hold the same stages.

    Attributes:
        moments: by moment and entry type, how many entries a rank holds.

    The moments are those of all ranks of the group, in all replicas.
    """

    stages: tuple[int, ...]
    ranks: tuple[int, ...]
    entry_types: tuple[EntryType, ...]
    moments: Floats


class Needs:
    """The bytes that the ranks of a program need, as sums over their stages, from tables of all ranges of layers.

    Args:
        state: the optimizer's.
    """

    def __init__(self, program: Program, model: ModelDescription, state: OptimizerState) -> None:
        self.program, self.model, self.state = program, model, state
        self.ranges = ranges_of(model)
        self.groups = tuple(_groups(program))
        self._by_cut: dict[tuple[Kind, Value, int], Floats] = {}

    def held(self, stage: int, where: Where, tied: bool) -> Floats:
        """Return the bytes of weights, gradients and optimizer state of a stage, by range.

        An evaluation program has weights only.

        Args:
            tied: count tied parameters too.
        """
        r = self.ranges
        weights, gradients = (r.weights, r.gradients) if tied else (r.untied_weights, r.untied_gradients)
        if self.program.header.kind != "training":
            return np.asarray(weights[where])
        return np.asarray(weights[where] + gradients[where] + self._state(gradients[where], stage))

    def moments(self, group: Group, stage: int, where: Where, values: bool = True, only: slice = slice(None)) -> Floats:
        """Return the bytes of the entries of a stage, by moment and range. Each entry of a rank belongs to one of its stages.

        Args:
            values: count the values and messages at the stage's boundaries. False: leave them out. If the model has peaks, the
                workspace then counts the output and the gradient of the input (`workspace_with_values` in ranges.py). With
                False a longer range never needs less.
            only: the moments to return.
        """
        begins, ends = where
        columns, tables = [], []
        for column, (kind, value, entry_stage, count) in enumerate(group.entry_types):
            if kind in ACTIVATIONS:
                if entry_stage == stage:
                    columns.append(column)
                    tables.append(self.ranges.activations[kind][where])
                continue
            if kind == Kind.WORKSPACE:
                if entry_stage == stage:
                    columns.append(column)
                    tables.append((self.ranges.workspace if values else self.ranges.workspace_with_values)[Run(count)][where])
                continue
            # An entry at a boundary belongs to the stage after it if the rank holds that stage, else to the stage before it.
            after = boundary_of(value, entry_stage) + 1
            if values and (after == stage or (after == stage + 1 and after not in group.stages)):
                columns.append(column)
                tables.append(self._values(kind, value, count)[begins if after == stage else ends])
        if not columns:
            return np.zeros((len(group.moments[only]), *np.shape(begins)))
        return np.asarray(np.tensordot(group.moments[only][:, columns], np.stack(tables), 1))

    def peaks(self, cuts: Sequence[int]) -> list[tuple[int, int]]:
        """Return, for each group, the most bytes that one of its ranks needs, and at which moment.

        Args:
            cuts: the first layer of each stage, and the number of layers.
        """
        found = []
        for group in self.groups:
            entry_bytes = np.array([self._entry_bytes(entry, cuts) for entry in group.entry_types], np.float64)
            totals = group.moments @ entry_bytes
            moment = int(totals.argmax())
            found.append((self._held_by(group, cuts) + int(totals[moment]), moment))
        return found

    def most(self, cuts: Sequence[int]) -> int:
        """Return the bytes of the rank that needs most."""
        return max(peak for peak, _ in self.peaks(cuts))

    def alone(self, stage: int, layer: int) -> int:
        """Return the bytes that a stage of this one layer needs, without the other stages of its rank.

        The ranks that hold the stage may belong to several groups, with different needs: the least is returned.
        """
        needs, where = [], (np.array(layer), np.array(layer + 1))
        for group in self.groups:
            if stage in group.stages:
                needs.append(int(self.held(stage, where, tied=True) + self.moments(group, stage, where).max()))
        return min(needs)

    def _held_by(self, group: Group, cuts: Sequence[int]) -> int:
        """Return the bytes of weights, gradients and optimizer state on a rank of a group."""
        total = sum(int(self.held(s, (np.array(cuts[s]), np.array(cuts[s + 1])), tied=True)) for s in group.stages)
        for tied in self.model.tied:  # one copy for all stages of the rank
            for s in [s for s in group.stages if any(cuts[s] <= k < cuts[s + 1] for k in tied.layers)][1:]:
                total -= tied.weight_bytes
                if self.program.header.kind == "training":
                    size = gradient_bytes(tied)
                    total -= size + int(self._state(np.array(size, np.float64), s))
        return total

    def _entry_bytes(self, entry: EntryType, cuts: Sequence[int]) -> float:
        """Return the bytes of one entry of this type."""
        kind, value, stage, count = entry
        if kind in ACTIVATIONS:
            return float(self.ranges.activations[kind][cuts[stage], cuts[stage + 1]])
        if kind == Kind.WORKSPACE:
            return float(self.ranges.workspace[Run(count)][cuts[stage], cuts[stage + 1]])
        return float(self._values(kind, value, count)[cuts[boundary_of(value, stage) + 1]])

    def _values(self, kind: Kind, value: Value, count: int) -> Floats:
        """Return, by cut, the bytes of an entry for the output of the layer before the cut, or for the gradient of this output.

        A cut is the first layer of a stage, or the number of layers. Before layer 0 there is no output: 0 bytes.
        """
        if (kind, value, count) not in self._by_cut:
            found = [0, *(value_bytes(kind, value, layer.boundary, count) for layer in self.model.layers)]
            self._by_cut[kind, value, count] = np.array(found, np.float64)
        return self._by_cut[kind, value, count]

    def _state(self, gradients: Floats, stage: int) -> Floats:
        """Return the bytes of optimizer state that a rank holds for gradients of a stage.

        Args:
            gradients: their bytes.
        """
        share = self.state.per_gradient / self.state.shares(len(self.program.header.holders([stage])))
        return np.ceil(gradients * share.numerator / share.denominator)


def _groups(program: Program) -> Iterator[Group]:
    """Yield the groups of ranks that hold the same stages, with what they hold."""
    h, lives = program.header, lifetimes(program)
    lives = lives.take(lives.kind != Kind.ALIVE)  # it only counts activations; their bytes are those of other kinds
    by_stages: dict[tuple[int, ...], list[int]] = {}
    for rank in range(h.ranks):
        by_stages.setdefault(tuple(stages_of(h, rank)), []).append(rank)
    lives = lives.take(np.argsort(lives.allocated, kind="stable"))  # so that those of a rank are together
    first = np.searchsorted(lives.allocated, program.offsets)  # by global rank: its first entry
    for stages, ranks in by_stages.items():
        global_ranks = [w * h.ranks + r for w in range(h.width) for r in ranks]
        own = [lives.take(np.arange(first[g], first[g + 1])) for g in global_ranks]
        columns = np.concatenate([np.stack([x.kind, x.value, x.stage, x.count]) for x in own], axis=1)
        _, representatives, type_of = np.unique(_numbers(columns), return_index=True, return_inverse=True)
        types = columns[:, representatives]
        parts = np.split(type_of, np.cumsum([len(x.kind) for x in own])[:-1])
        held = [_counts(program, *x, types.shape[1]) for x in zip(global_ranks, own, parts, strict=True)]
        entry_types = tuple((Kind(k), Value(v), s, n) for k, v, s, n in types.T.tolist())
        sign = np.where(types[0] == Kind.SENT_UNCOPIED, -1, 1)  # its bytes are subtracted
        counts = np.concatenate([np.zeros((1, len(entry_types))), *held])  # a rank without instructions holds nothing
        yield Group(stages, tuple(ranks), entry_types, _largest(counts, sign))


def _numbers(columns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a number for each column. Equal columns, and no others, have equal numbers."""
    found = columns[0]
    for row in columns[1:]:
        found = found * (int(row.max(initial=0)) + 1) + row
    return np.asarray(found)


def _counts(program: Program, rank: int, lives: Lifetimes, type_of: npt.NDArray[np.int64], types: int) -> Floats:
    """Return how many entries of each type a global rank holds, for each of its instructions.

    Args:
        lives: the rank's entries.
        type_of: the index of each entry's type.
        types: the number of types.
    """
    begin, end = program.offsets[rank : rank + 2].tolist()
    change = np.zeros((end - begin + 1, types))
    np.add.at(change, (lives.allocated - begin, type_of), 1)
    np.subtract.at(change, (np.minimum(lives.freed + 1, end) - begin, type_of), 1)
    return np.cumsum(change, axis=0)[:-1]


def _largest(counts: Floats, sign: npt.NDArray[np.int64]) -> Floats:
    """Return the rows of counts that may have the largest bytes.

    A row is left out if another one has as many entries or more of every type.

    Args:
        sign: -1 for a type whose bytes are subtracted, of which the other row must have as many or fewer; 1 for the others.
    """
    kept: list[Floats] = []
    # Larger sums come first. So no row has as many or more of every type than a row before it, unless the two are equal.
    left = counts[np.argsort(-(counts * sign).sum(axis=1), kind="stable")] * sign
    while len(left):
        kept.append(left[0])
        left = left[(left > left[0]).any(axis=1)]
    return np.array(kept) * sign
