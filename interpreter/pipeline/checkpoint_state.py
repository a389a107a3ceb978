"""What a rank saves and restores: weights and optimizer state by names of the full model, and states of random generators.

A value that several ranks have is written by one of them. Any rank may read any value.

    place                              value
    ("model", name)                    a parameter or a buffer; a shared parameter under each of its names
    ("optimizer", "state", name, key)  one entry of the optimizer's state of a parameter; a shared one under its first name
    ("random", "rank 0", type)         the state of a random generator of torch, by rank and by type of device

The optimizer's settings, such as the learning rate, are in checkpoint.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chimerac.interpreter.generators import Generators
from chimerac.interpreter.pipeline.bound import BoundPipeline
from chimerac.interpreter.pipeline.checkpoint_tensors import Place, TensorReader

_NOT_SETTINGS = {"params", "param_names"}  # the entries of an optimizer's parameter group that are not settings


class MismatchError(Exception):
    """The optimizer of a run does not fit the saved one. The message says what differs."""


class Names:
    """The names of a rank's parameters in the full model. A shared parameter has its first name, the same on all ranks."""

    def __init__(self, pipeline: BoundPipeline) -> None:
        self._names = {id(p): name for name, p in pipeline.named_parameters()}

    def of(self, parameter: Tensor) -> str:
        """Return the name of a parameter. Raises ValueError if it is not a parameter of this rank."""
        if id(parameter) not in self._names:
            raise ValueError(
                f"the optimizer has a parameter of shape {list(parameter.shape)} that the pipeline does not have: "
                "create the optimizer with pipeline.parameters()"
            )
        return self._names[id(parameter)]


def local_state(pipeline: BoundPipeline, optimizer: Optimizer | None, names: Names) -> dict[str, Any]:
    """Return the values that this rank saves, as nested mappings. Raises ValueError as `Names.of`."""
    random = {_rank_key(pipeline.rank): Generators(pipeline.transport.device).states()}
    state: dict[str, Any] = {"model": pipeline.state_dict(), "random": random}
    if optimizer is not None:
        by_name = {names.of(p): dict(optimizer.state[p]) for p in _parameters(optimizer) if optimizer.state.get(p)}
        state["optimizer"] = {"state": by_name}
    return state


def optimizer_settings(optimizer: Optimizer | None, names: Names) -> dict[str, Any] | None:
    """Return the kind of an optimizer, which is its class name, and for each of its groups [names of the parameters, settings].

    Return None if there is no optimizer. Raises TypeError for a setting that cannot be written as JSON, and ValueError as
    `Names.of`.
    """
    if optimizer is None:
        return None
    groups = [[[names.of(p) for p in group["params"]], _settings(group)] for group in optimizer.param_groups]
    return {"kind": type(optimizer).__name__, "groups": groups}


