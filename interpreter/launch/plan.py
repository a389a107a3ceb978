"""Plans: the program of a run, what the compiler derives from it, and the check that the program trains."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from chimerac.chimera_ir.diagnostics import refuse

if TYPE_CHECKING:  # numpy and pydantic take 0.25 s to import, which --help does not need
    from chimerac.chimera_ir.model import ModelDescription
    from chimerac.chimera_ir.program import Program
    from chimerac.interpreter.runtime.times import IterationTimes


class RankBytes(NamedTuple):
    """Bytes of a rank at its peak, as the compiler predicts them.

    Attributes:
        others: activations, messages and workspace.
    """

    weights: int
    gradients: int
    optimizer: int
    others: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The program of a run, and what the compiler derives from it: None if not needed, or if the compiler is not installed.

    Attributes:
        evaluation: the program of evaluations.
        predicted: the simulator's times, in units of cost; also None if the program hangs on the machine of the run.
        memory: a function that returns the bytes of each rank when AdamW trains. Its arguments are the model, and whether the
            holders of a stage share the optimizer's state.
    """

    program: Program
    evaluation: Program | None
    predicted: IterationTimes | None
    memory: Callable[[ModelDescription, bool], tuple[RankBytes, ...]] | None = None


def check_kind(program: Program) -> None:
    """Raise ChimeraError E814 for a program that does not train."""
    if program.header.kind != "training":
        raise refuse("E814", f"the program is of kind {program.header.kind}: it has nothing to train with")
