"""Model descriptions: all that the compiler knows of a model, and the one place that decides where its stages are cut.

A description is measured once, without weights (models/describe.py), and travels as JSON:

    {"format": "chimera-model", "version": 1, "name": "gpt-nano", "samples": 4,
    "layers": [{"name": "embedding", "parameters": 12288, "weight_bytes": 49152, ...},
      ...],
    "tied": []}
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property
from itertools import pairwise
from math import prod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, FailFast, Field, TypeAdapter

from chimera_ir import limits
from chimera_ir.diagnostics import refuse
from chimera_ir.instructions import STRICT
from chimera_ir.reading import One, read_json
from chimera_ir.unfit import Kind

FORMAT = "chimera-model"
VERSION = 1
MAX_LAYERS = 1024  # cutting takes layers^2 x stages operations: a second or two at this size

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
Amount = Annotated[int, Field(ge=0, le=2**53)]
Size = Annotated[int, Field(ge=0, le=2**31)]
LayerId = Annotated[int, Field(ge=0, lt=MAX_LAYERS)]
LayerName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]*$")]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a boundary value. gradient: whether a gradient of the same shape travels back."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    shape: Annotated[tuple[Size, ...], Field(max_length=16), FailFast()]
    dtype: Dtype
    gradient: bool

    @property
    def bytes(self) -> int:
        """Return the size of one such tensor."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer needs for one micro-batch.

    kept_bytes: activations kept from F to I (or B); weight_kept_bytes: what W still needs after I;
    boundary: the tensors of its output; cost: of its forward, in one unit for all layers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: LayerName
    parameters: Amount
    weight_bytes: Amount
    kept_bytes: Amount
    weight_kept_bytes: Amount
    boundary: Annotated[tuple[Tensor, ...], Field(min_length=1, max_length=256), FailFast()]
    cost: Amount


@dataclass(frozen=True, slots=True)
class TiedLayers:
    """Parameters that several layers share; each of these layers counts them in its own sizes."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: LayerName
    layers: Annotated[tuple[LayerId, ...], Field(min_length=2, max_length=MAX_LAYERS), FailFast()]
    parameters: Amount
    weight_bytes: Amount


@dataclass(frozen=True, slots=True)
class StageSum:
    """What a stage needs for one micro-batch: the sums over its layers, and the boundary value it hands on."""

    layers: range
    parameters: int
    weight_bytes: int
    kept_bytes: int
    weight_kept_bytes: int
    boundary: tuple[Tensor, ...]
    cost: int

    @property
    def act_bytes(self) -> int:
        """Return the bytes of the value that goes to the next stage."""
        return sum(t.bytes for t in self.boundary)

    @property
    def grad_bytes(self) -> int:
        """Return the bytes of the gradient that comes back from the next stage."""
        return sum(t.bytes for t in self.boundary if t.gradient)


@dataclass(frozen=True)
class ModelDescription:
    """A model as a list of layers. samples: how many samples the micro-batch has that all sizes are for."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: LayerName
    samples: Annotated[int, Field(ge=1, le=2**31)]
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=MAX_LAYERS), FailFast()]
    tied: Annotated[tuple[TiedLayers, ...], Field(max_length=MAX_LAYERS), FailFast()] = ()

    @cached_property
    def parameters(self) -> int:
        """Return the number of parameters, each tied one counted once."""
        return self._sum(range(len(self.layers))).parameters

    def cut(self, stages: int) -> tuple[range, ...]:
        """Return which layers each of `stages` stages has.

        Contiguous, none empty; the largest cost of a stage is the least possible, then the sum of squares is.
        Raises ChimeraError E705 for more stages than layers.
        """
        if stages > len(self.layers):
            raise refuse(
                "E705",
                f"{stages} stages cannot be cut from the {len(self.layers)} layers of {self.name}",
                notes=("a stage has at least one layer",),
                help="take fewer stages or a deeper model",
            )
        return cut([layer.cost for layer in self.layers], stages)

    def stage_sums(self, stages: int) -> tuple[StageSum, ...]:
        """Return what each of `stages` stages needs."""
        return tuple(self._sum(layers) for layers in self.cut(stages))

    @cached_property
    def _tied_layers(self) -> list[tuple[list[int], TiedLayers]]:
        """Return every tied set with its layers in order: each stage counts its own, and there may be a million of them."""
        return [(sorted(t.layers), t) for t in self.tied]

    def _sum(self, ids: range) -> StageSum:
        layers = [self.layers[k] for k in ids]
        # A set of tied parameters is held once by a stage, however many of its layers the stage has.
        again = [(max(0, bisect_left(at, ids.stop) - bisect_left(at, ids.start) - 1), t) for at, t in self._tied_layers]
        return StageSum(
            layers=ids,
            parameters=sum(k.parameters for k in layers) - sum(n * t.parameters for n, t in again),
            weight_bytes=sum(k.weight_bytes for k in layers) - sum(n * t.weight_bytes for n, t in again),
            kept_bytes=sum(k.kept_bytes for k in layers),
            weight_kept_bytes=sum(k.weight_kept_bytes for k in layers),
            boundary=layers[-1].boundary,
            cost=sum(k.cost for k in layers),
        )


