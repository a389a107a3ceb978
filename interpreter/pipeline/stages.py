"""Stages that each rank builds alone: a rank needs only the stages that it holds.

    own, total = held_stages("chimera", {"N": 8})
    pipe = Pipeline({s: build(s, total) for s in own}, "chimera", {"N": 8}, loss=loss, inputs=inputs)

No description of the whole model is needed. The ranks determine the boundary values stage after stage: a rank that holds a
stage runs it on fake tensors, which have no memory, and sends the shapes and dtypes of its output to all ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import ProcessGroup

from chimerac.chimera_ir.boundary import Tensor as BoundaryTensor
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.program import Header
from chimerac.interpreter.pipeline.weights import full_name
from chimerac.interpreter.pipeline.world import check_world
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.messages import Boundary
from chimerac.interpreter.runtime.model import Example, LayeredModel, Objective, Stage, fields_read
from chimerac.interpreter.transport import Transport

if TYPE_CHECKING:
    from chimerac.interpreter.pipeline.programs import Schedule

OwnStage = nn.Module | tuple[str, nn.Module]  # a module, or the prefix of the names of its parameters and the module
Ties = Mapping[str, Mapping[int, str]]  # by the name of a set of tied parameters, and by stage: the path of the parameter


class HeldStages(NamedTuple):
    """The stages that a rank holds.

    Attributes:
        own: their numbers, ascending.
        total: how many stages the model has.
    """

    own: tuple[int, ...]
    total: int


def held_stages(
    schedule: Schedule,
    parameters: Mapping[str, int] | None = None,
    *,
    width: int = 1,
    process_group: ProcessGroup | None = None,
) -> HeldStages:
    """Return the stages that this rank of the pipeline holds, without communication with other ranks.

    The arguments are those of `Pipeline`. If no process group is given, the rank is that of the default group. If there is no
    default group yet, the rank is read from torchrun's environment.

    Raises ChimeraError for a schedule that does not compile or that needs another number of ranks. Raises ValueError if there
    is neither a process group nor torchrun's environment.
    """
    from chimerac.interpreter.pipeline.programs import program_for  # with the compiler, whose import takes 0.2 s

    if process_group is not None or dist.is_initialized():
        rank, world = dist.get_rank(process_group), dist.get_world_size(process_group)
    elif "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    else:
        raise ValueError(
            "RANK and WORLD_SIZE are not in the environment: start this script with torchrun, or create a process group"
        )
    program = program_for(schedule, parameters or {}, width, world)
    check_world(program, world)
    return HeldStages(local_stages(program.header, rank), program.header.stages)


@dataclass(frozen=True)
class OwnStages:
    """A model as one rank knows it: only the stages that the rank holds.

    Attributes:
        boundary_table: for each stage of the model, the tensors that it passes to the next one; for the last stage, those that
            the loss takes.
        stages: of this rank, by number.
    """

    name: str
    boundary_table: tuple[Boundary, ...]
    objective: Objective
    stages: Mapping[int, Stage]

    def build(self, stage: int, seed: int) -> Stage:
        """Return a stage of this rank. It has its weights already, so the seed is not used."""
        return self.stages[stage]


def own_stages(
    given: Mapping[int, OwnStage], header: Header, objective: Objective, example: Example, ties: Ties, transport: Transport
) -> OwnStages:
    """Return the model of which this rank was given the stages `given`; called by all ranks together.

    Args:
        example: of one micro-batch.
        ties: the same on all ranks.

    A stage reads the fields of the example that its `forward` has as parameters.

    Raises on all ranks: ValueError if a rank was given other stages than it holds, or anything but a module; if a stage lacks
    a parameter that `ties` names; if two stages of a rank share a parameter that `ties` does not name; if state dicts of two
    stages have a name in common, with their prefixes; if a field is read by no stage; and if a stage cannot run on its inputs.
    Raises ChimeraError E807 if the outputs of two copies of a stage differ in number, shape or dtype, in which tensors have a
    gradient, or in which the stage keeps for its backward.
    """
    _check_on_all_ranks(transport, lambda: _check_given(given, local_stages(header, transport.rank), transport))
    stages = {
        s: _stage(given[s], {name: paths[s] for name, paths in ties.items() if s in paths}, example.fields)
        for s in sorted(given)
    }
    _check_on_all_ranks(transport, lambda: _check_shared(stages))
    _check_names(stages, transport)
    _check_fields(stages, example.fields, transport)
    return OwnStages(f"{header.stages} stages", _table(stages, header, objective, example, transport), objective, stages)


def local_stages(header: Header, rank: int) -> tuple[int, ...]:
    """Return the numbers of the stages that a rank holds, ascending."""
    return tuple(s for s in range(header.stages) if rank in header.holders([s]))


def _stage(given: OwnStage, ties: Mapping[str, str], fields: Collection[str]) -> Stage:
    prefix, module = given if isinstance(given, tuple) else ("", given)
    return Stage([module], [prefix], [ties], [fields_read(module, fields)])


def _check_on_all_ranks(transport: Transport, check: Callable[[], None]) -> None:
    """Call a check on each rank. If it raises a ValueError on some ranks, all ranks raise one with the first message."""
    message = ""
    try:
        check()
    except ValueError as error:
        message = str(error)
    if first := next(filter(None, transport.all_gather(message)), None):
        raise ValueError(first)


def _check_given(given: Mapping[int, OwnStage], own: tuple[int, ...], transport: Transport) -> None:
    """Raise ValueError unless this rank was given a module for each of its stages, and no other stages."""
    if tuple(sorted(given)) != own:
        raise ValueError(
            f"{transport.named([transport.rank])} was given {_stages_text(sorted(given))}, and it holds {_stages_text(own)}: "
            "call held_stages with the same schedule, parameters and width"
        )
    for s, stage in given.items():
        module = stage[-1] if isinstance(stage, tuple) else stage
        if not isinstance(module, nn.Module):
            raise ValueError(f"stage {s} has the type {type(module).__name__}: give a module, or (prefix, module)")


def _check_shared(stages: Mapping[int, Stage]) -> None:
    """Raise ValueError if stages of this rank share a parameter that is not tied, or if a stage lacks one that is tied."""
    first_stages: dict[int, int] = {}  # by id of a parameter
    for s, stage in stages.items():
        own = dict(stage.layers[0].named_parameters(remove_duplicate=False))
        if missing := [path for path in stage.ties[0].values() if path not in own]:
            raise ValueError(f"tied: stage {s} has no parameter {missing[0]}")
        tied = {id(own[path]) for path in stage.ties[0].values()}
        for name, p in own.items():
            if first_stages.setdefault(id(p), s) != s and id(p) not in tied:
                raise ValueError(
                    f"stages {first_stages[id(p)]} and {s} share the parameter {name}: name it in `tied`, for all its stages"
                )


def _check_names(stages: Mapping[int, Stage], transport: Transport) -> None:
    """Raise ValueError on all ranks if the state dicts of two stages have a name in common, with their prefixes."""
    own = {s: [full_name(stage.names[0], path) for path in stage.layers[0].state_dict()] for s, stage in stages.items()}
    seen: dict[str, int] = {}
    for text in transport.all_gather(json.dumps(list(own.items()))):
        for s, names in json.loads(text):
            for name in names:
                if (other := seen.setdefault(name, s)) != s:
                    raise ValueError(
                        f"stages {other} and {s} both have a parameter or buffer named '{name}': "
                        "give one of them as (prefix, module)"
                    )


def _check_fields(stages: Mapping[int, Stage], fields: Collection[str], transport: Transport) -> None:
    """Raise ValueError on all ranks if there is a field that no stage of any rank reads."""
    own = sorted({name for stage in stages.values() for name in stage.reads})
    read = {name for text in transport.all_gather(json.dumps(own)) for name in json.loads(text)}
    if unread := next((name for name in fields if name not in read), None):
        raise ValueError(f"no stage reads the field {unread}: a stage reads the fields that its forward names as parameters")


def _table(
    stages: Mapping[int, Stage], header: Header, objective: Objective, example: Example, transport: Transport
) -> tuple[Boundary, ...]:
    """Return the `boundary_table` of `OwnStages`; called by all ranks together.

    Args:
        example: of a micro-batch.

    Raises ValueError and ChimeraError E807 as `own_stages`.
    """
    table: list[Boundary] = []
    for s in range(header.stages):
        own, failure, cause = "", "", None  # own: the tensors as JSON; empty if this rank does not hold the stage
        if s in stages:
            stage_inputs = tuple(_boundary_tensor_of(t) for t in example.inputs) if s == 0 else table[-1]
            try:
                made = _outputs(stages[s], stage_inputs, example, objective, transport.device)
                own = json.dumps([asdict(t) for t in made])
            except Exception as error:
                received = ", ".join(f"{t.dtype}{list(t.shape)}" for t in stage_inputs)
                failure, cause = f"stage {s} cannot run on {received} ({transport.named([transport.rank])}): {error}", error
        by_rank = [json.loads(text) for text in transport.all_gather(json.dumps([own, failure]))]
        if first_failure := next((failure for _, failure in by_rank if failure), None):
            raise ValueError(first_failure) from cause
        (rank, outputs), *others = [(r, of_rank) for r, (of_rank, _) in enumerate(by_rank) if of_rank]
        if other := next((r for r, of_rank in others if of_rank != outputs), None):
            copies = f"{transport.named([rank])} and {transport.named([other])}"
            message = f"the copies of stage {s} on {copies} return different tensors"
            raise refuse("E807", message, help="build the same module for a stage on all its ranks")
        table.append(tuple(BoundaryTensor(**{**t, "shape": tuple(t["shape"])}) for t in json.loads(outputs)))
    return tuple(table)


def _boundary_tensor_of(tensor: torch.Tensor) -> BoundaryTensor:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    return BoundaryTensor(shape, dtype, gradient=False)  # type: ignore[arg-type]


def _outputs(stage: Stage, inputs: Boundary, example: Example, objective: Objective, device: torch.device) -> Boundary:
    """Return the tensors that a stage returns for these inputs, and for the fields of the example.

    The stage runs on fake tensors, which have the shapes and dtypes of the inputs and of the fields, but no memory.
    """

    def stage_example(samples: int) -> Example:
        values = tuple(torch.zeros(t.shape, dtype=getattr(torch, t.dtype), requires_grad=t.gradient) for t in inputs)
        return Example(values, None, {name: torch.zeros_like(example.fields[name]) for name in stage.reads})

    module = stage.layers[0]
    model = LayeredModel(
        name="stage",
        layers=(("stage", lambda: module),),
        loss=objective.loss,
        example=stage_example,
        fields=stage.reads,
        autocast=objective.autocast,
    )
    samples = inputs[0].shape[0] if inputs and inputs[0].shape else 1
    return describe(model, samples, None if objective.autocast is None else device).layers[0].boundary


def _stages_text(stages: Sequence[int]) -> str:
    return f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}" if stages else "no stage"
