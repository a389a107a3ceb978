"""Boundary values: the tensors that a stage passes to the next one, and their size in a message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, FailFast, Field

from chimerac.chimera_ir.instructions import STRICT

ALIGNMENT = 16  # bytes: in a message of several tensors, each tensor begins at a multiple of this

Dtype = Literal["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
ITEM_BYTES: dict[str, int] = {
    "bool": 1,
    "uint8": 1,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
Size = Annotated[int, Field(ge=0, le=2**31)]
Amount = Annotated[int, Field(ge=0, le=2**53)]  # a number of bytes or of parameters, or a cost


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a boundary value.

    Attributes:
        gradient: whether a gradient of the same shape is sent back.
        kept: whether a layer before this boundary keeps the memory of this tensor for its backward. A stage that ends here then
            passes on a copy, if its forward keeps its graph.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    shape: Annotated[tuple[Size, ...], Field(max_length=16), FailFast()]
    dtype: Dtype
    gradient: bool
    kept: bool = False

    @property
    def bytes(self) -> int:
        """Return the size of the tensor in bytes, without padding."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


def aligned_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor in a message of several tensors, with the padding after it."""
    return -(-tensor.bytes // ALIGNMENT) * ALIGNMENT


def message_bytes(tensors: Sequence[Tensor], count: int = 1) -> int:
    """Return the bytes of a message of `count` values.

    Args:
        tensors: of each value.

    A message of a single tensor has no padding.
    """
    return tensors[0].bytes if len(tensors) * count == 1 else count * sum(map(aligned_bytes, tensors))
