"""The number of ranks that a program needs. It imports neither torch nor numpy, so that --help appears at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import refuse

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
