"""Intercepted calls: during a Run, which is a forward of a module, the units of the module report their calls to it.

The forward of a stage ends after the last call of the stage, except on the last stage. A *unit* is a submodule whose calls are
layers of the pipeline (docs/any_model.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol

from torch import nn

Forward = Callable[..., Any]


class Run(Protocol):
    """One forward of the module, which may end early."""

    def call(self, unit: str, forward: Forward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what this call of a unit returns.

        Args:
            unit: its path.
            forward: the unit's own forward.
        """


class Intercepted:
    """A module whose units report their calls.

    The forward of each unit is replaced: during a run, a call returns what the run returns for it. Outside of runs, a call runs
    the unit's own forward.

    Args:
        units: the paths of the units; the attribute has the units by path.

    Attributes:
        forwards: the units' own forwards, by path.
        others: the modules that are no part of a unit, by path.
    """

    def __init__(self, module: nn.Module, units: Iterable[str]) -> None:
        self.module, self.units = module, {path: module.get_submodule(path) for path in units}
        inside = {id(m) for unit in self.units.values() for m in unit.modules()}
        self.others = {path: m for path, m in module.named_modules() if id(m) not in inside}
        self.forwards = {path: unit.forward for path, unit in self.units.items()}
        self._run: Run | None = None
        for path, unit in self.units.items():
            vars(unit)["forward"] = self._reporting(path)

    @contextmanager
    def running(self, run: Run) -> Iterator[nn.Module]:
        """Report calls to this run, and yield the module."""
        self._run = run
        try:
            yield self.module
        finally:
            self._run = None

    def _reporting(self, path: str) -> Forward:
        @wraps(self.forwards[path])
        def report(*args: Any, **kwargs: Any) -> Any:
            forward = self.forwards[path]
            return forward(*args, **kwargs) if self._run is None else self._run.call(path, forward, args, kwargs)

        return report
