"""One process that holds the whole model: what the pipeline's numbers are compared with.

Every rank can be it: its layers are built from the same seeds, its samples have the same numbers.
"""

from __future__ import annotations

import torch
from torch import nn

from interpreter.data import Windows
from interpreter.training import Trainer
from models.draws import drawing
from models.model import Model, Stage, build_stage


def whole_model(model: Model, seed: int) -> Stage:
    """Build the model as a single stage with its initial weights."""
    return build_stage(model, range(len(model.layers)), seed)


def add_gradients(whole: Stage, trainer: Trainer, iteration: int) -> float:
    """Add the gradients of one iteration, micro-batch after micro-batch, and return its loss."""
    total = 0.0
    for replica in range(trainer.program.header.width):
        batch = trainer.batch(iteration, replica)
        for m in range(batch.micro_batches):
            with drawing(batch.draws(m)):
                outputs = whole(*batch.inputs(m))
            loss = trainer.model.loss(outputs, batch.targets(m)) / batch.valid_targets
            torch.autograd.backward(loss)
            total += float(loss.detach())
    return total


def largest_difference(trainer: Trainer) -> float:
    """Return the largest relative difference, over all ranks, of the gradients of iteration 0 from one process's."""
    whole = whole_model(trainer.model, trainer.settings.seed)
    add_gradients(whole, trainer, iteration=0)
    mine = [_difference(stage, [whole.layers[k] for k in trainer.cut[s]]) for s, stage in trainer.stages.items()]
    return max(float(word) for word in trainer.transport.tell_all(repr(max(mine, default=0.0))))


def _difference(stage: Stage, layers: list[nn.Module]) -> float:
    """Return the largest ||g - g'|| / ||g'|| of a parameter; a tiny g' is measured by a thousandth of the stage's."""
    wanted = [p.grad for layer in layers for p in layer.parameters()]
    found = [p.grad for p in stage.parameters()]
    norms = [0.0 if w is None else float(w.double().norm()) for w in wanted]
    floor = 1e-3 * max(norms, default=0.0) + 1e-30
    largest = 0.0
    for w, f, norm in zip(wanted, found, norms, strict=True):
        zero = torch.zeros(())
        difference = float(((zero if f is None else f) - (zero if w is None else w)).double().norm())
        largest = max(largest, difference / max(norm, floor))
    return largest


def gather(trainer: Trainer) -> Stage:
    """Return the whole model with its weights as they are now; called by all ranks together."""
    whole = whole_model(trainer.model, trainer.settings.seed)
    with torch.no_grad():
        for s, layers in enumerate(trainer.cut):
            targets = [p for k in layers for p in whole.layers[k].parameters()]
            if s in trainer.stages:
                for p, own in zip(targets, trainer.stages[s].parameters(), strict=True):
                    p.copy_(own)
            holder = trainer.program.header.holders([s])[0]
            for p in targets:
                trainer.transport.copy_from(holder, p.data)
    return whole


@torch.no_grad()
def held_out_loss(trainer: Trainer, held_out: Windows, limit: int) -> float:
    """Return the mean loss of at most `limit` held-out samples, nats; every rank evaluates its share."""
    whole, transport = gather(trainer).eval(), trainer.transport
    totals = torch.zeros(2, dtype=torch.float64)  # sum of losses, number of targets
    for number in range(transport.rank, min(limit, held_out.count), transport.world):
        inputs, targets = held_out.read([number])
        loss = float(trainer.model.loss(whole(*inputs), targets))
        totals += torch.tensor([loss, held_out.valid_targets([number])], dtype=torch.float64)
    transport.sum_all(totals)
    return float(totals[0] / totals[1])
