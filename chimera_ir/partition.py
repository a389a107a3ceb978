"""Partitions: the layers of each stage of a model, and the balanced partition.

A program may carry its partition. Its JSON form gives, for each stage, the first layer and the one after the last:

    {"model": "gpt-nano", "stages": [[0, 2], [2, 4]]}

A file that holds only a partition has the fields `"format": "chimera-partition", "version": 1` before these.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import accumulate, pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, FailFast, Field, TypeAdapter

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import STRICT
from chimerac.chimera_ir.json_checks import Kind
from chimerac.chimera_ir.model import MAX_LAYERS, LayerId, LayerName, ModelDescription
from chimerac.chimera_ir.reading import VersionOne, read_json

FORMAT = "chimera-partition"
VERSION = 1

IntArray = NDArray[np.int64]
LayerEnd = Annotated[int, Field(ge=1, le=MAX_LAYERS)]


@dataclass(frozen=True, slots=True)
class Partition:
    """The layers of each stage of a model.

    Attributes:
        model: the model's name.
        stages: for each stage its first layer and the one after its last. There is at least one stage. The stages have the
            layers from 0 on, in order, and each has at least one.

    Raises ValueError otherwise.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    model: LayerName
    stages: Annotated[tuple[tuple[LayerId, LayerEnd], ...], Field(min_length=1, max_length=MAX_LAYERS), FailFast()]

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("a partition has at least one stage")
        begin = 0
        for s, (first, end) in enumerate(self.stages):
            if first != begin:
                previous = f"stage {s - 1} ends with layer {begin - 1}" if s else "the first layer of a model is layer 0"
                raise ValueError(f"stage {s} begins with layer {first}, and {previous}")
            if end <= first:
                raise ValueError(f"stage {s} has no layer: it begins with layer {first} and ends before layer {end}")
            begin = end

    @property
    def layers(self) -> tuple[range, ...]:
        """Return the layers of each stage."""
        return tuple(range(first, end) for first, end in self.stages)

    @property
    def cuts(self) -> list[int]:
        """Return the first layer of each stage, and the number of layers."""
        return [0, *(end for _, end in self.stages)]

    @staticmethod
    def of_cuts(model: str, cuts: Sequence[int]) -> Partition:
        """Return the partition with these cuts, as `cuts` returns them."""
        return Partition(model, tuple(pairwise(cuts)))

    def stage_of(self, layer: int) -> int:
        """Return the stage that has this layer."""
        return bisect_right(self.stages, layer, key=lambda stage: stage[0]) - 1

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form as a value.

        Raises ChimeraError E707 if it cannot be read back, as for a model whose name has 200 characters.
        """
        value = asdict(self)
        read_json(_adapter(), _KIND, json.dumps({**_HEAD, **value}), "the partition")
        return value


@dataclass(frozen=True, kw_only=True)
class PartitionFile(Partition):
    """A partition as a JSON file."""

    format: Literal["chimera-partition"]
    version: VersionOne


_HEAD = {"format": FORMAT, "version": VERSION}
_KIND = Kind(
    "chimera partition",
    FORMAT,
    VERSION,
    ("E707", "E707", "E707"),
    "write one with: chimerac partition SCHEDULE --model NAME -o partition.json",
)


@cache
def _adapter() -> TypeAdapter[PartitionFile]:
    return TypeAdapter(PartitionFile)


def partition_to_json(partition: Partition) -> str:
    """Return the JSON text of a partition's file. Raises ChimeraError E707 if it cannot be read back."""
    return json.dumps({**_HEAD, **partition.to_json()}) + "\n"


def partition_from_json(text: str, name: str = "<json>") -> Partition:
    """Return the partition that a JSON text holds.

    Args:
        name: of the text in messages.

    Raises ChimeraError E707.
    """
    if len(text) > limits.HEADER:
        raise refuse("E707", f"{name} has {len(text)} characters; a partition may have at most {limits.HEADER}")
    file = read_json(_adapter(), _KIND, text, name)
    return Partition(file.model, file.stages)


def split_by_counts(model: str, layers: int, counts: Sequence[int], stages: int) -> Partition:
    """Return the partition whose stages have these numbers of layers.

    Raises ChimeraError: E705 more stages than layers, E708 numbers that do not fit the stages or the layers.
    """
    check_layers(model, layers, stages)
    given = ",".join(map(str, counts))
    if len(counts) != stages:
        fact = f"split {given} is for {count_text(len(counts), 'stage')}, and the program has {stages}"
    elif min(counts) < 1:
        fact = f"split {given} gives stage {list(counts).index(min(counts))} no layer"
    elif sum(counts) != layers:
        fact = f"split {given} has {count_text(sum(counts), 'layer')}, and {model} has {layers}"
    else:
        return Partition.of_cuts(model, [0, *accumulate(counts)])
    raise refuse("E708", fact, help=f"give the number of layers of each of the {count_text(stages, 'stage')}, {layers} in all")


def balanced(description: ModelDescription, stages: int, costs: Sequence[int] | None = None) -> Partition:
    """Return the balanced partition of a model into this number of stages. `cut` defines what is balanced.

    Args:
        costs: one for each layer; None for those of the description.

    Raises ChimeraError E705 for more stages than layers.
    """
    check_layers(description.name, len(description.layers), stages)
    ranges = cut([layer.cost for layer in description.layers] if costs is None else costs, stages)
    return Partition(description.name, tuple((ids.start, ids.stop) for ids in ranges))


