"""The optimizer of a run, and its learning rate in each iteration (docs/reproducing.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, assert_never

from torch import nn
from torch.optim import AdamW, Optimizer

from chimerac.interpreter.pipeline.bound import BoundPipeline
from chimerac.interpreter.training.settings import Settings


def decay_groups(parameters: Iterable[nn.Parameter], settings: Settings) -> list[dict[str, Any]]:
    """Return the groups of parameters for AdamW.

    Parameters with two or more dimensions have weight decay, such as matrices and embedding tables. Norms and biases have none.
    """
    all_parameters = list(parameters)
    groups = [
        {"params": [p for p in all_parameters if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in all_parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(parameters: Iterable[nn.Parameter], settings: Settings) -> AdamW | None:
    """Return AdamW for these parameters. Return None if there are none, because AdamW does not accept an empty list.

    The trainer sets the learning rate before each update, from `learning_rate`.
    """
    groups = decay_groups(parameters, settings)
    return AdamW(groups, **_options(groups, settings)) if groups else None


def build_sharded_optimizer(pipeline: BoundPipeline, settings: Settings) -> Optimizer:
    """Return AdamW for a rank's parameters, with its state sharded over the ranks that hold copies of a parameter."""
    groups = decay_groups(pipeline.parameters(), settings)
    return pipeline.sharded_optimizer(AdamW, groups, **_options(groups, settings))


def _options(groups: Iterable[Mapping[str, Any]], settings: Settings) -> dict[str, Any]:
    """Return the options of AdamW that all groups share.

    The fused kernels are chosen, because they update weights in place. torch's other implementations need more memory: three
    times the size of the largest weight, or of all weights on a GPU. The estimate of a rank's memory does not count that. With
    complex parameters, which have no fused kernel, torch takes another implementation.
    """
    fused = all(p.is_floating_point() for group in groups for p in group["params"])
    return {"lr": settings.rate, "betas": settings.betas, "fused": fused}


def learning_rate(settings: Settings, iteration: int) -> float:
    """Return the learning rate of one iteration.

    Args:
        iteration: its number, from 0.

    The rate rises linearly over the warm-up to `settings.rate`. Then it falls towards `settings.rate * settings.rate_floor`, or
    stays the same if `settings.rate_schedule` is `constant`.
    """
    warm_up = settings.warm_up_iterations
    if iteration < warm_up:
        return settings.rate * (iteration + 1) / warm_up
    progress = (iteration - warm_up) / max(1, settings.iterations - warm_up)
    match settings.rate_schedule:
        case "cosine":
            remaining = (1 + math.cos(math.pi * progress)) / 2
        case "linear":
            remaining = 1 - progress
        case "constant":
            remaining = 1.0
        case _:
            assert_never(settings.rate_schedule)
    return settings.rate * (settings.rate_floor + (1 - settings.rate_floor) * remaining)
