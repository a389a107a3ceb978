"""A module as a model of the runtime: its layers are the calls of its units.

    model = cut(build, {"input_ids": tokens}, loss=loss, layers=["encoder.layer"])

A *unit* is a submodule whose calls are layers of the pipeline: each one that the argument `layers` of `cut` chooses, and
each of the largest others that have parameters or persistent buffers (units.py). A shared tensor has several names; its *first
name* is the first of them in the module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from chimerac.interpreter.adapters.construction import Built, Given, ModuleSource
from chimerac.interpreter.adapters.intercept import Intercepted
from chimerac.interpreter.adapters.stages import CallStage, Own, Select
from chimerac.interpreter.adapters.trace import Weight, trace
from chimerac.interpreter.adapters.units import is_inside, joined, layers_of, units_of
from chimerac.interpreter.runtime.model import Example, Fields, Model, Stage, Values, loss_of_tuples

Loss = Callable[..., Tensor | tuple[Tensor, ...]]


class Pretrained(Protocol):
    """Weights with which stages start instead of initial ones."""

    def load(self, tensors: Mapping[str, Tensor], names: Mapping[str, Sequence[str]]) -> None:
        """Set the values of these tensors of a model.

        Args:
            tensors: by their first names.
            names: by the first name of each tensor of the model, all its names.
        """


@dataclass(frozen=True, kw_only=True)
class CallModel(Model):
    """A module that is cut between the calls of its units: a layer is one call. `cut` returns it.

    Attributes:
        source: builds the parts of the module.
        structure: its units, its trace, and which calls need which parameters.
        select: from what the module returns, the tensors for the loss.
        pretrained: where stages read their parameters and persistent buffers; None: these have the values that `source` gives
            them.
        names: by the path of a submodule, its name in the full model. A submodule without an entry has its path as its name.
    """

    source: ModuleSource
    structure: Structure
    select: Select
    pretrained: Pretrained | None = None
    names: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def layer_names(self) -> tuple[str, ...]:
        """Return the names of the layers, in the order in which they run."""
        return tuple(call.name for call in self.structure.trace.calls)

    def build_stage(self, layers: range, seed: int) -> Stage:
        """Build the stage of these calls.

        If a function builds the module, only the parameters of this stage get memory. If the module was given, no parameter
        gets memory: the stage uses those of the module. Values are read from the files of a pretrained model, or are those of
        the module. Values that come from a module's constructor are functions of (seed, parameter) and of nothing else.
        """
        structure, mode = self.structure, _get_dispatch_mode(_TorchDispatchModeKey.FAKE)
        absent: list[tuple[nn.Module, str]] = []
        if mode is not None:  # the caller builds the stage on fake tensors
            intercepted = structure.without_memory(mode)
        else:
            names = structure.weights_of(layers)
            module = self.source.part(names, seed)
            structure.free_others(module, layers)
            if self.pretrained is not None:
                self.pretrained.load(structure.tensors_of(module, layers), structure.names)
            intercepted, absent = Intercepted(module, structure.units), structure.absent_from(module, layers)
        modules = structure.modules_of(intercepted, layers)
        ties = [structure.ties_of(path, module) for path, module in modules.items()]
        stage = CallStage(intercepted, structure.trace, layers, modules, ties, structure.fields, self.select, absent)
        stage.names = [self.names.get(path, path) for path in modules]
        return stage


class Structure:
    """What is known of a module without the values of its parameters: units, trace, and which calls need which parameters.

    Args:
        layers: as in `cut`.
        fields: examples of its keyword arguments.
        select: as in `CallModel`.

    Attributes:
        names: by the first name of each parameter and buffer, all its names.

    In the methods, `calls` are the numbers of a stage's calls.
    """

    def __init__(self, source: ModuleSource, layers: Sequence[str], fields: Fields, select: Select) -> None:
        self._source, self.fields = source, fields
        module = source.structure()
        self.name = type(module).__name__
        self.units = tuple(units_of(module, layers_of(module, layers)))
        self.names = _names_by_first(module)
        self._first_name = {name: first for first, names in self.names.items() for name in names}
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._mode, self._faked = mode, Intercepted(_faked(module, mode), self.units)
        self.trace = trace(self._faked, mode, fields, select)
        self._with_common_buffers = self._paths_with_common_buffers()
        self._needed = self._needed_by_call()
        self._uses = Counter(name for names in self._needed for name in names)

    def weights_of(self, calls: range) -> list[str]:
        """Return the first names of the parameters that a stage needs, in the order of the module."""
        needed = set[str]().union(*(self._needed[k] for k in calls))
        return [name for name in self.names if name in needed]

    def absent_from(self, module: nn.Module, calls: range) -> list[tuple[nn.Module, str]]:
        """Return the parameters that are read between calls and that a stage does not need, as (module, name in it)."""
        absent = self._read_between_calls().difference(self.weights_of(calls))
        paths = (name.rpartition(".") for first in absent for name in self.names[first])
        owners = ((module.get_submodule(path), name) for path, _, name in paths)
        return [(owner, name) for owner, name in owners if name in owner._parameters]

    def modules_of(self, intercepted: Intercepted, calls: range) -> dict[str, nn.Module]:
        """Return, by their paths, the modules that have the parameters and buffers of a stage.

        They are the units of the stage and, for each module outside of them with a tensor that the stage needs, an `Own` with
        the tensors of that module.
        """
        modules = {unit: intercepted.units[unit] for unit in self._units_of(calls)}
        inside = {name for unit in modules for name in self._names_in(unit)}
        for first in self.weights_of(calls):
            if inside.isdisjoint(self.names[first]):
                path = first.rpartition(".")[0]
                modules[path] = Own(intercepted.module.get_submodule(path))
        outside = [path for path in self._with_common_buffers if not any(_is_in(path, unit) for unit in self._units_of(calls))]
        return modules | {path: Own(intercepted.module.get_submodule(path)) for path in outside}

    def ties_of(self, path: str, module: nn.Module) -> dict[str, str]:
        """Return the parameters of the module at `path` that several calls need: first name -> path in this module."""
        paths = {self._first_name[joined(path, name)]: name for name, _ in module.named_parameters()}
        return {first: name for first, name in paths.items() if self._uses[first] > 1}

    def tensors_of(self, module: nn.Module, calls: range) -> dict[str, Tensor]:
        """Return the parameters and the persistent buffers of a stage, by their first names."""
        found: dict[str, Tensor] = {name: module.get_parameter(name) for name in self.weights_of(calls)}
        owners = {unit: module.get_submodule(unit) for unit in self._units_of(calls)}
        owners |= {path: Own(module.get_submodule(path)) for path in self._with_common_buffers}
        for path, owner in owners.items():
            state = {joined(path, name): t for name, t in owner.state_dict(keep_vars=True).items()}
            found |= {self._first_name.get(name, name): t for name, t in state.items() if not isinstance(t, nn.Parameter)}
        return found

    def free_others(self, module: nn.Module, calls: range) -> None:
        """Put the buffers of other stages' units on the meta device, except in modules whose buffers are read between calls."""
        for unit in set(self.units).difference(self._units_of(calls)):
            for path, m in module.get_submodule(unit).named_modules(prefix=unit):
                if path not in self._with_common_buffers:
                    for name, t in m._buffers.items():
                        m._buffers[name] = None if t is None else t.to("meta")

    def without_memory(self, mode: FakeTensorMode) -> Intercepted:
        """Return the module with fake tensors of this mode in the place of parameters and buffers."""
        if mode is not self._mode:
            self._mode, self._faked = mode, Intercepted(_faked(self._source.structure(), mode), self.units)
        return self._faked

    def _units_of(self, calls: range) -> list[str]:
        """Return the units of a stage: those that it calls and, for the last stage, also those that nothing calls."""
        called = dict.fromkeys(self.trace.calls[k].unit for k in calls)
        if calls.stop < len(self.trace.calls):
            return list(called)
        called_anywhere = {call.unit for call in self.trace.calls}
        return [*called, *(unit for unit in self.units if unit not in called_anywhere)]

    def _read_between_calls(self) -> set[str]:
        """Return the first names of the parameters and buffers that the module reads before, between or after the calls."""
        found = self.trace.sources_of(range(len(self.trace.calls)))
        return {self._first_name[s.name] for sources in found for s in sources if isinstance(s, Weight)}

    def _paths_with_common_buffers(self) -> list[str]:
        """Return the paths of the modules with common buffers: buffers that every stage has.

        They are the modules outside of units, and those with a buffer that is read between calls, such as a table of positions.
        """
        read = self._read_between_calls()
        return [
            path
            for path, m in self._faked.module.named_modules()
            if m._buffers
            and (path in self._faked.others or any(self._first_name.get(joined(path, name)) in read for name in m._buffers))
        ]

    def _needed_by_call(self) -> list[set[str]]:
        """Return, for each call, the first names of the parameters that a stage with this call needs."""
        module, calls = self._faked.module, self.trace.calls
        parameters = {name for name, _ in module.named_parameters()}

        def beside(name: str) -> set[str]:
            """Return the first names of all parameters of the module that has this one, because an `Own` has all of them."""
            path = name.rpartition(".")[0]
            own = module.get_submodule(path)._parameters
            return {self._first_name[joined(path, other)] for other, p in own.items() if p is not None}

        everywhere = {
            self._first_name[joined(path, name)]
            for path in self._with_common_buffers
            for name, _ in module.get_submodule(path).named_parameters(recurse=False)
        }
        after_last = {source.name for source in self.trace.result if isinstance(source, Weight)}  # used for the model's output
        needed = []
        for k, call in enumerate(calls):
            inside = {self._first_name[name] for unit in self._units_of(range(k, k + 1)) for name in self._names_in(unit)}
            used = (call.weights | after_last if k == len(calls) - 1 else call.weights) & parameters
            needed.append((inside & parameters).union(everywhere, *map(beside, used - inside), used))
        needed[-1] |= parameters - set[str]().union(*needed)  # those that nothing uses
        return needed

    def _names_in(self, path: str) -> list[str]:
        """Return the names that the parameters and buffers of a submodule have in the whole module."""
        return [name for name in self._first_name if _is_in(name, path)]


