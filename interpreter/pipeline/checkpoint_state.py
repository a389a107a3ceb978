"""What a rank has to save and to restore, by the names of the full model: weights, optimizer state, random generators.

    ("model", name)                  parameters and buffers; a shared parameter under each of its names
    ("optimizer", "state", name, k)  the optimizer's state of a parameter; a shared parameter under its first name alone
    ("random", "rank 0", device)     the states of torch's generators, by rank

Which ranks hold a value does not matter: each value is saved once, and any rank may read it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from chimerac.interpreter.pipeline.checkpoint_tensors import Place, TensorReader
from chimerac.interpreter.pipeline.pipeline import Pipeline
from chimerac.interpreter.runtime.generators import Generators

_NOT_SETTINGS = {"params", "param_names"}  # of a group of an optimizer


class MisfitError(Exception):
    """A checkpoint was written by another model or optimizer. The message has both."""


class Names:
    """The names of a rank's parameters in the full model, each under its first one; made by all ranks together."""

    def __init__(self, pipeline: Pipeline) -> None:
        own = {id(p): name for name, p in pipeline.named_parameters()}
        uses: dict[str, list[tuple[int, int, str]]] = {}  # by set of tied parameters: stage, place in it, name
        sets: dict[int, str] = {}
        for s, stage in pipeline.stages.items():
            for k, (layer, ties) in enumerate(zip(stage.layers, stage.ties, strict=True)):
                for tied, path in ties.items():
                    parameter = layer.get_parameter(path)
                    sets[id(parameter)] = tied
                    uses.setdefault(tied, []).append((s, k, own[id(parameter)]))
        by_rank = [json.loads(text) for text in pipeline.transport.all_gather(json.dumps(uses))]
        first = {tied: min(use for found in by_rank for use in found.get(tied, [])) for tied in uses}
        self._names = {key: first[sets[key]][2] if key in sets else name for key, name in own.items()}

    def of(self, parameter: Tensor) -> str:
        """Return the name of a parameter. Raises ValueError if it is no parameter of this rank."""
        if id(parameter) not in self._names:
            raise ValueError(
                f"the optimizer has a parameter of shape {list(parameter.shape)} that the pipeline has not: "
                "make it with pipeline.parameters()"
            )
        return self._names[id(parameter)]


def state_of(pipeline: Pipeline, optimizer: Optimizer | None, names: Names) -> dict[str, Any]:
    """Return this rank's values, as nested mappings."""
    random = {"random": {_rank(pipeline.rank): Generators.of(pipeline.transport.device).states}}
    state: dict[str, Any] = {"model": pipeline.state_dict()} | random
    if optimizer is not None:
        found = {names.of(p): dict(optimizer.state[p]) for p in _parameters(optimizer) if optimizer.state.get(p)}
        state["optimizer"] = {"state": found}
    return state


def optimizer_settings(optimizer: Optimizer | None, names: Names) -> dict[str, Any] | None:
    """Return the kind of an optimizer, and its settings by parameter, such as the learning rate; None for no optimizer."""
    if optimizer is None:
        return None
    groups = [[[names.of(p) for p in group["params"]], _settings(group)] for group in optimizer.param_groups]
    return {"kind": type(optimizer).__name__, "groups": groups}


