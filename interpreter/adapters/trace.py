"""The trace of a module: which units its forward calls, and from what the arguments of each call are computed.

The module's own forward runs once, on fake tensors, which have shapes and no memory. For every tensor outside of calls, the
sources are recorded: the outputs of calls, the parameters and buffers, and the fields of the batch that the tensor was computed
from. What is computed between two calls (additions, masks, positions) is no layer: each stage that needs it computes it again.
So a stage receives exactly those outputs of the calls before it from which the arguments of its own or of later calls, or the
model's output, are computed.
"""

from __future__ import annotations

import dataclasses
import enum
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.adapters.intercept import Forward, Intercepted
from chimerac.interpreter.runtime.memory import storage_address
from chimerac.interpreter.runtime.model import Values

# What a call may return besides tensors and callables.
_CONSTANTS = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device, type)


class Output(NamedTuple):
    """A tensor that a call returns: the number of the call, and the tensor's place among the leaves of the result."""

    call: int
    leaf: int


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of the module."""

    name: str


@dataclass(frozen=True)
class Field:
    """A tensor of the batch."""

    name: str


@dataclass(frozen=True)
class Inside:
    """A tensor that a call made, or one that it changed in place and that is no parameter or buffer.

    Attributes:
        call: the number of the call.

    A tensor in the result of a call is copied, and the source of the copy is an `Output`.
    """

    call: int


Sources = frozenset[Output | Weight | Field | Inside]
_NOTHING: Sources = frozenset()


@dataclass(frozen=True)
class Shape:
    """The shape and dtype of a tensor.

    Attributes:
        gradient: whether the tensor requires a gradient.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool


@dataclass(frozen=True)
class Call:
    """A call of a unit.

    Attributes:
        unit: the path of the unit.
        name: the same path; for the second call of the unit `path (2)`, and so on.
        structure, leaves: what the call returns; of a tensor its `Shape`, of anything else its value.
        sources: what the arguments of the call are computed from.
        weights: the names of the parameters and buffers that the arguments are computed from, or that the unit reads, wherever
            they are in the module.
    """

    unit: str
    name: str
    structure: pytree.TreeSpec
    leaves: tuple[Shape | Any, ...]
    sources: Sources
    weights: frozenset[str]


@dataclass(frozen=True)
class Trace:
    """All calls of a forward, in order.

    Attributes:
        result: what the model's output, the tensors for the loss, is computed from.
        written: the fields that are changed in place, and the outputs of calls that are changed in place afterwards.
        draws: whether the forward draws random numbers in training.
    """

    calls: tuple[Call, ...]
    result: Sources
    written: frozenset[Output | Field]
    draws: bool

    def crossing(self, cut: int) -> tuple[Output, ...]:
        """Return the outputs of the calls before a cut that later calls or the model's output need.

        Args:
            cut: the number of the first call after the cut.
        """
        later = self.sources_of(range(cut, len(self.calls)))
        return tuple(sorted({s for sources in later for s in sources if isinstance(s, Output) and s.call < cut}))

    def sources_of(self, calls: range) -> list[Sources]:
        """Return the sources of each of these calls. If the range ends with the last call, those of the output follow."""
        found = [self.calls[k].sources for k in calls]
        return [*found, self.result] if calls.stop == len(self.calls) else found


