"""The norm of a model's gradient: its value, and the memory that it needs."""

from itertools import accumulate
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from chimerac.interpreter.pipeline.gradient import PART_ELEMENTS, ModelGradient


def gradient_of(*gradients: torch.Tensor | None) -> ModelGradient:
    """Return the gradient of a model on one rank, whose parameters have these gradients."""
    parameters = [nn.Parameter(torch.zeros(() if g is None else g.shape)) for g in gradients]
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g
    executor: Any = SimpleNamespace(groups={"stage 0": parameters})
    return ModelGradient(executor, {"stage 0": (0,)}, cast(Any, SimpleNamespace(rank=0)))


def test_the_norm_is_computed_in_float64() -> None:
    values = torch.full((PART_ELEMENTS + 7,), 2**-13), torch.randn(3, 5).T, torch.zeros(0, 4), None, torch.tensor(2.0)
    expected = sum(float(g.double().square().sum()) for g in values if g is not None)
    assert gradient_of(*values).squared_norm() == pytest.approx(expected, rel=1e-13)
    assert gradient_of(None).squared_norm() == gradient_of().squared_norm() == 0.0


def test_the_norm_of_a_large_gradient_needs_little_memory() -> None:
    """The gradient of an embedding may be the largest tensor of a rank, so no float64 copy of a whole gradient is made."""
    elements = 8 * PART_ELEMENTS
    gradient = gradient_of(torch.ones(elements))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        assert gradient.squared_norm() == elements
    # Each event has the bytes of an allocation, negative for a release. So the largest partial sum is the peak.
    events = sorted(
        (e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()
    )
    part_bytes = torch.float64.itemsize * PART_ELEMENTS
    assert 0 < max(accumulate(e.nbytes() for e in events)) < 2 * part_bytes
