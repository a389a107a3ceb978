"""From a user's schedule and model to the program for the ranks, and to the model cut into its stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from chimerac.chimera_ir.partition import split_by_counts
from chimerac.chimera_ir.program import Program, Tied
from chimerac.interpreter.pipeline.programs import Recompute, Schedule, check_machine, path_of, program_for
from chimerac.interpreter.pipeline.stages import OwnStage, OwnStages, Ties, own_stages
from chimerac.interpreter.pipeline.world import check_world
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.model import Example, Model, Objective
from chimerac.interpreter.runtime.partitioned import PartitionedModel, missing_ties, partitioned
from chimerac.interpreter.transport import Transport


def cut_model(
    model: Model,
    samples: int,
    schedule: Schedule,
    parameters: Mapping[str, int],
    width: int,
    split: Sequence[int] | None,
    transport: Transport,
    recompute: Recompute = None,
) -> tuple[Program, PartitionedModel]:
    """Return the program of a schedule for these ranks, and the model cut into its stages.

    Args:
        samples: of a micro-batch.
        split: how many layers each stage has; None: the program's own partition if it has one, otherwise stages of about equal
            computation.

    If `schedule` is not a compiled program, the parameters that stages share are tied in the program. The other arguments and
    the errors are those of `Pipeline`.
    """

    def compile_with(tied: Sequence[Tied] = ()) -> Program:
        program = program_on(transport, schedule, parameters, width, tied, recompute)
        if split is None:
            return program
        return program.with_partition(split_by_counts(model.name, len(model.layer_names), split, program.header.stages))

    program = compile_with()
    # Which functions autocast computes in lower precision depends on the device.
    description = describe(model, samples, None if model.autocast is None else transport.device)
    if tied := missing_ties(program, description):
        program = compile_with(tied)
    return program, partitioned(program, model, description, ties_by_stage=True)


def with_own_stages(
    stages: Mapping[int, OwnStage],
    objective: Objective,
    example: Example,
    schedule: Schedule,
    parameters: Mapping[str, int],
    width: int,
    tied: Ties,
    transport: Transport,
    recompute: Recompute = None,
) -> tuple[Program, OwnStages]:
    """Return the program of a schedule for these ranks, and the model as this rank knows it: only the stages that it holds.

    Args:
        stages: those stages, by number, each a module or (prefix, module).
        objective: the loss and the precision.
        example: of one micro-batch.

    The other arguments and the errors are those of `Pipeline`.

    Raises ValueError for a set of `tied` that is not on several stages, and if the program ties other sets than `tied`.
    """
    if single := [(name, paths) for name, paths in tied.items() if len(paths) < 2]:
        name, paths = single[0]
        where = "one stage only: autograd adds up its gradients there" if paths else "no stage"
        raise ValueError(f"tied: leave out {name}, which is on {where}")
    program = program_on(transport, schedule, parameters, width, recompute=recompute)
    names = {tied_set.name for tied_set in program.header.tied}
    if missing := [Tied(name, tuple(paths)) for name, paths in tied.items() if name not in names]:
        program = program_on(transport, schedule, parameters, width, missing, recompute)
    in_program = {tied_set.name: tied_set.stages for tied_set in program.header.tied}
    if in_program != {name: tuple(sorted(paths)) for name, paths in tied.items()}:
        raise ValueError(
            f"the program ties {_sets(in_program)}, and tied={_sets(tied)}: give the path of the parameter in each stage of "
            "every set, and the schedule instead of a compiled program"
        )
    return program, own_stages(stages, program.header, objective, example, tied, transport)


def _sets(tied: Mapping[str, Iterable[int]]) -> str:
    """Return sets of tied parameters, with the stages of each, as text."""
    return ", ".join(f"{name} on stages {', '.join(map(str, sorted(stages)))}" for name, stages in tied.items()) or "nothing"


def program_on(
    transport: Transport,
    schedule: Schedule,
    parameters: Mapping[str, int],
    width: int,
    tied: Sequence[Tied] = (),
    recompute: Recompute = None,
) -> Program:
    """Return the program of a schedule for the ranks of a transport. It is verified, also for their machine.

    Raises ChimeraError as `program_for`, E800 for another number of ranks, and E816 if the program may hang on their machine.
    """
    program = program_for(schedule, parameters, width, transport.world, tied, recompute)
    check_world(program, transport.world)
    name, ranks = program.header.schedule, "the ranks of this pipeline"
    check_machine(program, transport.machine, name, ranks, path_of(schedule))
    return program
