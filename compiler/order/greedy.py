"""The order form `greedy`: an event-driven list scheduler.

Whenever a rank is free, it chooses among its tasks whose inputs have arrived and that no limit forbids. The kind that
`prefer` names first wins; then the keys decide, then pipe, stage and micro-batch. So equal specs have equal orders. Of the
ready tasks of one kind, pipe and stage only the first by these rules is considered: if a limit forbids it, the others wait
too.

No task waits for an R: a backward that starts before its R runs the forward again itself, costs that much more, and the R is
left out. So with R last in `prefer`, an R starts only while the rank can start nothing else. Where `prefer` does not name R,
the cost of recomputation is not counted, and recomputation does not change the order.

A limit L on forwards has L places: one for each micro-batch that may be alive. It reserves some of them for every (pipe, stage)
in its scope that has forwards left: as many places as one forward takes (k where forwards are grouped by k, else 1), minus the
micro-batches alive there (forwards without their last backward), but not less than 0. A forward may not take the places that
are reserved for another (pipe, stage).

Let each limit be F - W <= L, F - B <= L, or one with R as its only kind with a plus sign. In those with F, let L be at least k
times the number of (pipe, stage) that are counted together. Then the scheduler never gets stuck. Proof: suppose that it is
stuck, with no task running and no value on its way. No limit forbids a backward, and nothing waits for an R. So every
micro-batch alive waits for a forward. In a pipe with micro-batches alive, take the deepest stage s whose forward one of them
waits for. A micro-batch alive at (pipe, s) would wait for a deeper stage, so none is alive there. Then k places are reserved
for (pipe, s), the forward may start, and the scheduler is not stuck. If nothing is alive anywhere, all places are free, and a
forward of stage 0 may start. The count plus the reserved places never exceeds L: a forward takes the places reserved for it, or
unreserved ones; a backward frees one place and may reserve one.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Span
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Ints
from chimerac.compiler.order.ordered import MicroBatchLists, Ordered, task_program
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import evaluate, values_at
from chimerac.compiler.resolve.spec import GreedyOrder, Spec

FORWARD, BACKWARD = 0, 1  # numbers of kinds: forwards, and the backwards B or I; `Scheduler.ops` has all kinds


@dataclass(slots=True)
class Counter:
    """One limit on one scope, and what it counts there.

    Attributes:
        weights: by kind.
        only_recomputed: only micro-batches whose forward an R has run again are counted.
        bound: the most that `value` may be.
        value: the count so far.
        reserved: the places reserved for all (pipe, stage) of its scope.
    """

    weights: tuple[int, ...]
    only_recomputed: bool
    bound: int
    span: Span
    value: int = 0
    reserved: int = 0


@dataclass(slots=True)
class Scheduler:
    """The state of the simulation.

    The number of a task is kind x keys + key, where key = stage x micro-batches + micro-batch. (The keys of `then` are another
    thing.) A forward over a group has the key of its first micro-batch.

    Attributes:
        remaining: how many tasks have not started, without those of kind R.
    """

    spec: Spec
    order: GreedyOrder
    budget: Budget
    ops: tuple[Op, ...]  # by kind
    last_backward: int  # the kind of the last backward of a micro-batch, B or W
    recomputation: int  # the kind R, -1 if there is none
    keys: int  # how many there are: stages x micro-batches
    rank: list[int]  # by key
    cell: list[int]  # by key: pipe x stages + stage
    priority: list[int]  # by task: of those that a rank may start, the one with the least number starts
    cost: list[int]  # by task
    size: list[int]  # by micro-batch: micro-batches of the forward that begins with this one, 0 if none does
    counters: list[list[Counter]]  # by cell
    forwards_left: list[int]  # by cell: micro-batches whose forwards have not started
    alive: list[int]  # by cell: micro-batches alive
    reserved: list[int]  # by cell: places reserved for it
    to_recompute: list[bool]  # by key: whether an R, or else the backward, has to run the forward again
    recomputed: list[bool]  # by key: whether an R has run the forward again
    remaining: int
    tasks: int  # `remaining` at the beginning
    heaps: list[dict[int, list[tuple[int, int]]]]  # by rank: kind x cells + cell -> (priority, task) of those ready


class SchedulerStuckError(ChimeraError):
    """The scheduler can start nothing, and tasks are left (E305)."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        super().__init__([Diagnostic("E305", stuck_message(scheduler), scheduler.order.span)])


