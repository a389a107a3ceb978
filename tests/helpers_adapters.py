"""Training of a model that is cut between calls, under a schedule in the loopback and in one process with plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from unittest.mock import patch

import torch
from torch import Tensor, nn

from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.adapters.model import CallModel
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback

SAMPLES, MICRO_BATCHES = 2, 4
Batch = tuple[Mapping[str, Tensor], Tensor]
State = dict[str, Tensor]


def train(
    make: Callable[[], CallModel], schedules: Sequence[str], batches: Sequence[Batch]
) -> dict[str, tuple[State, list[float]]]:
    """Train under each schedule on four stages. Return, by schedule, the weights before the training and the losses.

    make: called by each rank.
    """
    description = describe(make(), SAMPLES)  # once: otherwise each rank makes its own
    with patch("chimerac.interpreter.pipeline.cut.describe", lambda *_: description):
        return {schedule: _train(make, schedule, batches) for schedule in schedules}


def _train(make: Callable[[], CallModel], schedule: str, batches: Sequence[Batch]) -> tuple[State, list[float]]:
    def rank(transport: Transport) -> tuple[State, list[float]]:
        pipe = Pipeline(make(), schedule, {"N": MICRO_BATCHES}, transport=transport)
        before, optimizer, losses = pipe.full_state_dict(), torch.optim.AdamW(pipe.parameters(), lr=1e-2), []
        for fields, targets in batches:
            losses.append(pipe.step(targets=targets, **{name: fields[name] for name in pipe.reads_fields}))
            optimizer.step()
            optimizer.zero_grad()
        return before, losses

    program = compile_schedule(schedule, {"D": 4, "N": MICRO_BATCHES}).program
    results = run_in_loopback(program, rank, seed=1)
    assert all(losses == results[0][1] for _, losses in results)
    return results[0]


def train_plainly(
    module: nn.Module, state: State, batches: Sequence[Batch], loss: Callable[[nn.Module, Mapping[str, Tensor], Tensor], Tensor]
) -> list[float]:
    """Train the whole module from these weights in one process, without the runtime, and return its losses."""
    assert not module.load_state_dict(state, strict=False).unexpected_keys
    optimizer, losses = torch.optim.AdamW(module.parameters(), lr=1e-2), []
    for fields, targets in batches:
        total = 0.0
        for m in range(MICRO_BATCHES):
            part = slice(m * SAMPLES, (m + 1) * SAMPLES)
            value = loss(module, {name: t[part] for name, t in fields.items()}, targets[part]) / MICRO_BATCHES
            value.backward()
            total += value.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return losses