def cut(costs: Sequence[int], stages: int) -> tuple[range, ...]:
    """Return the cut of these costs into `stages` contiguous, non-empty ranges; 1 <= stages <= len(costs).

    Two dynamic programs over the number of stages (the linear partition problem): the least largest sum, then, under
    that bound, the least sum of squares. Of equal cuts, the one with the later stages longer.
    """
    total, last = sum(costs), len(costs)
    # Scaled so that the sum of squares stays exact in 64 bits.
    scaled = [c * 2**30 // total for c in costs] if total > 2**30 else list(costs)
    sums = np.concatenate([[0], np.cumsum(np.array(scaled, np.int64))])
    never = np.int64(2**61)
    piece = np.where(np.tri(last + 1, k=-1, dtype=bool).T, sums[None, :] - sums[:, None], never)  # [from, to]
    largest = piece[0]
    for _ in range(stages - 1):
        largest = np.maximum(largest[:, None], piece).min(axis=0)
    fits = piece <= largest[last]
    squares = np.where(fits, np.where(fits, piece, 0) ** 2, never)
    best, choices = squares[0], []
    for _ in range(stages - 1):
        sum_of_squares = best[:, None] + squares
        choices.append(sum_of_squares.argmin(axis=0))
        best = np.minimum(sum_of_squares.min(axis=0), never)
    ends = [last]
    for choice in reversed(choices):
        ends.append(int(choice[ends[-1]]))
    return tuple(range(a, b) for a, b in pairwise([0, *reversed(ends)]))


@dataclass(frozen=True, kw_only=True)
class ModelFile(ModelDescription):
    """A model description as JSON."""

    format: Literal["chimera-model"]
    version: One


_KIND = Kind(
    "chimera model description",
    FORMAT,
    VERSION,
    ("E701", "E702", "E703"),
    "write one with: python -m models describe --model gpt-small",
)


@cache
def _adapter() -> TypeAdapter[ModelFile]:
    return TypeAdapter(ModelFile)


def model_to_json(model: ModelDescription) -> str:
    """Return the canonical JSON text of a model description: one layer a line."""
    return "".join(_lines(model))


def _lines(model: ModelDescription) -> Iterator[str]:
    yield f'{{"format": "{FORMAT}", "version": {VERSION}, '
    yield f'"name": {json.dumps(model.name)}, "samples": {model.samples},\n'
    yield '"layers": [' + ",\n  ".join(json.dumps(asdict(layer)) for layer in model.layers) + "],\n"
    yield '"tied": [' + ",\n  ".join(json.dumps(asdict(tied)) for tied in model.tied) + "]}\n"


def model_from_json(text: str, name: str = "<json>") -> ModelDescription:
    """Return the model description that a JSON text holds. name: what the user calls the text.

    Raises ChimeraError: E701 not JSON, E702 not a chimera model of version 1, E703 a field that is missing, unknown or
    out of range, E704 a text that is too long.
    """
    if len(text) > limits.HEADER:
        raise refuse("E704", f"{name} has {len(text)} characters, a model description at most {limits.HEADER}")
    file = read_json(_adapter(), _KIND, text, name)
    for n, tied in enumerate(file.tied):
        if max(tied.layers) >= len(file.layers):
            message = f"layer {max(tied.layers)} does not exist, the model has {len(file.layers)} layers"
            raise refuse("E703", f"{name}: tied[{n}].layers: {message}")
        if len(set(tied.layers)) < len(tied.layers):
            raise refuse("E703", f"{name}: tied[{n}].layers: a layer is named twice in {list(tied.layers)}")
    return ModelDescription(**{f.name: getattr(file, f.name) for f in fields(ModelDescription)})
