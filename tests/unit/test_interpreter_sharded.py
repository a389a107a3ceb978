"""An optimizer whose state is sharded over the holders of each parameter: equal weights, one copy of the state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.trainer import Settings, Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.models.gpt import gpt
from tests.distributed.integers import IntegerSamples
from tests.helpers_pipeline import Decoder, batch, in_loopback

ITERATIONS = 3
MakeOptimizer = Callable[[Pipeline], Optimizer]


def groups_of(pipe: Pipeline) -> list[dict[str, Any]]:
    """Return the parameters of a rank in two groups with different weight decay."""
    parameters = list(pipe.parameters())
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.5},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def state_size(optimizer: Optimizer) -> int:
    """Return how many numbers the state of an optimizer has, without its counters of updates."""
    return sum(t.numel() for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor) and t.dim())


def trained(make: MakeOptimizer, schedule: str, parameters: dict[str, int], width: int) -> list[tuple[dict[str, Tensor], int]]:
    """Train for ITERATIONS iterations. Return for each rank the weights of the whole model, and its optimizer's state size."""

    def run(pipe: Pipeline) -> tuple[dict[str, Tensor], int]:
        optimizer = make(pipe)
        scheduler = CosineAnnealingLR(optimizer, T_max=5)
        for number in range(ITERATIONS):
            pipe.step(*batch(number, parameters["N"]))
            pipe.clip_grad_norm_(0.5)
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        pipe.check_copies()
        assert all(p.is_leaf and p.grad is None for p in pipe.parameters())
        return pipe.full_state_dict(), state_size(optimizer)

    return in_loopback(schedule, parameters, lambda: Decoder(4), run, width)


@pytest.mark.parametrize(
    ("schedule", "parameters", "width", "copies"),
    [("1f1b", {"D": 2, "N": 2}, 1, 1), ("1f1b", {"D": 2, "N": 2}, 2, 2), ("chimera", {"D": 2, "N": 2}, 2, 4)],
)
def test_weights_are_bit_equal_and_the_state_is_there_once(
    schedule: str, parameters: dict[str, int], width: int, copies: int
) -> None:
    """copies: how many ranks hold each parameter."""
    whole = trained(lambda pipe: AdamW(groups_of(pipe), lr=1e-2), schedule, parameters, width)
    sharded = trained(lambda pipe: pipe.sharded_optimizer(AdamW, groups_of(pipe), lr=1e-2), schedule, parameters, width)
    for (expected, _), (found, _) in zip(whole, sharded, strict=True):
        assert expected.keys() == found.keys() and all(t.equal(found[name]) for name, t in expected.items())
    sizes = [size for _, size in sharded]
    assert sum(size for _, size in whole) == copies * sum(sizes)
    assert sum(sizes) == 2 * sum(p.numel() for p in Decoder(4).parameters()), "AdamW keeps two moments of each number"
    assert copies == 1 or max(sizes) <= 1.5 * sum(sizes) / len(sizes), "the ranks have about equal parts of the state"


def test_the_state_of_sgd_with_named_parameters_is_sharded() -> None:
    def make_sharded(pipe: Pipeline) -> Optimizer:
        return pipe.sharded_optimizer(SGD, pipe.named_parameters(), lr=0.1, momentum=0.9)

    whole = trained(lambda pipe: SGD(pipe.parameters(), lr=0.1, momentum=0.9), "chimera", {"D": 2, "N": 2}, width=1)
    sharded = trained(make_sharded, "chimera", {"D": 2, "N": 2}, width=1)
    for (expected, _), (found, _) in zip(whole, sharded, strict=True):
        assert all(t.equal(found[name]) for name, t in expected.items())
    assert sum(size for _, size in whole) == 2 * sum(size for _, size in sharded)


