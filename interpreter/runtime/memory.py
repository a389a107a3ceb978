"""Values in memory of their own: freeing a value then frees its memory (docs/semantics.md, "Buffers")."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chimerac.interpreter.runtime.model import Values


def is_alone(tensor: Tensor, others: Sequence[Tensor] = ()) -> bool:
    """Return whether a tensor fills its memory, in the order of its elements, and none of `others` uses this memory."""
    memory = tensor.untyped_storage()
    if memory.nbytes() != tensor.nbytes or not tensor.is_contiguous():
        return False
    if others:
        address = memory._cdata
        for t in others:
            if t.untyped_storage()._cdata == address:
                return False
    return True


def in_own_memory(tensors: Sequence[Tensor], kept: Sequence[bool], others: Sequence[Tensor] = ()) -> Values:
    """Return these tensors without their graph, each in memory that it fills and shares with no other.

    A tensor is copied if a graph keeps it (`kept`), if it shares memory with another one or with `others`, or if its memory is
    larger than the tensor.
    """
    result: list[Tensor] = []
    for t, is_kept in zip(tensors, kept, strict=True):
        copied = is_kept or not is_alone(t, (*others, *result))
        result.append(t.detach().clone(memory_format=torch.contiguous_format) if copied else t.detach())
    return tuple(result)
