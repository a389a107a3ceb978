"""Explain an order that deadlocks: a short cycle of waits, how far the ranks get, and a change that was tried (E304)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, refuse
from chimerac.chimera_ir.program import OVERLAP, Ints, Program
from chimerac.compiler.diagnose.cycle import MAX_SHOWN, consecutive_pairs, cycle_fact, shortest_cycle, shown
from chimerac.compiler.diagnose.repair import moves_help, repair_order, task_name
from chimerac.compiler.diagnose.source_lines import order_notes
from chimerac.compiler.diagnose.suggest import suggest_edit
from chimerac.compiler.diagnose.trials import Trials
from chimerac.compiler.draw.timeline import draw_timeline
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.tasks import TaskIndex, Timing, data_edges


def explain_deadlock(ordered: Ordered, timing: Timing, schedule: n.Schedule, trials: Trials) -> ChimeraError:
    """Return the finding for a program of tasks whose order deadlocks.

    The finding also names the lines of the schedule that ordered the tasks of the cycle. For an overlapped pair that waits for
    itself, it names the line that ordered the first task of the pair.

    Args:
        timing: the simulated times of that program.
        trials: tries changes of the schedule's text.
    """
    program = ordered.program
    target, source, row_of_pair = _waits(program, timing)
    if row_of_pair is not None:
        name_of_pair = task_name(program, row_of_pair)
        message = f"the order deadlocks: an overlapped pair cannot need its own result, as {name_of_pair} does"
        help = suggest_edit(schedule, [], trials, program) or "overlap two tasks of which neither needs the other"
        return refuse("E304", message, ordered.span(row_of_pair), "begins the pair", help=help)
    cycle = consecutive_pairs(shortest_cycle(target, source, program.rank_of))
    notes, ranks = [], []
    # The source of a wait is the target of the following wait, or comes after it in the same stream.
    for wait, following in cycle:
        first, needed = int(target[following]), int(source[wait])
        rank = int(program.rank_of[needed])
        if needed > program.offsets[rank] and program.table.flags[needed - 1] & OVERLAP:
            needed -= 1  # the pair of which the needed task is one
        names = [task_name(program, first), *([task_name(program, needed)] if first != needed else [])]
        notes.append(f"rank {rank} runs {' before '.join(names)}, which {task_name(program, int(target[wait]))} needs")
        ranks.append(rank)
    rows = [int(row) for wait, following in cycle for row in (source[wait], target[following])]
    # Per wait two spans: of the needed task, or of the second task of its pair, and of the task that comes too early in the
    # order of its rank. These may be the same task.
    spans = [ordered.span(row) for row in rows]
    distinct = sorted(set(ranks))
    drawn = distinct[:MAX_SHOWN]
    stops = {rank: f"then {task_name(program, _stop(program, timing, rank))}" for rank in drawn}
    drawing = draw_timeline(program, timing.timeline(program), ranks=drawn, columns=100, stops=stops, bands=2).rstrip()
    help = suggest_edit(schedule, spans[1::2], trials, program) or _another_order(program)
    return ChimeraError(
        [
            Diagnostic(
                "E304",
                f"the order deadlocks: {cycle_fact(distinct)}",
                span=spans[1],
                label=f"orders {task_name(program, rows[1])}",
                notes=("\n".join(shown(notes, "waits")), *order_notes(spans), f"as far as these ranks get:\n{drawing}"),
                help=help or "move the needed task earlier" + (" on one of these ranks" if len(distinct) > 1 else ""),
                about=tuple(rows),
            )
        ]
    )


def _waits(program: Program, timing: Timing) -> tuple[Ints, Ints, int | None]:
    """Return (targets, sources) of the waits that are never satisfied, and the first row of an overlapped pair whose second
    task needs the result of its first; None if there is no such pair.

    A pair starts when both its tasks can start, and ends when both have ended. So the waits of both tasks count as waits of the
    first one, and waits for either task count as waits for the second one.
    """
    edges = data_edges(program, TaskIndex.of(program), hop=0)
    unsatisfied = timing.end[edges.source] < 0
    target, source = edges.target[unsatisfied], edges.source[unsatisfied]
    is_first = (program.table.flags & OVERLAP > 0).astype(np.int64)
    is_second = np.concatenate([[0], is_first[:-1]])
    within = np.flatnonzero(is_first[source].astype(bool) & (target == source + 1))
    return target - is_second[target], source + is_first[source], int(source[within[0]]) if len(within) else None


def _stop(program: Program, timing: Timing, rank: int) -> int:
    """Return the first row that a rank of the cycle cannot start."""
    a, b = program.offsets[rank : rank + 2].tolist()
    return int(a + np.count_nonzero(timing.end[a:b] >= 0))


def _another_order(program: Program) -> str:
    """Return the help with a change after which the order runs: tasks move earlier, or no tasks overlap, or both.

    Return '' if no such change was found.
    """
    repaired = repair_order(program)
    if repaired is not None:
        _, moves = repaired
        return moves_help(program, moves, "the order then runs")
    if not (program.table.flags & OVERLAP).any():
        return ""
    separate = replace(program, table=replace(program.table, flags=program.table.flags & ~OVERLAP))
    repaired = repair_order(separate)
    if repaired is None:
        return ""
    _, moves = repaired
    if not moves:
        return "overlap no tasks; tried: the order then runs"
    return f"overlap no tasks\n{moves_help(separate, moves, 'the order then runs')}"