def stuck_message(scheduler: Scheduler) -> str:
    """Return in words how far a stuck scheduler came."""
    started = scheduler.tasks - scheduler.remaining
    return f"the scheduler is stuck after {started} of {scheduler.tasks} tasks: limits forbid every task that would be next"


def order_greedily(spec: Spec, order: GreedyOrder, budget: Budget) -> Ordered:
    """Return the order in which the scheduler starts tasks.

    Raises ChimeraError: E305 (SchedulerStuckError) if tasks are left and it can start none of them; E205, E206 and E211
    (`evaluate`); E211 also if choosing the tasks takes more operations than the budget has left.
    """
    h = spec.header
    scheduler = scheduler_of(spec, order, budget)
    sequence = run(scheduler)
    if scheduler.remaining:
        raise SchedulerStuckError(scheduler)
    tasks = np.array([t for stream in sequence for t in stream], np.int64)
    kind, key = np.divmod(tasks, scheduler.keys)
    stage, ids = np.divmod(key, h.micro_batches)
    lists = MicroBatchLists(h.micro_batches)
    # By micro-batch m: the group that begins with m; (m,) if none does.
    groups = [tuple(range(m, m + max(size, 1))) for m, size in enumerate(scheduler.size)]
    list_of_forward = np.array([lists.number(group) for group in groups], np.int64)
    operand = np.where(kind == FORWARD, list_of_forward[ids], ids)
    op = np.array(scheduler.ops)[kind]
    offsets = np.concatenate([[0], np.cumsum([len(stream) for stream in sequence])])
    zeros = np.zeros(len(tasks), np.int64)
    pipe = _pipe_of(spec)[ids]
    program = task_program(spec, lists, op, pipe, stage, operand, overlap=zeros, offsets=offsets)
    return Ordered(program, origin=zeros, spans=(order.span,))


def _pipe_of(spec: Spec) -> Ints:
    """Return the pipe of every micro-batch."""
    pipe = np.zeros(spec.header.micro_batches, np.int64)
    for p, x in enumerate(spec.header.pipes):
        pipe[list(x.micro_batches)] = p
    return pipe


def scheduler_of(spec: Spec, order: GreedyOrder, budget: Budget) -> Scheduler:
    """Return the scheduler before it has started anything."""
    h = spec.header
    keys = h.stages * h.micro_batches
    stage, ids = np.divmod(np.arange(keys), h.micro_batches)
    pipe = _pipe_of(spec)[ids]
    first = np.array([p.micro_batches[0] if p.micro_batches else 0 for p in h.pipes], np.int64)
    local = ids - first[pipe]  # the number of the micro-batch in its pipe
    rank = np.array([p.placement for p in h.pipes], np.int64)[pipe, stage]
    split, recomputes = Op.BWD_WEIGHT in order.kinds, Op.RECOMPUTE in order.kinds
    ops = (Op.FWD, *((Op.BWD_INPUT, Op.BWD_WEIGHT) if split else (Op.BWD,)), *((Op.RECOMPUTE,) if recomputes else ()))
    env = {**order.env, "s": stage, "m": local, "p": pipe, "r": rank}
    key_columns = [values_at(k.value, env, keys, budget) * (-1 if k.larger else 1) for k in order.keys]
    place_of_kind = np.repeat([order.kinds.index(op) for op in ops], keys)  # by task: the place of its kind in `prefer`
    columns = [np.tile(x, len(ops)) for x in (ids, stage, pipe, *reversed(key_columns))]
    priority = np.empty(len(place_of_kind), np.int64)
    # np.lexsort compares by its last column first: by kind, then by the keys of `then`, and last by the micro-batch.
    priority[np.lexsort((*columns, place_of_kind))] = np.arange(len(place_of_kind))
    costs = {op: np.array(spec.costs.of(op), np.int64)[stage] for op in ops}
    count = np.array([len(p.micro_batches) for p in h.pipes], np.int64)[pipe]
    size = np.where(local % order.group == 0, np.minimum(order.group, count - local), 0)
    costs[Op.FWD] = costs[Op.FWD] * size
    cell, cells = pipe * h.stages + stage, len(h.pipes) * h.stages
    to_recompute = np.array(spec.recompute, bool)[pipe, stage] & recomputes
    tasks = keys * (2 if split else 1) + int((size > 0).sum())
    return Scheduler(
        spec,
        order,
        budget,
        ops,
        last_backward=2 if split else 1,
        recomputation=len(ops) - 1 if recomputes else -1,
        keys=keys,
        rank=rank.tolist(),
        cell=cell.tolist(),
        priority=priority.tolist(),
        cost=np.concatenate([costs[op] for op in ops]).tolist(),
        size=size[: h.micro_batches].tolist(),
        counters=_counters(spec, order, ops, budget),
        forwards_left=np.bincount(cell, minlength=cells).tolist(),
        alive=[0] * cells,
        reserved=[order.group if p.micro_batches else 0 for p in h.pipes for _ in range(h.stages)],
        to_recompute=to_recompute.tolist(),
        recomputed=[False] * keys,
        remaining=tasks,
        tasks=tasks,
        heaps=[{} for _ in range(h.ranks)],
    )