def merged_settings(by_rank: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the settings of the optimizers of all ranks as those of one optimizer. Groups with equal settings become one.

    Args:
        by_rank: as from `optimizer_settings`.

    Return None if no rank has an optimizer.
    """
    kind: str | None = None
    # By the text of the settings: the settings, and the names of the parameters, as keys, so that each is there once.
    merged: dict[str, tuple[Any, dict[str, None]]] = {}
    for settings in by_rank:
        if settings is not None:
            kind = settings["kind"]
            for names, values in settings["groups"]:
                merged.setdefault(json.dumps(values, sort_keys=True), (values, {}))[1].update(dict.fromkeys(names))
    return {"kind": kind, "groups": [[list(names), values] for values, names in merged.values()]} if merged else None


def needed_places(reader: TensorReader, pipeline: BoundPipeline, optimizer: Optimizer | None, names: Names) -> list[Place]:
    """Return the places in a checkpoint whose values this rank reads. Raises ValueError as `Names.of`."""
    places: list[Place] = [("model", name) for name in pipeline.state_dict()]
    places += reader.places("random", _rank_key(pipeline.rank))
    if optimizer is not None:
        own = {names.of(p) for p in _parameters(optimizer)}
        places += [place for place in reader.places("optimizer", "state") if place[2] in own]
    return places


def restore_function(
    values: Mapping[Place, Any],
    pipeline: BoundPipeline,
    optimizer: Optimizer | None,
    names: Names,
    settings: Mapping[str, Any] | None,
    with_settings: bool,
) -> Callable[[], None]:
    """Return a function that loads the saved values into the pipeline and the optimizer.

    Args:
        values: by place.
        settings: the saved ones, as from `merged_settings`.
        with_settings: whether the optimizer gets them.

    Raises MismatchError if the saved optimizer does not fit this one, TypeError if this one has a setting that cannot be
    written as JSON, and ValueError as `Names.of`. Nothing is loaded before the function is called.
    """
    state = None if optimizer is None else _optimizer_state(values, optimizer, names, settings, with_settings)

    def restore() -> None:
        pipeline.load_state_dict({place[1]: value for place, value in values.items() if place[0] == "model"})
        if optimizer is not None and state is not None:
            optimizer.load_state_dict(state)

    return restore


def restore_generators(values: Mapping[Place, Any], pipeline: BoundPipeline) -> None:
    """Give torch's generators the states that the rank of the same number saved, if its device was of the same type."""
    generators = Generators(pipeline.transport.device)
    states = {place[2]: value for place, value in values.items() if place[0] == "random"}
    if states.keys() == generators.states().keys():
        generators.set(states)


def _optimizer_state(
    values: Mapping[Place, Any],
    optimizer: Optimizer,
    names: Names,
    settings: Mapping[str, Any] | None,
    with_settings: bool,
) -> dict[str, Any]:
    """Return the state dict to load into an optimizer. Raises the errors of `restore_function`."""
    kind = type(optimizer).__name__
    saved_kind, saved_groups = (None, []) if settings is None else (settings["kind"], settings["groups"])
    # By the name of a parameter: the saved settings of its group.
    saved = {name: group_settings for group_names, group_settings in saved_groups for name in group_names}
    by_name: dict[str, dict[str, Any]] = {}  # the saved state of each parameter
    for place, value in values.items():
        if place[0] == "optimizer":
            by_name.setdefault(place[2], {})[place[3]] = value
    groups, state = [], {}
    first = 0  # the number of the group's first parameter, counted over all groups as torch does
    for group in optimizer.param_groups:
        own = [names.of(p) for p in group["params"]]
        if missing := [name for name in own if name not in saved]:
            raise MismatchError(f"it has no state of an optimizer for {missing[0]}, and this run has {kind}")
        restored = {k: v for k, v in group.items() if k != "params"}
        for name in own:
            if saved[name].keys() != _settings(group).keys():
                raise MismatchError(
                    f"it was written with the optimizer {saved_kind}, which has {_names_of(saved[name])}, "
                    f"and this run has {kind}, which has {_names_of(_settings(group))}"
                )
            if with_settings and saved[name] != saved[own[0]]:
                raise MismatchError(
                    f"the optimizer had {own[0]} and {name} in groups with different settings, and in this run they are in one"
                )
        for key, value in (saved[own[0]] if own and with_settings else {}).items():
            restored[key] = _in_type_of(group[key], value)
        restored["params"] = list(range(first, first + len(own)))
        state.update({first + k: by_name[name] for k, name in enumerate(own) if name in by_name})
        first += len(own)
        groups.append(restored)
    return {"state": state, "param_groups": groups}


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as JSON values. Raises TypeError for a setting that cannot be written as JSON."""
    settings = {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k not in _NOT_SETTINGS}
    for key, value in settings.items():
        try:
            settings[key] = json.loads(json.dumps(value))
        except TypeError:
            raise TypeError(
                f"the setting {key} of the optimizer has the type {type(value).__name__}, which cannot be saved: "
                "numbers, texts, None, and lists of them can"
            ) from None
    return settings


def _in_type_of(current: Any, saved: Any) -> Any:
    """Return a saved setting in the type of the optimizer's current one: JSON has a number for a tensor, a list for a tuple."""
    if isinstance(current, Tensor):
        return torch.full_like(current, saved)
    return tuple(saved) if isinstance(current, tuple) and isinstance(saved, list) else saved


def _names_of(settings: Mapping[str, Any]) -> str:
    return ", ".join(sorted(settings))


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _rank_key(rank: int) -> str:
    return f"rank {rank}"
