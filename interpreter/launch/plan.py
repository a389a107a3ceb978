"""What the compiler hands over to the ranks. It imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from chimerac.chimera_ir.program import Program


@dataclass(frozen=True, slots=True)
class Times:
    """How long one iteration takes, predicted or measured. bubbles: the idle share of each rank."""

    makespan: float
    bubbles: tuple[float, ...]

    @property
    def bubble_ratio(self) -> float:
        """Return the idle share of all ranks' time."""
        return sum(self.bubbles) / len(self.bubbles)


@dataclass(frozen=True, slots=True)
class Plan:
    """A program to train with. evaluation, predicted: None where they are not needed, or the compiler is not there.

    predicted: the simulator's times, in units of cost.
    """

    program: Program
    evaluation: Program | None
    predicted: Times | None