def _counters(spec: Spec, order: GreedyOrder, ops: tuple[Op, ...], budget: Budget) -> list[list[Counter]]:
    """Return the counters of each cell: one for each limit; none if its pipe has no micro-batches.

    Cells in one scope of a limit share its counter.
    """
    h = spec.header
    result: list[list[Counter]] = [[] for _ in range(len(h.pipes) * h.stages)]
    for bound in order.bounds:
        weights = tuple(bound.weights.get(op, 0) for op in ops)
        shared: dict[tuple[int, ...], Counter] = {}
        for p, pipe in enumerate(h.pipes):
            for s, r in enumerate(pipe.placement) if pipe.micro_batches else ():
                scope = {"rank": (r,), "stage": (r, s), "pipe": (r, p)}[bound.scope]
                if scope not in shared:
                    value = evaluate(bound.value, {**order.env, "r": r, "s": s, "p": p}, budget)
                    shared[scope] = Counter(weights, Op.RECOMPUTE in bound.weights, int(value), bound.span)
                shared[scope].reserved += order.group
                result[p * h.stages + s].append(shared[scope])
    return result


def blocking_limit(state: Scheduler, task: int, kind: int, cell: int) -> Counter | None:
    """Return a limit that forbids a task, given the places reserved for other cells; None if no limit forbids it."""
    size = state.size[task % len(state.size)] if kind == FORWARD else 1  # the remainder is the task's micro-batch
    for c in state.counters[cell]:
        weight = c.weights[kind]
        if weight > 0 and (not c.only_recomputed or _has_r(state, task, kind)):
            reserved_for_others = c.reserved - state.reserved[cell] if kind == FORWARD else 0
            if c.value + weight * (size + reserved_for_others) > c.bound:
                return c
    return None


def _has_r(state: Scheduler, task: int, kind: int) -> bool:
    """Return whether the task is an R, or of a micro-batch whose forward an R has run again."""
    return kind == state.recomputation or state.recomputed[task % state.keys]


