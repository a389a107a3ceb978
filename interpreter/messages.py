"""Messages: the tensors of one or several values as one run of bytes, in a fixed order and without any header.

Both ends know the shapes from the boundary table, whose digest they compare before the first iteration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from chimera_ir.model import ModelDescription
from chimera_ir.model import Tensor as Spec

Specs = tuple[Spec, ...]
_ALIGNMENT = 16  # every tensor of a message begins at a multiple, so that it can be read where it lies


def boundary_table(description: ModelDescription, stages: int) -> tuple[Specs, ...]:
    """Return the tensors that each stage hands on."""
    return tuple(stage.boundary for stage in description.stage_sums(stages))


def digest(table: Sequence[Specs]) -> str:
    """Return the SHA-256 of a boundary table: ranks compare it, as receiving a wrong size goes unnoticed."""
    return hashlib.sha256(repr(table).encode()).hexdigest()


def with_gradient(specs: Specs) -> Specs:
    """Return the tensors of the gradient of such a value."""
    return tuple(spec for spec in specs if spec.gradient)


def message_bytes(specs: Specs) -> int:
    """Return the length of a message of these tensors."""
    return sum(_padded(spec.bytes) for spec in specs)


def pack(tensors: Sequence[Tensor], specs: Specs) -> Tensor:
    """Return the message of these tensors.

    A single tensor is not copied: its message is the tensor's own memory.
    """
    for tensor, spec in zip(tensors, specs, strict=True):
        found = (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        if found != (spec.shape, spec.dtype):
            raise ValueError(f"the stage made {found[1]}{list(found[0])}, its description says {spec.dtype}{list(spec.shape)}")
    flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors]
    if len(flat) == 1 and flat[0].numel() % _ALIGNMENT == 0:
        return flat[0]
    message = torch.empty(message_bytes(specs), dtype=torch.uint8)
    start = 0
    for part in flat:
        message[start : start + part.numel()] = part
        start += _padded(part.numel())
    return message


def unpack(message: Tensor, specs: Specs) -> tuple[Tensor, ...]:
    """Return the tensors of a message, which share its memory."""
    tensors, start = [], 0
    for spec in specs:
        part = message[start : start + spec.bytes]
        tensors.append(part.view(getattr(torch, spec.dtype)).view(spec.shape))
        start += _padded(spec.bytes)
    return tuple(tensors)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
