"""Loops written by hand, with which the runtime is compared. An iteration computes gradients and clears them.

`alone` runs the whole model in one process. `chimera` is Chimera on two ranks. There every rank has the whole model: the first
half for the pipe that begins on this rank, and the last half for the pipe that begins on the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tools.bench_models import SAMPLES, mean_loss


def alone(whole: nn.Module, tokens: Tensor) -> Callable[[], None]:
    """Return a function that runs one iteration in this process: all micro-batches, one after another."""
    parts = tokens.split(SAMPLES)

    def iterate() -> None:
        for part in parts:
            (output,) = whole(part)
            torch.autograd.backward(mean_loss(output, part) / len(parts))
        whole.zero_grad()

    return iterate


def chimera(first: nn.Module, last: nn.Module, tokens: Tensor, groups: Sequence[Any]) -> Callable[[], None]:
    """Return a function that runs one iteration of Chimera on this rank of two.

    Args:
        first, last: the two halves of the model.
        groups: four process groups: for the messages to rank 1, for those to rank 0, for the gradients of the first half, and
            for those of the last half. The gradients of a half are views of one flat tensor, which is made once.
    """
    rank = dist.get_rank()
    peer, outgoing, incoming = 1 - rank, groups[rank], groups[1 - rank]
    parts = tokens.split(SAMPLES)
    own, other = parts[rank * len(parts) // 2 :][: len(parts) // 2], parts[peer * len(parts) // 2 :][: len(parts) // 2]
    with torch.no_grad():
        shape = first(parts[0])[0].shape
    gradients_of_first, views_of_first = _flat_gradients(first)
    gradients_of_last, views_of_last = _flat_gradients(last)

    def iterate() -> None:
        for gradients, views in ((gradients_of_first, views_of_first), (gradients_of_last, views_of_last)):
            gradients.zero_()
            for p, view in views:
                p.grad = view
        sent: list[Any] = []  # each send, with a tensor that keeps what it sends alive
        for k in range(len(own)):
            x, gradient = torch.empty(shape), torch.empty(shape)
            receives = [dist.irecv(x, peer, incoming)]
            (y,) = first(own[k])
            sent.append((dist.isend(y.detach(), peer, outgoing), y))
            receives.append(dist.irecv(gradient, peer, incoming))
            receives[0].wait()
            x.requires_grad_()
            (output,) = last(x)
            torch.autograd.backward(mean_loss(output, other[k]) / len(parts))
            assert x.grad is not None
            sent.append((dist.isend(x.grad, peer, outgoing), x))
            if k == len(own) - 1:  # the gradients of the last half are complete
                launched = [dist.all_reduce(gradients_of_last, group=groups[3], async_op=True)]
            receives[1].wait()
            torch.autograd.backward(y, gradient)
        launched.append(dist.all_reduce(gradients_of_first, group=groups[2], async_op=True))
        for work, _ in sent:
            work.wait()
        for all_reduce in launched:
            all_reduce.wait()
        for half in (first, last):
            half.zero_grad()

    return iterate


def _flat_gradients(module: nn.Module) -> tuple[Tensor, list[tuple[nn.Parameter, Tensor]]]:
    """Return one tensor for all gradients of a module, and each parameter with the view of its gradient."""
    parameters = list(module.parameters())
    flat = torch.zeros(sum(p.numel() for p in parameters))
    parts = flat.split([p.numel() for p in parameters])
    return flat, [(p, part.view(p.shape)) for p, part in zip(parameters, parts, strict=True)]
