"""The findings of a pass: a list that raises an error when it is full, and E207 for a thing that is given twice."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Span

MAX_FOUND = 100  # findings of a pass. Each takes time, because its help may search many names for a similar one


class Findings(list[Diagnostic]):
    """The findings of a pass. `append` raises ChimeraError with all of them as soon as there are MAX_FOUND."""

    def append(self, finding: Diagnostic) -> None:
        super().append(finding)
        if len(self) >= MAX_FOUND:
            raise ChimeraError(self)


def given_twice(message: str, span: Span, first: Span, help: str = "choose another name") -> Diagnostic:
    """Return E207 for something that may be given only once and was given before."""
    return Diagnostic("E207", message, span, notes=(f"first at {first}",), help=help)
