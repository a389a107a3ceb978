"""Profiles: how long the layers of a model take on given hardware, what they hold, and how fast the links are.

A profile is measured (interpreter/profiling/) or derived from published figures, and is stored as JSON. docs/profile.md
describes every field:

    {"format": "chimera-profile", "version": 1, "model": "gpt-small", "seq_len": 128, ...,
    "layers": [
      {"name": "embedding", "parameters": 49152, "weight_bytes": 196608, ...},
      ...],
    "sizes": [
     {"samples": 4, "layers": [
      {"forward_s": 0.00012, "backward_s": 0.00031, ...},
      ...]}],
    "point_to_point": {"latency_s": 4.1e-05, "bytes_per_s": 1900000000.0},
    "all_reduce": [{"ranks": 2, "latency_s": 8.3e-05, "bytes_per_s": 910000000.0}]}
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from math import log2
from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, FailFast, Field, TypeAdapter

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.boundary import Amount
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import STRICT, Op
from chimerac.chimera_ir.json_checks import Kind
from chimerac.chimera_ir.model import MAX_LAYERS, LayerName, ModelDescription, gradient_bytes
from chimerac.chimera_ir.reading import VersionOne, read_json

FORMAT = "chimera-profile"
VERSION = 1
MAX_SIZES = 256

Seconds = Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e18, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=1000)]


@dataclass(frozen=True, slots=True)
class Link:
    """A link between two ranks. A message of b bytes arrives latency_s + b / bytes_per_s after it began.

    Its channel is free for the next message after b / bytes_per_s.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    latency_s: Seconds
    bytes_per_s: Rate

    def transfer_s(self, size: int) -> float:
        """Return how long a message of `size` bytes takes, in seconds."""
        return self.latency_s + size / self.bytes_per_s

    def all_reduce_s(self, ranks: int, size: int) -> float:
        """Return how long an all-reduce of `size` bytes over `ranks` ranks takes, in seconds.

        The algorithm is that of Rabenseifner: 2 log2(r) latencies, and 2 (r - 1) / r times the bytes (Chimera, SC'21,
        section 3.4).
        """
        return 2 * log2(ranks) * self.latency_s + 2 * (ranks - 1) / ranks * size / self.bytes_per_s


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """Measured all-reduces over `ranks` ranks: one of b bytes takes latency_s + b / bytes_per_s."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    ranks: Annotated[int, Field(ge=2, le=limits.RANKS)]
    latency_s: Seconds
    bytes_per_s: Rate

    @property
    def link(self) -> Link:
        """Return the link with which Rabenseifner's algorithm takes this time."""
        return Link(self.latency_s / (2 * log2(self.ranks)), self.bytes_per_s * 2 * (self.ranks - 1) / self.ranks)


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """What a layer holds besides activations.

    Attributes:
        optimizer_bytes: the state of the optimizer that the profile names.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    name: LayerName
    parameters: Amount
    weight_bytes: Amount
    gradient_bytes: Amount
    optimizer_bytes: Amount


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of one layer for one micro-batch, and the bytes that its forward keeps for a full backward (activation_bytes).

    Attributes:
        backward_s: of a full backward.
        input_s, weight_s: of the halves of a split one.
        recompute_s: of running the forward again. forward_s is that of a forward before a full backward.

    What a forward before a split one takes longer is a part of input_s.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    forward_s: Seconds
    backward_s: Seconds
    input_s: Seconds
    weight_s: Seconds
    recompute_s: Seconds
    activation_bytes: Amount

    def between(self, other: LayerTimes, part: float) -> LayerTimes:
        """Return the times and bytes interpolated linearly.

        Args:
            part: 0 for these, 1 for those of `other`.
        """
        mixed = {n: (1 - part) * getattr(self, n) + part * getattr(other, n) for n in TIMES.values()}
        activations = round((1 - part) * self.activation_bytes + part * other.activation_bytes)
        return LayerTimes(**mixed, activation_bytes=activations)


# The field of LayerTimes that has the time of each kind of task.
TIMES: Mapping[Op, str] = {
    Op.FWD: "forward_s",
    Op.BWD: "backward_s",
    Op.BWD_INPUT: "input_s",
    Op.BWD_WEIGHT: "weight_s",
    Op.RECOMPUTE: "recompute_s",
}


NO_TIMES = LayerTimes(forward_s=0.0, backward_s=0.0, input_s=0.0, weight_s=0.0, recompute_s=0.0, activation_bytes=0)


@dataclass(frozen=True, slots=True)
class SizeTimes:
    """The times of all layers for micro-batches of `samples` samples."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    samples: Annotated[int, Field(ge=1, le=2**31)]
    layers: Annotated[tuple[LayerTimes, ...], Field(min_length=1, max_length=MAX_LAYERS), FailFast()]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The times and sizes of a model on given hardware.

    Attributes:
        seq_len: tokens of a sample; None for data without tokens.
        precision: of the computation.
        optimizer: the one whose state `layers` counts.
        processes: how many busy processes shared the host during the measurement.
        versions: of the packages, by name.
        source: how these figures were found.
        overhead: what a stage takes besides its layers, for each kind of task and micro-batch.
        sizes: sorted by their samples.
        point_to_point: the link between two ranks.
        all_reduce: one entry for each number of ranks that was measured; may be empty.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    model: LayerName
    seq_len: Annotated[int, Field(ge=1, le=2**31)] | None = None
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    optimizer: Annotated[str, Field(max_length=64)] = "none"
    hardware: Text
    processes: Annotated[int, Field(ge=1, le=limits.RANKS)] = 1
    versions: Annotated[Mapping[Annotated[str, Field(max_length=64)], Text], Field(max_length=64)] = field(default_factory=dict)
    source: Annotated[str, Field(min_length=1, max_length=4000)]
    overhead: LayerTimes = NO_TIMES
    layers: Annotated[tuple[LayerBytes, ...], Field(min_length=1, max_length=MAX_LAYERS), FailFast()]
    sizes: Annotated[tuple[SizeTimes, ...], Field(min_length=1, max_length=MAX_SIZES), FailFast()]
    point_to_point: Link
    all_reduce: Annotated[tuple[AllReduceTime, ...], Field(max_length=64), FailFast()] = ()

    def times(self, samples: int) -> tuple[LayerTimes, ...]:
        """Return the times of all layers for micro-batches of `samples` samples.

        Between two sizes of the profile they are interpolated linearly. Raises ChimeraError E715 for a size outside them.
        """
        known = [size.samples for size in self.sizes]
        k = bisect_left(known, samples)
        if k < len(known) and known[k] == samples:
            return self.sizes[k].layers
        if k in (0, len(known)):
            has = f"{known[0]} to {known[-1]}" if len(known) > 1 else f"{known[0]}"
            raise refuse(
                "E715",
                f"the profile of {self.model} has no times for micro-batches of {samples} samples: it has {has}",
                help="give another --micro-batch, or measure the model with this size, too",
            )
        low, high = self.sizes[k - 1 : k + 1]
        part = (samples - low.samples) / (high.samples - low.samples)
        return tuple(a.between(b, part) for a, b in zip(low.layers, high.layers, strict=True))

    def layer_nanoseconds(self, model: ModelDescription) -> list[int]:
        """Return how long a forward and a backward of each layer take together. Raises ChimeraError E714, E715."""
        self.check_fits(model)
        return [round(1e9 * (x.forward_s + x.backward_s)) for x in self.times(model.samples)]

    def all_reduce_s(self, ranks: int, size: int) -> float:
        """Return how long an all-reduce of `size` bytes takes, in seconds."""
        return all_reduce_s(self.all_reduce, self.point_to_point, ranks, size)

    def check_fits(self, model: ModelDescription) -> None:
        """Raise ChimeraError E714 unless this is a profile of a description's model.

        The names of the models, the numbers of layers, and the numbers of parameters of each layer must be equal.
        """
        if self.model != model.name:
            fact = f"is one of {self.model}, and the model is {model.name}"
        elif len(self.layers) != len(model.layers):
            fact = f"has {len(self.layers)} layers, and {model.name} has {len(model.layers)}"
        else:
            pairs = zip(self.layers, model.layers, strict=True)
            wrong = next((k for k, (a, b) in enumerate(pairs) if a.parameters != b.parameters), None)
            if wrong is None:
                return
            a, b = self.layers[wrong], model.layers[wrong]
            fact = f"gives layer {wrong} ({b.name}) {a.parameters:,} parameters, and the model gives it {b.parameters:,}"
        help = f"measure this one: python -m chimerac.interpreter.profiling --model {model.name} -o profile.json"
        raise refuse("E714", f"the profile {fact}", help=help)


