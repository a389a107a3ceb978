"""Findings of the verifier get the lines of the schedule that they are about, and help: --for, or another order of tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Span
from chimerac.chimera_ir.program import Program
from chimerac.compiler.diagnose import collectives
from chimerac.compiler.diagnose.cycle import shown
from chimerac.compiler.diagnose.hang import NOTHING_FOUND
from chimerac.compiler.diagnose.repair import moves_help, repair_order
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.verify import findings, is_about_order


def add_source_lines(error: ChimeraError, spec: Spec, ordered: Ordered, program: Program) -> ChimeraError:
    """Return the findings of the verifier about `program`, with the lines of the schedule for the limits and rows they name."""
    return ChimeraError([_with_source_lines(d, spec, ordered, program) for d in error.diagnostics])


def suggest_arranging(error: ChimeraError, arranged: Program, keep: bool = False) -> ChimeraError:
    """Return the findings of the verifier. If arranging the program corrects it, the help of E440 and E453 says so.

    Args:
        arranged: the program arranged for its machine.
        keep: whether the help of a finding stays before the new one, unless that help only says that nothing was found; False
            for a compiled schedule, whose transfers cannot be moved by hand.
    """
    if findings(arranged):
        return error
    machine = arranged.header.machine
    help = f"use --for {machine}, which arranges transfers and collectives for it; tried: it then ends on {machine}"

    def helped(d: Diagnostic) -> Diagnostic:
        keeps = keep and d.help not in (NOTHING_FOUND, collectives.NOTHING_FOUND)
        return replace(d, help=f"{d.help}\nor {help}" if keeps else help) if is_about_order(d) else d

    return ChimeraError(map(helped, error.diagnostics))


def suggest_order(error: ChimeraError, tasks: Program) -> ChimeraError:
    """Return the findings about a program. A finding about a hang whose help is NOTHING_FOUND gets moves of tasks as its help.

    Args:
        tasks: those of the first replica of the program.

    If they do not wait for each other in a cycle, or no such moves are found, the findings stay as they are.
    """
    repaired = repair_order(tasks)
    if repaired is None:
        return error
    _, moves = repaired
    if not moves:
        return error
    suggestion = moves_help(tasks, moves, "the tasks then run; move their transfers with them")
    help = f"even without transfers its tasks wait for each other in a cycle: {suggestion}"
    return ChimeraError([replace(d, help=help) if d.help == NOTHING_FOUND else d for d in error.diagnostics])


def _with_source_lines(d: Diagnostic, spec: Spec, ordered: Ordered, program: Program) -> Diagnostic:
    """Return a finding with the span of the limit that it names, else with notes on the lines that order the rows it names."""
    limit = next((name for name in spec.limits if f"limits.{name}" in d.about), None)
    if limit is not None:
        return replace(d, span=spec.limits[limit], label=f"{limit} <= {spec.header.limits[limit]}")
    rows = [x for x in d.about if isinstance(x, int)]
    return replace(d, notes=(*d.notes, *order_notes(order_spans(ordered, program, rows)))) if rows else d


def order_notes(spans: Iterable[Span]) -> list[str]:
    """Return one note per line on which these spans begin, at most cycle.MAX_SHOWN, and one more that counts the others."""
    places = dict.fromkeys((s.source.name, s.line, s.source.line(s.line).strip()) for s in spans)
    return shown([f"ordered by {name}:{line}: {text}" for name, line, text in places], "lines")


def order_spans(ordered: Ordered, program: Program, rows: Iterable[int]) -> list[Span]:
    """Return the spans of the schedule's text that order these rows of a lowered program; none for a rank without tasks."""
    origins = ordered.origins(program)
    return [ordered.spans[origins[row]] for row in rows if origins[row] >= 0]