def cut(
    module: nn.Module | Callable[[], nn.Module],
    fields: Fields,
    *,
    loss: Loss,
    targets: Tensor | Sequence[Tensor] | None = None,
    layers: Sequence[str] = (),
    select: Select | None = None,
    pretrained: Pretrained | None = None,
    name: str | None = None,
) -> CallModel:
    """Return the model of a module, cut between the calls of its units, for `Pipeline` and for run.py.

    Args:
        module: the module, or a function that builds it. With a function, a stage gets memory only for its own parameters, and
            starts with the values that the module's constructor gives them.
        fields: the arguments of the module's forward by name, of one micro-batch.
        loss: as for `Pipeline`, called with the selected tensors and the targets; a loss for run.py must return the sum over
            the targets.
        targets: of one micro-batch; they show how much memory the loss keeps; None: they are not known.
        layers: paths of single units, or of lists whose elements are units; a * matches one part of a path; by default the
            outermost lists (`layers_of`).
        select: a function from what the module returns to the tensors for the loss; by default all tensors.
        pretrained: where stages read their parameters and persistent buffers; by default these have the values of the module.
        name: of the model, by default the name of the module's class.

    Raises ChimeraError E851 as `layers_of`, E852 for a module that cannot be cut or whose forward fails, and
    TypeError if the function returns no module.
    """
    source: ModuleSource = Given(module) if isinstance(module, nn.Module) else Built(module)
    structure = Structure(source, layers, fields, select or tensors_in)
    target_tensors = None if targets is None else ((targets,) if isinstance(targets, Tensor) else tuple(targets))

    def example(samples: int) -> Example:  # always the given micro-batch: the module was traced with its shapes
        return Example((), target_tensors, fields)

    return CallModel(
        name=name or structure.name,
        example=example,
        loss=loss_of_tuples(loss),
        source=source,
        structure=structure,
        select=select or tensors_in,
        pretrained=pretrained,
    )


