"""The reference: one process with the whole model. The pipeline's losses and gradients are compared with its own.

Every rank can compute it, because layers are built from the same seeds and samples have the same numbers.
"""

from __future__ import annotations

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
    """Add the gradients of one iteration, micro-batch after micro-batch, and return its loss."""
    total, device, model = 0.0, trainer.transport.device, trainer.pipeline.model
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
    """Return the largest relative difference, over all ranks, of the gradients of iteration 0 from one process's."""
    whole = whole_model(trainer.pipeline.model, trainer.settings.seed).to(trainer.transport.device)
    add_gradients(whole, trainer, iteration=0)
    expected = {name: p.grad for name, p in whole.parameters_by_name().items()}
    mine = [_difference(stage, expected) for stage in trainer.pipeline.stages.values()]
    return max(map(float, trainer.transport.all_gather(repr(max(mine, default=0.0)))))


def _difference(stage: Stage, expected: Mapping[str, Tensor | None]) -> float:
    """Return the largest ||g - g'|| / ||g'|| of a parameter. expected: g', the gradients of one process. ||g'|| counts as at
    least a thousandth of the stage's largest, because the relative error of a gradient near zero means nothing.
    """
    zero = torch.zeros(())
    found = {name: zero if p.grad is None else p.grad for name, p in stage.parameters_by_name().items()}
    wanted = {name: zero if g is None else g for name, g in expected.items() if name in found}
    norms = {name: float(g.double().norm()) for name, g in wanted.items()}
    floor = 1e-3 * max(norms.values(), default=0.0) + 1e-30
    differences = {name: float((found[name] - g).double().norm()) for name, g in wanted.items()}
    return max((differences[name] / max(norm, floor) for name, norm in norms.items()), default=0.0)


def train(whole: Stage, model: Model, source: Samples, settings: Settings, samples: int, parts: int = 1) -> Iterator[Result]:
    """Train the whole model in this process without a pipeline: `samples` samples in each iteration.

    parts: into how many micro-batches they are cut. The results are the same for any number, except for models that compute
    over the samples of a micro-batch.
    """
    parameters = list(whole.parameters())
    optimizer = build_optimizer(dict(whole.named_parameters()), settings)
    assert optimizer is not None, "a model without parameters"
    size = samples // parts
    for iteration in range(settings.iterations):
        first, total = iteration * samples, 0.0
        divisors = source.valid_targets(range(first, first + samples))
        for start in range(first, first + samples, size):
            numbers = range(start, start + size)
            inputs, fields = source.inputs(numbers), {name: source.field(numbers, name) for name in whole.reads}
            with drawing(Draws(settings.seed, iteration, tuple(numbers))), model.autocasting(inputs[0].device):
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
