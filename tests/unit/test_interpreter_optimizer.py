"""The learning rate, which equals that of torch's schedulers, and the optimizer, which equals AdamW written out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR
from torch.profiler import ProfilerActivity, profile

from chimerac.interpreter.training.optimizer import build_optimizer, learning_rate
from chimerac.interpreter.training.settings import Settings
from tools.memory_measured import peak_bytes

SETTINGS = Settings(iterations=50, seed=0, micro_batch=1, rate=3e-3, warm_up=7)


def falling(optimizer: torch.optim.Optimizer, settings: Settings) -> LRScheduler:
    """Return torch's scheduler for the iterations after the warm-up."""
    rest = settings.iterations - (settings.warm_up or 0)
    match settings.rate_schedule:
        case "cosine":
            return CosineAnnealingLR(optimizer, rest, eta_min=settings.rate * settings.rate_floor)
        case "linear":
            return LinearLR(optimizer, 1.0, settings.rate_floor, total_iters=rest)
        case "constant":
            return ConstantLR(optimizer, 1.0)


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
@pytest.mark.parametrize(("floor", "warm_up"), [(0.1, 7), (0.0, 2), (1.0, 7), (0.35, 40)])
def test_rates_equal_those_of_torchs_schedulers(kind: str, floor: float, warm_up: int) -> None:
    settings = replace(SETTINGS, rate_schedule=kind, rate_floor=floor, warm_up=warm_up)
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=settings.rate)
    rising = LinearLR(optimizer, 1 / warm_up, 1.0, total_iters=warm_up - 1)
    scheduler = SequentialLR(optimizer, [rising, falling(optimizer, settings)], [warm_up])
    for iteration in range(settings.iterations):
        assert learning_rate(settings, iteration) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9, abs=1e-12)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_rates_are_above_0_and_at_most_the_given_rate_for_short_and_long_warm_ups(kind: str) -> None:
    for warm_up in (None, 0, 1, 50, 99):
        settings = replace(SETTINGS, rate_schedule=kind, warm_up=warm_up)
        rates = [learning_rate(settings, t) for t in range(settings.iterations)]
        assert all(0 < rate <= settings.rate * (1 + 1e-12) for rate in rates)


def test_the_first_rate_is_the_given_one_without_a_warm_up_and_in_a_run_of_one_iteration() -> None:
    assert learning_rate(replace(SETTINGS, warm_up=0), 0) == SETTINGS.rate
    # By default the warm-up has at least one iteration. A warm-up of one begins with the given rate.
    assert learning_rate(replace(SETTINGS, iterations=1, warm_up=None), 0) == SETTINGS.rate


def test_updates_equal_adamw_written_out_and_only_matrices_decay() -> None:
    settings = replace(SETTINGS, betas=(0.8, 0.97), weight_decay=0.3)
    torch.manual_seed(0)
    start = {"matrix": torch.randn(3, 4), "table": torch.randn(5, 2), "norm": torch.randn(4), "scalar": torch.randn(())}
    named = {name: nn.Parameter(value.clone()) for name, value in start.items()}
    optimizer = build_optimizer(named.values(), settings)
    assert optimizer is not None
    expected = {name: value.double() for name, value in start.items()}
    mean = {name: torch.zeros_like(value) for name, value in expected.items()}
    square = {name: torch.zeros_like(value) for name, value in expected.items()}
    for step in range(1, 6):
        rate = learning_rate(settings, step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        for name, p in named.items():
            p.grad = torch.randn_like(p)
            g = p.grad.double()
            mean[name] = 0.8 * mean[name] + 0.2 * g
            square[name] = 0.97 * square[name] + 0.03 * g * g
            decay = 0.3 if name in ("matrix", "table") else 0.0
            change = (mean[name] / (1 - 0.8**step)) / ((square[name] / (1 - 0.97**step)).sqrt() + 1e-8)
            expected[name] = expected[name] * (1 - rate * decay) - rate * change
        optimizer.step()
    for name, p in named.items():
        assert p.double().allclose(expected[name], rtol=1e-5, atol=1e-6), name


def test_an_update_allocates_no_tensor_of_the_size_of_a_weight() -> None:
    named = {"matrix": nn.Parameter(torch.ones(100, 50)), "norm": nn.Parameter(torch.ones(300))}
    optimizer = build_optimizer(named.values(), SETTINGS)
    assert optimizer is not None
    for p in named.values():
        p.grad = torch.ones_like(p)
    optimizer.step()  # makes the state
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        optimizer.step()
    assert peak_bytes(profiler) < 100  # the smaller weight has 1200 bytes


def test_parameters_without_a_fused_kernel_are_updated_too() -> None:
    p = nn.Parameter(torch.ones(2, dtype=torch.complex64))
    optimizer = build_optimizer([p], SETTINGS)
    p.grad = torch.ones_like(p)
    assert optimizer is not None
    optimizer.step()
    assert p.real.max() < 1


def test_a_rank_without_parameters_has_no_optimizer() -> None:
    assert build_optimizer([], SETTINGS) is None


def test_a_rank_with_only_norms_has_an_optimizer_without_weight_decay() -> None:
    only_norms = build_optimizer([nn.Parameter(torch.ones(3))], SETTINGS)
    assert only_norms is not None and [g["weight_decay"] for g in only_norms.param_groups] == [0.0]


def test_by_default_the_rate_rises_for_a_tenth_of_the_iterations_and_then_falls_to_a_tenth() -> None:
    rates = [learning_rate(replace(SETTINGS, iterations=100, warm_up=None), t) for t in range(100)]
    assert max(rates) == rates[9] == rates[10] == SETTINGS.rate
    assert rates[:10] == sorted(rates[:10]) and rates[10:] == sorted(rates[10:], reverse=True)
    assert 0.1 * SETTINGS.rate <= rates[-1] < 0.11 * SETTINGS.rate
