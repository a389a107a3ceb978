"""Plans: the program of a run, what the compiler derives from it, and the checks of both."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.runtime.times import IterationTimes

TRANSPORT: Machine = "window"  # the machine on which ranks run that are processes: docs/semantics.md, "Machines"


@dataclass(frozen=True, slots=True)
class Plan:
    """A program to train with. evaluation, predicted: None if not needed, or if the compiler is not installed.

    predicted: the simulator's times, in units of cost.
    """

    program: Program
    evaluation: Program | None
    predicted: IterationTimes | None

    @property
    def partition(self) -> Partition | None:
        """Return the partition that the program carries."""
        return self.program.partition


def check_kind(program: Program) -> None:
    """Raise ChimeraError E814 where the program does not train."""
    if program.header.kind != "training":
        raise refuse("E814", f"the program is of kind {program.header.kind}: it has nothing to train with")


def for_another_machine(program: Program, settings: RunSettings, note: str, help: str) -> ChimeraError:
    """Return the finding E816: the program may hang on the machine of the transport."""
    machine, window = program.header.machine, program.header.window
    ours = f"ranks over {settings.transport} run {TRANSPORT}({window})"
    return refuse("E816", f"{settings.schedule} is for the {machine} machine, and {ours}", notes=(note,), help=help)


def arranging(path: Path) -> str:
    """Return the command that arranges a program for the machine of the transport."""
    return f"chimerac {path} --for {TRANSPORT} --emit json -o arranged.json"