def test_options_hooks_closures_and_state_dicts_work_as_in_an_optimizer_of_torch() -> None:
    def run(pipe: Pipeline) -> tuple[int, int]:
        optimizer = pipe.sharded_optimizer(AdamW, groups_of(pipe), lr=1e-2, betas=(0.5, 0.5))
        assert [g["weight_decay"] for g in optimizer.param_groups] == [0.5, 0.0]
        assert all(g["betas"] == (0.5, 0.5) and g["eps"] == 1e-8 for g in optimizer.param_groups)
        for group in optimizer.param_groups:
            group["lr"] = 0.0  # so that nothing changes
        before = [p.detach().clone() for p in pipe.parameters()]
        hook_calls: list[int] = []
        optimizer.register_step_pre_hook(lambda *_: hook_calls.append(1))

        def closure() -> float:
            return pipe.step(*batch(0, micro_batches=2))

        loss = optimizer.step(closure)
        assert loss == pytest.approx(pipe.evaluate(*batch(0, micro_batches=2)), rel=1e-6) and hook_calls == [1]
        assert all(p.equal(b) for p, b in zip(pipe.parameters(), before, strict=True))
        saved = optimizer.state_dict()
        loaded = pipe.sharded_optimizer(AdamW, groups_of(pipe), lr=1.0)
        loaded.load_state_dict(saved)
        assert loaded.param_groups[0]["lr"] == 0.0
        assert loaded.state.keys() == optimizer.state.keys()
        assert all(t.equal(loaded.state[p][name]) for p in optimizer.state for name, t in optimizer.state[p].items())
        whole = AdamW(groups_of(pipe), lr=1e-2)
        whole.step()
        loaded.load_state_dict(whole.state_dict())  # a state that is not sharded
        assert loaded.state.keys() == optimizer.state.keys()
        loaded.step()
        optimizer.zero_grad()
        assert all(p.grad is None for p in pipe.parameters())
        return state_size(loaded), state_size(whole)

    ranks = in_loopback("chimera", {"D": 2, "N": 2}, lambda: Decoder(2), run)
    assert sum(whole for _, whole in ranks) == 2 * sum(sharded for sharded, _ in ranks)


def test_a_parameter_outside_the_pipeline_and_gradients_that_are_not_summed_are_refused() -> None:
    def run(pipe: Pipeline) -> None:
        with pytest.raises(ValueError, match=r"a parameter of shape \[3\] is not in this pipeline"):
            pipe.sharded_optimizer(SGD, [nn.Parameter(torch.zeros(3))], lr=0.1)
        optimizer = pipe.sharded_optimizer(SGD, lr=0.1)
        pipe.step(*batch(0, micro_batches=2), sync=False)
        with pytest.raises(RuntimeError, match="the last step was without sync"):
            optimizer.step()

    in_loopback("chimera", {"D": 2, "N": 2}, lambda: Decoder(2), run)


def test_frozen_parameters_have_no_state_and_do_not_change() -> None:
    def frozen() -> Decoder:
        model = Decoder(2)
        model.embed.requires_grad_(False)
        return model

    def run(pipe: Pipeline) -> int:
        optimizer = pipe.sharded_optimizer(AdamW, lr=0.1)
        pipe.step(*batch(0, micro_batches=2))
        optimizer.step()
        pipe.check_copies()
        assert pipe.full_state_dict()["embed.weight"].equal(frozen().embed.weight)
        return state_size(optimizer)

    trained_numbers = sum(p.numel() for p in frozen().parameters() if p.requires_grad)
    size = sum(in_loopback("chimera", {"D": 2, "N": 2}, frozen, run))
    assert size == 2 * trained_numbers, "AdamW keeps two moments of each number"


def test_with_zero_the_trainer_shards_the_state() -> None:
    program, model = compile_schedule("chimera", {"D": 2, "N": 2}).program, gpt("gpt-nano", sequence_length=8)
    settings = Settings(iterations=3, seed=3, micro_batch=2, rate=1e-3)

    def results(zero: bool) -> list[tuple[list[float], int]]:
        def rank(transport: Transport) -> tuple[list[float], int]:
            parts = partitioned(program, model, describe(model, settings.micro_batch))
            trainer = Trainer(program, parts, IntegerSamples(length=8), transport, replace(settings, zero=zero))
            losses = [trainer.update(k, trainer.gradients(k)).loss for k in range(settings.iterations)]
            assert trainer.optimizer is not None
            return losses, state_size(trainer.optimizer)

        return run_in_loopback(program, rank, seed=4)

    whole, sharded = results(zero=False), results(zero=True)
    assert [losses for losses, _ in whole] == [losses for losses, _ in sharded]
    assert sum(size for _, size in whole) == 2 * sum(size for _, size in sharded)
