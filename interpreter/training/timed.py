"""Timed stages, which sleep instead of computing, and the measured times of their iterations beside the predicted ones.

These times show how well the simulator predicts a real run. Each task sleeps for its cost in the program, times a unit of
time. Messages are sent as in any run. For each micro-batch they are as large as the first tensor that the first layer of the
run's model passes on. The backward sleeps inside autograd, so the executor runs these stages like any others. Of a split
backward, BWD_INPUT sleeps for the cost of the input half and BWD_WEIGHT for that of the weight half.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_unary

from chimerac.chimera_ir.boundary import Tensor as BoundaryTensor
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.model import Layer, ModelDescription
from chimerac.chimera_ir.program import RECOMPUTE, Program
from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.draws import current_draws
from chimerac.interpreter.runtime.measured import MeasuredTimes
from chimerac.interpreter.runtime.model import Example, LayeredModel, Model, Values
from chimerac.interpreter.runtime.split import register
from chimerac.interpreter.runtime.split_functions import DeferredGradients
from chimerac.interpreter.runtime.times import IterationTimes
from chimerac.interpreter.training.trainer import Trainer

NO_WAIT_NS = 100_000  # a shorter wait is not counted: what the rank needed was there already


class Sleeper:
    """Sleeps for costs.

    Args:
        unit_s: seconds for one unit of cost.

    A task that follows another one without a wait for other ranks begins when the earlier task was due to end. So the lateness
    of a sleep and the work of the runtime between two tasks are a part of the second task, and do not add up.
    """

    def __init__(self, unit_s: float) -> None:
        self.unit_s = unit_s
        self.begin(lambda: 0)

    def begin(self, waited_ns: Callable[[], int]) -> None:
        """Begin an iteration now.

        Args:
            waited_ns: returns for how many nanoseconds this rank has waited for other ranks, in total, as `Transport` counts
                them.
        """
        self._waited_ns = waited_ns
        self._due, self._waited = time.monotonic(), waited_ns()

    def sleep(self, units: int) -> None:
        """Sleep for this many units from the beginning of the task."""
        waited = self._waited_ns()
        start = self._due if waited - self._waited < NO_WAIT_NS else time.monotonic()
        self._due, self._waited = start + units * self.unit_s, waited
        while (left := self._due - time.monotonic()) > 0:
            time.sleep(left)


@dataclass(frozen=True, slots=True)
class TaskCosts:
    """The costs of a stage's tasks for one micro-batch, in units.

    Attributes:
        input, weight: of the halves of a split backward.
    """

    forward: int
    recompute: int
    backward: int
    input: int
    weight: int


class _SleepingBackward(torch.autograd.Function):
    """The identity. Its backward calls `sleep`, and then `defer`, which may leave DeferredGradients for BWD_WEIGHT."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sleep: Callable[[], None], defer: Callable[[], None]) -> Tensor:
        ctx.sleep, ctx.defer = sleep, defer
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.sleep()
        ctx.defer()
        return grads[0], None, None


def with_sleeping_backward(x: Tensor, sleeper: Sleeper, costs: TaskCosts) -> Tensor:
    """Return x. Its backward sleeps for the cost of the stage's backward."""
    if has_torch_function_unary(x):  # under `Splitting`, which then calls `_with_split_sleeping_backward` instead
        return handle_torch_function(with_sleeping_backward, (x,), x, sleeper, costs)
    return _SleepingBackward.apply(x, partial(sleeper.sleep, costs.backward), _no_op)  # type: ignore[no-any-return,no-untyped-call]


def _with_split_sleeping_backward(deferred: list[DeferredGradients], x: Tensor, sleeper: Sleeper, costs: TaskCosts) -> Tensor:
    """Return x. Its backward sleeps for the cost of BWD_INPUT, and defers a sleep for the cost of BWD_WEIGHT."""
    weight_half = DeferredGradients(partial(sleeper.sleep, costs.weight), ())
    input_half = partial(sleeper.sleep, costs.input)
    return _SleepingBackward.apply(x, input_half, lambda: deferred.append(weight_half))  # type: ignore[no-any-return,no-untyped-call]


def _no_op() -> None:
    pass


register(with_sleeping_backward, _with_split_sleeping_backward)


