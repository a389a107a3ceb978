"""Gradients that add up over several batches: without sync, with gradients that were there before, and in the trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from chimerac.compiler import compile_schedule, compile_text
from chimerac.interpreter import Pipeline
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.trainer import Settings, Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed import integers
from tests.distributed.integers import IntegerSamples, integer_model

MICRO_BATCHES, SAMPLES = 4, 2  # micro-batches of a batch, samples of a micro-batch
Tensors = dict[str, Tensor]


def integer_layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(integers.First(), integers.Whole(), integers.Whole(), integers.Last())


def batch(number: int) -> tuple[Tensor, Tensor]:
    size = MICRO_BATCHES * SAMPLES
    numbers = range(number * size, (number + 1) * size)
    return IntegerSamples().inputs(numbers)[0], IntegerSamples().targets(numbers)[0]


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return integers.loss((outputs,), (targets,))[0]


def gradients_in_one_process(numbers: list[int]) -> Tensors:
    """Return the sum of the gradients of these batches."""
    model = integer_layers()
    for number in numbers:
        tokens, targets = batch(number)
        values: tuple[Tensor, ...] = (tokens,)
        for layer in model:
            result = layer(*values)
            values = result if isinstance(result, tuple) else (result,)
        (loss(values[0], targets) / MICRO_BATCHES).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def gradients_of(schedule: str, run: Callable[[Pipeline], None], width: int = 1) -> list[Tensors]:
    """Call `run` with the pipeline of each rank, and return by rank the gradients that it leaves."""
    parameters = {"D": 2, "N": MICRO_BATCHES}

    def rank(transport: Transport) -> Tensors:
        inputs = batch(0)[0][:SAMPLES]
        pipe = Pipeline(integer_layers(), schedule, parameters, width=width, loss=loss, inputs=inputs, transport=transport)
        run(pipe)
        return {name: p.grad.clone() for name, p in pipe.named_parameters() if p.grad is not None}

    return run_in_loopback(compile_schedule(schedule, parameters, width).program, rank, seed=2)


def step(pipe: Pipeline, number: int, sync: bool = True) -> None:
    pipe.step(*batch(number), sync=sync, divisor=MICRO_BATCHES)


def without_sync(pipe: Pipeline) -> None:
    step(pipe, 0, sync=False)
    step(pipe, 1, sync=False)
    step(pipe, 2)


def never_cleared(pipe: Pipeline) -> None:
    for number in range(3):
        step(pipe, number)


def with_sync_then_without(pipe: Pipeline) -> None:
    step(pipe, 0)
    step(pipe, 1, sync=False)
    step(pipe, 2)


def with_evaluations(pipe: Pipeline) -> None:
    for number in range(3):
        step(pipe, number, sync=number == 2)
        pipe.evaluate(*batch(5))


def cleared(set_to_none: bool, sync: bool) -> Callable[[Pipeline], None]:
    """Return a loop that first computes and clears the gradients of two other batches.

    Args:
        set_to_none: clear them to None, otherwise to zeros.
        sync: whether the step of the second of these batches is with sync.
    """

    def run(pipe: Pipeline) -> None:
        optimizer = torch.optim.SGD(pipe.parameters(), lr=1.0)
        step(pipe, 3)
        step(pipe, 4, sync=sync)
        optimizer.zero_grad(set_to_none)
        without_sync(pipe)

    return run


LOOPS: dict[str, Callable[[Pipeline], None]] = {
    "without sync": without_sync,
    "never cleared": never_cleared,
    "with sync, then without": with_sync_then_without,
    "evaluations in between": with_evaluations,
    "cleared": cleared(set_to_none=True, sync=True),
    "set to zero": cleared(set_to_none=False, sync=True),
    "cleared after a step without sync": cleared(set_to_none=True, sync=False),
    "set to zero after a step without sync": cleared(set_to_none=False, sync=False),
}


@pytest.mark.parametrize("name", LOOPS)
@pytest.mark.parametrize("schedule", ["1f1b", "chimera"])
def test_gradients_of_three_batches_add_up_exactly(schedule: str, name: str) -> None:
    expected = gradients_in_one_process([0, 1, 2])
    ranks = gradients_of(schedule, LOOPS[name])
    assert {parameter for found in ranks for parameter in found} == set(expected)
    for found in ranks:
        assert all(gradient.equal(expected[parameter]) for parameter, gradient in found.items())


def test_gradients_of_replicas_add_up_exactly() -> None:
    """Every replica gets the same batches."""
    expected = gradients_in_one_process([0, 1, 2] * 2)
    for found in gradients_of("1f1b", with_sync_then_without, width=2):
        assert all(gradient.equal(expected[parameter]) for parameter, gradient in found.items())


def test_gradients_that_are_not_summed_have_no_norm() -> None:
    def run(pipe: Pipeline) -> None:
        step(pipe, 0, sync=False)
        with pytest.raises(RuntimeError, match="the last step was without sync"):
            pipe.clip_grad_norm_(1.0)

    gradients_of("chimera", run)


def test_a_rank_without_a_stage_knows_that_gradients_are_not_summed() -> None:
    text = """schedule one
ranks 2
stages 1
pipe p { stage s on rank 0  micro_batches 4 }
order greedy { prefer B, F }
"""

    def rank(transport: Transport) -> None:
        pipe = Pipeline(integer_layers(), text, loss=loss, inputs=batch(0)[0][:SAMPLES], transport=transport)
        step(pipe, 0, sync=False)
        with pytest.raises(RuntimeError, match="the last step was without sync"):
            pipe.grad_norm()

    run_in_loopback(compile_text(text, {}).program, rank, seed=2)


SETTINGS = Settings(iterations=3, seed=3, micro_batch=2, rate=1e-3, clip=1e9)


@pytest.mark.parametrize(("schedule", "width"), [("chimera", 1), ("1f1b", 2)])
def test_two_accumulated_batches_give_the_update_of_one_batch_with_twice_the_micro_batches(schedule: str, width: int) -> None:
    """The samples of an update are the same. With one replica each micro-batch has the same samples, too.

    The gradients of the first update are equal bit by bit, because its weights are integers. Later weights are not, so later
    sums are rounded.
    """

    def trained(micro_batches: int, accumulate: int) -> list[list[tuple[float, float, list[Tensor]]]]:
        program = compile_schedule(schedule, {"D": 2, "N": micro_batches}, width).program
        model = integer_model(middle=2)
        settings = replace(SETTINGS, accumulate=accumulate)

        def rank(transport: Transport) -> list[tuple[float, float, list[Tensor]]]:
            trainer = Trainer(program, partitioned(program, model, describe(model, 2)), IntegerSamples(), transport, settings)
            results = []
            for t in range(settings.iterations):
                share = trainer.gradients(t)
                gradients = [p.grad.clone() for p in trainer.pipeline.parameters() if p.grad is not None]
                result = trainer.update(t, share)
                results.append((result.loss, result.norm, gradients))
            trainer.pipeline.check_copies()
            return results

        return run_in_loopback(program, rank, seed=4)

    # Of each rank, with one batch of 8 micro-batches and with two of 4: loss, norm and gradients of every update.
    for large, small in zip(trained(micro_batches=8, accumulate=1), trained(micro_batches=4, accumulate=2), strict=True):
        (*loss_and_norm, gradients), (*small_loss_and_norm, small_gradients) = large[0], small[0]
        assert loss_and_norm == small_loss_and_norm
        assert all(a.equal(b) for a, b in zip(gradients, small_gradients, strict=True))
        assert [row[:2] for row in small] == [pytest.approx(row[:2], rel=1e-12) for row in large]