def tensors_in(result: Any) -> Values:
    """Return all tensors of what a module returns, in order."""
    return tuple(t for t in pytree.tree_leaves(result) if isinstance(t, Tensor))


def _names_by_first(module: nn.Module) -> dict[str, list[str]]:
    """Return all names of each parameter and buffer, by the first one."""
    names: dict[int, list[str]] = {}
    for name, t in [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]:
        names.setdefault(id(t), []).append(name)
    return {found[0]: found for found in names.values()}


def _faked(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Replace the parameters and buffers of a module by fake tensors whose device is the CPU, and return the module."""
    faked: dict[int, Tensor] = {}
    for m in module.modules():
        tables: list[dict[str, Any]] = [m._parameters, m._buffers]
        for table in tables:
            for name, t in table.items():
                if t is not None and id(t) not in faked:
                    with mode:
                        like: Tensor = torch.empty(t.shape, dtype=t.dtype)
                    faked[id(t)] = nn.Parameter(like, t.requires_grad) if isinstance(t, nn.Parameter) else like
                    # Modules may share a table; when it is met again, its fake tensors stay.
                    faked[id(faked[id(t)])] = faked[id(t)]
                table[name] = None if t is None else faked[id(t)]
    return module


def _is_in(path: str, unit: str) -> bool:
    """Return whether this is the path of a unit, or of a submodule or tensor in it."""
    return path == unit or is_inside(path, unit)
