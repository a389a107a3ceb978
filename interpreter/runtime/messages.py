"""Messages: the tensors of one or several values in a fixed order, without a header.

Both ends know the shapes from the boundary table, whose digest they compare before the first iteration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from chimerac.chimera_ir.boundary import Tensor as BoundaryTensor
from chimerac.chimera_ir.boundary import aligned_bytes, message_bytes
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.partition import Partition
from chimerac.interpreter.runtime.model import Values

Boundary = tuple[BoundaryTensor, ...]


def boundary_table(description: ModelDescription, partition: Partition) -> tuple[Boundary, ...]:
    """Return, for each stage, the tensors that it passes to the next one; for the last stage, those that the loss takes."""
    return tuple(description.layers[ids[-1]].boundary for ids in partition.layers)


def table_digest(table: Sequence[Boundary]) -> str:
    """Return the SHA-256 of a boundary table. Ranks compare it: a transport may not detect a message of a wrong size."""
    return hashlib.sha256(repr(table).encode()).hexdigest()


def with_gradient(boundary: Boundary) -> Boundary:
    """Return the tensors that have a gradient."""
    return tuple(declared for declared in boundary if declared.gradient)


class Layout:
    """The positions of the tensors in a message, computed once for all messages of these shapes.

    A single tensor is its own message. It is received without a copy, and sent without one if it is contiguous. Several
    tensors are copied into one block of memory. The receiver reads them from it without a copy. If they have the same shape
    and dtype, and need no padding, the block is a stack of them, [count, *shape]: one call copies them all. Otherwise it is a
    tensor of bytes.

    Args:
        boundary: the tensors of the message, in order.
        device: where all messages are; also those without tensors, because NCCL accepts no CPU tensor.

    Attributes:
        starts: the number of each tensor's first byte in a block of bytes.
        bytes: the size of this block.
        empty: a function that returns memory for one message.
    """

    def __init__(self, boundary: Boundary, device: torch.device) -> None:
        self.boundary = boundary
        self.shapes_and_dtypes = [(declared.shape, getattr(torch, declared.dtype)) for declared in boundary]
        self.starts = [0, *accumulate(map(aligned_bytes, boundary))][:-1]
        self.bytes = message_bytes(boundary)
        self.is_single_tensor = len(boundary) == 1
        has_padding = self.bytes > sum(declared.bytes for declared in boundary)
        self.is_stack = len(boundary) > 1 and len({*self.shapes_and_dtypes}) == 1 and not has_padding
        shape: tuple[int, ...] = (self.bytes,)
        dtype = torch.uint8
        if self.is_single_tensor or self.is_stack:
            shape, dtype = self.shapes_and_dtypes[0]
        if self.is_stack:
            shape = (len(boundary), *shape)
        # torch.empty takes 1.0 µs if the sizes are separate arguments, and 1.6 µs if they are a tuple. () stays a tuple.
        self.empty: Callable[[], Tensor] = partial(torch.empty, *(shape or ((),)), dtype=dtype, device=device)

    def pack(self, tensors: Values) -> Tensor:
        """Return the message of these tensors. Raises ValueError unless their number, shapes and dtypes are the layout's."""
        if self.is_single_tensor and len(tensors) == 1:
            (tensor,), (shape, dtype) = tensors, self.shapes_and_dtypes[0]
            if tensor.shape == shape and tensor.dtype is dtype:
                return tensor if tensor.is_contiguous() else tensor.contiguous()
        self._check(tensors)
        if self.is_stack:
            return torch.stack(tensors)
        message = self.empty()
        for tensor, start, declared in zip(tensors, self.starts, self.boundary, strict=True):
            message[start : start + declared.bytes] = tensor.contiguous().view(-1).view(torch.uint8)
        return message

    def _check(self, tensors: Values) -> None:
        if len(tensors) != len(self.shapes_and_dtypes):
            described = len(self.shapes_and_dtypes)
            raise ValueError(f"a message has {len(tensors)} tensors, and should have {described} by the description")
        for tensor, (shape, dtype) in zip(tensors, self.shapes_and_dtypes, strict=True):
            if tensor.shape != shape or tensor.dtype != dtype:
                made = _dtype_and_shape(tensor.dtype, tensor.shape)
                raise ValueError(f"the stage made {made}, its description says {_dtype_and_shape(dtype, shape)}")

    def unpack(self, message: Tensor) -> Values:
        """Return the tensors of a message, which share its memory."""
        if self.is_single_tensor:
            return (message,)
        if self.is_stack:
            return tuple(message.unbind())
        return tuple(
            message[start : start + declared.bytes].view(dtype).view(shape)
            for start, declared, (shape, dtype) in zip(self.starts, self.boundary, self.shapes_and_dtypes, strict=True)
        )


def _dtype_and_shape(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