def all_reduce_s(measured: Sequence[AllReduceTime], link: Link, ranks: int, size: int) -> float:
    """Return how long an all-reduce of `size` bytes takes, in seconds.

    For a number of ranks that was not measured, the time is that of Rabenseifner's algorithm on the link of the measured
    number that is nearest by ratio. Of two that are equally near, the smaller one is taken. If no number was measured, the
    algorithm runs on `link`, which connects two ranks.
    """
    if not measured:
        return link.all_reduce_s(ranks, size)
    nearest = min(measured, key=lambda entry: (abs(log2(entry.ranks / ranks)), entry.ranks))
    return nearest.link.all_reduce_s(ranks, size)


def layer_bytes(model: ModelDescription, optimizer_bytes: int) -> tuple[LayerBytes, ...]:
    """Return what each layer of a description holds.

    Args:
        optimizer_bytes: of the optimizer's state, per byte of a gradient.
    """
    return tuple(
        LayerBytes(x.name, x.parameters, x.weight_bytes, gradient_bytes(x), gradient_bytes(x) * optimizer_bytes)
        for x in model.layers
    )


@dataclass(frozen=True, kw_only=True)
class ProfileFile(Profile):
    """A profile as JSON."""

    format: Literal["chimera-profile"]
    version: VersionOne


