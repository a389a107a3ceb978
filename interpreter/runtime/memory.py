"""The memory of tensors: values in memory of their own, so that freeing one frees its memory, and a digest of tensors' bits.

docs/semantics.md, "Buffers", says which values have memory of their own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from chimerac.interpreter.runtime.model import Values


def storage_address(tensor: Tensor) -> int:
    """Return the address of a tensor's storage, which identifies it as long as it exists."""
    address: int = tensor.untyped_storage()._cdata
    return address


def is_alone(tensor: Tensor, others: Sequence[Tensor] = ()) -> bool:
    """Return whether a tensor is contiguous, fills its storage, and shares it with none of `others`."""
    storage = tensor.untyped_storage()
    if storage.nbytes() != tensor.nbytes or not tensor.is_contiguous():
        return False
    if others:
        address = storage._cdata
        for t in others:
            if storage_address(t) == address:
                return False
    return True


def in_own_memory(tensors: Sequence[Tensor], kept: Sequence[bool], others: Sequence[Tensor] = ()) -> Values:
    """Return these tensors without their graph, each alone in its storage.

    Args:
        kept: for each tensor, whether a graph keeps it.

    A tensor is copied only if a graph keeps it, if its storage is larger, if it is not contiguous, or if it shares its storage
    with one of `others` or with a tensor before it that is not copied.
    """
    result: list[Tensor] = []
    for t, is_kept in zip(tensors, kept, strict=True):
        copied = is_kept or not is_alone(t, (*others, *result))
        result.append(t.detach().clone(memory_format=torch.contiguous_format) if copied else t.detach())
    return tuple(result)


def bits_digest(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the bits of these tensors."""
    digest = hashlib.sha256()
    for t in tensors:
        digest.update(t.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
