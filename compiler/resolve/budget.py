"""The operations that a compilation may take.

The passes receive a budget as an argument. So compilations in several threads, and a trial inside a compilation, count their
operations separately.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import Span, refuse


@dataclass(slots=True)
class Budget:
    """The operations of a compilation: evaluating expressions and placing tasks.

    Attributes:
        total: how many are allowed.
        spent: so far.
    """

    total: int = field(default_factory=lambda: limits.WORK)  # read at each compilation: tests lower the limit
    spent: int = 0

    @property
    def left(self) -> int:
        """Return how many operations are left; negative if too many have been spent."""
        return self.total - self.spent

    def spend(self, operations: int, span: Span) -> None:
        """Count operations. Raises ChimeraError E211 if fewer are left.

        Args:
            span: the text that causes them.
        """
        self.spent += operations
        if self.spent > self.total:
            message = f"evaluating the expressions and placing the tasks takes more than {self.total} operations"
            raise refuse("E211", message, span, "reached here", help="take smaller sizes, or fewer and simpler formulas")

    def share(self, parts: int = 1) -> Budget:
        """Return a new budget, with which help is computed: what is left here, divided by `parts`.

        What the help takes does not count here.
        """
        return Budget(max(self.left, 0) // parts)
