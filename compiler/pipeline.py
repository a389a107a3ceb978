"""The passes of the compiler, and the functions that call them in order.

parse             text -> syntax tree                               E1xx   syntax/parse.py
resolve           syntax tree, parameters -> spec                   E2xx   resolve/resolve.py
order_tasks       spec -> program of tasks, one stream per rank     E30x   order/order.py
  order_...       one for each order form                                  order/{ticks,greedy,listing}.py
checked_times     program of tasks -> its times                     E304   tasks.py
lower             program of tasks, times -> program                       lower/lower.py
  transfers       program, times -> SEND and RECV to insert                lower/transfers.py
  gradient_sync   program, times -> ALLREDUCE to insert                    lower/sync.py
  insert          program, insertions -> program                           lower/insert.py
  widen           program -> program over W replicas                       lower/width.py
verify            program -> the same program, verified             E4xx   verify/

Two passes raise other codes too: resolve E002, and order_tasks E205, E206 and E211. Between the passes, size.py checks limits
(E211). The passes raise ChimeraError with facts, and at most with help that follows from them; for a wrong placement, resolve
searches for a right one. The functions here, except `compile_replica`, catch the error, and help_with_... (diagnose/help.py)
adds help that has to be searched for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.program import Machine, Program, Tied
from chimerac.compiler.diagnose.pass_results import PassResults
from chimerac.compiler.given import StageChoice
from chimerac.compiler.lower.lower import lower, lower_replica
from chimerac.compiler.lower.width import widen
from chimerac.compiler.order.order import order_tasks
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.size import check_sizes, check_tasks
from chimerac.compiler.syntax.nodes import Schedule
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.tasks import Timing, checked_times
from chimerac.compiler.verify import verify


@dataclass(frozen=True, slots=True)
class Compiled:
    """The results of all passes of a compilation, in order.

    Attributes:
        ordered: the program of tasks, before it is lowered.
    """

    schedule: Schedule
    spec: Spec
    ordered: Ordered
    timing: Timing
    program: Program


def compile_source(
    source: Source,
    parameters: Mapping[str, int],
    width: int = 1,
    machine: Machine = "window",
    arrange: bool = False,
    recompute: StageChoice | None = None,
    budget: Budget | None = None,
    tied: Sequence[Tied] = (),
) -> Compiled:
    """Return the verified program of a schedule's text, with the results of all passes.

    Args:
        machine: the one on which the program is proved to terminate.
        arrange: order its transfers and collectives for that machine.
        recompute: the stages whose forwards are run again, in the place of those of the text; None: as the text says.
        budget: how many operations the compilation may take; None: `chimera_ir.limits.WORK`.
        tied: further sets of parameters that a model ties; their names must differ from those of the text's sets.

    Trials of changed texts have separate budgets.

    Raises ChimeraError with the findings of the first pass that has any.
    """
    results = PassResults(source, parameters, width, machine, arrange, budget or Budget(), recompute)
    try:
        schedule = results.schedule = parse(source)
        spec = results.spec = resolve(schedule, parameters, results.budget, recompute).tying(tied)
        check_sizes(source.name, spec.header, spec.costs, width)
        ordered = results.ordered = order_tasks(spec, results.budget)
        check_tasks(source.name, ordered.program, width)
        timing = checked_times(ordered.program)
        program = results.program = lower(ordered.program, timing, spec.sync, width, machine, arrange)
        verify(program)
    except ChimeraError as error:
        from chimerac.compiler.diagnose.help import help_with_compilation  # start-up: 55 ms, for findings only

        raise help_with_compilation(error, results) from None
    return Compiled(schedule, spec, ordered, timing, program)


def compile_replica(schedule: Schedule, spec: Spec, width: int) -> Program:
    """Return the first replica of a program over `width` replicas. It is not verified.

    Its collectives name the ranks of this replica only, so its size does not depend on the width. A collective of a single rank
    is left out only if there is one replica. Raises ChimeraError without help.
    """
    tasks = order_tasks(spec, Budget()).program
    check_tasks(schedule.name.name, tasks, 1)
    program = lower_replica(tasks, checked_times(tasks), spec.sync, "window", arrange=False)
    return program if width > 1 else widen(program, 1)


def parse_source(source: Source) -> Schedule:
    """Return the syntax tree of a schedule's text.

    Raises ChimeraError with the syntax errors that can be told apart (diagnose/texts.py), or with a finding of another kind.
    """
    try:
        return parse(source)
    except ChimeraError as error:
        from chimerac.compiler.diagnose.help import help_with_text  # start-up: 55 ms, for findings only

        raise help_with_text(error, source) from None


def verify_program(program: Program) -> Program:
    """Return the given program, which `compile_source` has not made, if every check passes.

    Raises ChimeraError with the findings of the first checks that fail. A finding about a hang (E440), or about collectives in
    different orders (E453), has as help what was found, if anything was: moves, a larger window, other machines on which the
    program ends, or arranging it for its machine. After moves the program may still have other findings.
    """
    try:
        return verify(program)
    except ChimeraError as error:
        from chimerac.compiler.diagnose.help import help_with_program  # start-up: 55 ms, for findings only

        raise help_with_program(error, program) from None
