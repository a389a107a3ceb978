"""The findings of the checks: a list that ends the pass where it gets too long."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Span

MAX_FOUND = 100  # findings of a pass: each is looked up among all names


class Findings(list[Diagnostic]):
    """The findings of a pass. Raises ChimeraError with all of them where there are too many."""

    def append(self, finding: Diagnostic) -> None:
        super().append(finding)
        if len(self) >= MAX_FOUND:
            raise ChimeraError(self)


def twice(message: str, span: Span, first: Span, help: str = "choose another name") -> Diagnostic:
    """Return E207 for what may be given once and was given before."""
    return Diagnostic("E207", message, span, notes=(f"first at {first}",), help=help)
