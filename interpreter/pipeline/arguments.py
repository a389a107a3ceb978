"""Checks of the arguments of a pipeline and of its steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chimerac.interpreter.runtime.model import Values

Tensors = Tensor | Sequence[Tensor]


def tensors_of(given: Tensors) -> Values:
    """Return one or several tensors as a tuple. Raises TypeError for anything else, and ValueError if there is no tensor."""
    tensors = (given,) if isinstance(given, Tensor) else tuple(given)
    for t in tensors:
        if not isinstance(t, Tensor) or not t.dim():
            raise TypeError(f"inputs and targets are tensors whose first dimension is the samples, not {type(t).__name__}")
    if not tensors:
        raise ValueError("there is no tensor in the inputs")
    return tensors


def check_inputs(inputs: Values, example: Values, micro_batches: int) -> None:
    """Raise ValueError unless the inputs have the shapes and dtypes of `micro_batches` micro-batches like the example."""
    if len(inputs) != len(example):
        raise ValueError(f"{len(inputs)} input tensors were given, and {len(example)} when the pipeline was created")
    for k, (t, e) in enumerate(zip(inputs, example, strict=True)):
        expected = (micro_batches * len(e), *e.shape[1:])
        if tuple(t.shape) != expected or t.dtype != e.dtype:
            raise ValueError(
                f"input {k} is {t.dtype} of shape {list(t.shape)}, and {micro_batches} micro-batches of {len(e)} samples "
                f"are {e.dtype} of shape {list(expected)}"
            )


def checked_autocast(dtype: torch.dtype | None) -> torch.dtype | None:
    """Return `dtype`. Raises ValueError for all types but bfloat16: float16 would need scaled gradients."""
    if dtype not in (None, torch.bfloat16):
        raise ValueError(f"autocast={dtype}: give torch.bfloat16, the only type whose gradients need no scaling, or None")
    return dtype
