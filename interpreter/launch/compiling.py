"""What a run gets from the compiler: its plan, with programs, predicted times and memory, and pictures of its timelines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from fractions import Fraction
from functools import partial

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.machines import PROCESSES
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.chimera_ir.program import Machine, Program, Tied
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler import evaluation_of, load_program, simulate, verify
from chimerac.compiler.analyze.memory import OptimizerState, memory
from chimerac.interpreter.launch.plan import Plan, RankBytes, check_kind
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.workloads import with_partition
from chimerac.interpreter.pipeline.programs import check_machine, predicted_times, program_for


def compiled_plan(
    settings: RunSettings, is_compiled: bool, tied: Sequence[Tied] = (), model: ModelDescription | None = None
) -> Plan:
    """Return the plan for a schedule, or for a compiled program, which is verified again.

    Args:
        is_compiled: whether the settings name a compiled program.
        tied: sets of tied parameters besides those of the schedule; not used for a compiled program.
        model: the description of a user's own model; None for a preset, or if it is not known yet.

    Raises ChimeraError for what is wrong, such as E814 for a program that does not train and, without --loopback, E816 for one
    that hangs on the machine of its ranks.
    """
    program = with_partition(settings, load_program(settings.schedule) if is_compiled else _compile(settings, tied), model)
    check_kind(program)  # plan_of checks this too, but E814 has to come before E816
    if settings.loopback:
        return plan_of(program, timed=False, machine=settings.machine)
    path, ranks = settings.schedule, f"ranks over {settings.transport}"
    check_machine(program, PROCESSES, str(path), ranks, path, alternative="add --loopback")
    return plan_of(program, timed=settings.timed is not None, machine=PROCESSES)


def plan_of(program: Program, timed: bool, machine: Machine | None = None) -> Plan:
    """Return the plan for a verified program.

    Args:
        machine: the machine on which it runs; by default the one in its header.
        timed: whether its stages only sleep.

    Raises ChimeraError E814 for a program that does not train.
    """
    check_kind(program)
    on_machine = program.with_header(machine=machine or program.header.machine)
    if not timed:
        predicted = predicted_times(on_machine) if _terminates(program, on_machine) else None
        return Plan(program, evaluation_of(on_machine), predicted, partial(_memory, on_machine))
    # A timed run sends real messages, whose time is not predicted: `hop` is 0.
    return Plan(program, None, predicted_times(on_machine, {"hop": 0}))


def timeline_pictures(program: Program, measured: Timeline) -> dict[str, bytes]:
    """Return the pictures (PNG) of the predicted and of the measured timeline of a program, each with its own time axis.

    Raises ChimeraError E002 without matplotlib, and for a program with too many ranks for a picture.
    """
    from chimerac.compiler.analyze.panels import measured_panel, program_title, simulated_panel, time_label  # takes 8 ms
    from chimerac.compiler.draw.picture import draw_picture

    simulated, title = simulate(program), program_title(program)
    return {
        "predicted": draw_picture([simulated_panel(simulated, f"{title}, predicted")], "png", time_label(simulated)),
        "measured": draw_picture([measured_panel(program, measured, f"{title}, measured")], "png", f"time in {measured.unit}"),
    }


def _terminates(program: Program, on_machine: Program) -> bool:
    """Return whether a verified program also terminates on the machine of the run. With --loopback it need not.

    Args:
        on_machine: the program with the machine of the run in its header.
    """
    if on_machine.header.machine == program.header.machine:
        return True
    try:
        verify(on_machine)
    except ChimeraError:
        return False
    return True


def _memory(program: Program, model: ModelDescription, zero: bool) -> tuple[RankBytes, ...]:
    """Return the bytes of each rank at its peak, when AdamW trains this model.

    Args:
        zero: whether the ranks with copies of a stage share the optimizer's state.

    Raises ChimeraError: E705 if the program has more stages than the model has layers, E706 if the program's partition does not
    fit the model.
    """
    ranks = memory(program, model, OptimizerState(Fraction(OPTIMIZERS["adamw"]), zero))
    return tuple(
        RankBytes(r.weights, r.gradients, r.optimizer, others=r.peak - r.weights - r.gradients - r.optimizer) for r in ranks
    )


def _compile(settings: RunSettings, tied: Sequence[Tied]) -> Program:
    """Return the program of a schedule. If D is not given, it follows from the number of processes, where that is known."""
    width = settings.width or 1
    world = 0 if settings.loopback else int(os.environ.get("WORLD_SIZE", "0"))  # 0: not known
    return program_for(settings.schedule, dict(settings.parameters), width, world, tied, settings.recompute)
