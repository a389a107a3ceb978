"""The compiler's table of contents: one line per pass, and one function that calls them in order.

parse             text -> syntax tree                               E1xx   syntax/parse.py
resolve           syntax tree, parameters -> spec                   E2xx   resolve/resolve.py
order_by_...      spec -> program of tasks, one stream per rank     E30x   order/{ticks,greedy,listing}.py
earliest          program of tasks -> its times, or a deadlock      E304   tasks.py, deadlock.py
transfers         program, times -> SEND and RECV to insert                lower/transfers.py
gradient_sync     program, times -> ALLREDUCE to insert                    lower/sync.py
weave             program, insertions -> program                           lower/weave.py
widen             program -> program over W replicas                       lower/width.py
verify            program -> the same, proved                       E4xx   verify/
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler.lower.sync import gradient_sync
from chimerac.compiler.lower.transfers import transfers
from chimerac.compiler.lower.weave import weave
from chimerac.compiler.lower.width import forwards_only, tasks_only, widen
from chimerac.compiler.order.greedy import order_greedily
from chimerac.compiler.order.listing import order_by_listing
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.order.ticks import order_by_ticks, order_with_ties
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.resolve.spec import GreedyOrder, ListingOrder, Spec, TicksOrder
from chimerac.compiler.syntax.nodes import Schedule, SyncPolicy
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.tasks import TaskIndex, Timing, data_edges, earliest, task_costs
from chimerac.compiler.verify import peaks, verify

if TYPE_CHECKING:
    from chimerac.compiler.diagnose.suggest import Trials, Tried


LARGE = 20_000  # tasks from which on changes are not tried at a larger size too


@dataclass(frozen=True, slots=True)
class Compiled:
    """Every product of a compilation, in order. ordered: the program of tasks, before it is lowered."""

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
    recompute: bool = False,
) -> Compiled:
    """Return the verified program of a schedule's text, and all that came before it.

    machine: on which the program is proved to end; arrange: order its transfers and collectives for that machine;
    recompute: at every stage, whatever the text says.

    Raises ChimeraError with the findings of the first pass that has any.
    """
    schedule = parse(source)
    spec = resolve(schedule, parameters)
    if recompute:
        spec = replace(spec, recompute=((True,) * spec.header.stages,) * len(spec.header.pipes))
    if width < 1:
        raise refuse("E211", f"a program has at least one replica, and the width is {width}")
    smaller = "take smaller sizes or fewer replicas; docs/language.md lists the limits"
    excess = replace(spec.header, width=width).excess() or spec.costs.excess(spec.header.micro_batches)
    if excess:
        raise refuse("E211", f"{source.name} asks for {excess}", help=smaller)
    try:
        ordered = order_tasks(spec)
    except ChimeraError as error:
        from chimerac.compiler.diagnose.suggest import suggest_order

        trials = _trials(source.name, schedule, spec, machine, arrange)
        raise suggest_order(error, schedule, trials, _with_ties(spec, error)) from None
    tasks = ordered.program
    if width * len(tasks) > limits.TASKS:
        message = f"{source.name} asks for {width} replicas of {len(tasks)} tasks; at most {limits.TASKS} together"
        raise refuse("E211", message, help=smaller)
    largest = max(map(len, tasks.batches[tasks.header.micro_batches :]), default=1)
    if largest > limits.RANKS:
        message = f"{source.name} asks for a group of {largest} micro-batches; at most {limits.RANKS}"
        raise refuse("E211", message, help="take smaller groups; docs/language.md lists the limits")
    timing = _times(tasks)
    if timing.stuck:
        from chimerac.compiler.diagnose.deadlock import explain_deadlock

        raise explain_deadlock(ordered, timing, schedule, _trials(source.name, schedule, spec, machine, arrange))
    program = _lower(tasks, timing, spec.sync, width, machine, arrange)
    try:
        verify(program)
    except ChimeraError as error:
        from chimerac.compiler.diagnose.blame import blame, suggest_arranging

        if not arrange:
            error = suggest_arranging(error, _lower(tasks, timing, spec.sync, width, machine, arrange=True))
        raise blame(error, spec, ordered, program) from None
    return Compiled(schedule, spec, ordered, timing, program)


def _times(tasks: Program) -> Timing:
    return earliest(tasks, task_costs(tasks), data_edges(tasks, TaskIndex.of(tasks), tasks.costs.hop))


def _with_ties(spec: Spec, error: ChimeraError) -> Program | None:
    """Return the order of a schedule that puts tasks of one rank on one tick; nothing where that is not what is wrong."""
    if isinstance(spec.order, TicksOrder) and error.diagnostics[0].code == "E303":
        return order_with_ties(spec, spec.order)[0].program
    return None


def _trials(name: str, schedule: Schedule, spec: Spec, machine: Machine, arrange: bool) -> Trials:
    """Return what tries changed texts of a schedule whose order cannot run: as it was given, and at a larger size. On the
    machines whose transfers queue they are arranged: seldom is an order right for them as it is."""
    from chimerac.compiler.diagnose.hang import remaining
    from chimerac.compiler.diagnose.suggest import Trials, Tried

    given = spec.header.parameters
    arranging = arrange or machine in ("paired", "serial")
    how = f" with --for {machine}" if arranging and not arrange else ""

    def attempt(text: str, parameters: Mapping[str, int]) -> Tried | None:
        try:
            changed = resolve(parse(Source(name, text)), parameters)
            tasks = order_tasks(changed).program
        except ChimeraError:
            return None
        timing = _times(tasks)
        if timing.stuck:
            return None
        program = _lower(tasks, timing, changed.sync, 1, machine, arranging)
        # A schedule's own limits may be meant for its own size.
        if remaining(program if parameters == given else program.with_header(limits={})) is not None:
            return None
        return Tried(int(timing.end.max(initial=0)), max(peaks(program).activations), tasks)

    count = 2 * spec.header.stages * spec.header.micro_batches
    larger = () if count > LARGE else ({k: v + (v if v > least else 0) for k, v in given.items()} for least in (0, 2))
    for parameters in larger:
        try:
            if parameters != given:
                resolve(schedule, parameters)
                return Trials(attempt, (given, parameters), count, how, bool(spec.limits))
        except ChimeraError:
            pass
    return Trials(attempt, (given,), count, how)


def _lower(tasks: Program, timing: Timing, sync: SyncPolicy, width: int, machine: Machine, arrange: bool) -> Program:
    """Return the program of these tasks, not verified yet: with their transfers and sums, over all replicas."""
    queued = arrange and machine in ("paired", "serial")
    if arrange:
        tasks = tasks.with_header(machine=machine)
    insertions = [transfers(tasks, timing, queued)]
    if tasks.header.kind == "training":
        sums, collectives = gradient_sync(tasks, timing, sync, queued)
        tasks = replace(tasks, collectives=collectives)
        insertions.append(sums)
    woven = weave(tasks, insertions)
    return widen(woven.with_header(machine=machine), width)


def arranged(program: Program, machine: Machine) -> Program | None:
    """Return the program that runs the same tasks in the same order, its transfers and sums arranged for a machine, not
    verified yet; None where its replicas run in different orders, or its tasks wait for each other in a circle.

    program: right but for its machine. Sums stay at the end where all of them are, else they are launched early; what
    FREE gave back is given back after its last reader.
    """
    tasks = tasks_only(program)
    timing = _times(tasks)
    if timing.stuck:
        return None
    rank, op = program.rank_of, program.table.op
    rows, sums = np.flatnonzero(program.table.is_task), np.flatnonzero(op == Op.ALLREDUCE)
    last = np.zeros(program.world, np.int64)
    np.maximum.at(last, rank[rows], rows)
    at_end = bool((sums > last[rank[sums]]).all())
    result = _lower(tasks, timing, "at end" if at_end else "eager", program.header.width, machine, arrange=True)
    mine, its = (np.column_stack(p.table.columns())[p.table.is_task] for p in (program, result))
    return result if np.array_equal(mine, its) else None


def verified(program: Program) -> Program:
    """Return a program that comes from elsewhere if every check holds. Where it hangs, the finding says whether arranging
    it helps, or what tasks could come earlier."""
    try:
        return verify(program)
    except ChimeraError as error:
        from chimerac.compiler.diagnose.blame import about_order, suggest_arranging, suggest_order

        if not all(map(about_order, error.diagnostics)):
            raise
        result = arranged(program, program.header.machine)
        if result is None:
            raise suggest_order(error, tasks_only(program)) from None
        raise suggest_arranging(error, result, keep=True) from None


def order_tasks(spec: Spec) -> Ordered:
    """Return the tasks of every rank in the order that the schedule's order form says."""
    match spec.order:
        case TicksOrder():
            return order_by_ticks(spec, spec.order)
        case GreedyOrder():
            return order_greedily(spec, spec.order)
        case ListingOrder():
            return order_by_listing(spec, spec.order)


def evaluation_of(program: Program) -> Program:
    """Return the verified program that runs only the forwards of a training program, in its order."""
    tasks = forwards_only(program)
    timing = _times(tasks)
    return verify(_lower(tasks, timing, "at end", program.header.width, program.header.machine, arrange=True))
