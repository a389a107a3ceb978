"""Whether a program fits the ranks that run it: their number and their machine. It imports neither torch nor numpy.

So `--help` of interpreter/run.py appears at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.machines import PROCESSES, Machine, machine_name

if TYPE_CHECKING:
    from chimerac.chimera_ir.program import Program


def check_world(program: Program, started: int) -> None:
    """Raise ChimeraError E800 unless there is one process for each stream."""
    if started != program.world:
        raise refuse(
            "E800",
            f"{program.world} ranks are needed and {started} were started",
            notes=(f"{program.header.width} data-parallel replicas x {program.header.ranks} pipeline ranks",),
            help=f"start them with: torchrun --nproc-per-node {program.world} ...",
        )


def for_another_machine(program: Program, name: str, ranks: str, machine: Machine, note: str, help: str) -> ChimeraError:
    """Return the finding E816: the program may hang on the machine of the transport.

    name: of the program; ranks: what runs it, such as `ranks over gloo`; machine: on which these run.
    """
    ours = f"{ranks} run {machine_name(machine, program.header.window)}"
    return refuse("E816", f"{name} is for the {program.header.machine} machine, and {ours}", notes=(note,), help=help)


def arranging(path: object, machine: Machine = PROCESSES) -> str:
    """Return the command that arranges a program for a machine."""
    return f"chimerac {path} --for {machine} --emit json -o arranged.json"
