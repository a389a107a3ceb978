"""Model descriptions: what the compiler knows about a model, and the sums over the layers of each stage.

A description is measured once, without weights (interpreter/runtime/describe.py), and is stored as JSON:

    {"format": "chimera-model", "version": 1, "name": "gpt-nano", "samples": 4,
    "layers": [{"name": "embedding", "parameters": 12288, "weight_bytes": 49152, ...},
      ...],
    "tied": [],
    "shared": []}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache, cached_property
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, FailFast, Field, TypeAdapter

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.boundary import Amount, Tensor
from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import STRICT
from chimerac.chimera_ir.json_checks import Kind
from chimerac.chimera_ir.reading import VersionOne, read_json
from chimerac.chimera_ir.workspace import Peaks, Run, Sizes, all_bytes, gradients_of, not_kept, peaks_by_field, workspace_bytes

FORMAT = "chimera-model"
VERSION = 1
MAX_LAYERS = 1024

LayerId = Annotated[int, Field(ge=0, lt=MAX_LAYERS)]
LayerName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\p{Cc}\p{Cf}\p{Zl}\p{Zp}]*$")]


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer needs: its weights, and memory for one micro-batch.

    Attributes:
        parameters: how many it has.
        weight_bytes: of its parameters and buffers.
        kept_bytes: what its forward keeps for a full backward (B).
        split_kept_bytes: what its forward keeps for the input gradient (I), if the backward is split.
        weight_kept_bytes: what the weight gradient (W) still needs after I.
        boundary: the tensors of the layer's output.
        cost: of its forward, in one unit for all layers.
        gradient_bytes: of its parameters' gradients.
        peaks: the most that it makes and holds at one moment (chimera_ir/workspace.py).

    kept_bytes, split_kept_bytes and weight_kept_bytes do not count what `Shared` counts, nor the layer's input, which is a
    value; but they count the input of the first layer, which is samples.

    If split_kept_bytes is None, it equals kept_bytes. If gradient_bytes is None, it equals weight_bytes. Peaks that are None
    count as 0.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: LayerName
    parameters: Amount
    weight_bytes: Amount
    kept_bytes: Amount
    weight_kept_bytes: Amount
    boundary: Annotated[tuple[Tensor, ...], Field(min_length=1, max_length=256), FailFast()]
    cost: Amount
    gradient_bytes: Amount | None = None
    split_kept_bytes: Amount | None = None
    peaks: Peaks | None = None


@dataclass(frozen=True, slots=True)
class TiedLayers:
    """A parameter that several layers share. Each of these layers also counts it in its own sizes.

    Attributes:
        name: of the tied set, if the layers name it; otherwise the parameter's full name in the first of the layers.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: LayerName
    layers: Annotated[tuple[LayerId, ...], Field(min_length=2, max_length=MAX_LAYERS), FailFast()]
    parameters: Amount
    weight_bytes: Amount
    gradient_bytes: Amount | None = None


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that several layers keep, or that a layer keeps and an earlier one made. The layers' own amounts do not count it.

    A stage counts it at most once, however many of its layers keep it.

    Attributes:
        bytes: for one micro-batch.
        made: the layer that has it in its output, or the first layer for an input of the model. A stage that begins after this
            layer has it in its input, and does not count it. None for other memory, such as a field of the samples: every stage
            whose layers keep it counts it.
        kept, split_kept, weight_kept: the layers that keep it for B, for I and for W.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    bytes: Amount
    made: LayerId | None
    kept: Annotated[tuple[LayerId, ...], Field(max_length=MAX_LAYERS), FailFast()] = ()
    split_kept: Annotated[tuple[LayerId, ...], Field(max_length=MAX_LAYERS), FailFast()] = ()
    weight_kept: Annotated[tuple[LayerId, ...], Field(max_length=MAX_LAYERS), FailFast()] = ()


@dataclass(frozen=True, slots=True)
class StageSum:
    """What a stage needs for one micro-batch: the sums over its layers, and the tensors of its output (`boundary`).

    Attributes:
        workspace: bytes for each Run of chimera_ir/workspace.py, in their order.
    """

    layers: range
    parameters: int
    weight_bytes: int
    gradient_bytes: int
    kept_bytes: int
    split_kept_bytes: int
    weight_kept_bytes: int
    cost: int
    boundary: tuple[Tensor, ...]
    workspace: tuple[int, ...]


