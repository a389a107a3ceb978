"""Losses of models that return logits: sums over the valid targets, as a Model has them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from chimerac.interpreter.runtime.model import IGNORED, Values


def cross_entropies(outputs: Values, targets: Values) -> Values:
    """Return for each output the sum of the cross-entropies of its valid targets, in nats.

    outputs: logits [..., classes]; targets: classes [...] of each output, where IGNORED does not count.
    """
    pairs = zip(outputs, targets, strict=True)
    return tuple(F.cross_entropy(x.flatten(0, -2), t.flatten(), ignore_index=IGNORED, reduction="sum") for x, t in pairs)


def cross_entropy(outputs: Values | Tensor, targets: Values | Tensor) -> Tensor:
    """Return the sum of the `cross_entropies` of all outputs."""
    first, *others = cross_entropies(_several(outputs), _several(targets))
    return sum(others, start=first)


def next_token(outputs: Values | Tensor, targets: Values | Tensor) -> Tensor:
    """Return the sum of the cross-entropies of each next token.

    outputs: logits [samples, length, classes]; targets: the tokens [samples, length] as they were given to the model. The
    logits of a position predict the token after it.
    """
    (logits,), (tokens,) = _several(outputs), _several(targets)
    return cross_entropy(logits[:, :-1], tokens[:, 1:])


def squared_error(outputs: Values | Tensor, targets: Values | Tensor) -> Tensor:
    """Return the sum of the squared errors. outputs [...] and targets [...] have as many numbers."""
    (values,), (numbers,) = _several(outputs), _several(targets)
    return F.mse_loss(values.flatten(), numbers.flatten(), reduction="sum")


LOSSES = {"cross-entropy": cross_entropy, "next-token": next_token, "squared-error": squared_error}


def _several(tensors: Values | Tensor) -> Values:
    return (tensors,) if isinstance(tensors, Tensor) else tensors