def trace(
    intercepted: Intercepted, mode: FakeTensorMode, fields: Mapping[str, Tensor], select: Callable[[Any], Values]
) -> Trace:
    """Return the trace of a module.

    Args:
        intercepted: a module whose parameters and buffers are fake tensors of the mode.
        fields: its keyword arguments, real or fake, with the shapes of a micro-batch.
        select: from what the module returns, the tensors that the loss is computed from.

    Raises ChimeraError E852 for a module that cannot be cut: it decides by the values of tensors, uses a tensor that an earlier
    call made or changed and did not return, calls none of its units, or has a call whose result is not understood. Raises E852
    also if its forward fails.
    """
    name, tracking = type(intercepted.module).__name__, _Tracking(intercepted.module)
    run = _TracingRun(tracking)
    intercepted.module.train()
    try:
        with mode:
            arguments = {field: torch.empty(t.shape, dtype=t.dtype, device=t.device) for field, t in fields.items()}
            for field, t in arguments.items():
                tracking.set_source(t, Field(field))
            with tracking, intercepted.running(run) as module:
                outputs = select(module(**arguments))
            result = tracking.sources_of(outputs)
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        help = "switch off the option of the model that does this; the calls of a forward must be the same for every batch"
        message = f"{name} decides by the values of a tensor {run.place}"
        raise refuse("E852", message, notes=line_of(error), help=help) from error
    except ChimeraError:
        raise
    except Exception as error:  # whatever the model's own code raises
        message = f"the forward of {name} fails {run.place}: {type(error).__name__}: {error}"
        help = f"its arguments were {', '.join(fields)}: give those that it needs"
        raise refuse("E852", message, notes=line_of(error), help=help) from error
    if not run.calls:
        raise refuse("E852", f"the forward of {name} calls none of its layers", help="name other layers")
    run.check(result, "the output of the model")
    return Trace(tuple(run.calls), result, frozenset(tracking.written), tracking.draws)


def line_of(error: Exception) -> tuple[str, ...]:
    """Return the line of the model's own code where an error was raised, as a note; no note if there is no such line."""
    others = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))
    lines = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(others)]
    return (f"{short_path(lines[-1].filename)}:{lines[-1].lineno}: {lines[-1].line}",) if lines else ()


