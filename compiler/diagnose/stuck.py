"""Explain a greedy order that is stuck (E305): the ranks whose limits are full, and larger limits that were tried."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Span
from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.compiler.order.greedy import FORWARD, Counter, Scheduler, blocking_limit, run, scheduler_of, stuck_message
from chimerac.compiler.order.ordered import formatted, plus
from chimerac.compiler.resolve.spec import Bound

MAX_TRIED = 500_000  # tasks ordered in the search for a suggestion
MAX_RUNS = 40  # runs of the scheduler in the search for a suggestion
MAX_SHOWN = 8  # ranks that the finding names, at most


def explain_stuck(state: Scheduler) -> Diagnostic:
    """Return the finding E305 with the ranks whose limits are full, and with help."""
    h, notes = state.spec.header, []
    full = list(_full_limits(state))  # (rank, task, limit)
    for rank, task, limit in full:
        kind, key = divmod(task, state.keys)
        stage, m = divmod(key, h.micro_batches)
        for_others = limit.reserved - state.reserved[state.cell[key]] if kind == FORWARD else 0
        reserve = f", {for_others} reserved for other stages or pipes" if for_others else ""
        name = f"{FORMS[state.ops[kind]].letter} {h.pipes[state.cell[key] // h.stages].name} s{stage} m{m}"
        notes.append(f"rank {rank} has {limit.value} of {limit.bound}{reserve}: {name} may not start")
    _, _, first = full[0]
    if len(notes) > MAX_SHOWN:
        notes[MAX_SHOWN:] = [f"and {count_text(len(notes) - MAX_SHOWN, 'more rank')}"]
    return Diagnostic("E305", stuck_message(state), first.span, "this limit", notes=tuple(notes), help=_help(state, first))


def _full_limits(state: Scheduler) -> Iterator[tuple[int, int, Counter]]:
    """Yield the ranks that wait, each with its preferred task and a limit that forbids that task.

    An R that a limit forbids is left out, since no task waits for an R.
    """
    cells = len(state.counters)  # the index of a heap is: number of the kind of task x cells + cell
    for rank, heaps in enumerate(state.heaps):
        waiting = [(index, heap[0][1]) for index, heap in heaps.items() if heap and state.ops[index // cells] != Op.RECOMPUTE]
        if waiting:
            index, task = min(waiting, key=lambda w: state.priority[w[1]])
            limit = blocking_limit(state, task, *divmod(index, cells))
            assert limit is not None, "a ready task that no limit forbids would have started"
            yield rank, task, limit


def _help(state: Scheduler, first: Counter) -> str:
    """Return the help: larger limits that were tried, advice, or both.

    Args:
        first: the limit that the finding shows.
    """
    found = _sufficient_limits(state, first.span)
    backward = "F - W" if Op.BWD_WEIGHT in state.order.kinds else "F - B"
    advice = f"limit {backward} instead, a count that every backward lowers"
    is_lowered = min(first.weights) < 0  # whether some task lowers what the limit counts
    if not found:
        groups = f"{state.order.group} times " if state.order.group > 1 else ""
        room = f"let each limit be at least {groups}the number of pairs of pipe and stage that it counts"
        return room if is_lowered else f"{advice}; and {room}"
    texts = [f"line {bound.span.line}: write '{_text(bound)}'" for bound in found]
    help = f"{'; '.join(texts)}; tried: the scheduler then finishes"
    return help if is_lowered else f"{help}; or {advice}"


def _sufficient_limits(state: Scheduler, first: Span) -> list[Bound]:
    """Return limits, raised so that the scheduler finishes; [] if none was found.

    The limit `first` is raised by 1, 2, 4, ... If the scheduler then gets stuck only at limits that are not raised yet, these
    are raised too, by the same amount. Once it finishes, the least amount that is sufficient is searched for. A limit that is
    raised enough forbids nothing, so the search fails only if it exceeds MAX_RUNS, MAX_TRIED or what is left of the budget.

    Args:
        first: the span of the limit to raise first.
    """
    best: list[Bound] = []
    budget = state.budget.share()
    raised = {first}  # the limits that are raised
    low, amount = 0, 1  # the largest amount that was not sufficient; the one to try next
    for _ in range(min(MAX_RUNS, MAX_TRIED // state.tasks)):
        bounds = [_with_higher_bound(b, amount, raised) for b in state.order.bounds]
        try:
            tried = scheduler_of(state.spec, replace(state.order, bounds=tuple(bounds)), budget)
            run(tried)
            finished = not tried.remaining
        except ChimeraError:  # too many operations
            break
        full = set() if finished else {limit.span for _, _, limit in _full_limits(tried)}
        if finished:
            best, high = [b for b in bounds if b.span in raised], amount
        elif not best and full.isdisjoint(raised):
            raised |= full
            continue
        else:
            low = amount
        if best and high - low <= 1:
            break
        amount = (low + high) // 2 if best else 2 * amount
    return best


def _with_higher_bound(bound: Bound, amount: int, raised: Collection[Span]) -> Bound:
    """Return a limit, raised by an amount if its span is one of `raised`."""
    return replace(bound, value=plus(bound.value, amount)) if bound.span in raised else bound


def _text(bound: Bound) -> str:
    """Return a limit as it is written in a schedule."""
    signed = (f"{'-' if weight < 0 else '+'} {FORMS[op].letter}" for op, weight in bound.weights.items())
    counts = " ".join(signed).removeprefix("+ ")
    scope = "" if bound.scope == "rank" else f" per {bound.scope}"
    return f"limit {counts} <= {formatted(bound.value)}{scope}"
