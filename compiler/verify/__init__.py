"""The verifier: checks a final program against its own header.

It needs only the program, and imports nothing of the passes that build programs. Each check is a function that returns
findings (E4xx). check_wellformed takes the program, and the others take a `ProgramIndex` of it. check_wellformed and
check_exactly_once come first: the lookups of the others rely on them. compiler/diagnose adds explanations and the lines of the
schedule's text.
"""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic
from chimerac.chimera_ir.program import Program
from chimerac.compiler.verify.collectives import check_gradient_sync
from chimerac.compiler.verify.dataflow import check_dataflow
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.matching import check_matching
from chimerac.compiler.verify.memory import Peaks, check_limits, peaks
from chimerac.compiler.verify.progress import check_progress
from chimerac.compiler.verify.tasks import check_exactly_once
from chimerac.compiler.verify.wellformed import check_wellformed

__all__ = ["Peaks", "findings", "is_about_order", "peaks", "verify"]

# All checks of an inner tuple run. If one of them finds something, the later tuples do not run. Otherwise one mistake could be
# reported twice: a value that is never sent also makes the two ends of a channel differ.
_CHECKS = (
    (check_exactly_once,),
    (check_dataflow, check_gradient_sync),
    (check_matching,),
    (check_progress, check_limits),
)


def findings(program: Program) -> list[Diagnostic]:
    """Return the findings of the first checks that fail; [] if every check holds."""
    found = check_wellformed(program)
    if found:
        return found
    index = ProgramIndex(program)
    for checks in _CHECKS:
        found = [d for check in checks for d in check(index)]
        if found:
            return found
    return []


def verify(program: Program) -> Program:
    """Return the program if every check holds. Raises ChimeraError with the findings of the first checks that fail."""
    found = findings(program)
    if found:
        raise ChimeraError(found)
    return program


def is_about_order(d: Diagnostic) -> bool:
    """Return whether a finding is a deadlock or collectives without a single order, which the option `--for` may correct."""
    return d.code in ("E440", "E453")