class _TracingRun:
    """A forward in which all units run, on fake tensors."""

    def __init__(self, tracking: _Tracking) -> None:
        self.calls: list[Call] = []
        self._tracking, self._counts = tracking, Counter[str]()  # counts: of the calls of each unit, by its path
        self._inside: str | None = None  # the name of the call that is running

    @property
    def place(self) -> str:
        """Return where the forward is, in words."""
        if self._inside is not None:
            return f"in the call of {self._inside}"
        return f"after the call of {self.calls[-1].name}" if self.calls else "before the first call of a layer"

    def call(self, unit: str, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the unit, and record what its call needs and returns.

        Raises ChimeraError E852 if an argument is computed from a tensor that another call made or changed and did not return,
        or if the call returns something else than tensors, callables and `_CONSTANTS`.
        """
        if self._inside is not None:  # a unit that another one calls is part of it
            return forward(*args, **kwargs)
        number, tracking = len(self.calls), self._tracking
        self._counts[unit] += 1
        name = unit if self._counts[unit] == 1 else f"{unit} ({self._counts[unit]})"
        sources = tracking.sources_of(pytree.tree_leaves((args, kwargs)))
        self.check(sources, f"the call of {name}")
        self._inside = name
        tracking.enter(number)
        result = forward(*args, **kwargs)
        used = tracking.leave()
        self._inside = None
        leaves, structure = flatten(result)
        # Tensors are told apart by their storages, and a unit may return its argument. So each result gets a new storage.
        leaves = [t.clone() if isinstance(t, Tensor) else t for t in leaves]
        for k, t in enumerate(leaves):
            if isinstance(t, Tensor):
                tracking.set_source(t, Output(number, k))
            elif not isinstance(t, _CONSTANTS) and not callable(t):
                found = f"a value of type {type(t).__name__}"
                raise refuse(
                    "E852",
                    f"the call of {name} returns {found}, which is neither a tensor nor a number or text",
                    help="tensors may be in tuples, lists, dictionaries and dataclasses; switch off caches and the like",
                )
        weights = used | {s.name for s in sources if isinstance(s, Weight)}
        self.calls.append(Call(unit, name, structure, tuple(map(_shape_of, leaves)), sources, frozenset(weights)))
        return pytree.tree_unflatten(leaves, structure)

    def check(self, sources: Sources, reader: str) -> None:
        """Raise ChimeraError E852 if a tensor that a call made or changed and did not return is among the sources.

        Args:
            reader: what is computed from the sources, as text for the error.
        """
        inside = [source.call for source in sources if isinstance(source, Inside)]
        if inside:
            owner = self.calls[min(inside)].name  # the first, so that all processes name the same one
            raise refuse(
                "E852",
                f"{reader} uses a tensor that the call of {owner} made or changed and did not return",
                help="make it one of the outputs of that call, or list a module that contains both calls as one layer",
            )


class _Tracking(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what every tensor was computed from. Tensors that share memory have the same sources.

    Attributes:
        written: fields and outputs of calls that something changes in place.
        draws: whether random numbers were drawn.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: set[Output | Field] = set()
        self.draws = False
        # By the addresses of storages:
        self._sources: dict[int, Sources] = {}
        self._weights: dict[int, str] = {}  # names of parameters and buffers
        self._copied: dict[int, Output | Field] = {}  # what a stage gives the model as a copy if the model changes it
        self._storages: list[Any] = []  # kept alive, so that no other storage gets the same address
        self._call: int | None = None
        self._used: set[str] = set()
        for name, t in [*module.named_parameters(), *module.named_buffers()]:
            self._weights[storage_address(t)] = name
            self.set_source(t, Weight(name))

    def sources_of(self, values: Iterable[Any]) -> Sources:
        """Return the sources of tensors; other values have none."""
        found = [self._sources.get(storage_address(t), _NOTHING) for t in values if isinstance(t, Tensor)]
        return _NOTHING.union(*found)

    def set_source(self, t: Tensor, source: Output | Weight | Field) -> None:
        """Make this the only source of a tensor."""
        self._add(t, frozenset([source]), replace=True)
        if isinstance(source, Output | Field):
            self._copied[storage_address(t)] = source

    def enter(self, call: int) -> None:
        """Begin a call. The source of every tensor that is made in it is `Inside`."""
        self._call, self._used = call, set()

    def leave(self) -> set[str]:
        """End a call and return the names of the parameters and buffers that it has used."""
        self._call = None
        return self._used

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = pytree.tree_leaves((args, kwargs))
        read = self.sources_of(given)
        self.draws = self.draws or _draws(func, args, kwargs)
        if self._call is not None:
            addresses = [storage_address(t) for t in given if isinstance(t, Tensor)]
            self._used |= {self._weights[x] for x in addresses if x in self._weights}
            read = frozenset([Inside(self._call)])
        for t in _written(func, args, kwargs):
            address = storage_address(t)
            if address not in self._weights:
                if address in self._copied:
                    self.written.add(self._copied[address])
                self._add(t, read)
        for t in pytree.tree_leaves(result):
            # In a call, a view of a tensor keeps the sources of this tensor: it is not something that the call made.
            if isinstance(t, Tensor) and (storage_address(t) not in self._sources or self._call is None):
                self._add(t, read)
        return result

    def _add(self, t: Tensor, sources: Sources, replace: bool = False) -> None:
        key = storage_address(t)
        if key not in self._sources:
            self._storages.append(t.untyped_storage())
        self._sources[key] = sources if replace else self._sources.get(key, _NOTHING) | sources


def flatten(value: Any) -> tuple[list[Any], pytree.TreeSpec]:
    """Return the leaves and the structure of what a call returns: tuples, lists, dictionaries and dataclasses.

    Classes of dataclasses that torch's trees do not know yet are registered first.
    """
    leaves, structure = pytree.tree_flatten(value)
    unknown = {type(x) for x in leaves if dataclasses.is_dataclass(x) and not isinstance(x, type)}
    if not unknown:
        return leaves, structure
    for kind in unknown:
        pytree.register_dataclass(kind)
    return flatten(value)


def _shape_of(leaf: Any) -> Shape | Any:
    return Shape(tuple(leaf.shape), leaf.dtype, leaf.requires_grad) if isinstance(leaf, Tensor) else leaf


def _written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors that an operation changes in place."""
    found = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name, args[place] if place < len(args) else None)
            found += [t for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]
    return found


def _draws(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether an operation draws random numbers. Dropout with a probability of zero does not."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | dict(kwargs)
    # `dropout_p` of an attention is 0 by default. An operation without a probability always draws.
    probability = given.get("dropout_p", 0.0 if "dropout_p" in names else given.get("p", 1.0))
    return probability != 0.0
