"""A user's schedule and model become a program for the ranks that were started, and a model that is cut into its stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.program import Program, Tied
from chimerac.interpreter.pipeline.programs import Schedule, check_machine, path_of, program_for
from chimerac.interpreter.pipeline.stages import OwnStage, OwnStages, Ties, own_stages
from chimerac.interpreter.pipeline.world import check_world
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Model, Objective, Values
from chimerac.interpreter.runtime.partitioned import PartitionedModel, missing_ties, partitioned
from chimerac.interpreter.transport import Transport


def cut(
    model: Model,
    samples: int,
    schedule: Schedule,
    parameters: Mapping[str, int],
    width: int,
    split: Sequence[int] | None,
    transport: Transport,
) -> tuple[Program, PartitionedModel]:
    """Return the program of a schedule for these ranks, and the model cut into its stages.

    samples: of a micro-batch; split: how many layers each stage has. Parameters that layers share are tied in the program. The
    other arguments are those of `Pipeline`, and so are the errors.
    """

    def compiled(tied: Sequence[Tied] = ()) -> Program:
        program = program_on(transport, schedule, parameters, width, tied)
        if split is None:
            return program
        return replace(program, partition=_partition(model.name, split, len(model.layers), program))

    program = compiled()
    # Autocast computes other functions in lower precision on a GPU than on the CPU.
    description = describe(model, samples, None if model.autocast is None else transport.device)
    if tied := missing_ties(program, description):
        program = compiled(tied)
    return program, partitioned(program, model, description, ties_by_stage=True)


def with_own_stages(
    given: Mapping[int, OwnStage],
    objective: Objective,
    inputs: Values,
    schedule: Schedule,
    parameters: Mapping[str, int],
    width: int,
    tied: Ties,
    transport: Transport,
) -> tuple[Program, OwnStages]:
    """Return the program of a schedule for these ranks, and the stages that this rank was given.

    inputs: of one micro-batch. The other arguments are those of `Pipeline`, and so are the errors.
    """
    if alone := [name for name, paths in tied.items() if len(paths) < 2]:
        raise ValueError(f"tied: {alone[0]} is on one stage alone, where autograd adds up its gradients")
    program = program_on(transport, schedule, parameters, width)
    known = {its.name for its in program.header.tied}
    if missing := [Tied(name, tuple(paths)) for name, paths in tied.items() if name not in known]:
        program = program_on(transport, schedule, parameters, width, missing)
    in_program = {its.name: its.stages for its in program.header.tied}
    if in_program != {name: tuple(sorted(paths)) for name, paths in tied.items()}:
        raise ValueError(
            f"the program ties {_sets(in_program)}, and tied={_sets(tied)}: give the path of the parameter in each stage of "
            "every set, and the schedule instead of a compiled program"
        )
    return program, own_stages(given, program.header, objective, inputs, tied, transport)


def _sets(tied: Mapping[str, Iterable[int]]) -> str:
    return ", ".join(f"{name} on stages {', '.join(map(str, sorted(stages)))}" for name, stages in tied.items()) or "nothing"


def program_on(
    transport: Transport, schedule: Schedule, parameters: Mapping[str, int], width: int, tied: Sequence[Tied] = ()
) -> Program:
    """Return the verified program of a schedule for the ranks of a transport, on whose machine it ends.

    Raises ChimeraError for a schedule that does not compile, E800 for another number of ranks, E816 for another machine.
    """
    program = program_for(schedule, parameters, width, transport.world, tied)
    check_world(program, transport.world)
    name, ranks = program.header.schedule, "the ranks of this pipeline"
    check_machine(program, transport.machine, name, ranks, path_of(schedule))
    return program


def _partition(name: str, split: Sequence[int], layers: int, program: Program) -> Partition:
    """Return the partition with these numbers of layers. Raises ValueError where they do not fit."""
    stages = program.header.stages
    if len(split) != stages or sum(split) != layers or min(split) < 1:
        raise ValueError(f"split={list(split)}: the {layers} layers go to {stages} stages, at least one to each")
    ends = [sum(split[: k + 1]) for k in range(stages)]
    return Partition(name, tuple((end - count, end) for end, count in zip(ends, split, strict=True)))
