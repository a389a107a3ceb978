"""A small training run with checkpoints, in loopback or on real ranks, and the tensors that it saves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.interpreter.data.source import Data
from chimerac.interpreter.data.text import load_text
from chimerac.interpreter.data.windows import text_data
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Model
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.training.checkpoints import Checkpoints, CheckpointSettings
from chimerac.interpreter.training.trainer import Settings, Trainer, samples_per_micro_batch
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.models.gpt import gpt

ITERATIONS, LENGTH = 20, 16  # LENGTH: bytes of a sample
SETTINGS = Settings(iterations=ITERATIONS, seed=5, micro_batch=2, rate=3e-3)
TOLERANCE = 1e-5  # relative: other schedules add gradients in another order


@dataclass(frozen=True)
class Trained:
    """What a rank has after a training.

    Attributes:
        start: how many iterations were done when the training began.
        losses: of its iterations.
        messages: about the checkpoint from which it resumed, and about those that it saved.
        tensors: weights and optimizer state, by their names in a checkpoint.
    """

    start: int
    losses: list[float]
    messages: list[str]
    tensors: dict[str, Tensor]


def refused(code: str, *words: str) -> Any:
    """Return a context that expects a ChimeraError with this code and then these words (patterns), in this order."""
    return pytest.raises(ChimeraError, match=".*".join([code, *words]))


@cache
def model(name: str = "gpt-nano") -> Model:
    return gpt(name, LENGTH, dropout=0.1)


@cache
def data(seed: int) -> Data:
    return text_data(load_text(None), LENGTH, seed)


@cache
def description(model: Model, samples: int) -> ModelDescription:
    return describe(model, samples)


@cache
def compiled(name: str, width: int, **parameters: int) -> Program:
    return compile_schedule(name, parameters, width).program


def training(
    program: Program,
    save: CheckpointSettings,
    source: str = "no",
    until: int = ITERATIONS,
    settings: Settings = SETTINGS,
    model: Model = model(),  # noqa: B008
    restarts: int = 0,
    after: Callable[[Transport, int, float], None] = lambda transport, done, loss: None,
) -> Callable[[Transport], Trained]:
    """Return the function of a rank that trains until `until` iterations are done.

    Args:
        save: where and when it saves checkpoints.
        source, restarts: as in `Checkpoints.resume`.
        after: called after each iteration and its save, with the transport, the number of iterations that are done and the loss
            of the last one.
    """
    parts = partitioned(program, model, description(model, samples_per_micro_batch(program, settings.micro_batch)))
    samples = data(settings.seed)

    def rank(transport: Transport) -> Trained:
        trainer = Trainer(program, parts, samples.train, transport, settings)
        checkpoints = Checkpoints(trainer, save, samples.identity)
        resumed = checkpoints.resume(source, restarts)
        losses, messages = [], list(resumed.messages)
        for iteration in range(resumed.iteration, until):
            losses.append(trainer.update(iteration, trainer.gradients(iteration)).loss)
            messages += checkpoints.save_if_due(iteration + 1, last=iteration + 1 == until)
            after(transport, iteration + 1, losses[-1])
        trainer.pipeline.check_copies()
        return Trained(resumed.iteration, losses, messages, tensors_of(trainer))

    return rank


def tensors_of(trainer: Trainer) -> dict[str, Tensor]:
    """Return the weights and the optimizer state of a rank, by their names in a checkpoint."""
    tensors = {f"model.{name}": t.clone() for name, t in trainer.pipeline.state_dict().items()}
    for name, p in trainer.pipeline.named_parameters():
        state = trainer.optimizer.state[p] if trainer.optimizer else {}
        tensors |= {f"optimizer.state.{name}.{key}": t.clone() for key, t in state.items()}
    return tensors


def train(program: Program, folder: Path | None = None, source: str = "no", until: int = ITERATIONS, **more: object) -> Trained:
    """Train in loopback, and return what rank 0 has, with the tensors of all ranks. Checks that copies of a tensor are equal.

    Args:
        folder: of the checkpoints; None: none are saved.
        more: other arguments of CheckpointSettings and of `training`.
    """
    saving = {name: more.pop(name) for name in ("every", "keep", "asynchronous") if name in more}
    save = CheckpointSettings(folder, **{"every": 5, **saving})
    ranks = run_in_loopback(program, training(program, save, source, until, **more), seed=3)
    tensors: dict[str, Tensor] = {}
    for rank in ranks:
        for name, t in rank.tensors.items():
            assert name not in tensors or t.equal(tensors[name]), f"copies of {name} differ"
        tensors |= rank.tensors
    return replace(ranks[0], tensors=tensors)
