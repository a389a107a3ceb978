"""Orders of a problem's tasks with their times: from priorities, by list scheduling, and by simulated annealing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chimerac.compiler.search import kernels, list_scheduling
from chimerac.compiler.search.problem import Ints, Problem


@dataclass(frozen=True, slots=True)
class Order:
    """The order of each rank's tasks, and their times.

    sequence[r, i]: the i-th task of rank r; length[r]: how many tasks it has.

    Attributes:
        start: when each task starts.
        makespan: when the last one ends.

    Times are the problem's integers.
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
    """Return the order in which each rank runs its tasks by ascending priority, and tasks of equal priority by their numbers.

    None if tasks wait for each other or a rank would hold more than its limit.

    Args:
        priority: of each task.
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

    Args:
        priority: of each task, the least goes first.
        look_ahead: how much later the chosen task may start than the task of its rank that could start first.
        caps: for each cell, the most micro-batches whose forward has started and whose B or I has not; None: any number.
    """
    t, kinds = problem.tasks, len(problem.kinds)
    series_count = len(t.cells) * kinds
    rank_of = [problem.pipes[p].placement[s] for p, s in t.cells for _ in range(kinds)]
    counts = np.bincount(rank_of, minlength=problem.ranks).astype(np.int64)
    series_on = np.zeros((problem.ranks, int(counts.max())), np.int64)
    filled = [0] * problem.ranks
    for series, r in enumerate(rank_of):
        series_on[r, filled[r]] = series
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
    """Return the order that runs one micro-batch at a time. In no other order does a rank hold less at its peak."""
    t, kinds = problem.tasks, len(problem.kinds)
    kind, cell = t.series % kinds, t.series // kinds
    pipe, stage = np.array(t.cells, np.int64)[cell].T
    # Within a micro-batch: the F of all stages, then from the last stage to the first one its B, or its I and its W. This place
    # is less than 8 x stages.
    place = np.where(kind == 0, stage, 4 * problem.stages - 2 * stage + kind)
    micro_batch_place = (t.micro_batch * len(problem.pipes) + pipe) * 8 * problem.stages
    order = by_priority(problem, micro_batch_place + place)
    assert order is not None, "every limit allows one micro-batch at a time"
    return order


@dataclass(frozen=True, slots=True)
class Rule:
    """How a list scheduler chooses.

    Attributes:
        kind_order: the kinds by their index, the preferred one first.
        slope: how much a stage weighs, where a micro-batch weighs 4.
        look_ahead: as in `list_schedule`.
        has_caps: whether each cell has an equal share of the limit of its rank.
    """

    kind_order: tuple[int, ...]
    slope: int
    look_ahead: int
    has_caps: bool


def rules(problem: Problem) -> list[Rule]:
    """Return the rules of the list schedulers that are tried for every seed."""
    hop, unit = _hop_and_unit(problem)
    return [
        Rule(kind_order, slope, look_ahead, has_caps)
        for kind_order in _kind_orders(problem)
        for has_caps in (False, True)
        for look_ahead in (0, hop, unit)
        for slope in (0, -2, 2)
    ]


def by_rule(problem: Problem, rule: Rule) -> Order | None:
    """Return the order of a list scheduler; None if it gets stuck."""
    caps = _fair_caps(problem) if rule.has_caps else None
    return list_schedule(problem, _priority(problem, rule.kind_order, rule.slope), rule.look_ahead, caps)


def greedy_orders(problem: Problem, seed: int, tries: int) -> Iterator[Order]:
    """Yield orders of list schedulers: first those of `rules`, then others with random priorities, look-aheads and caps.

    Args:
        tries: the number of schedulers. One that gets stuck yields nothing.
    """
    fixed = rules(problem)[:tries]
    for rule in fixed:
        if (order := by_rule(problem, rule)) is not None:
            yield order
    random, fair = np.random.default_rng(seed), _fair_caps(problem)
    kind_orders, (hop, unit) = _kind_orders(problem), _hop_and_unit(problem)
    for _ in range(tries - len(fixed)):
        kind_order = kind_orders[random.integers(len(kind_orders))]
        look_ahead = int(random.integers(0, unit + hop + 1)) if random.random() < 0.5 else 0
        caps = None if random.random() < 0.4 else np.maximum(1, fair + random.integers(-2, 3))
        priority = _priority(problem, kind_order, int(random.integers(-8, 9)))
        priority = priority + random.integers(0, 1 + int(random.integers(1, 9)), len(priority))
        if (order := list_schedule(problem, priority, look_ahead, caps)) is not None:
            yield order


def _kind_orders(problem: Problem) -> list[tuple[int, ...]]:
    """Return sequences of the kinds by their index, the preferred one first: I F W, I W F, F I W; or B F, F B."""
    return [(1, 0, 2), (1, 2, 0), (0, 1, 2)] if len(problem.kinds) == 3 else [(1, 0), (0, 1)]


def _hop_and_unit(problem: Problem) -> tuple[int, int]:
    """Return the time of a message on the slowest link, and the mean time of a task, rounded down but at least 1."""
    return max((x for row in problem.links for x in row), default=0), max(1, int(np.mean(problem.tasks.duration)))


def _priority(problem: Problem, kind_order: Sequence[int], slope: int) -> Ints:
    """Return priorities: by the place of the kind in `kind_order`, then by 4 m + slope x s, for micro-batch m and stage s.

    Args:
        kind_order: the kinds by their index, the preferred one first.
    """
    t = problem.tasks
    kind, cell = t.series % len(problem.kinds), t.series // len(problem.kinds)
    stage = np.array([s for _, s in t.cells], np.int64)[cell]
    place = np.empty(len(kind_order), np.int64)
    place[list(kind_order)] = np.arange(len(kind_order))
    priority: Ints = place[kind] * 2**32 + 4 * t.micro_batch + slope * stage
    return priority


def _fair_caps(problem: Problem) -> Ints:
    """Return for each cell an equal share of the limit of its rank, in micro-batches, at least 1.

    For a stage that holds nothing, return the number of its micro-batches.
    """
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
    """Return the last order of a simulated annealing that began with `order`, and the best one.

    `kernels.anneal` describes the other parameters.
    """
    t = problem.tasks
    sequence, best = order.sequence.copy(), order.sequence.copy()
    kernels.anneal(
        sequence, order.length, t.series, t.rank, t.duration, t.waits, t.delays, t.feeds, t.held, t.freed, problem.limit_of,
        t.tail, moves, reach, hot, cold, target, seed, best,
    )  # fmt: skip
    last_order, best_order = (Order.of(problem, x, order.length) for x in (sequence, best))
    assert last_order is not None and best_order is not None, "the annealing keeps the limits and makes no cycle"
    return last_order, best_order
