"""Building a part of a module: its whole structure, and memory for the parameters of that part only.

`Given` copies the structure of a module that exists; its parts share the parameters of that module. `Built` runs the
constructor for each part, so parameters get their initial values from the constructor. The parameters of other parts are on
torch's meta device from the moment when a module registers them. Each random operation of the constructor draws from a seed of
its own (`_SeededDraws`). So a parameter has the same initial value whichever others have memory: in every stage, under every
partition, and in the whole module.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Collection, MutableMapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from chimerac.interpreter.runtime.model import seed_from


class ModuleSource(Protocol):
    """Where the parts of a module come from. Parameters are known by their names, a tied one by any of its names."""

    def structure(self) -> nn.Module:
        """Return the module with all parameters on the meta device; other tensors are real."""

    def part(self, names: Collection[str], seed: int) -> nn.Module:
        """Return the module with real parameters of these names, and the others on the meta device.

        Args:
            seed: of the initial values, if the module is built for this part.
        """


class Built:
    """A module that a function builds.

    Args:
        build: called once for each structure, and one to three times for each part. It builds a new module every time, equal to
            the others up to random numbers. If it returns no module, the methods raise TypeError.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self._build = build
        self._numbers: dict[str, int] = {}  # of parameters, by name

    def structure(self) -> nn.Module:
        """Return the module with all parameters on the meta device; other tensors are real."""
        module, self._numbers = self._constructed(lambda number: False, seed=0)
        return module

    def part(self, names: Collection[str], seed: int) -> nn.Module:
        """Return the module with initial values of the parameters of these names, and the others on the meta device.

        Raises TypeError also if the function returns parameters that an earlier call has returned.
        """
        if not self._numbers:
            self.structure()
        chosen = {self._numbers[name] for name in names}
        module, _ = self._constructed(chosen.__contains__, seed)
        if any(module.get_parameter(name).is_meta for name in names):
            # A chosen parameter was computed from one that the constructor has replaced, as weight normalization does.
            # Replaced parameters have no name in the module. So all parameters without a name get memory too.
            named = set(self._numbers.values())
            module, _ = self._constructed(lambda number: number in chosen or number not in named, seed)
        for name in names:
            # `Structure` (model.py) has put fake tensors into the module that an earlier call returned.
            if isinstance(module.get_parameter(name), FakeTensor):
                raise TypeError(
                    f"the function that builds the model returned the parameter {name} a second time: "
                    "let it build new modules in every call, or give the module itself"
                )
        return module

    def _constructed(self, is_real: Callable[[int], bool], seed: int) -> tuple[nn.Module, dict[str, int]]:
        """Return the module, and by name the number of each parameter: how many were registered before it."""
        hook = _RegistrationHook(is_real)
        with unset_fake_temporarily(), torch.random.fork_rng(devices=()), _SeededDraws(seed, hook):
            handle = register_module_parameter_registration_hook(hook)  # type: ignore[arg-type]  # a hook may return a parameter
            try:
                module = self._build()
            finally:
                handle.remove()
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"the function that builds the model returned a value of type {type(module).__name__}, not a torch.nn.Module"
            )
        return module, {name: hook.number_of(p) for name, p in module.named_parameters(remove_duplicate=False)}


class Given:
    """A module that exists. Its parts share its parameters and buffers."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def structure(self) -> nn.Module:
        """Return a copy with all parameters on the meta device; its buffers are those of the module."""
        return self.part((), seed=0)

    def part(self, names: Collection[str], seed: int) -> nn.Module:
        """Return a copy that has the module's own parameters of these names, and others on the meta device."""
        module = self._module
        own = {id(module.get_parameter(name)) for name in names}
        memo: dict[int, Any] = {id(b): b for b in module.buffers()}  # by id, what deepcopy uses instead of a copy
        memo |= {id(p): p if id(p) in own else _on_meta(p) for p in module.parameters()}
        return copy.deepcopy(module, memo)


def returned(build: Callable[[], Any]) -> Any:
    """Return what a function returns. A module that it builds has all parameters on the meta device.

    If the function returns something else, such as a Model, or raises an error, it is called again with real parameters.
    """
    try:
        return Built(build).structure()
    except Exception:  # TypeError for something else, or an error of the function: it may come from parameters without values
        return build()


class _RegistrationHook:
    """Called for each parameter that a module registers. It puts the parameter on the meta device unless `is_real`.

    Args:
        is_real: whether the parameter with a number has memory. The number of a parameter is how many were registered before
            it.
    """

    def __init__(self, is_real: Callable[[int], bool]) -> None:
        self._is_real, self._thread = is_real, threading.get_ident()
        self._count = 0
        # By id. The reference tells whether the parameter still exists: a later object may have the same id.
        self._numbers: dict[int, tuple[int, weakref.ref[nn.Parameter]]] = {}
        self._replacements: dict[int, nn.Parameter] = {}  # parameters on the meta device, by number

    def __call__(self, module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        if threading.get_ident() != self._thread:  # torch calls the hook in all threads
            return None
        if self.number_of(parameter) < 0:
            number = self._count
            self._count += 1
            self._record(parameter, number)
            if not self._is_real(number):
                self._replacements[number] = _on_meta(parameter)
                self._record(self._replacements[number], number)
        return self._replacements.get(self.number_of(parameter))

    def number_of(self, parameter: Tensor) -> int:
        """Return the number of a parameter; -1 for any other tensor."""
        number, reference = self._numbers.get(id(parameter), (-1, None))
        return number if reference is not None and reference() is parameter else -1

    def _record(self, parameter: nn.Parameter, number: int) -> None:
        self._numbers[id(parameter)] = number, weakref.ref(parameter)


def _on_meta(parameter: nn.Parameter) -> nn.Parameter:
    """Return a parameter like this one, without memory."""
    copied = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
    vars(copied).update(vars(parameter))  # attributes that a library has set on it
    return copied


class _SeededDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Seeds torch's generator of the CPU before each random operation of a constructor.

    An operation on a parameter, or on a tensor made from one as in the loops of `trunc_normal_`, has a seed from
    (seed, parameter, number among its random operations). torch skips some of them on the meta device, and that changes the
    seeds of no other parameter. All other random operations run in every construction, and are numbered together.
    """

    def __init__(self, seed: int, hook: _RegistrationHook) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed, self._hook = seed, hook
        self._made_from: MutableMapping[Tensor, int] = WeakIdKeyDictionary()  # tensor -> number of a parameter
        self._counts = Counter[int]()  # of random operations, by parameter; -1: of those without one

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parameters = [self._parameter(t) for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        parameter = max(parameters, default=-1)  # of several, the one that was registered last
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.default_generator.manual_seed(seed_from(self._seed, parameter, self._counts[parameter]))
            self._counts[parameter] += 1
        result = func(*args, **kwargs)
        if parameter >= 0:
            for t in pytree.tree_leaves(result):
                if isinstance(t, Tensor):
                    self._made_from[t] = parameter
        return result

    def _parameter(self, t: Tensor) -> int:
        """Return the number of the parameter that this tensor is, or was made from; otherwise -1."""
        number = self._hook.number_of(t)
        return number if number >= 0 else self._made_from.get(t, -1)
