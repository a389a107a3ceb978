"""What a run gets from the compiler: the program, the program of evaluations, and the predicted times."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Machine, Program, Tied
from chimerac.compiler import evaluation_of, load_program
from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.pipeline import verify_program
from chimerac.compiler.verify import findings
from chimerac.interpreter.launch.plan import TRANSPORT, Plan, RankBytes, arranging, check_kind, for_another_machine
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.pipeline.programs import predicted_times, program_for


def compiled_plan(settings: RunSettings, is_compiled: bool, tied: Sequence[Tied] = ()) -> Plan:
    """Return the plan for a schedule, or for a compiled program, which is verified again. tied: sets that it ties too."""
    program = load_program(settings.schedule) if is_compiled else _compiled(settings, tied)
    check_kind(program)
    if settings.loopback:
        return plan_of(program, timed=False, machine=settings.machine)
    _check_machine(program, settings)
    return plan_of(program, timed=settings.timed is not None, machine=TRANSPORT)


def plan_of(program: Program, timed: bool, machine: Machine | None = None) -> Plan:
    """Return the plan for a verified program. machine: the machine on which it runs; by default the one in its header.

    Raises ChimeraError E814 for a program that does not train.
    """
    check_kind(program)
    running = program.with_header(machine=machine or program.header.machine)
    if not timed:
        return Plan(program, evaluation_of(running), None, partial(_memory, program))
    # In a timed run messages are real, and their time is not simulated: hop is 0.
    return Plan(program, None, predicted_times(running, {"hop": 0}))


def _memory(program: Program, model: ModelDescription) -> tuple[RankBytes, ...]:
    """Return the bytes of each rank. Raises ChimeraError E705, E706 as `partition_for`."""
    return tuple(RankBytes(r.weights, r.gradients, r.peak - r.weights - r.gradients) for r in memory(program, model))


def _compiled(settings: RunSettings, tied: Sequence[Tied]) -> Program:
    """Return the program of a schedule. A parameter D that is not given follows from the number of processes."""
    width = settings.width or 1
    started = 0 if settings.loopback else int(os.environ.get("WORLD_SIZE", "0"))

    return program_for(settings.schedule, dict(settings.parameters), width, started or None, tied)


def _check_machine(program: Program, settings: RunSettings) -> None:
    """Raise ChimeraError E816 if a verified program hangs on the machine of the transport."""
    on_transport = program.with_header(machine=TRANSPORT)
    try:
        verify_program(on_transport)
        return
    except ChimeraError as error:
        found = error.diagnostics
    result = arranged(on_transport, TRANSPORT)
    left = found if result is None else findings(result)
    help = f"{arranging(settings.schedule)} was tried: it then ends there"
    if left:
        tried = f"comes to {left[0].code}" if result is not None else "finds no one order for all replicas"
        help = f"add --loopback, as --for {TRANSPORT} was tried and {tried}"
    raise for_another_machine(program, settings, found[0].message, help)