def _pick(state: Scheduler, rank: int) -> int | None:
    """Return the task that a free rank starts, and remove it from its heap; None if the rank can start none."""
    best: tuple[int, int] | None = None
    best_index = -1  # of its heap
    cells, checks = len(state.counters), len(state.heaps[rank])
    for index, heap in state.heaps[rank].items():
        if state.recomputation >= 0 and index // cells == state.recomputation:
            while heap and not state.to_recompute[heap[0][1] % state.keys]:  # the backward has started before this R
                heapq.heappop(heap)
        if heap and (best is None or heap[0] < best):
            checks += len(state.counters[index % cells])
            if not blocking_limit(state, heap[0][1], index // cells, index % cells):
                best, best_index = heap[0], index
    state.budget.spend(checks // 8, state.order.span)
    if best is None:
        return None
    heapq.heappop(state.heaps[rank][best_index])
    return best[1]


def _start(state: Scheduler, task: int, kind: int, cell: int) -> None:
    """Update the counts for a task that starts."""
    size, key = 1, task % state.keys
    if kind == state.recomputation:
        state.recomputed[key], state.to_recompute[key] = True, False
    else:
        state.remaining -= 1
    if kind == FORWARD:
        size = state.size[task % len(state.size)]
        state.forwards_left[cell] -= size
        state.alive[cell] += size
    elif kind == state.last_backward:
        state.alive[cell] -= 1
    reserved = max(state.order.group - state.alive[cell], 0) if state.forwards_left[cell] else 0
    for c in state.counters[cell]:
        if not c.only_recomputed or _has_r(state, task, kind):
            c.value += c.weights[kind] * size
        c.reserved += reserved - state.reserved[cell]
    state.reserved[cell] = reserved


def run(state: Scheduler) -> list[list[int]]:
    """Run the scheduler; return every rank's tasks in the order of their starts. Tasks are missing if it gets stuck."""
    h, keys, n = state.spec.header, state.keys, state.spec.header.micro_batches
    split = Op.BWD_WEIGHT in state.ops
    first_recomputation = state.recomputation * keys  # the number of an R is this plus its key; negative if there is no R
    first_of_groups = [m for m in range(n) if state.size[m]]
    last_stage = keys - n  # the first key of the last stage
    # By task: how many of its inputs have not been computed. A forward needs the forward of the stage before, in stage 0 none.
    # A backward needs its forward and the backward of the stage after, in the last stage only its forward. A W needs its I, and
    # an R its forward.
    forwards, backwards, others = [0] * n + [1] * last_stage, [2] * last_stage + [1] * n, [1] * (keys * (len(state.ops) - 2))
    missing = forwards + backwards + others
    # By task: when the last of the inputs that have been computed arrives.
    arrival = [0] * (keys * len(state.ops))
    # (time, is a task, rank or task). At one time, first ranks become free, then tasks become ready, then ranks choose.
    events: list[tuple[int, int, int]] = [(0, 1, t) for t in first_of_groups]
    heapq.heapify(events)
    busy = [False] * h.ranks
    sequence: list[list[int]] = [[] for _ in range(h.ranks)]
    cells, hop = len(state.counters), state.spec.costs.hop
    while events:
        now = events[0][0]
        changed_ranks: set[int] = set()
        while events and events[0][0] == now:
            _, is_task, number = heapq.heappop(events)
            if is_task:
                kind, key = divmod(number, keys)
                rank = state.rank[key]
                heapq.heappush(
                    state.heaps[rank].setdefault(kind * cells + state.cell[key], []), (state.priority[number], number)
                )
                changed_ranks.add(rank)
            else:
                busy[number] = False
                changed_ranks.add(number)
        for rank in sorted(changed_ranks):
            if busy[rank]:
                continue
            task = _pick(state, rank)
            if task is None:
                continue
            kind, key = divmod(task, keys)
            _start(state, task, kind, state.cell[key])
            sequence[rank].append(task)
            busy[rank] = True
            end = now + state.cost[task]
            if kind == BACKWARD and state.to_recompute[key]:
                state.to_recompute[key] = False
                end += state.cost[first_recomputation + key]
            heapq.heappush(events, (end, 0, rank))
            if kind == FORWARD:
                successors = [task + n] if key < last_stage else []
                successors += range(task + keys, task + keys + state.size[task % n])
                if first_recomputation >= 0 and state.to_recompute[key]:
                    successors += range(first_recomputation + key, first_recomputation + key + state.size[task % n])
            elif kind == BACKWARD:
                successors = [task - n] if key >= n else []
                successors += [task + keys] if split else []
            else:
                successors = []
            for t in successors:
                arrives = end if state.rank[t % keys] == rank else end + hop
                arrival[t] = max(arrival[t], arrives)
                missing[t] -= 1
                if not missing[t]:
                    heapq.heappush(events, (arrival[t], 1, t))
    return sequence