@dataclass(frozen=True)
class ModelDescription:
    """A model as a list of layers.

    Attributes:
        samples: the number of samples of the micro-batch for which all sizes were measured.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: LayerName
    samples: Annotated[int, Field(ge=1, le=2**31)]
    layers: Annotated[tuple[Layer, ...], Field(min_length=1, max_length=MAX_LAYERS), FailFast()]
    tied: Annotated[tuple[TiedLayers, ...], Field(max_length=MAX_LAYERS), FailFast()] = ()
    shared: Annotated[tuple[Shared, ...], Field(max_length=8 * MAX_LAYERS), FailFast()] = ()

    @cached_property
    def parameters(self) -> int:
        """Return the number of parameters, each tied one counted once."""
        return self.stage_sums((range(len(self.layers)),))[0].parameters

    @cached_property
    def has_peaks(self) -> bool:
        """Return whether the peaks of any layer are known. Otherwise no workspace is counted."""
        return any(layer.peaks is not None for layer in self.layers)

    def stage_sums(self, cut: Sequence[range]) -> tuple[StageSum, ...]:
        """Return what each stage needs.

        Args:
            cut: the layers of each stage, as Partition.layers (partition.py).
        """
        stage_of = [n for n, ids in enumerate(cut) for _ in ids]
        kept = [x.kept_bytes for x in self.layers]
        split_kept = [split_kept_bytes(x) for x in self.layers]
        weight_kept = [x.weight_kept_bytes for x in self.layers]
        for shared in self.shared:  # counted in each stage with the first of its layers that keeps it
            by_amount = ((kept, shared.kept), (split_kept, shared.split_kept), (weight_kept, shared.weight_kept))
            for amounts, layers in by_amount:
                # In descending order the first layer of a stage comes last, and replaces the stage's others in the dictionary.
                for n, k in {stage_of[k]: k for k in sorted(layers, reverse=True)}.items():
                    if shared.made is None or shared.made >= cut[n][0]:
                        amounts[k] += shared.bytes
        kept_by_stage = [[sum(amounts[k] for k in ids) for ids in cut] for amounts in (kept, split_kept, weight_kept)]
        workspace = self._workspaces(cut, kept, split_kept, weight_kept)
        # A stage holds a tied parameter once, however many of its layers share it.
        held: list[list[Layer | TiedLayers]] = [[self.layers[k] for k in ids] for ids in cut]
        duplicates: list[list[TiedLayers]] = [[] for _ in cut]
        for tied in self.tied:
            for n, count in Counter(stage_of[k] for k in tied.layers).items():
                duplicates[n] += [tied] * (count - 1)

        def sums_of(size: Callable[[Layer | TiedLayers], int]) -> list[int]:
            return [sum(map(size, a)) - sum(map(size, b)) for a, b in zip(held, duplicates, strict=True)]

        parameters, weights = sums_of(lambda x: x.parameters), sums_of(lambda x: x.weight_bytes)
        gradients, costs = sums_of(gradient_bytes), [sum(self.layers[k].cost for k in ids) for ids in cut]
        boundaries = [self.layers[ids[-1]].boundary for ids in cut]
        columns = (cut, parameters, weights, gradients, *kept_by_stage, costs, boundaries, workspace)
        return tuple(StageSum(*row) for row in zip(*columns, strict=True))

    def _workspaces(
        self, cut: Sequence[range], kept: Sequence[int], split_kept: Sequence[int], weight_kept: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Return the workspace of each stage.

        Args:
            kept, split_kept, weight_kept: what each layer keeps for B, for I and for W.
        """
        if not self.has_peaks:
            return [(0,) * len(Run)] * len(cut)
        by_stage = []
        for ids in cut:
            first, end = ids[0], ids[-1] + 1
            layers, boundaries = self.layers[first:end], [x.boundary for x in self.layers[first:end]]
            sizes = Sizes(
                kept=np.array([0, *accumulate(kept[first:end])], object),
                split_kept=np.array([0, *accumulate(split_kept[first:end])], object),
                weight_kept=np.array([0, *accumulate(weight_kept[first:end])], object),
                inputs=np.array([0, *map(not_kept, boundaries[:-1])], object),
                all_inputs=np.array([0, *map(all_bytes, boundaries[:-1])], object),
                gradients=np.array([*map(gradients_of, boundaries)], object),
                peaks=peaks_by_field([x.peaks for x in layers], object),
                output=0 if end == len(self.layers) else all_bytes(boundaries[-1]),
                input_gradient=gradients_of(self.layers[first - 1].boundary) if first else 0,
            )
            of_runs = workspace_bytes(sizes)
            by_stage.append(tuple(int(of_runs[run][-1]) for run in Run))  # -1: with all layers of the stage
        return by_stage