def merged_settings(by_rank: Iterable[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the settings of the optimizers of all ranks as those of one."""
    kind: str | None = None
    found: dict[str, tuple[Any, dict[str, None]]] = {}
    for settings in by_rank:
        for names, values in settings["groups"] if settings else ():
            kind = settings["kind"] if settings else None
            found.setdefault(json.dumps(values, sort_keys=True), (values, {}))[1].update(dict.fromkeys(names))
    return {"kind": kind, "groups": [[list(names), values] for values, names in found.values()]} if found else None


def shapes(pipeline: Pipeline) -> dict[str, list[int]]:
    """Return the shapes of this rank's parameters and buffers."""
    return {name: list(t.shape) for name, t in pipeline.state_dict().items()}


def places(reader: TensorReader, pipeline: Pipeline, optimizer: Optimizer | None, names: Names) -> list[Place]:
    """Return the places of the values that this rank needs."""
    found: list[Place] = [("model", name) for name in pipeline.state_dict()]
    found += reader.places("random", _rank(pipeline.rank))
    if optimizer is not None:
        own = {names.of(p) for p in _parameters(optimizer)}
        found += [place for place in reader.places("optimizer", "state") if place[2] in own]
    return found


def restoration(
    values: Mapping[Place, Any],
    pipeline: Pipeline,
    optimizer: Optimizer | None,
    names: Names,
    settings: Mapping[str, Any] | None,
    with_settings: bool,
) -> Callable[[], None]:
    """Return the function that loads values into the pipeline and the optimizer. Raises MisfitError if they do not fit.

    settings: as from `merged_settings`; with_settings: whether the optimizer gets them.
    """
    state = None if optimizer is None else _optimizer_state(values, optimizer, names, settings, with_settings)

    def restore() -> None:
        pipeline.load_state_dict({place[1]: value for place, value in values.items() if place[0] == "model"})
        if optimizer is not None and state is not None:
            optimizer.load_state_dict(state)

    return restore


def restore_random(values: Mapping[Place, Any], pipeline: Pipeline) -> None:
    """Let torch's generators go on from where those of this rank were, if they were saved for the same type of device."""
    device = pipeline.transport.device
    found = {place[2]: value for place, value in values.items() if place[0] == "random"}
    if found.keys() == Generators.of(device).states.keys():
        Generators(device, found).set()


def _optimizer_state(
    values: Mapping[Place, Any],
    optimizer: Optimizer,
    names: Names,
    settings: Mapping[str, Any] | None,
    with_settings: bool,
) -> dict[str, Any]:
    """Return the state to load into an optimizer. Raises MisfitError if the checkpoint has another optimizer."""
    kind = type(optimizer).__name__
    saved = {name: found for group, found in (settings or {"groups": ()})["groups"] for name in group}
    by_name: dict[str, dict[str, Any]] = {}
    for place, value in values.items():
        if place[0] == "optimizer":
            by_name.setdefault(place[2], {})[place[3]] = value
    groups, state, number = [], {}, 0
    for group in optimizer.param_groups:
        own = [names.of(p) for p in group["params"]]
        if missing := [name for name in own if name not in saved]:
            raise MisfitError(f"it has no state of an optimizer for {missing[0]}, and this run has {kind}")
        restored = {k: v for k, v in group.items() if k != "params"}
        for name in own:
            if saved[name].keys() != _settings(group).keys():
                other = (settings or {})["kind"]
                raise MisfitError(
                    f"it was written with the optimizer {other}, which has {_list(saved[name])}, and this run has {kind}, "
                    f"which has {_list(_settings(group))}"
                )
            if with_settings and saved[name] != saved[own[0]]:
                raise MisfitError(
                    f"the optimizer had {own[0]} and {name} in groups with different settings, and in this run they are in one"
                )
        for key, value in (saved[own[0]] if own and with_settings else {}).items():
            restored[key] = _like(group[key], value)
        restored["params"] = list(range(number, number + len(own)))
        state.update({number + k: by_name[name] for k, name in enumerate(own) if name in by_name})
        number += len(own)
        groups.append(restored)
    return {"state": state, "param_groups": groups}


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a group as JSON has them."""
    found = {k: v.item() if isinstance(v, Tensor) else v for k, v in group.items() if k not in _NOT_SETTINGS}
    for key, value in found.items():
        try:
            found[key] = json.loads(json.dumps(value))
        except TypeError:
            raise TypeError(
                f"the setting {key} of the optimizer is a {type(value).__name__}, which cannot be saved: "
                "numbers, texts, None, and lists of them can"
            ) from None
    return found


def _like(now: Any, saved: Any) -> Any:
    """Return a saved setting in the type that it has now."""
    if isinstance(now, Tensor):
        return torch.full_like(now, saved)
    return tuple(saved) if isinstance(now, tuple) and isinstance(saved, list) else saved


def _list(settings: Mapping[str, Any]) -> str:
    return ", ".join(sorted(settings))


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _rank(rank: int) -> str:
    return f"rank {rank}"
