"""Timed stages, which sleep instead of computing. They show how well the simulator predicts a real run.

Each task sleeps for its cost in the program's header, times a unit. Messages are real and as large as the model's. The
backward sleeps inside autograd, so the executor runs these stages like any others. The weight half of a split backward
sleeps in BWD_WEIGHT.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from chimerac.chimera_ir.boundary import Tensor as Spec
from chimerac.chimera_ir.model import Layer, ModelDescription
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.draws import current_draws
from chimerac.interpreter.runtime.measured import MeasuredTimes
from chimerac.interpreter.runtime.model import Example, LayeredModel, Model, Values
from chimerac.interpreter.runtime.split import register
from chimerac.interpreter.runtime.split_functions import Product
from chimerac.interpreter.runtime.times import IterationTimes
from chimerac.interpreter.training.trainer import Trainer


class Sleeper:
    """Sleeps for costs. unit_s: seconds for one unit of cost; overshoot_s: by how much the last sleep was too long."""

    def __init__(self, unit_s: float) -> None:
        self.unit_s = unit_s
        self.overshoot_s = 0.0

    def sleep(self, units: int) -> None:
        """Sleep for this many units, less the overshoot of the last sleep, so that overshoots do not add up."""
        deadline = time.monotonic() + units * self.unit_s - self.overshoot_s
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(left)
        self.overshoot_s = time.monotonic() - deadline


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """The costs of a stage's tasks for one micro-batch, in units."""

    forward: int
    backward: int
    input: int
    weight: int


class _SleepingBackward(torch.autograd.Function):
    """The identity. Its backward calls `now`, which sleeps, then `later`, which may leave work for BWD_WEIGHT."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, now: Callable[[], None], later: Callable[[], None]) -> Tensor:
        ctx.now, ctx.later = now, later
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.now()
        ctx.later()
        return grads[0], None, None


def with_sleeping_backward(x: Tensor, sleeper: Sleeper, costs: TaskCosts) -> Tensor:
    """Return x; its backward sleeps as long as the stage's backward takes."""
    if has_torch_function_unary(x):  # under `Splitting`, `_split` runs instead
        return handle_torch_function(with_sleeping_backward, (x,), x, sleeper, costs)
    return _SleepingBackward.apply(x, partial(sleeper.sleep, costs.backward), _nothing)  # type: ignore[no-any-return,no-untyped-call]


def _split(products: list[Product], x: Tensor, sleeper: Sleeper, costs: TaskCosts) -> Tensor:
    weights = Product(partial(sleeper.sleep, costs.weight), ())
    input_half = partial(sleeper.sleep, costs.input)
    return _SleepingBackward.apply(x, input_half, lambda: products.append(weights))  # type: ignore[no-any-return,no-untyped-call]


def _nothing() -> None:
    pass


register(with_sleeping_backward, _split)


class TimedStage(nn.Module):
    """A stage that sleeps for the program's costs. shape: of its output; size: samples of a micro-batch."""

    def __init__(self, program: Program, stage: int, shape: tuple[int, ...], size: int, sleeper: Sleeper) -> None:
        super().__init__()
        costs = program.costs
        self.costs = TaskCosts(costs.FWD[stage], costs.BWD[stage], costs.BWD_INPUT[stage], costs.BWD_WEIGHT[stage])
        self.size, self.first, self.shape, self.sleeper = size, stage == 0, shape, sleeper
        # The first stage has no input gradient. Without this parameter autograd would not run its backward.
        self.parameter = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Sleep for the forward, and return an output whose backward sleeps."""
        self.sleeper.sleep(self.costs.forward * (len(current_draws().samples) // self.size))
        x = torch.zeros(self.shape) + self.parameter if self.first else x + self.parameter
        return with_sleeping_backward(x, self.sleeper, self.costs)


def timed_model(program: Program, boundary: Spec, size: int, sleeper: Sleeper) -> tuple[Model, ModelDescription]:
    """Return a model of one timed layer per stage. boundary: the output of each layer; its first dimension is the samples."""
    stages = program.header.stages
    makers = [partial(TimedStage, program, s, boundary.shape, size, sleeper) for s in range(stages)]

    def loss(outputs: Values, targets: Values) -> Values:
        return (outputs[0].sum(),)

    def example(samples: int) -> Example:
        return Example((torch.zeros(samples, 1),), (torch.zeros(samples, 1),))

    names = [f"timed {s}" for s in range(stages)]
    layers = tuple(Layer(name, 1, 4, 0, 0, (boundary,), 1) for name in names)
    model = LayeredModel(name="timed", layers=tuple(zip(names, makers, strict=True)), loss=loss, example=example)
    return model, ModelDescription("timed", size, layers)


class ZeroSamples(Samples):
    """Samples of zeros."""

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return a zero per sample."""
        return (torch.zeros(len(numbers), 1),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return a zero per sample."""
        return (torch.zeros(len(numbers), 1),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return one per sample."""
        return (len(numbers),)


def measured_times(trainer: Trainer, iteration: int) -> IterationTimes:
    """Run one iteration that all ranks begin together, and measure it; called by all ranks together."""
    trainer.transport.all_reduce(torch.zeros(1))
    loss = trainer.gradients(iteration)
    return MeasuredTimes.of(trainer.update(iteration, loss, trainer.pipeline.figures.row()).figures)


def median_times(found: Sequence[IterationTimes]) -> IterationTimes:
    """Return the iteration with the median makespan. The first one warms up: it is left out if there are others."""
    considered = sorted(found[1:] or found, key=lambda t: t.makespan)
    middle = statistics.median_low([t.makespan for t in considered])
    return next(t for t in considered if t.makespan == middle)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Times in seconds, side by side. predicted: None where the compiler is not installed."""

    predicted: IterationTimes | None
    measured: IterationTimes

    def table(self) -> str:
        """Return both as text."""
        p, m = self.predicted, self.measured
        change = f"{100 * (m.makespan / p.makespan - 1):+.1f} %" if p and p.makespan else ""
        rows = [("", "predicted", "measured", "")]
        rows.append(("makespan", f"{p.makespan:.3f} s" if p else "-", f"{m.makespan:.3f} s", change))
        rows.append(("bubble ratio", f"{p.bubble_ratio:.3f}" if p else "-", f"{m.bubble_ratio:.3f}", "idle over total"))
        for rank, bubble in enumerate(m.bubbles):
            rows.append((f"bubble of rank {rank}", f"{p.bubbles[rank]:.3f}" if p else "-", f"{bubble:.3f}", ""))
        return "\n".join(f"{name:<20}{a:>10}{b:>11}   {note}".rstrip() for name, a, b, note in rows)