def in_half_precision(model: ModelDescription, dtype: Literal["bfloat16", "float16"]) -> ModelDescription:
    """Return a description whose weights, gradients, activations and messages have a dtype of two bytes.

    Args:
        model: in float32.

    In boundaries, tensors of other dtypes than float32 stay as they are. All numbers of bytes are halved and rounded up, also
    where they count masks and indices, which are few.
    """

    def half(size: int | None) -> int | None:
        return None if size is None else (size + 1) // 2

    def halved(of: Any, *names: str) -> Any:
        return replace(of, **{name: half(getattr(of, name)) for name in names})

    layers = tuple(
        replace(
            halved(x, "weight_bytes", "kept_bytes", "weight_kept_bytes", "gradient_bytes", "split_kept_bytes"),
            peaks=None if x.peaks is None else halved(x.peaks, *(f.name for f in fields(Peaks))),
            boundary=tuple(replace(t, dtype=dtype) if t.dtype == "float32" else t for t in x.boundary),
        )
        for x in model.layers
    )
    tied = tuple(halved(x, "weight_bytes", "gradient_bytes") for x in model.tied)
    return replace(model, layers=layers, tied=tied, shared=tuple(halved(x, "bytes") for x in model.shared))


def gradient_bytes(of: Layer | TiedLayers) -> int:
    """Return the bytes of the gradients of these parameters."""
    return of.weight_bytes if of.gradient_bytes is None else of.gradient_bytes


def split_kept_bytes(of: Layer) -> int:
    """Return the bytes that the forward of a layer keeps where its backward is split."""
    return of.kept_bytes if of.split_kept_bytes is None else of.split_kept_bytes


@dataclass(frozen=True, kw_only=True)
class ModelFile(ModelDescription):
    """A model description as JSON."""

    format: Literal["chimera-model"]
    version: VersionOne


_KIND = Kind(
    "chimera model description",
    FORMAT,
    VERSION,
    ("E701", "E702", "E703"),
    "write one with: python -m chimerac.models describe --model gpt-small",
)


@cache
def _adapter() -> TypeAdapter[ModelFile]:
    return TypeAdapter(ModelFile)


def model_to_json(model: ModelDescription) -> str:
    """Return the canonical JSON text of a model description: one layer a line.

    Raises ChimeraError E701, E703 or E704 if it cannot be read back, as for a layer whose name has 200 characters.
    """
    text = "".join(_lines(model))
    model_from_json(text, f"the description of {model.name}")
    return text


def _lines(model: ModelDescription) -> Iterator[str]:
    yield f'{{"format": "{FORMAT}", "version": {VERSION}, '
    yield f'"name": {json.dumps(model.name)}, "samples": {model.samples},\n'
    yield '"layers": [' + ",\n  ".join(json.dumps(asdict(layer)) for layer in model.layers) + "],\n"
    yield '"tied": [' + ",\n  ".join(json.dumps(asdict(tied)) for tied in model.tied) + "],\n"
    yield '"shared": [' + ",\n  ".join(json.dumps(asdict(shared)) for shared in model.shared) + "]}\n"


def model_from_json(text: str, name: str = "<json>") -> ModelDescription:
    """Return the model description that a JSON text holds.

    Args:
        name: the name of the text in messages.

    Raises ChimeraError: E701 not JSON, E702 not a chimera model of version 1, E703 a field that is missing, unknown or
    out of range, a layer that does not exist, or a tied set that names a layer twice, E704 a text that is too long.
    """
    if len(text) > limits.HEADER:
        raise refuse("E704", f"{name} has {len(text)} characters; a model description may have at most {limits.HEADER}")
    file = read_json(_adapter(), _KIND, text, name)
    named = [(f"tied[{n}].layers", tied.layers) for n, tied in enumerate(file.tied)]
    for n, x in enumerate(file.shared):
        made = () if x.made is None else (x.made,)
        named.append((f"shared[{n}]", (*x.kept, *x.split_kept, *x.weight_kept, *made)))
    for place, layers in named:
        if (last := max(layers, default=0)) >= len(file.layers):
            message = f"layer {last} does not exist, the model has {count_text(len(file.layers), 'layer')}"
            raise refuse("E703", f"{name}: {place}: {message}")
    for n, tied in enumerate(file.tied):
        if len(set(tied.layers)) < len(tied.layers):
            raise refuse("E703", f"{name}: tied[{n}].layers: a layer is named twice in {list(tied.layers)}")
    return ModelDescription(**{f.name: getattr(file, f.name) for f in fields(ModelDescription)})
