"""Which text is to blame: findings about a program's rows and header, led back to the lines of the schedule."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Span
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program
from chimerac.compiler.diagnose.hang import NOTHING_FOUND, remaining
from chimerac.compiler.diagnose.repair import in_words, repaired
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.resolve.spec import Spec


def blame(error: ChimeraError, spec: Spec, ordered: Ordered, program: Program) -> ChimeraError:
    """Return the findings of the verifier about `program`, each with the text that made what it is about."""
    return ChimeraError([_with_text(d, spec, ordered, program) for d in error.diagnostics])


def about_order(d: Diagnostic) -> bool:
    """Return whether a finding is about nothing but the order of transfers and sums."""
    return d.code in ("E440", "E453")


def suggest_arranging(error: ChimeraError, arranged: Program | None, keep: bool = False) -> ChimeraError:
    """Return the findings of a program that hangs, with arranging it for its machine as the way out where that is right.

    keep: beside what was suggested before; the compiler's own transfers cannot be moved by hand."""
    if arranged is None or remaining(arranged) is not None:
        return error
    help = f"--for {arranged.header.machine} puts its transfers and sums in one order; tried: it then ends there"
    return ChimeraError(
        [replace(d, help=f"{d.help}\nor {help}" if keep else help) if about_order(d) else d for d in error.diagnostics]
    )


def suggest_order(error: ChimeraError, tasks: Program) -> ChimeraError:
    """Return the findings of a program that hangs; where no other way out was found and its tasks alone wait for each other,
    with what could come earlier."""
    found = repaired(tasks)
    if found is None or not found[1]:
        return error
    help = f"its tasks alone wait in a circle: {in_words(tasks, found[1])} the tasks then run; move their transfers with them"
    return ChimeraError([replace(d, help=help) if d.help == NOTHING_FOUND else d for d in error.diagnostics])


def _with_text(d: Diagnostic, spec: Spec, ordered: Ordered, program: Program) -> Diagnostic:
    limit = next((name for name in spec.limits if f"limits.{name}" in d.about), None)
    if limit is not None:
        return replace(d, span=spec.limits[limit], label=f"{limit} <= {spec.header.limits[limit]}")
    rows = [x for x in d.about if isinstance(x, int)]
    return replace(d, notes=(*d.notes, *ordered_by(ordering(ordered, program, rows)))) if rows else d


def ordered_by(spans: Iterable[Span]) -> list[str]:
    """Return one note per line of the schedule among these places."""
    places = dict.fromkeys((s.source.name, s.line, s.source.line(s.line).strip()) for s in spans)
    return [f"ordered by {name}:{line}: {text}" for name, line, text in places]


def ordering(ordered: Ordered, program: Program, rows: Iterable[int]) -> list[Span]:
    """Return what ordered these rows of a lowered program: for a transfer or a sum, what ordered the task that it follows
    (a SEND, an ALLREDUCE) or precedes (a RECV)."""
    tasks = ordered.program
    is_task = program.table.is_task
    spans = []
    for row in rows:
        rank = int(program.rank_of[row])
        before = int(np.count_nonzero(is_task[program.offsets[rank] : row]))  # tasks of the rank before this row
        number = before if is_task[row] or program.table.op[row] == Op.RECV else before - 1
        local = rank % tasks.world
        first, stop = tasks.offsets[local : local + 2].tolist()
        if first < stop:
            spans.append(ordered.span(first + min(max(number, 0), stop - first - 1)))
    return spans
