"""The times of each layer of a model: forward, backward, the two halves of a backward, and recomputation.

Each layer runs as a stage of its own, as the executor runs stages (runtime/work.py). The stages run one after the other: all
forwards, then all backwards in reverse. So a layer finds the processor's caches in the state that they have in a run. Of equal
layers that follow each other only a few are measured, and all of them get the mean of the measured ones. The time of a stage
without work is measured too, and subtracted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from chimerac.chimera_ir.boundary import Tensor as BoundaryTensor
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.model import Layer, ModelDescription
from chimerac.chimera_ir.profile import TIMES, LayerTimes
from chimerac.interpreter.runtime.allocator import keep_freed_memory
from chimerac.interpreter.runtime.batch import TensorBatch
from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.model import Model, Objective, Stage, Values
from chimerac.interpreter.runtime.store import Key, Slot
from chimerac.interpreter.runtime.work import Iteration, Work

ALIKE = 3  # of equal layers that follow each other, how many are measured at most
WARM_UP = 3  # iterations that are not counted
Seconds = dict[tuple[Op, int], float]  # by operation and number of the stage
Call = tuple[Op, int, Callable[[], None]]  # operation, number of the stage, and the function that is measured


class Clock(Protocol):
    """Measures calls on a device."""

    def seconds(self, calls: Iterable[Call]) -> Seconds:
        """Make the calls in order and return how long each took."""


class CpuClock:
    """The clock time.perf_counter."""

    def seconds(self, calls: Iterable[Call]) -> Seconds:
        """Make the calls in order and return how long each took."""
        found = {}
        for op, number, call in calls:
            begin = time.perf_counter()
            call()
            found[op, number] = time.perf_counter() - begin
        return found


class CudaClock:
    """Events of a GPU: the time between the end of one call's kernels and the end of the next one's."""

    def seconds(self, calls: Iterable[Call]) -> Seconds:
        """Make the calls in order and return how long each took."""
        events, keys = [_recorded()], []
        for op, number, call in calls:
            call()
            keys.append((op, number))
            events.append(_recorded())
        torch.cuda.synchronize()
        return {key: begin.elapsed_time(end) / 1e3 for key, (begin, end) in zip(keys, pairwise(events), strict=True)}


def _recorded() -> torch.cuda.Event:
    """Return an event that has been recorded."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


@dataclass(frozen=True, slots=True)
class MeasuredLayers:
    """Times in seconds: the medians of one rank, or their means over ranks.

    Attributes:
        overhead: of a stage without work.
        layers: of each layer, without this overhead.
    """

    overhead: LayerTimes
    layers: tuple[LayerTimes, ...]


