"""A loss or gradient that is not finite: one error on all ranks that names the first cause, or an update that is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.trainer import Settings, Trainer
from chimerac.interpreter.transport import Transport, loopback
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.integers import IntegerSamples, integer_model
from tests.helpers import findings_of_call
from tests.helpers_loopback import Rehearsing

WIDTH, SAMPLES = 4, 2  # features of a sample; samples of a micro-batch


class ScaledGradient(torch.autograd.Function):
    """The identity, whose backward multiplies the gradient by `factor`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: Tensor) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * ctx.factor, None


class LargeGradient(torch.autograd.Function):
    """The identity, whose backward returns 2e38. In float32 this number is finite, and the sum of two of them is not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return torch.full_like(grads[0], 2e38)


class LargeBias(nn.Module):
    """Adds a bias, whose gradient is 2e38 for each micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, marks: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return marks, x + LargeGradient.apply(self.bias)


class Fragile(nn.Module):
    """A layer with a fault for the micro-batch whose number is `at`; no fault if `fault` is empty or `at` is None.

    fault says what is not finite there. "forward": the output; "input": the gradient of the input; "weight": only the gradient
    of the weight.
    """

    def __init__(self, fault: str = "", at: float | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.5)
        self.fault, self.at = fault, at

    def forward(self, marks: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return marks and the new x. marks (b, 1): the number of the micro-batch, which passes through all layers."""
        factor = torch.where((marks == self.at).any(), torch.inf, 1.0) if self.at is not None else torch.ones(())
        if self.fault == "input":
            x = ScaledGradient.apply(x, factor)
        weight = self.linear.weight
        if self.fault == "weight":
            weight = ScaledGradient.apply(weight, factor)
        y = x + self.dropout(torch.tanh(nn.functional.linear(x, weight, self.linear.bias)))
        return marks, y * factor if self.fault == "forward" else y


def make(layers: int, broken: int, fault: str, at: float | None) -> nn.Sequential:
    """Return a model of which layer `broken` has a fault.

    Args:
        fault, at: as in Fragile.
    """
    torch.manual_seed(0)
    return nn.Sequential(*(Fragile(fault, at) if k == broken else Fragile() for k in range(layers)))


def batch(micro_batches: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
    marks = torch.arange(micro_batches).repeat_interleave(SAMPLES).float().unsqueeze(1)
    x = torch.randn(len(marks), WIDTH, generator=torch.Generator().manual_seed(5))
    return (marks, x), torch.zeros(len(marks), WIDTH)


def loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    return nn.functional.mse_loss(outputs[1], targets)


def errors(schedule: str, layers: Callable[[], nn.Sequential], check: Callable[[Pipeline], None], count: int = 4) -> list[Any]:
    """Return by rank the finding that `check` raises, or None.

    Args:
        count: of micro-batches.
    """
    parameters = {"D": 2, "N": count}

    def rank(transport: Transport) -> Any:
        inputs = tuple(t[:SAMPLES] for t in batch(1)[0])
        pipe = Pipeline(layers(), schedule, parameters, loss=loss, inputs=inputs, transport=transport)
        try:
            check(pipe)
        except ChimeraError as error:
            return error.diagnostics[0]
        return None

    return run_in_loopback(compile_schedule(schedule, parameters).program, rank, seed=3)


def step_and_check(pipe: Pipeline, count: int = 4) -> None:
    """Run a step and its check. Also test that the check leaves finite gradients as they were.

    If the loss or a gradient is not finite, the check runs the batch again.
    """
    pipe.step(*batch(count))
    before = [p.grad.clone() for p in pipe.parameters() if p.grad is not None]
    try:
        pipe.check_finite()
    finally:
        after = [p.grad for p in pipe.parameters() if p.grad is not None]
        assert all(a.equal(b) or not b.isfinite().all() for a, b in zip(after, before, strict=True))


CAUSES = {  # by fault: how the finding names the first cause; {last}: the number of the last stage
    "forward": r"FWD \S+ s1 m2: its output for micro-batch 2 is not finite",
    "last forward": r"FWD \S+ s{last} m2: its loss of micro-batch 2 is not finite",
    "input": r"(BWD|BWD_INPUT) \S+ s1 m2: the gradient of its input is not finite for micro-batch 2",
    "weight": r"(BWD|BWD_INPUT|BWD_WEIGHT) \S+ s1 m2: the gradient of 1.linear.weight is not finite after micro-batch 2",
}


@pytest.mark.parametrize("fault", CAUSES)
@pytest.mark.parametrize(("schedule", "stages"), [("interleaved", 4), ("chimera", 2), ("zb_v", 4)])
def test_the_first_cause_is_named_on_all_ranks(schedule: str, stages: int, fault: str) -> None:
    broken = stages - 1 if fault == "last forward" else 1
    if stages == 2 and fault == "forward":
        broken = 0  # stage 1 is the last one: its forward would be a "last forward"
    layers = partial(make, stages, broken, fault.removeprefix("last "), at=2.0)
    first, *others = errors(schedule, layers, step_and_check)
    assert first is not None and first.code == "E812" and all(other == first for other in others)
    expected = CAUSES[fault].replace("{last}", str(stages - 1))
    if broken == 0:
        expected = expected.replace("s1", "s0")
    assert re.search(
        rf"step 1 has a loss or a gradient that is not finite; first on rank \d, instruction \d+: {expected}", first.message
    )
    assert first.notes == ("the values that it reads, and the weights of its stage, are finite",)


@pytest.mark.parametrize("fault", ["forward", "weight"])
def test_the_first_cause_is_the_same_if_the_streams_are_rehearsed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "Loopback", Rehearsing)
    test_the_first_cause_is_named_on_all_ranks("zb_v", 4, fault)


def test_samples_and_weights_that_are_not_finite_are_named() -> None:
    def bad_samples(pipe: Pipeline) -> None:
        (marks, x), targets = batch(4)
        x[3 * SAMPLES, 1] = float("nan")
        pipe.step((marks, x), targets)
        pipe.check_finite()

    def bad_weights(pipe: Pipeline) -> None:
        with torch.no_grad():
            for name, p in pipe.named_parameters():
                if name == "1.linear.bias":
                    p[0] = float("nan")
        pipe.step(*batch(4))
        pipe.check_finite()

    layers = partial(make, 4, broken=0, fault="", at=None)
    (found, _) = errors("1f1b", layers, bad_samples)
    assert "FWD main s0 m3: the inputs of micro-batch 3 are not finite" in found.message
    (found, _) = errors("1f1b", layers, bad_weights)
    assert "FWD main s0 m0: its output for micro-batch 0 is not finite" in found.message
    assert found.notes == ("weights of its stage were not finite before it: 1.linear.bias",)


class Scaled(nn.Module):
    """Multiplies by the field `scale`."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, marks: Tensor, x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return marks, self.linear(x) * scale


def test_fields_and_targets_that_are_not_finite_are_named() -> None:
    parameters = {"D": 2, "N": 4}

    def found(bad: str) -> Any:
        """Return the finding for samples whose targets or field are not finite in micro-batch 3.

        Args:
            bad: targets or scale.
        """
        (marks, x), targets = batch(4)
        samples = {"targets": targets, "scale": torch.ones(len(x), 1)}
        samples[bad][3 * SAMPLES, 0] = float("nan")

        def rank(transport: Transport) -> Any:
            examples = {"inputs": (marks[:SAMPLES], x[:SAMPLES]), "fields": {"scale": torch.ones(SAMPLES, 1)}}
            layers = [Fragile(), Scaled(), Fragile(), Fragile()]
            pipe = Pipeline(layers, "1f1b", parameters, loss=loss, **examples, transport=transport)
            pipe.step((marks, x), samples["targets"], scale=samples["scale"])
            return findings_of_call(pipe.check_finite)[0]

        first, second = run_in_loopback(compile_schedule("1f1b", parameters).program, rank, seed=3)
        assert first == second and first.code == "E812"
        return first

    finding = found("scale")
    assert "FWD main s0 m3: its output for micro-batch 3 is not finite" in finding.message
    assert finding.notes == ("it reads samples that are not finite: the field scale of micro-batch 3",)
    finding = found("targets")
    assert "FWD main s1 m3: its loss of micro-batch 3 is not finite" in finding.message
    assert finding.notes == ("it reads samples that are not finite: the targets of micro-batch 3",)


def test_an_all_reduce_of_finite_gradients_whose_sum_is_too_large_is_named() -> None:
    """Each of the two copies of stage 0 runs one of the two micro-batches."""
    first, second = errors("chimera", lambda: nn.Sequential(LargeBias(), Fragile()), partial(step_and_check, count=2), count=2)
    assert first == second and first.code == "E812"
    pattern = r"first on rank 0, instruction \d+: ALLREDUCE s0 .*the sum of the gradients of 0.bias is not finite"
    assert re.search(pattern, first.message)
    assert first.notes == ("the gradients that it sums are finite",)


def test_a_value_from_an_earlier_batch_of_the_update_is_named_and_a_note_tells_of_older_gradients() -> None:
    def accumulated(pipe: Pipeline) -> None:
        (marks, x), targets = batch(4)
        pipe.step((marks, x), targets, sync=False)
        pipe.step((marks + 4, x), targets)  # these micro-batches have other numbers, and so no fault
        pipe.check_finite()

    def older(pipe: Pipeline) -> None:
        for p in pipe.parameters():
            p.grad = torch.full_like(p, float("inf"))
        pipe.step(*batch(4))
        pipe.check_finite()

    found = errors("chimera", partial(make, 2, broken=1, fault="weight", at=2.0), accumulated)[0]
    assert "the gradient of 1.linear.weight is not finite after micro-batch 2" in found.message
    found = errors("chimera", partial(make, 2, broken=1, fault="", at=None), older)[0]
    assert found.message == "step 1 has a loss or a gradient that is not finite" and "run again" in found.notes[0]


def test_a_gradient_that_is_not_finite_before_the_first_step_is_refused() -> None:
    def check(pipe: Pipeline) -> None:
        next(iter(pipe.parameters())).grad = torch.full_like(next(iter(pipe.parameters())), float("nan"))
        pipe.check_finite()

    found = errors("chimera", partial(make, 2, broken=1, fault="", at=None), check)
    assert [error.code for error in found] == ["E812", "E812"]


def test_a_finite_step_passes() -> None:
    assert errors("chimera", partial(make, 2, broken=1, fault="", at=None), step_and_check) == [None, None]


def trained(skip: bool) -> list[Any]:
    """Train on integers. The loss of one micro-batch, in a later iteration than the first, is not finite.

    Return by rank the message of the error. If there is none: for each update whether it was left out and its learning rate;
    how many updates were left out; and the iteration with that loss.

    Args:
        skip: leave out an update whose loss is not finite.

    The loss function recognizes micro-batch `number` by its targets: no other micro-batch of the trained iterations has the
    same.
    """
    program = compile_schedule("chimera", {"D": 2, "N": 2}).program
    model, samples = integer_model(middle=2), IntegerSamples()
    # By micro-batch; iteration t has the micro-batches 2t and 2t + 1.
    all_targets = [samples.targets(range(k, k + 2))[0] for k in range(0, 40, 2)]
    # Without an error, training ends one iteration after that of micro-batch k, and so with micro-batch 2 (k // 2) + 3.
    number = next(k for k in range(2, 20) if sum(t.equal(all_targets[k]) for t in all_targets[: 2 * (k // 2) + 4]) == 1)
    iteration = number // 2

    def spoiled(outputs: Any, targets: Any) -> Any:
        return (model.loss(outputs, targets)[0] * torch.where((targets[0] == all_targets[number]).all(), torch.inf, 1.0),)

    spoiled_model = replace(model, loss=spoiled)

    def rank(transport: Transport) -> Any:
        settings = Settings(iterations=8, seed=3, micro_batch=2, rate=1e-3, skip_nonfinite=skip)
        parts = partitioned(program, spoiled_model, describe(spoiled_model, 2))
        trainer = Trainer(program, parts, samples, transport, settings)
        try:
            results = [trainer.update(t, trainer.gradients(t)) for t in range(iteration + 2)]
        except ChimeraError as error:
            return error.diagnostics[0].message
        trainer.pipeline.check_copies()
        return [(r.is_skipped, r.rate) for r in results], trainer.skipped, iteration

    return run_in_loopback(program, rank, seed=4)


def test_after_a_loss_that_is_not_finite_the_trainer_stops_or_leaves_the_update_out() -> None:
    first, second = trained(skip=False)
    assert first == second and re.match(
        r"iteration \d+ has the loss (inf|-inf|nan) and the gradient norm nan; first on rank \d", first
    )
    for results, skipped, iteration in trained(skip=True):
        assert [is_skipped for is_skipped, _ in results] == [t == iteration for t in range(iteration + 2)] and skipped == 1
        assert len({rate for _, rate in results}) > 1, "the learning rate follows its schedule"


def test_the_trainer_leaves_out_a_limited_number_of_updates_in_a_row() -> None:
    program = compile_schedule("chimera", {"D": 2, "N": 2}).program
    model = integer_model(middle=2)

    def rank(transport: Transport) -> Any:
        settings = Settings(iterations=8, seed=3, micro_batch=2, rate=1e-3, skip_nonfinite=True, max_skipped=2)
        trainer = Trainer(program, partitioned(program, model, describe(model, 2)), IntegerSamples(), transport, settings)

        def is_skipped(iteration: int, finite: bool) -> bool:
            loss = trainer.gradients(iteration)
            return trainer.update(iteration, loss if finite else float("inf")).is_skipped

        assert [is_skipped(t, finite=t == 2) for t in range(5)] == [True, True, False, True, True]
        return findings_of_call(is_skipped, 5, finite=False)[0]

    first, second = run_in_loopback(program, rank, seed=4)
    assert first == second and first.code == "E812"
    assert first.message.startswith("iteration 6 has the loss inf ")
    assert first.message.endswith(", and the 2 updates before it were skipped")
    assert first.help.endswith("or a larger --max-skipped")
