"""Stages that each rank builds alone, so that no rank ever has the whole model.

    own, total = held_stages("chimera", {"N": 8})
    pipe = Pipeline({s: build(s, total) for s in own}, "chimera", {"N": 8}, loss=loss, inputs=inputs)

The boundary values are found stage after stage: a rank that holds a stage runs it on tensors without memory and tells all
ranks the shapes of its output. So no description of the whole model is needed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from chimerac.chimera_ir.boundary import Tensor as Spec
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.program import Header
from chimerac.interpreter.pipeline.weights import full_name
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.messages import Specs
from chimerac.interpreter.runtime.model import Model, Objective, Stage, Values
from chimerac.interpreter.transport import Transport

if TYPE_CHECKING:
    from chimerac.interpreter.pipeline.programs import Schedule

OwnStage = nn.Module | tuple[str, nn.Module]  # alone, or after a prefix of the names of its parameters
Ties = Mapping[str, Mapping[int, str]]  # by the name of a set of tied parameters: the path of the parameter in each stage


class HeldStages(NamedTuple):
    """The stages that a rank holds, ascending, and how many stages the model has."""

    own: tuple[int, ...]
    total: int


def held_stages(
    schedule: Schedule,
    parameters: Mapping[str, int] | None = None,
    *,
    width: int = 1,
    process_group: ProcessGroup | None = None,
) -> HeldStages:
    """Return the stages that this rank of the pipeline holds. It talks to no other rank.

    The arguments are those of `Pipeline`. Without a process group, the rank is that of the default one, or what torchrun says.
    """
    from chimerac.interpreter.pipeline.programs import program_for  # with the compiler, whose import takes 0.2 s
    from chimerac.interpreter.pipeline.world import check_world

    if process_group is not None or dist.is_initialized():
        rank, world = dist.get_rank(process_group), dist.get_world_size(process_group)
    else:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    program = program_for(schedule, parameters or {}, width, world)
    check_world(program, world)
    return HeldStages(_held(program.header, rank), program.header.stages)


@dataclass(frozen=True)
class OwnStages:
    """The stages that a rank was given, with what it knows of the others: the tensors that they pass on."""

    name: str
    table: tuple[Specs, ...]
    objective: Objective
    stages: Mapping[int, Stage]

    def build(self, stage: int, seed: int) -> Stage:
        """Return a stage as it was given."""
        return self.stages[stage]


def own_stages(
    given: Mapping[int, OwnStage], header: Header, objective: Objective, inputs: Values, ties: Ties, transport: Transport
) -> OwnStages:
    """Return the stages of this rank; called by all ranks together. inputs: of one micro-batch; ties: the same on all ranks.

    Raises on all ranks: ValueError where a rank has other stages than it holds, where two stages have parameters of one name,
    and where a stage cannot run on what the stage before it returns; ChimeraError E807 where copies of a stage return others.
    """
    _together(transport, lambda: _check_given(given, _held(header, transport.rank), transport))
    stages = {s: _stage(given[s], {name: paths[s] for name, paths in ties.items() if s in paths}) for s in sorted(given)}
    _together(transport, lambda: _check_shared(stages))
    _check_names(stages, transport)
    return OwnStages(f"{header.stages} stages", _table(stages, header, objective, inputs, transport), objective, stages)


def _held(header: Header, rank: int) -> tuple[int, ...]:
    return tuple(s for s in range(header.stages) if rank in header.holders([s]))


def _stage(given: OwnStage, ties: Mapping[str, str]) -> Stage:
    prefix, module = given if isinstance(given, tuple) else ("", given)
    return Stage([module], [prefix], [ties])


def _together(transport: Transport, check: Callable[[], None]) -> None:
    """Make a check. Raises the ValueError of the first rank that has one on all ranks."""
    message = ""
    try:
        check()
    except ValueError as error:
        message = str(error)
    if first := next(filter(None, transport.all_gather(message)), None):
        raise ValueError(first)


def _check_given(given: Mapping[int, OwnStage], held: tuple[int, ...], transport: Transport) -> None:
    if tuple(sorted(given)) != held:
        raise ValueError(
            f"{transport.named([transport.rank])} was given {_text(sorted(given))}, and it holds {_text(held)}: "
            "ask held_stages with the same schedule, parameters and width"
        )
    for s, stage in given.items():
        module = stage[-1] if isinstance(stage, tuple) else stage
        if not isinstance(module, nn.Module):
            raise ValueError(f"stage {s} is a {type(module).__name__}: give a module, or (prefix, module)")


def _check_shared(stages: Mapping[int, Stage]) -> None:
    """Raise ValueError where stages of this rank share a parameter that is not tied, or lack one that is."""
    found: dict[int, int] = {}
    for s, stage in stages.items():
        own = dict(stage.layers[0].named_parameters(remove_duplicate=False))
        if missing := [path for path in stage.ties[0].values() if path not in own]:
            raise ValueError(f"tied: stage {s} has no parameter {missing[0]}")
        tied = {id(own[path]) for path in stage.ties[0].values()}
        for name, p in own.items():
            if found.setdefault(id(p), s) != s and id(p) not in tied:
                raise ValueError(
                    f"stages {found[id(p)]} and {s} share the parameter {name}: name it in `tied`, for all its stages"
                )


def _check_names(stages: Mapping[int, Stage], transport: Transport) -> None:
    """Raise ValueError on all ranks where two stages have a parameter or a buffer of the same name."""
    own = {s: [full_name(stage.names[0], path) for path in stage.layers[0].state_dict()] for s, stage in stages.items()}
    seen: dict[str, int] = {}
    for text in transport.all_gather(json.dumps(list(own.items()))):
        for s, names in json.loads(text):
            for name in names:
                if (other := seen.setdefault(name, s)) != s:
                    raise ValueError(f"stages {other} and {s} both have {name}: give one of them as (prefix, module)")


def _table(
    stages: Mapping[int, Stage], header: Header, objective: Objective, inputs: Values, transport: Transport
) -> tuple[Specs, ...]:
    """Return what each stage passes to the next."""
    table: list[Specs] = []
    for s in range(header.stages):
        mine, failure, cause = "", "", None
        if s in stages:
            before = tuple(_of_input(t) for t in inputs) if s == 0 else table[-1]
            try:
                mine = json.dumps([asdict(t) for t in _boundary(stages[s], before, objective, transport.device)])
            except Exception as error:
                got = ", ".join(f"{t.dtype}{list(t.shape)}" for t in before)
                failure, cause = f"stage {s} cannot run on {got} ({transport.named([transport.rank])}): {error}", error
        by_rank = [json.loads(text) for text in transport.all_gather(json.dumps([mine, failure]))]
        if first := next((failure for _, failure in by_rank if failure), None):
            raise ValueError(first) from cause
        found = {rank: specs for rank, (specs, _) in enumerate(by_rank) if specs}
        (rank, specs), *others = found.items()
        if other := next((r for r, its in others if its != specs), None):
            message = (
                f"the copies of stage {s} on {transport.named([rank])} and {transport.named([other])} return other tensors"
            )
            raise refuse("E807", message, help="build the same module for a stage on all its ranks")
        table.append(tuple(Spec(**{**t, "shape": tuple(t["shape"])}) for t in json.loads(specs)))
    return tuple(table)


def _of_input(tensor: torch.Tensor) -> Spec:
    return Spec(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), False)  # type: ignore[arg-type]


def _boundary(stage: Stage, before: Specs, objective: Objective, device: torch.device) -> Specs:
    """Return the tensors that a stage makes of these, found with tensors without memory."""

    def example(samples: int) -> tuple[Values, None]:
        return tuple(torch.zeros(t.shape, dtype=getattr(torch, t.dtype), requires_grad=t.gradient) for t in before), None

    module = stage.layers[0]
    model = Model("stage", (("stage", lambda: module),), objective.loss, example, autocast=objective.autocast)
    samples = before[0].shape[0] if before and before[0].shape else 1
    return describe(model, samples, None if objective.autocast is None else device).layers[0].boundary


def _text(stages: Iterable[int]) -> str:
    return f"stages {', '.join(map(str, stages))}" if list(stages) else "no stage"