class TimedStage(nn.Module):
    """A stage that sleeps for the costs of the program.

    Args:
        shape: of its output.
        size: samples of a micro-batch.

    Attributes:
        recomputed: the micro-batches whose forward is run again. Of these, only the second forward builds a graph.
    """

    def __init__(self, program: Program, stage: int, shape: tuple[int, ...], size: int, sleeper: Sleeper) -> None:
        super().__init__()
        tasks = (Op.FWD, Op.RECOMPUTE, Op.BWD, Op.BWD_INPUT, Op.BWD_WEIGHT)
        self.costs = TaskCosts(*(program.costs.of(op)[stage] for op in tasks))
        self.size, self.micro_batches, self.recomputed = size, program.header.micro_batches, _recomputed(program, stage)
        self.is_first, self.shape, self.sleeper = stage == 0, shape, sleeper
        # The first stage has no input gradient. So autograd runs its backward only if it uses a parameter.
        self.parameter = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Sleep for the forward, and return an output whose backward sleeps."""
        first_sample = current_draws().samples[0]  # samples are numbered micro-batch after micro-batch
        micro_batch = first_sample // self.size % self.micro_batches
        is_recomputation = torch.is_grad_enabled() and micro_batch in self.recomputed
        self.sleeper.sleep(self.costs.recompute if is_recomputation else self.costs.forward)
        if self.is_first:
            x = torch.zeros(self.shape) + self.parameter
        return with_sleeping_backward(x, self.sleeper, self.costs)


def _recomputed(program: Program, stage: int) -> frozenset[int]:
    """Return the micro-batches of which the forward of a stage is run again."""
    t = program.table
    rows = np.flatnonzero((t.op == Op.FWD) & (t.stage == stage) & ((t.flags & RECOMPUTE) != 0))
    # The operand of a task is the index of its list of micro-batches.
    return frozenset(m for k in t.operand[rows].tolist() for m in program.micro_batch_lists[k])


def timed_model(program: Program, boundary: BoundaryTensor, size: int, sleeper: Sleeper) -> tuple[Model, ModelDescription]:
    """Return a model of one timed layer per stage, and its description.

    Args:
        boundary: the output of each layer; its first dimension counts the samples.
        size: samples of a micro-batch.
    """
    stages = program.header.stages
    builders = [partial(TimedStage, program, s, boundary.shape, size, sleeper) for s in range(stages)]

    def loss(outputs: Values, targets: Values) -> Values:
        return (outputs[0].sum(),)

    def example(samples: int) -> Example:
        return Example((torch.zeros(samples, 1),), (torch.zeros(samples, 1),))

    names = [f"timed {s}" for s in range(stages)]
    layers = tuple(
        Layer(name, parameters=1, weight_bytes=4, kept_bytes=0, weight_kept_bytes=0, boundary=(boundary,), cost=1)
        for name in names
    )
    model = LayeredModel(name="timed", layers=tuple(zip(names, builders, strict=True)), loss=loss, example=example)
    return model, ModelDescription("timed", size, layers)


class ZeroSamples(Samples):
    """Samples of zeros."""

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return zeros of shape (samples, 1)."""
        return (torch.zeros(len(numbers), 1),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return zeros of shape (samples, 1)."""
        return (torch.zeros(len(numbers), 1),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return the number of targets, one per sample."""
        return (len(numbers),)


def measured_times(trainer: Trainer, sleeper: Sleeper, iteration: int) -> MeasuredTimes:
    """Run one iteration that all ranks begin together, and measure it; called by all ranks together.

    Args:
        sleeper: of the stages of this rank.
        iteration: its number.
    """
    transport = trainer.transport
    transport.all_reduce(torch.zeros(1))
    sleeper.begin(lambda: transport.waited_ns)
    loss = trainer.gradients(iteration)
    return MeasuredTimes.of(trainer.update(iteration, loss, trainer.pipeline.figures.row()).figures)


def median_times(iterations: Sequence[IterationTimes]) -> IterationTimes:
    """Return the iteration with the median `last_task_end`; of an even number, the shorter one of the two in the middle."""
    middle = statistics.median_low([t.last_task_end for t in iterations])
    return next(t for t in iterations if t.last_task_end == middle)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Predicted and measured times of an iteration, in seconds.

    Attributes:
        predicted: None where the compiler is not installed.
    """

    predicted: IterationTimes | None
    measured: IterationTimes

    def table(self) -> str:
        """Return the times as a table in text, predicted beside measured."""
        predicted, measured = self.predicted, self.measured
        predicted_end = f"{predicted.last_task_end:.3f} s" if predicted else "-"
        predicted_ratio = f"{predicted.bubble_ratio:.3f}" if predicted else "-"
        change = ""
        if predicted and predicted.last_task_end:
            change = f"{100 * (measured.last_task_end / predicted.last_task_end - 1):+.1f} %"
        rows = [
            ("", "predicted", "measured", ""),
            ("last task ends", predicted_end, f"{measured.last_task_end:.3f} s", change),
            ("bubble ratio", predicted_ratio, f"{measured.bubble_ratio:.3f}", "idle over total"),
        ]
        for rank, bubble in enumerate(measured.bubbles):
            rows.append((f"bubble of rank {rank}", f"{predicted.bubbles[rank]:.3f}" if predicted else "-", f"{bubble:.3f}", ""))
        return "\n".join(f"{name:<20}{left:>10}{right:>11}   {note}".rstrip() for name, left, right, note in rows)