class LayerBench:
    """The layers of a model that are measured, each built as a stage.

    One iteration computes on a micro-batch of `description.samples` samples.

    Raises ValueError for a model whose targets are not known.
    """

    def __init__(self, model: Model, description: ModelDescription, device: torch.device) -> None:
        self._model, self._description, self._device = model, description, device
        self._clock: Clock = CudaClock() if device.type == "cuda" else CpuClock()
        if device.type == "cpu":
            keep_freed_memory()  # as a pipeline does
        self._chosen = chosen_layers(description.layers)
        stages = [model.build_stage(range(k, k + 1), seed=0).to(device) for k in self._chosen]
        inputs, targets, fields = model.example(description.samples)
        if targets is None:
            why = "its last layer is measured with its loss"
            raise ValueError(f"the targets of {model.name} are not known, but {why}: give the targets to `cut`")
        batch = _micro_batch(inputs, targets, fields, description.samples)
        boundaries = [description.layers[k].boundary for k in self._chosen]
        self._layers = _Passes(stages, boundaries, model, batch, device)
        zeros = _micro_batch(inputs=(torch.zeros(1),), targets=(torch.zeros(1),), fields={}, samples=1)
        self._rounds: list[tuple[Seconds, Seconds]] = []  # of each iteration: the times of the layers and of the empty stages
        empty_stages = [Stage([_Empty()]).to(device) for _ in range(3)]
        self._empty = _Passes(empty_stages, [(_NUMBER,)] * 3, _Sum(), zeros, device)

    def measure(self, repeats: int, before_each: Callable[[], None] = lambda: None) -> MeasuredLayers:
        """Return the medians of `repeats` iterations after a warm-up.

        Args:
            before_each: called before each iteration.
        """
        for _ in range(WARM_UP + repeats):
            before_each()
            self.run()
        return self.result()

    def run(self) -> None:
        """Run one iteration; the first few are a warm-up."""
        self._rounds.append((self._layers.seconds(self._clock), self._empty.seconds(self._clock)))

    def result(self) -> MeasuredLayers:
        """Return the times of all layers, from the medians of all iterations after the warm-up."""
        rounds = self._rounds[WARM_UP:]
        # The middle one of the three empty stages: it reads and makes a value in both directions, as most stages do.
        overhead = _medians([empty for _, empty in rounds], number=1)
        measured = {k: _medians([layers for layers, _ in rounds], n).without(overhead) for n, k in enumerate(self._chosen)}
        return MeasuredLayers(overhead.layer_times(kept_bytes=0), self._spread(measured))

    def _spread(self, measured: Mapping[int, _Medians]) -> tuple[LayerTimes, ...]:
        """Return the times of all layers. Equal layers that follow each other get the mean of those that were measured."""
        times: list[LayerTimes] = []
        for alike in equal_neighbours(self._description.layers):
            known = [measured[k] for k in alike if k in measured]
            mean = _Medians({op: statistics.fmean(m.seconds[op] for m in known) for op in TIMES})
            times += [mean.layer_times(self._description.layers[k].kept_bytes) for k in alike]
        return tuple(times)


def equal_neighbours(layers: Sequence[Layer]) -> list[list[int]]:
    """Return the numbers of the layers in several lists. The layers of a list follow each other and differ only in their names.

    All layers are in the lists, in their order.
    """
    numbered = groupby(enumerate(layers), key=lambda entry: replace(entry[1], name="-"))
    return [[k for k, _ in alike] for _, alike in numbered]


def chosen_layers(layers: Sequence[Layer]) -> list[int]:
    """Return the numbers of the layers that are measured: of equal ones that follow each other, at most the first `ALIKE`."""
    return [k for alike in equal_neighbours(layers) for k in alike[:ALIKE]]


@dataclass(frozen=True, slots=True)
class _Medians:
    """Seconds of each operation of a stage: medians, and what is computed from them."""

    seconds: Mapping[Op, float]

    def without(self, other: _Medians) -> _Medians:
        """Return these times minus the others, at least 0."""
        return _Medians({op: max(0.0, s - other.seconds[op]) for op, s in self.seconds.items()})

    def layer_times(self, kept_bytes: int) -> LayerTimes:
        """Return the times for a profile, rounded to nanoseconds."""
        return LayerTimes(**{name: round(self.seconds[op], 9) for op, name in TIMES.items()}, activation_bytes=kept_bytes)


def _medians(rounds: Sequence[Seconds], number: int) -> _Medians:
    """Return the medians of a stage, at least 0.

    Args:
        rounds: the times of each iteration.
        number: of the stage.

    The measured time of a BWD_INPUT is below 0 if the forward before it ran much faster than the one before a full backward.
    """
    return _Medians({op: max(0.0, statistics.median(seconds[op, number] for seconds in rounds)) for op in TIMES})


def _micro_batch(inputs: Values, targets: Values, fields: Mapping[str, Tensor], samples: int) -> TensorBatch:
    """Return a batch that is one micro-batch, whose losses are divided by 1."""
    draws = Draws(seed=0, iteration=0, samples=range(samples))
    return TensorBatch(inputs, targets, fields, micro_batches=1, divisors=[1.0], draws=[draws])


