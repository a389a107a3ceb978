"""Orders of a problem's tasks and their times, the first orders by list scheduling, and simulated annealing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chimerac.compiler.search import kernels, list_scheduling
from chimerac.compiler.search.problem import Ints, Problem


@dataclass(frozen=True, slots=True)
class Order:
    """The order of each rank's tasks, and what follows from it.

    sequence: [rank, place] -> task, `length` of them per rank; start: of each task; makespan: in the problem's integer times.
    """

    sequence: Ints
    length: Ints
    start: Ints
    makespan: int

    @staticmethod
    def of(problem: Problem, sequence: Ints, length: Ints) -> Order | None:
        """Return an order with its times; None if tasks wait for each other or a rank would hold more than its limit."""
        t = problem.tasks
        start, scratch = np.empty(len(t), np.int64), np.empty(len(t), np.int64)
        after = np.empty_like(sequence)
        if not kernels.holds(sequence, length, t.held, t.freed, problem.limit_of, after):
            return None
        makespan = kernels.times(sequence, length, t.duration, t.waits, t.delays, start, scratch)
        return None if makespan < 0 else Order(sequence, length, start, makespan)

    def rows(self, rank: int) -> Ints:
        """Return the tasks of a rank, in order."""
        return self.sequence[rank, : self.length[rank]]


def by_priority(problem: Problem, priority: Ints) -> Order | None:
    """Return the order in which each rank runs the task of the least priority first, of equal ones that of the least number.

    None if tasks wait for each other or a rank would hold more than its limit. priority: of each task.
    """
    t = problem.tasks
    length = np.bincount(t.rank, minlength=problem.ranks).astype(np.int64)
    sequence = np.zeros((problem.ranks, int(length.max())), np.int64)
    rows = np.lexsort((np.arange(len(t)), priority, t.rank))
    at = 0
    for r, n in enumerate(length.tolist()):
        sequence[r, :n] = rows[at : at + n]
        at += n
    return Order.of(problem, sequence, length)


def list_schedule(problem: Problem, priority: Ints, look_ahead: int = 0, caps: Ints | None = None) -> Order | None:
    """Return the order in which a list scheduler starts the tasks; None if it gets stuck.

    priority: of each task, the least goes first; look_ahead: how long a rank may stay idle for such a task while another could
    start; caps: for each cell, the most micro-batches between their forward and their input gradient, by default all.
    """
    t, kinds = problem.tasks, len(problem.kinds)
    series_count = len(t.cells) * kinds
    rank_of = [problem.pipes[p].placement[s] for p, s in t.cells for _ in range(kinds)]
    counts = np.bincount(rank_of, minlength=problem.ranks).astype(np.int64)
    series_on = np.zeros((problem.ranks, int(counts.max())), np.int64)
    filled = [0] * problem.ranks
    for a, r in enumerate(rank_of):
        series_on[r, filled[r]] = a
        filled[r] += 1
    size = np.repeat(np.diff(t.first) // kinds, kinds)
    first = np.repeat(t.first[:-1], kinds) + np.tile(np.arange(kinds), len(t.cells)) * size
    if caps is None:
        caps = np.full(series_count // kinds, np.iinfo(np.int64).max)
    length = np.zeros(problem.ranks, np.int64)
    sequence = np.zeros((problem.ranks, int(np.bincount(t.rank).max())), np.int64)
    is_complete = list_scheduling.list_schedule(
        series_on, counts, first, size, kinds, priority, look_ahead, caps, t.duration, t.waits, t.delays, t.feeds,
        t.rank, t.held, t.freed, problem.limit_of, sequence, length,
    )  # fmt: skip
    return Order.of(problem, sequence, length) if is_complete else None


def one_after_another(problem: Problem) -> Order:
    """Return the order that runs one micro-batch at a time, which holds the least."""
    t, kinds = problem.tasks, len(problem.kinds)
    kind, cell = t.series % kinds, t.series // kinds
    pipe, stage = np.array(t.cells, np.int64)[cell].T
    along = np.where(kind == 0, stage, 4 * problem.stages - 2 * stage + kind)
    turn = (t.micro_batch * len(problem.pipes) + pipe) * 8 * problem.stages
    found = by_priority(problem, turn + along)
    assert found is not None, "every limit allows one micro-batch at a time"
    return found


def greedy_orders(problem: Problem, seed: int, tries: int) -> Iterator[Order]:
    """Yield orders of list schedulers that prefer kinds, micro-batches and stages differently and look ahead differently.

    The first ones are the same for every seed, then come random combinations. tries: the number of schedulers. One that gets
    stuck yields nothing.
    """
    t, random = problem.tasks, np.random.default_rng(seed)
    kind, cell = t.series % len(problem.kinds), t.series // len(problem.kinds)
    stage = np.array([s for _, s in t.cells], np.int64)[cell]
    hop = max((x for row in problem.links for x in row), default=0)
    unit = max(1, int(np.mean(t.duration)))
    # The kinds by their index, the preferred one first: I F W, I W F, F I W; or B F, F B.
    orders = [(1, 0, 2), (1, 2, 0), (0, 1, 2)] if len(problem.kinds) == 3 else [(1, 0), (0, 1)]
    fair = _fair_caps(problem)
    first = [(o, slope, look, caps) for o in orders for caps in (None, fair) for look in (0, hop, unit) for slope in (0, -2, 2)]
    for order, slope, look, caps in first[:tries]:
        if (found := list_schedule(problem, _priority(kind, t.micro_batch, stage, order, slope), look, caps)) is not None:
            yield found
    for _ in range(tries - len(first)):
        order = orders[random.integers(len(orders))]
        look = int(random.integers(0, unit + hop + 1)) if random.random() < 0.5 else 0
        caps = None if random.random() < 0.4 else np.maximum(1, fair + random.integers(-2, 3))
        priority = _priority(kind, t.micro_batch, stage, order, int(random.integers(-8, 9)))
        priority = priority + random.integers(0, 1 + int(random.integers(1, 9)), len(priority))
        if (found := list_schedule(problem, priority, look, caps)) is not None:
            yield found


def _priority(kind: Ints, micro_batch: Ints, stage: Ints, order: Sequence[int], slope: int) -> Ints:
    """Return priorities: by the place of the kind in `order`, then by 4 m + slope x s, for micro-batch m and stage s.

    order: the kinds by their index, the preferred one first.
    """
    place = np.empty(len(order), np.int64)
    place[list(order)] = np.arange(len(order))
    found: Ints = place[kind] * 2**32 + 4 * micro_batch + slope * stage
    return found


def _fair_caps(problem: Problem) -> Ints:
    """Return for each cell an equal share of the limit of its rank, in micro-batches, at least 1."""
    t = problem.tasks
    counts = np.bincount([problem.pipes[p].placement[s] for p, s in t.cells], minlength=problem.ranks)
    caps = []
    for p, s in t.cells:
        rank, n = problem.pipes[p].placement[s], problem.pipes[p].micro_batches
        weight = problem.activations[s]
        caps.append(max(1, int(problem.limit_of[rank]) // int(counts[rank]) // weight) if weight else n)
    return np.array(caps, np.int64)


def anneal(
    problem: Problem, order: Order, moves: int, hot: float, cold: float, target: int, seed: int, reach: int = 12
) -> tuple[Order, Order]:
    """Return the last order of a simulated annealing that began with `order`, and the best one. See kernels.anneal."""
    t = problem.tasks
    sequence, best = order.sequence.copy(), order.sequence.copy()
    kernels.anneal(
        sequence, order.length, t.series, t.rank, t.duration, t.waits, t.delays, t.feeds, t.held, t.freed, problem.limit_of,
        t.tail, moves, reach, hot, cold, target, seed, best,
    )  # fmt: skip
    last, found = (Order.of(problem, x, order.length) for x in (sequence, best))
    assert last is not None and found is not None, "the annealing keeps the limits and makes no cycle"
    return last, found
