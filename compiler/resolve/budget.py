"""How much a compilation may compute: a budget is a value, made by whoever compiles and handed to all that evaluates.

So compilations in several threads, and one inside another, do not count each other's operations.
"""

from __future__ import annotations

from dataclasses import dataclass

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import Span, refuse


@dataclass(slots=True)
class Budget:
    """The operations that may still be spent on evaluating expressions. total: those at the beginning."""

    total: int = limits.WORK
    spent: int = 0

    @property
    def left(self) -> int:
        """Return how many operations are left, negative where too many have been spent."""
        return self.total - self.spent

    def spend(self, operations: int, span: Span) -> None:
        """Count operations. Raises ChimeraError E211 where that is more than are left. span: the text that takes them."""
        self.spent += operations
        if self.spent > self.total:
            message = f"the schedule's expressions take more than {self.total} operations to evaluate"
            raise refuse("E211", message, span, "reached here", help="take smaller sizes, or fewer and simpler formulas")

    def share(self, parts: int = 1) -> Budget:
        """Return a new budget, for trials: one of so many parts of what is left here. This one does not change."""
        return Budget(max(self.left, 0) // parts)
