"""The compiler: a schedule's text becomes a verified program. Start reading with compiler/pipeline.py.

    from chimerac.compiler import compile_schedule
    compiled = compile_schedule("schedules/chimera.sched", {"D": 4, "N": 8})
    compiled.program.stream(0)      # what rank 0 executes

For wrong input a function raises ChimeraError, with the findings of the first pass that has any. `render` formats them. Both
are in chimera_ir.diagnostics.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import Source
from chimerac.chimera_ir.forms import is_program, read_program
from chimerac.chimera_ir.machines import MACHINES, Machine
from chimerac.chimera_ir.program import Program, Tied
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.exchange import is_torch_csv
from chimerac.compiler.given import StageChoice, one_of, stage_choice, whole_number, whole_numbers
from chimerac.compiler.library import find
from chimerac.compiler.lower.relower import evaluation
from chimerac.compiler.pipeline import Compiled, compile_source
from chimerac.compiler.pipeline import verify_program as verify

if TYPE_CHECKING:
    from chimerac.chimera_ir.timeline import Timeline
    from chimerac.compiler.analyze.beside import Beside

__all__ = [
    "Compiled",
    "Simulation",
    "beside",
    "compile_schedule",
    "compile_text",
    "evaluation_of",
    "is_program",
    "load_program",
    "read_program",
    "simulate",
    "verify",
]


def compile_schedule(
    schedule: str | os.PathLike[str],
    parameters: Mapping[str, int] | None = None,
    width: int = 1,
    machine: Machine = "window",
    arrange: bool = False,
    recompute: str | Iterable[int] | None = None,
) -> Compiled:
    """Return the verified program of a schedule file, or of a schedule of the library by name, with the results of all passes.

    Args:
        parameters: values by name; the others have their defaults.
        width: data-parallel replicas.
        machine: the one on which the program is proved to terminate.
        arrange: order its transfers and collectives for that machine.
        recompute: the stages that keep only their inputs and run their forwards again, instead of those that the text names:
            'all', 'none', a list such as '0,2..5' or an iterable of numbers; None: as the text says.
    """
    one_of("machine", machine, MACHINES)
    return compile_source(find(schedule), *_checked_sizes(parameters, width), machine, arrange, _chosen(recompute))


def compile_text(
    text: str,
    parameters: Mapping[str, int] | None = None,
    width: int = 1,
    name: str = "<text>",
    tied: Sequence[Tied] = (),
    recompute: str | Iterable[int] | None = None,
) -> Compiled:
    """Return the verified program of a schedule's text, with the results of all passes.

    Args:
        name: the name of the text in messages.
        tied: further sets of parameters that a model ties, whose names must differ from those of the text's sets; the other
            arguments: as for `compile_schedule`.
    """
    return compile_source(Source(name, text), *_checked_sizes(parameters, width), recompute=_chosen(recompute), tied=tied)


def _chosen(recompute: str | Iterable[int] | None) -> StageChoice | None:
    """Return the stages that are to recompute; None if the caller chose none: the text decides then."""
    return None if recompute is None else stage_choice(recompute)


def _checked_sizes(parameters: Mapping[str, int] | None, width: int) -> tuple[dict[str, int], int]:
    """Return the parameters and the width as integers. Raises ChimeraError E002."""
    return whole_numbers("parameter", {} if parameters is None else parameters), whole_number("width", width)


def load_program(path: str | os.PathLike[str]) -> Program:
    """Return the program of a JSON or compact text file, or of a .csv of torch.distributed.pipelining. It is verified here."""
    source = find(path)
    if is_torch_csv(source):
        from chimerac.compiler.exchange.torch_csv import program_from_csv  # start-up: 2 ms, for such a file only

        return program_from_csv(source)
    return verify(read_program(source))


def beside(simulation: Simulation, measured: Timeline) -> Beside:
    """Return a measured iteration beside the simulated one: makespan, bubbles, and how long the kinds of tasks took.

    Args:
        measured: a bar for every row of the program, in the order of rows, as `Pipeline.timeline` (interpreter/pipeline) and
            `TimelineFile.of` (chimera_ir/timeline_form.py) return it.
    """
    from chimerac.compiler.analyze import beside as module  # start-up: 8 ms, for this function only

    return module.beside(simulation, measured)


def evaluation_of(program: Program) -> Program:
    """Return the verified program of the forwards of a training program alone. Every replica has the order of the first one."""
    return verify(evaluation(program))
