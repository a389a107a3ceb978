"""The reference: the losses and gradients that one process computes with the whole model.

The pipeline must have the same, apart from rounding. Every rank can compute the reference, because it can build all layers with
their initial weights, and read all samples by their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.draws import Draws, drawing
from chimerac.interpreter.runtime.model import Model, Stage, combined
from chimerac.interpreter.training.optimizer import build_optimizer, learning_rate
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.trainer import Result, Trainer


def whole_model(model: Model, seed: int) -> Stage:
    """Build the model as a single stage with its initial weights."""
    return model.build_stage(range(len(model.layer_names)), seed)


def add_gradients(whole: Stage, trainer: Trainer, iteration: int) -> float:
    """Add the gradients of one iteration to those of `whole`, micro-batch after micro-batch, and return the loss."""
    device, model = trainer.transport.device, trainer.model.model
    total = 0.0
    for replica in range(trainer.program.header.width):
        for batch in trainer.batches(iteration, replica):
            for m in range(batch.micro_batches):
                with drawing(batch.draws(m)), model.autocasting(device):
                    fields = {name: batch.field(m, name).to(device) for name in whole.reads}
                    outputs = whole(*(t.to(device) for t in batch.inputs(m)), **fields)
                    targets = tuple(t.to(device) for t in batch.targets(m))
                    loss = combined(model.loss(outputs, targets), batch.divisors)
                torch.autograd.backward(loss)
                total += float(loss.detach())
    return total


def largest_difference(trainer: Trainer) -> float:
    """Return the largest relative difference, over all ranks, between the gradients of iteration 0 and the reference.

    Called by all ranks together, when they have the gradients of iteration 0.
    """
    whole = whole_model(trainer.model.model, trainer.settings.seed).to(trainer.transport.device)
    add_gradients(whole, trainer, iteration=0)
    expected = whole.parameters_by_name()
    own = max((_difference(stage, expected) for stage in trainer.pipeline.stages.values()), default=0.0)
    return max(map(float, trainer.transport.all_gather(repr(own))))


def _difference(stage: Stage, expected: Mapping[str, nn.Parameter]) -> float:
    """Return the largest relative difference ||g - r|| / ||r|| over the parameters of a stage.

    g: the gradient in the pipeline; r: the gradient in the reference, whose parameters are `expected`. If ||r|| is less than a
    thousandth of the largest ||r|| of the stage, that thousandth is the divisor: otherwise the rounding of gradients near zero
    would give large relative differences.
    """
    parameters = stage.parameters_by_name()
    reference = [_gradient(expected[name]) for name in parameters]
    norms = [float(r.double().norm()) for r in reference]
    least = 1e-3 * max(norms, default=0.0) + 1e-30  # 1e-30: so that there is no division by zero where all gradients are zero
    largest = 0.0
    for p, r, norm in zip(parameters.values(), reference, norms, strict=True):
        g = _gradient(p)
        difference = float((g - r).double().norm()) / max(norm, least)
        if math.isnan(difference):
            # If only one of g and r is finite, they differ. If neither is, the difference is 0: the update reports E812, or is
            # skipped.
            difference = math.inf if math.isfinite(norm) or math.isfinite(float(g.double().norm())) else 0.0
        largest = max(largest, difference)
    return largest


def _gradient(parameter: nn.Parameter) -> Tensor:
    """Return the gradient of a parameter; zeros if it has none."""
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def train(whole: Stage, model: Model, source: Samples, settings: Settings, samples: int, parts: int = 1) -> Iterator[Result]:
    """Train the whole model in this process without a pipeline, and yield the result of each iteration.

    Args:
        samples: how many an iteration has, a multiple of `parts`.
        parts: into how many micro-batches they are cut. Apart from rounding, this changes the results only of models that
            compute over the samples of a micro-batch, as batch normalization does, and of those that draw from torch's random
            generators, as nn.Dropout does.
    """
    parameters = list(whole.parameters())
    optimizer = build_optimizer(parameters, settings)
    assert optimizer is not None, "a model without parameters"
    size = samples // parts
    for iteration in range(settings.iterations):
        first, total = iteration * samples, 0.0
        divisors = source.valid_targets(range(first, first + samples))
        for start in range(first, first + samples, size):
            numbers = range(start, start + size)
            inputs, fields = source.inputs(numbers), {name: source.field(numbers, name) for name in whole.reads}
            with drawing(Draws(settings.seed, iteration, tuple(numbers))), model.autocasting(parameters[0].device):
                loss = combined(model.loss(whole(*inputs, **fields), source.targets(numbers)), divisors)
            torch.autograd.backward(loss)
            total += float(loss.detach())
        norm = nn.utils.clip_grad_norm_(parameters, settings.clip)
        rate = learning_rate(settings, iteration)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        yield Result(total, float(norm), rate)
