"""Programs for a number of ranks: what a pipeline gets from the compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.program import Program, Tied
from chimerac.compiler import (
    compile_text,
    evaluation_of,
    is_program,
    read_program,
    simulate,
    verify,
)
from chimerac.compiler.library import find
from chimerac.interpreter.runtime.times import IterationTimes

__all__ = ["evaluation_of", "predicted_times", "program_for", "schedule_text", "with_depth"]

Compile = Callable[[Mapping[str, int]], Program]


def program_for(
    schedule: str | os.PathLike[str] | Program,
    parameters: Mapping[str, int],
    width: int,
    world: int | None,
    tied: Sequence[Tied] = (),
) -> Program:
    """Return the verified program of a schedule, whose parameter D, where it is not given, is world / width.

    schedule: a name of the library, a path, a text, or a compiled program as a value or a text; world: the number of ranks;
    tied: sets of tied parameters besides those of the schedule; a compiled program is returned without them.
    """
    if isinstance(schedule, Program):
        return _compiled_before(verify(schedule), schedule.header.schedule, parameters, width)
    source = Source("<schedule>", schedule) if isinstance(schedule, str) and "\n" in schedule else find(schedule)
    if is_program(source):
        return _compiled_before(verify(read_program(source)), source.name, parameters, width)
    return with_depth(lambda p: compile_text(source.text, p, width, source.name, tied).program, parameters, width, world)


def with_depth(compiled: Compile, parameters: Mapping[str, int], width: int, world: int | None) -> Program:
    """Return the program for these parameters, in which D, where it is not given, follows from the number of ranks."""
    if "D" not in parameters and world and world % width == 0:
        depth = world // width
        try:
            return compiled({**parameters, "D": depth})
        except ChimeraError as error:
            if all(d.code != "E203" for d in error.diagnostics):  # the schedule has a parameter D
                note = f"D = {depth} follows from the {world} processes that were started"
                raise ChimeraError(
                    replace(d, notes=tuple(note if n == f"D was given: -p D={depth}" else n for n in d.notes))
                    for d in error.diagnostics
                ) from None
    return compiled(parameters)


def schedule_text(name_or_path: str) -> str:
    """Return the text of a schedule: of a file, or of the library. Raises ChimeraError E001 if there is none."""
    return find(name_or_path).text


def predicted_times(program: Program, costs: Mapping[str, int] | None = None) -> IterationTimes:
    """Return the times of an iteration by the simulator, in units of the program's costs.

    costs: by name, in the place of the program's, as for `simulate`.
    """
    simulated = simulate(program, costs)
    idle = tuple(bubble / simulated.makespan for bubble in simulated.wall_bubbles) if simulated.makespan else (0.0,)
    return IterationTimes(simulated.makespan / simulated.scale, idle)


def _compiled_before(program: Program, name: str, parameters: Mapping[str, int], width: int) -> Program:
    """Return a compiled program. Raises ChimeraError E808 where parameters are given for it."""
    if parameters or width not in (1, program.header.width):
        raise refuse(
            "E808",
            f"{name} is a compiled program: its parameters and its width are fixed",
            help="leave out the parameters and the width, or give the schedule instead of its program",
        )
    return program