def check_layers(model: str, layers: int, stages: int, deeper: str = "a deeper model") -> None:
    """Raise ChimeraError E705 unless a model has a layer for each stage.

    Args:
        deeper: words for a model with more layers.
    """
    if stages > layers:
        raise refuse(
            "E705",
            f"{count_text(stages, 'stage')} cannot be cut from the {count_text(layers, 'layer')} of {model}",
            notes=("a stage has at least one layer",),
            help=f"take fewer stages or {deeper}",
        )


def partition_for(given: Partition | None, description: ModelDescription, stages: int) -> Partition:
    """Return the given partition, or the balanced one for None.

    Raises ChimeraError: E705 for more stages than layers, E706 for a partition of another model or into another number of
    stages.
    """
    if given is None:
        return balanced(description, stages)
    check_fits(given, description.name, len(description.layers), stages)
    return given


def check_fits(given: Partition, model: str, layers: int, stages: int) -> None:
    """Raise ChimeraError E706 unless a partition is for the model of this name, with these numbers of layers and of stages."""
    covered = given.cuts[-1]
    if (given.model, covered) != (model, layers):
        raise refuse(
            "E706",
            f"the partition is for {given.model} with {count_text(covered, 'layer')}, and the model is {model} with {layers}",
            help="take that model, or make a partition for this one: chimerac partition SCHEDULE --model NAME",
        )
    if len(given.stages) != stages:
        raise refuse(
            "E706",
            f"the partition has {count_text(len(given.stages), 'stage')}, and the program has {stages}",
            help="make a partition for this program: chimerac partition SCHEDULE --model NAME",
        )


def cut(costs: Sequence[int], stages: int) -> tuple[range, ...]:
    """Return the cut of these costs into `stages` contiguous, non-empty ranges; 1 <= stages <= len(costs), no cost is negative.

    The largest sum of a range is the least possible. Of the cuts with that largest sum, this one has the least sum of
    squared sums. Of those with equal squares it is the one with the longest last range, then the longest range before it, and
    so on. The squares are of rounded costs if the costs add up to more than 2**30.

    A binary search finds the least possible largest sum. A dynamic program over the number of ranges finds the least sum of
    squares. Squares of sums satisfy the quadrangle inequality: the best position of a cut never decreases as the end increases.
    So for L costs the round for one number of ranges takes L log L operations (F. F. Yao, STOC 1980).
    """
    last = len(costs)
    sums = [0, *accumulate(costs)]
    bound = _least_bound(sums, stages)
    lowest = np.array([bisect_left(sums, end - bound) for end in sums])  # for each end of a range: its least begin
    # Scaled so that the sum of squares stays exact in 64 bits.
    scaled = [c * 2**30 // sums[-1] for c in costs] if sums[-1] > 2**30 else costs
    ends, scaled_sums = [0], np.array([0, *accumulate(scaled)], np.int64)
    for n in range(1, stages):  # the furthest end of n ranges, with a layer left for each later one
        ends.append(min(bisect_right(sums, sums[ends[-1]] + bound) - 1, last - stages + n))
    ends.append(last)
    # After round n: the least sum of squares of n ranges that end at i, for each i from n to ends[n]; after the last round
    # only for i = last.
    squares, choices = np.zeros(1, np.int64), []
    for n in range(1, stages + 1):
        rows = np.arange(n if n < stages else last, ends[n] + 1)  # the last range ends only at `last`
        low = np.maximum(lowest[rows], n - 1)
        high = np.minimum(rows - 1, ends[n - 1])
        squares, choice = _row_minima(squares, scaled_sums, rows, low, high, n - 1)
        choices.append(choice)
    edges = [last]
    for n in range(stages, 0, -1):
        edges.append(int(choices[n - 1][edges[-1] - (n if n < stages else last)]))
    return tuple(range(a, b) for a, b in pairwise(reversed(edges)))


def _least_bound(sums: Sequence[int], stages: int) -> int:
    """Return the least possible largest sum of a range, for `stages` ranges. sums[i]: the sum of the first i costs."""

    def fits(bound: int) -> bool:
        """Return whether `stages` ranges, each with a sum of at most `bound`, can cover all costs."""
        end = 0
        for _ in range(stages):
            end = bisect_right(sums, sums[end] + bound) - 1
        return end == len(sums) - 1

    largest = max(b - a for a, b in pairwise(sums))
    return largest + bisect_left(range(largest, sums[-1]), True, key=fits)  # the sum of all costs always fits


def _row_minima(
    before: IntArray, sums: IntArray, rows: IntArray, low: IntArray, high: IntArray, offset: int
) -> tuple[IntArray, IntArray]:
    """Return for each row the least before[i - offset] + (sums[row] - sums[i])^2 with low <= i <= high, and the first such i.

    The first i of a row is never less than that of an earlier row. So a row is solved between its solved neighbours: first
    one row, then rows ever closer together, at last every second row.
    """
    least, first = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    step = 1 << (len(rows).bit_length() - 1)
    while step:
        chosen = np.arange(step - 1, len(rows), 2 * step)
        least_i, most_i = low[chosen], high[chosen]
        has_earlier, has_later = chosen >= step, chosen + step < len(rows)
        least_i[has_earlier] = np.maximum(least_i[has_earlier], first[chosen[has_earlier] - step])
        most_i[has_later] = np.minimum(most_i[has_later], first[chosen[has_later] + step])
        lengths = most_i - least_i + 1
        starts = np.cumsum(lengths) - lengths
        i = np.arange(lengths.sum()) + np.repeat(least_i - starts, lengths)
        values = before[i - offset] + (np.repeat(sums[rows[chosen]], lengths) - sums[i]) ** 2
        least[chosen] = np.minimum.reduceat(values, starts)
        hits = np.flatnonzero(values == np.repeat(least[chosen], lengths))
        first[chosen] = i[hits[np.searchsorted(hits, starts)]]
        step //= 2
    return least, first
