"""Models, which can be cut between any two of their layers, and stages of consecutive layers.

A model names its layers, builds any of its stages, and has a loss. `LayeredModel` is a model that is a list of modules. Its
functions build layers with weights from a generator that is seeded with (seed, layer) and nothing else. So all copies of a
stage start with the same weights without communication between ranks. A module that exists already keeps its weights.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

IGNORED = -100  # a target that does not count, neither in the loss nor in the number of valid targets

Values = tuple[Tensor, ...]  # tensors: an activation, a gradient, the inputs, targets or losses of a micro-batch
Fields = Mapping[str, Tensor]  # by name, the tensors of a micro-batch that layers read directly


class Example(NamedTuple):
    """Tensors with the shapes and dtypes of a micro-batch. The first dimension of each counts the samples.

    Attributes:
        inputs: of the first layer.
        targets: of the loss; None if they are not known.
        fields: what layers read directly from the data, by name.
    """

    inputs: Values
    targets: Values | None
    fields: Fields = {}  # noqa: RUF012  # never changed

    @property
    def samples(self) -> int:
        """Return the number of samples."""
        return len(next(iter((*self.inputs, *self.fields.values()))))


class Objective(Protocol):
    """What stages need besides their layers: the loss, the precision in which they compute, and how predictions are counted."""

    @property
    def loss(self) -> Callable[[Values, Values], Values]:
        """Return the function from the output of the last layer and the targets to the losses."""

    @property
    def correct(self) -> Callable[[Values, Values], Tensor] | None:
        """Return the function from the arguments of `loss` to the number of correctly predicted targets; None: not counted."""

    @property
    def autocast(self) -> torch.dtype | None:
        """Return the dtype of torch.autocast; None: no autocast."""

    def autocasting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which the forwards of stages and the loss run on this device. Backwards run outside it."""


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """A model that can be cut between any two of its layers.

    Attributes:
        example: a function of a number of samples; it returns tensors with the shapes and dtypes of real ones. A function that
            was made from a given micro-batch ignores the number.
        loss: a function of the output of the last layer and the targets; it returns one or several losses of a micro-batch. In
            a run of run.py each of them is the *sum* over its valid targets, and the loss of an iteration is the sum of their
            means. `Pipeline.step` divides them as its caller says, so they may be means.
        correct: a function of the same arguments that returns how many targets of the first loss are predicted correctly, for
            evaluations of classifiers; None: not counted.
        autocast: the dtype of torch.autocast; None: no autocast.
    """

    name: str
    example: Callable[[int], Example]
    loss: Callable[[Values, Values], Values]
    correct: Callable[[Values, Values], Tensor] | None = None
    autocast: torch.dtype | None = None

    @property
    @abstractmethod
    def layer_names(self) -> tuple[str, ...]:
        """Return the names of the layers, in the order in which they run."""

    @abstractmethod
    def build_stage(self, layers: range, seed: int) -> Stage:
        """Build the stage of these layers. Weights that it draws depend on (seed, layer or parameter) and nothing else."""

    def autocasting(self, device: torch.device) -> AbstractContextManager[Any]:
        """Return the context in which layers and loss are computed on this device. Backwards run outside it."""
        return nullcontext() if self.autocast is None else torch.autocast(device.type, self.autocast)


