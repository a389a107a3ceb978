"""The entry point of diagnose: the plain findings of a pass become findings with help.

compiler/pipeline.py catches what the passes raise and calls these functions. Nothing here runs for a correct program.
"""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source
from chimerac.chimera_ir.program import Program
from chimerac.compiler.diagnose.collectives import explain_collectives
from chimerac.compiler.diagnose.deadlock import explain_deadlock
from chimerac.compiler.diagnose.hang import explain_hang
from chimerac.compiler.diagnose.parameters import suggest_parameters
from chimerac.compiler.diagnose.pass_results import PassResults
from chimerac.compiler.diagnose.source_lines import add_source_lines, suggest_arranging, suggest_order
from chimerac.compiler.diagnose.stuck import explain_stuck
from chimerac.compiler.diagnose.suggest import suggest_edit_of_order
from chimerac.compiler.diagnose.texts import explain_text
from chimerac.compiler.diagnose.trials import Trials
from chimerac.compiler.lower.lower import lower
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.lower.width import tasks_only
from chimerac.compiler.order.greedy import SchedulerStuckError
from chimerac.compiler.syntax.parse import ParseError
from chimerac.compiler.tasks import task_times
from chimerac.compiler.verify import is_about_order
from chimerac.compiler.verify.index import ProgramIndex


def help_with_text(error: ChimeraError, source: Source) -> ChimeraError:
    """Return the findings about a text that `parse` refuses.

    Instead of a ParseError, which has one finding, return the syntax errors that can be told apart, with help. Other findings
    stay as they are.
    """
    return explain_text(source) if isinstance(error, ParseError) else error


def help_with_compilation(error: ChimeraError, results: PassResults) -> ChimeraError:
    """Return the findings of the pass that ended a compilation, with help where diagnose knows some."""
    schedule, spec, ordered, program = results.schedule, results.spec, results.ordered, results.program
    if schedule is None:
        return help_with_text(error, results.source)
    if error.diagnostics[0].code == "E210":
        return suggest_parameters(error, schedule, results.parameters, results.budget.share(parts=4), results.recompute)
    if spec is None or error.diagnostics[0].code == "E211":  # E211: a size out of bounds, or no operations left
        return error
    if isinstance(error, SchedulerStuckError):
        return ChimeraError([explain_stuck(error.scheduler)])
    if program is None:
        budget = results.budget.share(parts=4)
        trials = Trials.of(results.source, schedule, spec, results.machine, results.arrange, budget, results.recompute)
        if ordered is None:
            return suggest_edit_of_order(error, schedule, spec, trials, results.budget.share())
        timing = task_times(ordered.program)
        return explain_deadlock(ordered, timing, schedule, trials) if timing.stuck else error
    error = _with_explanations(error, program)
    if not results.arrange and ordered is not None and any(map(is_about_order, error.diagnostics)):
        tasks = ordered.program
        arranged_program = lower(tasks, task_times(tasks), spec.sync, results.width, results.machine, arrange=True)
        error = suggest_arranging(error, arranged_program)
    return error if ordered is None else add_source_lines(error, spec, ordered, program)


def help_with_program(error: ChimeraError, program: Program) -> ChimeraError:
    """Return the findings of the verifier about a program that was not compiled here; those about an order get help."""
    found = _with_explanations(error, program)
    if not all(map(is_about_order, found.diagnostics)):
        return found
    arranged_program = arranged(program, program.header.machine)
    return (
        suggest_order(found, tasks_only(program))
        if arranged_program is None
        else suggest_arranging(found, arranged_program, keep=True)
    )


def _with_explanations(error: ChimeraError, program: Program) -> ChimeraError:
    """Return the findings of the verifier. Those about an order, E440 and E453, get the cycle that they are about, and help."""

    def explained(d: Diagnostic) -> Diagnostic:
        if d.code == "E440":
            return explain_hang(ProgramIndex(program))
        return explain_collectives(d, ProgramIndex(program)) if d.code == "E453" else d

    return ChimeraError(map(explained, error.diagnostics))
