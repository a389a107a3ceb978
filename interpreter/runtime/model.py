"""Models as lists of layers, and stages of consecutive layers.

A layer's weights depend on (seed, layer) and nothing else. So all copies of a stage start with the same weights without
communication between ranks. A layer takes and returns the tensors of one boundary value.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

IGNORED = -100  # a target that does not count, neither in the loss nor in the number of valid targets

Values = tuple[Tensor, ...]


class Objective(Protocol):
    """What stages are run with: the loss of their last output, and the precision in which they compute."""

    @property
    def loss(self) -> Callable[[Values, Tensor], Tensor]:
        """Return the function from the output of the last layer and the targets to the loss."""

    @property
    def autocast(self) -> torch.dtype | None:
        """Return the type in which torch.autocast computes; None: without it."""

    def autocasting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which stages and loss compute on this device; backwards run outside it."""


@dataclass(frozen=True)
class Model:
    """A model that can be cut between any two of its layers.

    layers: the name of each layer, and a function that builds it with weights from torch's generator. loss: a function of the
    output of the last layer and the targets; it returns the *sum* of the losses of all valid targets. example: a function of a
    number of samples; it returns inputs and targets with the shapes and dtypes of real ones, or None instead of targets that
    are not known. ties: by layer, the parameters that it shares with other layers, as in `Stage.ties`; by default they are in
    the layer's attribute `tied`. tie_names: the names of these sets in the program, where they differ. autocast: the dtype of
    torch.autocast; None: no autocast.
    """

    name: str
    layers: tuple[tuple[str, Callable[[], nn.Module]], ...]
    loss: Callable[[Values, Tensor], Tensor]
    example: Callable[[int], tuple[Values, Any]]
    ties: Mapping[int, Mapping[str, str]] = field(default_factory=dict, hash=False)
    tie_names: Mapping[str, str] = field(default_factory=dict, hash=False)
    autocast: torch.dtype | None = None

    def autocasting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which layers and loss are computed on this device. Backwards run outside it."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)


class Stage(nn.Module):
    """Consecutive layers, applied to the tensors of one boundary value.

    names: of the layers in the full model. ties: for each layer, the paths of the parameters that it shares with other layers,
    of this stage or of others, by the name of the set of tied parameters.
    """

    def __init__(
        self, layers: Sequence[nn.Module], names: Sequence[str] | None = None, ties: Sequence[Mapping[str, str]] | None = None
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.names = [str(k) for k in range(len(layers))] if names is None else list(names)
        self.ties = [getattr(layer, "tied", {}) for layer in layers] if ties is None else list(ties)

    def forward(self, *values: Tensor) -> Values:
        for layer in self.layers:
            values = apply_layer(layer, values)
        return values


def apply_layer(layer: nn.Module, values: Values) -> Values:
    """Return the output of a layer as contiguous tensors. Tensors that are received from another rank are contiguous too."""
    output = layer(*values)
    return tuple(t.contiguous() for t in (output if isinstance(output, tuple) else (output,)))


def seed_from(*numbers: int) -> int:
    """Return a seed of 63 bits: a hash of these numbers in this order, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "big") >> 1


def build_layer(model: Model, layer: int, seed: int) -> nn.Module:
    """Build one layer with its initial weights, without changing the state of torch's own generator."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed_from(seed, layer))
        return model.layers[layer][1]()


def build_stage(model: Model, layers: range, seed: int) -> Stage:
    """Build the stage of these layers with its initial weights."""
    modules = [build_layer(model, k, seed) for k in layers]
    by_layer = [model.ties.get(k) or getattr(module, "tied", {}) for k, module in zip(layers, modules, strict=True)]
    ties = [{model.tie_names.get(name, name): path for name, path in paths.items()} for paths in by_layer]
    return Stage(modules, [model.layers[k][0] for k in layers], ties)
