"""What a pipeline gets from the compiler: programs for its ranks and for evaluations, their checks, and predicted times."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.machines import Machine
from chimerac.chimera_ir.program import Program, Tied
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler import (
    compile_text,
    evaluation_of,
    is_program,
    read_program,
    simulate,
    verify,
)
from chimerac.compiler.library import find
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.resolve.values import given_note
from chimerac.compiler.verify import findings
from chimerac.interpreter.pipeline.world import arrange_command, fixed_recomputation, wrong_machine
from chimerac.interpreter.runtime.times import IterationTimes

__all__ = [
    "check_machine",
    "evaluation_of",
    "path_of",
    "predicted_timeline",
    "predicted_times",
    "program_for",
    "schedule_text",
    "with_depth",
]

Schedule = str | os.PathLike[str] | Program  # a name in the library, a path, a text (it has a line break), or a program
Recompute = str | Iterable[int] | None  # stages that recompute, as in compiler.compile_schedule; None: as the schedule says
Compile = Callable[[Mapping[str, int]], Program]


def program_for(
    schedule: Schedule,
    parameters: Mapping[str, int],
    width: int,
    world: int | None,
    tied: Sequence[Tied] = (),
    recompute: Recompute = None,
) -> Program:
    """Return the verified program of a schedule.

    Args:
        schedule: as described at `Schedule`; the text or the file may be that of a compiled program.
        parameters: by name; if D is not given, it follows from `world` as in `with_depth`.
        width: the number of data-parallel replicas.
        world: the number of ranks; None if it is not known.
        tied: sets of tied parameters besides those of the schedule; not used for a compiled program.
        recompute: the stages that recompute, in the place of those of the schedule; None: those of the schedule.

    Raises ChimeraError for a schedule that is not found or does not compile, for a program that is not correct, and E808 if a
    compiled program is given with parameters, with `recompute`, or with a width that is neither 1 nor its own.
    """
    if isinstance(schedule, Program):
        return _compiled_program(verify(schedule), schedule.header.schedule, parameters, width, recompute)
    source = Source("<schedule>", schedule) if _is_text(schedule) else find(schedule)
    if is_program(source):
        return _compiled_program(verify(read_program(source)), source.name, parameters, width, recompute)

    def compile_with(sizes: Mapping[str, int]) -> Program:
        return compile_text(source.text, sizes, width, source.name, tied, recompute).program

    return with_depth(compile_with, parameters, width, world)


def with_depth(compile_with: Compile, parameters: Mapping[str, int], width: int, world: int | None) -> Program:
    """Return the program of a schedule with these parameters. If D is not given, it is world / width, where possible.

    That is possible if `world` is a multiple of `width` and the schedule has a parameter D.

    Args:
        compile_with: compiles with the parameters that it is given, or raises ChimeraError.
        world: the number of ranks; None or 0 if it is not known.

    Raises the ChimeraError of `compile_with`. Its note that D was given is replaced by one that D follows from `world`.
    """
    if "D" not in parameters and world and width > 0 and world % width == 0:
        depth = world // width
        try:
            return compile_with({**parameters, "D": depth})
        except ChimeraError as error:
            # E203: the schedule lacks one of the parameters, which may be D. So it is compiled without D, below.
            if all(d.code != "E203" for d in error.diagnostics):
                note = f"D = {depth} follows from the {count_text(world, 'rank')}"
                raise ChimeraError(
                    replace(d, notes=tuple(note if n == given_note("D", depth) else n for n in d.notes))
                    for d in error.diagnostics
                ) from None
    return compile_with(parameters)


def check_machine(
    program: Program,
    machine: Machine,
    name: str,
    ranks: str,
    path: str | os.PathLike[str],
    alternative: str = "give another schedule",
) -> None:
    """Raise ChimeraError E816 if a verified program hangs on the machine of the ranks that run it.

    Args:
        name, ranks: how the message calls the program and the ranks, such as `ranks over gloo`.
        path: of the program or of its schedule, in the suggested command.
        alternative: what the help suggests if the program cannot be arranged for this machine.
    """
    if program.header.machine == machine:
        return  # it was verified for this machine
    on_machine = program.with_header(machine=machine)
    try:
        verify(on_machine)
        return
    except ChimeraError as error:
        problems = error.diagnostics
    rearranged = arranged(on_machine, machine)
    if rearranged is None:
        help = f"{alternative}; --for {machine} was tried, and the replicas do not have the same order of tasks"
    elif remaining := findings(rearranged):
        help = f"{alternative}; --for {machine} was tried, and results in {remaining[0].code}"
    else:
        help = f"run {arrange_command(path, machine)}, then use arranged.json: it was verified for the {machine} machine"
    raise wrong_machine(program, name, ranks, machine, problems[0].message, help)


def schedule_text(name_or_path: str) -> str:
    """Return the text of a schedule: of a file, or of the library. Raises ChimeraError E001 as `find`."""
    return find(name_or_path).text


def predicted_times(program: Program, costs: Mapping[str, int] | None = None) -> IterationTimes:
    """Return the times of an iteration by the simulator, in units of the program's costs.

    Here all-reduces take no time, so the makespan is the end of the last task.

    Args:
        costs: by name; they replace those of the program, as in `simulate`.
    """
    simulated = simulate(program, costs)
    idle = (
        tuple(bubble / simulated.makespan for bubble in simulated.wall_bubbles)
        if simulated.makespan
        else (0.0,) * len(simulated.wall_bubbles)
    )
    return IterationTimes(simulated.makespan / simulated.scale, idle)


def predicted_timeline(program: Program) -> Timeline:
    """Return the timeline of an iteration by the simulator, in units of the program's costs; `finish` is its makespan."""
    simulated = simulate(program)
    return replace(simulated.timeline, finish=simulated.makespan)


def path_of(schedule: Schedule) -> str:
    """Return the path or the name of a schedule, for a command in a message. For a text or a program, return PROGRAM."""
    return "PROGRAM" if isinstance(schedule, Program) or _is_text(schedule) else os.fspath(schedule)


def _is_text(schedule: str | os.PathLike[str]) -> TypeGuard[str]:
    """Return whether this is the text of a schedule. A name or a path has no line break."""
    return isinstance(schedule, str) and "\n" in schedule


def _compiled_program(program: Program, name: str, parameters: Mapping[str, int], width: int, recompute: Recompute) -> Program:
    """Return `program`. Raises ChimeraError E808 as `program_for`."""
    if parameters or width not in (1, program.header.width):
        raise refuse(
            "E808",
            f"{name} is a compiled program: its parameters and its width are fixed",
            help="leave out the parameters and the width, or give the schedule instead of its program",
        )
    if recompute is not None:
        raise fixed_recomputation(name, "recompute")
    return program
