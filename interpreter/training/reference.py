"""The reference: one process with the whole model. The pipeline's losses and gradients are compared with its own.

Every rank can compute it, because layers are built from the same seeds and samples have the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.draws import Draws, drawing
from chimerac.interpreter.runtime.model import Model, Stage, build_stage
from chimerac.interpreter.training.optimizer import build_optimizer, learning_rate
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.trainer import Result, Trainer


def whole_model(model: Model, seed: int) -> Stage:
    """Build the model as a single stage with its initial weights."""
    return build_stage(model, range(len(model.layers)), seed)


def add_gradients(whole: Stage, trainer: Trainer, iteration: int) -> float:
    """Add the gradients of one iteration, micro-batch after micro-batch, and return its loss."""
    total, device, model = 0.0, trainer.transport.device, trainer.model.model
    for replica in range(trainer.program.header.width):
        for batch in trainer.batches(iteration, replica):
            for m in range(batch.micro_batches):
                with drawing(batch.draws(m)), model.autocasting(device):
                    outputs = whole(*(t.to(device) for t in batch.inputs(m)))
                    loss = model.loss(outputs, batch.targets(m).to(device)) / batch.divisor
                torch.autograd.backward(loss)
                total += float(loss.detach())
    return total


def largest_difference(trainer: Trainer) -> float:
    """Return the largest relative difference, over all ranks, of the gradients of iteration 0 from one process's."""
    whole = whole_model(trainer.model.model, trainer.settings.seed).to(trainer.transport.device)
    add_gradients(whole, trainer, iteration=0)
    stages, layers = trainer.pipeline.stages, trainer.model.partition.layers
    mine = [_difference(stage, [whole.layers[k] for k in layers[s]]) for s, stage in stages.items()]
    return max(map(float, trainer.transport.all_gather(repr(max(mine, default=0.0)))))


def _difference(stage: Stage, layers: list[nn.Module]) -> float:
    """Return the largest ||g - g'|| / ||g'|| of a parameter. g': in one process. ||g'|| counts as at least a
    thousandth of the stage's largest, because the relative error of a gradient near zero means nothing.
    """
    expected = [p.grad for layer in layers for p in layer.parameters()]
    found = [p.grad for p in stage.parameters()]
    norms = [0.0 if w is None else float(w.double().norm()) for w in expected]
    floor = 1e-3 * max(norms, default=0.0) + 1e-30
    largest = 0.0
    for w, f, norm in zip(expected, found, norms, strict=True):
        zero = torch.zeros(())
        difference = float(((zero if f is None else f) - (zero if w is None else w)).double().norm())
        largest = max(largest, difference / max(norm, floor))
    return largest


def train(whole: Stage, model: Model, source: Samples, settings: Settings, samples: int) -> Iterator[Result]:
    """Train the whole model in this process without a pipeline: `samples` samples in each iteration, as one batch."""
    parameters = list(whole.parameters())
    optimizer = build_optimizer(dict(whole.named_parameters()), settings)
    assert optimizer is not None, "a model without parameters"
    for iteration in range(settings.iterations):
        numbers = range(iteration * samples, (iteration + 1) * samples)
        inputs, targets = source.read(numbers)
        with drawing(Draws(settings.seed, iteration, tuple(numbers))), model.autocasting(inputs[0].device):
            loss = model.loss(whole(*inputs), targets) / source.valid_targets(numbers)
        torch.autograd.backward(loss)
        norm = nn.utils.clip_grad_norm_(parameters, settings.clip)
        rate = learning_rate(settings, iteration)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        yield Result(float(loss.detach()), float(norm), rate)
