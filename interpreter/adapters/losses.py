"""The losses that a run offers by name, as sums over the valid targets; and a check that a user's loss is not a mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from chimerac.chimera_ir.boundary import Tensor as BoundaryTensor
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.runtime.model import IGNORED, Values


def cross_entropies(outputs: Values, targets: Values) -> Values:
    """Return for each output the sum of the cross-entropies of its valid targets, in nats.

    Args:
        outputs: logits [..., classes].
        targets: classes [...] of each output, where IGNORED does not count.
    """
    pairs = zip(outputs, targets, strict=True)
    return tuple(F.cross_entropy(x.flatten(0, -2), t.flatten(), ignore_index=IGNORED, reduction="sum") for x, t in pairs)


def cross_entropy(outputs: Values | Tensor, targets: Values | Tensor) -> Tensor:
    """Return the sum of the `cross_entropies` of all outputs."""
    first, *others = cross_entropies(_several(outputs), _several(targets))
    return sum(others, start=first)


def next_token(outputs: Values | Tensor, targets: Values | Tensor) -> Tensor:
    """Return the sum of the cross-entropies of the next tokens.

    Args:
        outputs: logits [samples, length, classes].
        targets: the tokens [samples, length] as they were given to the model. The logits of a position predict the token after
            it.
    """
    (logits,), (tokens,) = _several(outputs), _several(targets)
    return cross_entropy(logits[:, :-1], tokens[:, 1:])


def squared_error(outputs: Values | Tensor, targets: Values | Tensor) -> Tensor:
    """Return the sum of the squared errors.

    outputs [...] and targets [...] have equally many numbers. A target that is IGNORED does not count.
    """
    (values,), (numbers,) = _several(outputs), _several(targets)
    numbers = numbers.flatten()
    return (values.flatten() - numbers).masked_fill(numbers == IGNORED, 0).square().sum()


LOSSES = {"cross-entropy": cross_entropy, "next-token": next_token, "squared-error": squared_error}


def _several(tensors: Values | Tensor) -> Values:
    return (tensors,) if isinstance(tensors, Tensor) else tensors


# For a sum, the loss of two equal samples is twice the loss of one of them. For a mean, the two losses are equal, up to this
# relative difference.
MEAN_TOLERANCE = 0.01


def check_sum(name: str, loss: Callable[[Values, Values], Values], outputs: Sequence[BoundaryTensor], targets: Values) -> None:
    """Raise ChimeraError E856 if a loss of a user's model is a mean over the samples.

    The losses are computed on random outputs: for one sample, and for this sample twice. A loss that is zero for one sample is
    not checked, and no loss is checked if the losses cannot be computed.

    Args:
        name: of the model.
        outputs: the tensors that the losses read, of a micro-batch.
        targets: of one sample.
    """
    generator, samples = torch.Generator().manual_seed(0), next((x.shape[:1] for x in outputs if x.shape), ())
    drawn = []
    for declared in outputs:
        shape = (1, *declared.shape[1:]) if declared.shape and declared.shape[:1] == samples else declared.shape
        dtype: torch.dtype = getattr(torch, declared.dtype)
        # Numbers between 0 and 1 are valid for losses of probabilities too.
        is_float = dtype.is_floating_point
        drawn.append(torch.rand(shape, generator=generator) if is_float else torch.zeros(shape, dtype=dtype))
    try:
        with torch.no_grad():
            one = loss(tuple(drawn), targets)
            two = loss(tuple(torch.cat([t, t]) if t.dim() else t for t in drawn), tuple(torch.cat([t, t]) for t in targets))
    except Exception:  # whatever the user's function raises: the first iteration reports it, if it fails there too
        return
    for first, second in zip(map(float, one), map(float, two), strict=True):
        if first and abs(second - first) <= MEAN_TOLERANCE * abs(first):
            raise refuse(
                "E856",
                f"the loss of --model {name} is a mean: one sample gives {first:.4g}, and the same sample twice {second:.4g}",
                notes=("a run divides the loss by the number of all valid targets of an iteration",),
                help="return the sum over the samples: most losses of torch do with reduction='sum'",
            )