_KIND = Kind(
    "chimera profile",
    FORMAT,
    VERSION,
    ("E711", "E712", "E713"),
    "measure one with: python -m chimerac.interpreter.profiling --model gpt-small -o profile.json",
)


@cache
def _adapter() -> TypeAdapter[ProfileFile]:
    return TypeAdapter(ProfileFile)


def profile_to_json(profile: Profile) -> str:
    """Return the JSON text of a profile: one layer a line."""
    return "".join(_lines(profile))


def _lines(profile: Profile) -> Iterator[str]:
    yield f'{{"format": "{FORMAT}", "version": {VERSION},\n'
    for name in (f.name for f in fields(Profile) if f.name not in _NESTED):
        yield f'"{name}": {json.dumps(getattr(profile, name))},\n'
    yield f'"overhead": {json.dumps(asdict(profile.overhead))},\n'
    yield '"layers": [\n  ' + ",\n  ".join(json.dumps(asdict(layer)) for layer in profile.layers) + "],\n"
    yield '"sizes": [\n ' + ",\n ".join("".join(_size_lines(size)) for size in profile.sizes) + "],\n"
    yield f'"point_to_point": {json.dumps(asdict(profile.point_to_point))},\n'
    yield '"all_reduce": [' + ",\n  ".join(json.dumps(asdict(entry)) for entry in profile.all_reduce) + "]}\n"


def _size_lines(size: SizeTimes) -> Iterator[str]:
    yield f'{{"samples": {size.samples}, "layers": [\n  '
    yield ",\n  ".join(json.dumps(asdict(layer)) for layer in size.layers) + "]}"


# The fields that `_lines` writes below the others.
_NESTED = ("overhead", "layers", "sizes", "point_to_point", "all_reduce")


def profile_from_json(text: str, name: str = "<json>") -> Profile:
    """Return the profile that a JSON text holds.

    Args:
        name: the name of the text in messages.

    Raises ChimeraError: E711 not JSON, E712 not a chimera profile of version 1, or too long, E713 a field that is
    missing, unknown or out of range, or that contradicts another one.
    """
    if len(text) > limits.HEADER:
        raise refuse("E712", f"{name} has {len(text)} characters; a profile may have at most {limits.HEADER}")
    file = read_json(_adapter(), _KIND, text, name)
    for n, size in enumerate(file.sizes):
        if len(size.layers) != len(file.layers):
            message = f"{name}: sizes[{n}].layers: {len(size.layers)} layers have times, and the profile has {len(file.layers)}"
            raise refuse("E713", message, help="give one entry for each layer, in their order")
        if n and size.samples <= file.sizes[n - 1].samples:
            message = f"{name}: sizes[{n}].samples: {size.samples} follows {file.sizes[n - 1].samples}"
            raise refuse("E713", message, help="sort the sizes by their samples, each once")
    numbers = [entry.ranks for entry in file.all_reduce]
    for n, ranks in enumerate(numbers):
        if ranks in numbers[:n]:
            raise refuse("E713", f"{name}: all_reduce[{n}]: {ranks} ranks were given before", help="give each number once")
    return Profile(**{f.name: getattr(file, f.name) for f in fields(Profile)})
