"""Values in memory of their own, so that freeing a value frees its memory (docs/semantics.md, "Buffers")."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chimerac.interpreter.runtime.model import Values


def is_alone(tensor: Tensor, others: Sequence[Tensor] = ()) -> bool:
    """Return whether a tensor is contiguous, fills its storage, and shares it with none of `others`."""
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes or not tensor.is_contiguous():
        return False
    if others:
        address = storage._cdata
        for t in others:
            if t.untyped_storage()._cdata == address:
                return False
    return True


def in_own_memory(tensors: Sequence[Tensor], kept: Sequence[bool], others: Sequence[Tensor] = ()) -> Values:
    """Return these tensors without their graph, each alone in its storage.

    A tensor is copied only if that is necessary: if a graph keeps it (`kept`), if it shares its storage with a tensor before it
    or with one of `others`, if its storage is larger, or if it is not contiguous.
    """
    result: list[Tensor] = []
    for t, is_kept in zip(tensors, kept, strict=True):
        copied = is_kept or not is_alone(t, (*others, *result))
        result.append(t.detach().clone(memory_format=torch.contiguous_format) if copied else t.detach())
    return tuple(result)
