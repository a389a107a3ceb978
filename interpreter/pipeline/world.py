"""The errors of a program that does not fit its run: another number of ranks, another machine, other recomputation.

For a fast `--help` of interpreter/run.py, this module imports neither torch nor numpy.
"""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.machines import PROCESSES, Machine, machine_name

if TYPE_CHECKING:
    from chimerac.chimera_ir.program import Program


def check_world(program: Program, world: int) -> None:
    """Raise ChimeraError E800 unless the program has one stream for each rank.

    Args:
        world: the number of ranks that were started, or of those in the pipeline's process group.
    """
    if world != program.world:
        are, there_are = "is" if program.world == 1 else "are", "there is" if world == 1 else "there are"
        replicas = count_text(program.header.width, "data-parallel replica")
        raise refuse(
            "E800",
            f"{count_text(program.world, 'rank')} {are} needed, and {there_are} {world}",
            notes=(f"{replicas} x {count_text(program.header.ranks, 'pipeline rank')}",),
            help=f"start them with: torchrun --nproc-per-node {program.world} ...; a process group that is given needs as many",
        )


def wrong_machine(program: Program, name: str, ranks: str, machine: Machine, note: str, help: str) -> ChimeraError:
    """Return the error E816: the program may hang on the machine of the ranks that run it.

    Args:
        name, ranks: how the message calls the program and the ranks, such as `ranks over gloo`.
        machine: the machine of these ranks.
        note: why the program may hang.
        help: the way out.
    """
    header = program.header
    message = f"{name} is for the {header.machine} machine, and {ranks} run {machine_name(machine, header.window)}"
    return refuse("E816", message, notes=(note,), help=help)


def fixed_recomputation(name: str, option: str) -> ChimeraError:
    """Return the error E808: the stages that recompute are fixed in a compiled program.

    Args:
        name: of the program.
        option: the option or the argument that names these stages, such as --recompute.
    """
    message = f"{name} is a compiled program: which of its stages recompute is fixed"
    return refuse("E808", message, help=f"leave out {option}, or give the schedule instead of its program")


def arrange_command(path: str | os.PathLike[str], machine: Machine = PROCESSES) -> str:
    """Return the command that arranges a program for a machine.

    Args:
        path: the path of the program or its schedule.
    """
    return f"chimerac {shlex.quote(os.fspath(path))} --for {machine} --emit json -o arranged.json"
