"""A module that is cut between calls, and training: under schedules in the loopback, and in one process with plain torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.adapters.model import CallModel, cut
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers_pipeline import LENGTH, VOCABULARY, WIDTH, cross_entropy

SAMPLES, MICRO_BATCHES = 2, 4  # samples of a micro-batch; micro-batches of a batch
RATE = 1e-2  # the learning rate of both trainings
TOKENS = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)
Batch = tuple[Mapping[str, Tensor], Tensor]  # the fields by name, and the targets
State = dict[str, Tensor]  # the weights and buffers by name


def train(
    make: Callable[[], CallModel], schedules: Sequence[str], batches: Sequence[Batch]
) -> dict[str, tuple[State, list[float]]]:
    """Train under each schedule on four ranks. Return, by schedule, the weights before the training and the losses.

    Args:
        make: returns the model; each rank calls it.
        batches: as of `train_plainly`.
    """
    description = describe(make(), SAMPLES)  # once: otherwise each rank would measure its own
    with patch("chimerac.interpreter.pipeline.cut.describe", lambda *_: description):
        return {schedule: _train(make, schedule, batches) for schedule in schedules}


def _train(make: Callable[[], CallModel], schedule: str, batches: Sequence[Batch]) -> tuple[State, list[float]]:
    def rank(transport: Transport) -> tuple[State, list[float]]:
        pipe = Pipeline(make(), schedule, {"N": MICRO_BATCHES}, transport=transport)
        start_weights, losses = pipe.full_state_dict(), []
        optimizer = torch.optim.AdamW(pipe.parameters(), RATE)
        for fields, targets in batches:
            losses.append(pipe.step(targets=targets, **{name: fields[name] for name in pipe.reads_fields}))
            optimizer.step()
            optimizer.zero_grad()
        return start_weights, losses

    program = compile_schedule(schedule, {"D": 4, "N": MICRO_BATCHES}).program
    results = run_in_loopback(program, rank, seed=1)
    assert all(losses == results[0][1] for _, losses in results)
    return results[0]


def train_plainly(
    module: nn.Module, state: State, batches: Sequence[Batch], loss: Callable[[nn.Module, Mapping[str, Tensor], Tensor], Tensor]
) -> list[float]:
    """Train the whole module from these weights in one process, without the runtime, and return its losses.

    Args:
        batches: of MICRO_BATCHES * SAMPLES samples.
        loss: of the module, for a micro-batch of fields and targets.
    """
    assert not module.load_state_dict(state, strict=False).unexpected_keys
    optimizer, losses = torch.optim.AdamW(module.parameters(), RATE), []
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


class Block(nn.Module):
    """Takes a tensor, tensors in a dictionary, and a number. Returns the same kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.bias = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor, state: Mapping[str, Tensor], scale: int = 1) -> tuple[Tensor, dict[str, Tensor], int]:
        y = torch.tanh(self.inner(x)) * scale + state["first"]
        return y, {"first": state["first"], "sum": state.get("sum", 0) + y}, scale + 1


class Skips(nn.Module):
    """A U-shaped module: skip connections across cuts, parameters of its own, a shared module, a tied weight, a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.down, self.up = nn.ModuleList(Block() for _ in range(2)), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)
        self.register_buffer("offset", torch.randn(WIDTH), persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = first = self.embed(tokens) * mask.unsqueeze(-1) + self.offset
        skips, state, scale = [], {"first": first}, 1
        for block in self.down:
            x, state, scale = block(self.norm(x), state, scale)
            skips.append(x)
        x = state["sum"]
        for layer in self.up:
            x += skips.pop()  # in place: on an output of a call, then on a result of operations between calls
            x = F.relu(layer(x)) * self.scale
        return self.head(self.norm(x) + first * scale)


def skips(**options: Any) -> CallModel:
    """Return the model of Skips.

    Args:
        options: of `cut`.
    """
    fields = {"tokens": TOKENS, "mask": torch.ones(SAMPLES, LENGTH)}
    return cut(Skips, fields, loss=cross_entropy, targets=TOKENS, **options)