class Stage(nn.Module):
    """Consecutive layers as one module. It takes what the stage before it returns; the first stage takes the inputs.

    Args:
        layers: modules, which together have all parameters and buffers of the stage.
        names: the names of these modules in the full model; by default their positions in the stage.
        ties: for each module, the parameters that it shares with other modules of this stage or of others: by the name of a set
            of tied parameters, the path of the module's parameter; by default the module's attribute `tied` has them.
        fields_of: for each module, the names of the fields that it takes as keyword arguments; by default none.

    Attributes:
        reads: the names of all these fields, which the stage takes as keyword arguments.

    A subclass whose modules do not simply run one after another overrides `forward`.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        names: Sequence[str] | None = None,
        ties: Sequence[Mapping[str, str]] | None = None,
        fields_of: Sequence[Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.names = [str(k) for k in range(len(layers))] if names is None else list(names)
        self.ties = [getattr(layer, "tied", {}) for layer in layers] if ties is None else list(ties)
        self._fields_of = [tuple(fields) for fields in fields_of or [()] * len(layers)]
        self.reads = tuple(dict.fromkeys(name for fields in self._fields_of for name in fields))

    def forward(self, *values: Tensor, **fields: Tensor) -> Values:
        if not fields:
            for layer in self.layers:
                values = apply_layer(layer, values)
            return values
        for layer, taken in zip(self.layers, self._fields_of, strict=True):
            values = apply_layer(layer, values, {name: fields[name] for name in taken})
        return values

    def parameters_by_name(self) -> dict[str, nn.Parameter]:
        """Return the parameters by their names in the full model. A shared one has an entry for each of its layers."""
        named_layers = zip(self.names, self.layers, strict=True)
        return {name: p for layer_name, layer in named_layers for name, p in layer.named_parameters(layer_name)}


def apply_layer(layer: nn.Module, values: Values, fields: Fields = {}) -> Values:  # noqa: B006  # never changed
    """Return the output of a layer as contiguous tensors, because tensors that are received from another rank are contiguous.

    Raises TypeError for an output that is neither a tensor nor a tuple of tensors.
    """
    output = layer(*values, **fields)
    tensors = output if isinstance(output, tuple) else (output,)
    try:  # the types are checked only after a failure, because this runs for every layer of every task
        return tuple([t.contiguous() for t in tensors])
    except AttributeError:
        wrong = next(type(t).__name__ for t in tensors if not isinstance(t, Tensor))
        returned = f"a value of type {wrong}"
        returned = f"a tuple with {returned}" if isinstance(output, tuple) else returned
        message = f"the layer {type(layer).__name__} returns {returned}: a layer returns a tensor or a tuple of tensors"
        raise TypeError(message) from None


@dataclass(frozen=True, kw_only=True)
class LayeredModel(Model):
    """A model that is a list of layers. A layer takes the tensors that the layer before it returns; the first takes the inputs.

    Attributes:
        layers: the name of each layer, and a function that returns it: a new one with weights from torch's generator, or a
            module that exists.
        fields: the names of the tensors that layers read directly from the data; a layer reads those that are parameters of its
            `forward`.
        ties: by the number of a layer, the parameters that it shares with other layers, as in `Stage.ties`; for a layer that is
            not in it, the layer's attribute `tied` has them.
    """

    layers: tuple[tuple[str, Callable[[], nn.Module]], ...]
    fields: tuple[str, ...] = ()
    ties: Mapping[int, Mapping[str, str]] = field(default_factory=dict, hash=False)

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Return the names of the layers, in the order in which they run."""
        return tuple(name for name, _ in self.layers)

    def build_layer(self, layer: int, seed: int) -> nn.Module:
        """Return one layer with its initial weights, without changing the state of torch's generator for the CPU."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed_from(seed, layer))
            return self.layers[layer][1]()

    def build_stage(self, layers: range, seed: int) -> Stage:
        """Build the stage of these layers with their initial weights."""
        modules = [self.build_layer(k, seed) for k in layers]
        ties = [self.ties.get(k) or getattr(module, "tied", {}) for k, module in zip(layers, modules, strict=True)]
        return Stage(modules, [self.layers[k][0] for k in layers], ties, [fields_read(m, self.fields) for m in modules])


def fields_read(module: nn.Module, fields: Iterable[str]) -> list[str]:
    """Return those of the fields that a module reads: the parameters of its `forward` with these names."""
    parameters = inspect.signature(module.forward).parameters
    return [name for name in fields if name in parameters]


def loss_of_tuples(loss: Callable[..., Tensor | tuple[Tensor, ...]]) -> Callable[[Values, Values], Values]:
    """Return a user's loss as a function of tuples that returns a tuple. A tuple of one tensor is passed as this tensor.

    The function raises TypeError or ValueError for a loss that returns something else than tensors with one number each.
    """

    def losses(outputs: Values, targets: Values) -> Values:
        returned = loss(outputs[0] if len(outputs) == 1 else outputs, targets[0] if len(targets) == 1 else targets)
        tensors = returned if isinstance(returned, tuple | list) else (returned,)
        for t in tensors:
            if not isinstance(t, Tensor):
                wrong = f"a value of type {type(t).__name__}"
                raise TypeError(f"the loss returns {wrong}: it has to return a tensor with one number, or several such tensors")
            if t.numel() != 1:
                raise ValueError(
                    f"the loss returns a tensor of shape {list(t.shape)}: it has to return the mean or the sum over the samples"
                )
        return tuple([t.reshape(()) for t in tensors])

    return losses


def combined(losses: Values, divisors: Sequence[float]) -> Tensor:
    """Return the sum of the losses, each divided by its divisor. A single divisor is for all losses.

    Raises ValueError unless there is one divisor, or one for each loss.
    """
    if len(divisors) == 1:
        return (losses[0] if len(losses) == 1 else torch.stack(losses).sum()) / divisors[0]
    if len(losses) != len(divisors):
        raise ValueError(f"the model has {len(losses)} losses, and {len(divisors)} divisors were given: give one for each")
    return torch.stack([loss / divisor for loss, divisor in zip(losses, divisors, strict=True)]).sum()


def seed_from(*numbers: int) -> int:
    """Return a seed of 63 bits: a hash of these numbers in this order, the same on every host."""
    return int.from_bytes(hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest(), "big") >> 1