class _Passes:
    """One micro-batch through a chain of stages: with full backwards, with split ones, and with recomputation.

    Args:
        boundaries: the tensors that each stage passes to the next one; for the last stage, those that the loss takes.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        boundaries: Sequence[Sequence[BoundaryTensor]],
        objective: Objective,
        batch: TensorBatch,
        device: torch.device,
    ) -> None:
        self._iteration, self._batch = Iteration(objective, device, time.perf_counter_ns), batch
        self._full = _works(stages, boundaries, self._iteration)
        self._split = _works(stages, boundaries, self._iteration)
        for work in self._split:
            work.split_backward()

    def seconds(self, clock: Clock) -> Seconds:
        """Run the passes and return how long every operation of every stage took.

        Operations that are in several passes have the times of the first of these. What a forward takes longer before a split
        backward than before a full one is counted in the BWD_INPUT.
        """
        numbers = range(len(self._full))
        self._begin()
        found = clock.seconds(
            [
                *((Op.FWD, n, self._full[n].forward) for n in numbers),
                *((Op.BWD, n, self._full[n].backward) for n in reversed(numbers)),
            ]
        )
        self._begin()
        split: list[Call] = [(Op.FWD, n, self._split[n].forward) for n in numbers]
        split += [(Op.BWD_INPUT, n, self._split[n].backward_input) for n in reversed(numbers)]
        split += [(Op.BWD_WEIGHT, n, self._split[n].backward_weight) for n in reversed(numbers)]
        halves = clock.seconds(split)
        for n in numbers:  # a forward that prepares a split backward takes longer: this counts as a part of the backward
            halves[Op.BWD_INPUT, n] += halves[Op.FWD, n] - found[Op.FWD, n]
        found = {**halves, **found}
        self._begin()
        recomputing: list[Call] = [(Op.FWD, n, self._full[n].forward_to_recompute) for n in numbers]
        for n in reversed(numbers):
            recomputing += [(Op.RECOMPUTE, n, self._full[n].recompute), (Op.BWD, n, self._full[n].backward)]
        return {**clock.seconds(recomputing), **found}

    def _begin(self) -> None:
        self._iteration.begin(self._batch)


def _works(stages: Sequence[Stage], boundaries: Sequence[Sequence[BoundaryTensor]], iteration: Iteration) -> list[Work]:
    """Return the work of each stage on micro-batch 0. Each stage but the first reads what the one before it makes."""
    last = len(stages) - 1
    # acts[n], grads[n]: the input of stage n, and its gradient. A key has the number of the stage that reads the value: n for
    # acts[n], and n - 1 for grads[n].
    acts = [None, *(Slot(Key("act", pipe=0, stage=n, micro_batch=0)) for n in range(1, last + 1)), None]
    grads = [None, *(Slot(Key("grad", pipe=0, stage=n, micro_batch=0)) for n in range(last)), None]
    return [
        Work(
            iteration,
            stage,
            m=0,
            input=acts[n],
            needs_gradient=() if n == 0 else [declared.gradient for declared in boundaries[n - 1]],
            output=acts[n + 1],
            kept=[declared.kept for declared in boundaries[n]],
            output_gradient=grads[n + 1],
            input_gradient=grads[n],
        )
        for n, stage in enumerate(stages)
    ]


_NUMBER = BoundaryTensor((1,), "float32", gradient=True)  # what an empty stage passes to the next one


class _Empty(nn.Module):
    """The layer of an empty stage. It only adds a number, so that its time is that of a stage without work."""

    def __init__(self) -> None:
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.zero


class _Sum:
    """The objective of the empty stages."""

    correct = None
    autocast = None

    def loss(self, outputs: Values, targets: Values) -> Values:
        """Return the sum of the output."""
        return (outputs[0].sum(),)

    def autocasting(self, device: torch.device) -> torch.autocast:
        """Not called: there is no autocast."""
        raise AssertionError("no stage asks for autocast")
