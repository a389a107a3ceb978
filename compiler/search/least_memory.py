"""The least that a rank has to hold for a given makespan: searches within lower and lower limits.

A level stands for a limit of every rank: the level, less what the rank holds besides activations, but at most the rank's own
limit. If an order within the limits of a level reaches the makespan, the next level is lower. If none is found, it is between
this one and the last level that was reached. When no level is left between them, all are searched again, for longer. A level at
which the lower bound exceeds the makespan is ruled out, and so are all lower ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from chimerac.compiler.search.bounds import rank_bounds
from chimerac.compiler.search.orders import State, compile_loops, search
from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order, list_schedule

FIRST_SHARE = 1 / 20  # of the time that is left before the levels are searched: for one search within the limits of a level
LONGER = 2  # how many times as long the searches take when all levels are searched again

Named = tuple[str, Order]  # what found an order, in words, and the order


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels of a problem.

    Attributes:
        problem: its limits are the ranks' own.
        aside: what each rank holds besides activations.
    """

    problem: Problem
    aside: tuple[int, ...]

    def problem_at(self, level: int) -> Problem:
        """Return the problem with the limits of a level."""
        own = self.problem.limits
        return replace(
            self.problem,
            limits=tuple(level - a if x is None else min(x, level - a) for x, a in zip(own, self.aside, strict=True)),
        )

    def least(self) -> int:
        """Return the lowest level at which there is an order: the one that runs one micro-batch at a time."""
        return max(a + x for a, x in zip(self.aside, self.problem.least_limits(), strict=True))

    def of(self, order: Order) -> int:
        """Return the lowest level whose limits an order keeps."""
        return max(a + x for a, x in zip(self.aside, held_by_ranks(self.problem, order), strict=True))

    def ruled_out(self, makespan: int, top: int) -> int:
        """Return the highest level, below `top`, at which the bound of a rank exceeds a makespan; at least `least` - 1."""
        low, high = self.least() - 1, top
        while high - low > 1:
            middle = (low + high) // 2
            exceeds = max((b.value for b in rank_bounds(self.problem_at(middle))), default=0) > makespan
            low, high = (middle, high) if exceeds else (low, middle)
        return low


@dataclass
class LeastMemory:
    """What a search for the least memory knows.

    Attributes:
        makespan: the most that an order may take.
        state: with the best order, in the problem with the limits of its level; without a level, in the problem itself.
        level: of this order; None if no order was found that takes at most `makespan`.
        ruled_out: a level on which no order takes at most `makespan`.
        below: what a search knows of this level; None if not even one micro-batch at a time fits there.
        reached: of the known orders and the best order of each search, those that take at most `makespan`.
    """

    levels: Levels
    makespan: int
    state: State
    level: int | None = None
    ruled_out: int = -1
    below: State | None = None
    reached: list[Named] = field(default_factory=list)

    @property
    def is_proved(self) -> bool:
        """Return whether it is proved that no order that takes at most `makespan` is on a lower level."""
        return self.level is not None and self.level == self.ruled_out + 1

    def keep(self, order: Order, by: str) -> None:
        """Make an order that takes at most `makespan` the best one.

        Args:
            by: in words, what found it.
        """
        self.level = self.levels.of(order)
        problem = self.levels.problem_at(self.level)
        within_level = Order.of(problem, order.sequence, order.length)
        assert within_level is not None, "an order keeps the limits of its level"
        self.state = State(problem, rank_bounds(problem), is_interrupted=self.state.is_interrupted)
        self.state.offer(within_level, by)

    def rule_out(self, level: int, state: State | None = None) -> None:
        """Record that no order on a level takes at most `makespan`.

        Args:
            state: of the search on this level. None: the bounds of the ranks there are enough.
        """
        self.ruled_out = level
        if state is None and level >= self.levels.least():
            problem = self.levels.problem_at(level)
            state = State(problem, rank_bounds(problem))
        self.below = state


def held_by_ranks(problem: Problem, order: Order) -> list[int]:
    """Return the most that each rank holds at once."""
    t, most = problem.tasks, []
    for r in range(problem.ranks):
        rows = order.rows(r)
        most.append(int((np.cumsum(t.held[rows] - t.freed[rows]) + t.freed[rows]).max(initial=0)))
    return most


def least_memory(
    levels: Levels,
    makespan: int,
    known: Iterable[Named],
    seconds: float,
    seed: int = 0,
    report: Callable[[LeastMemory], None] = lambda found: None,
) -> LeastMemory:
    """Search for an order on the lowest level that takes at most `makespan`, and return what is known after some seconds.

    If its level is proved to be the lowest, the rest of the time is for a faster order on this level. If no order is found that
    takes at most `makespan`, the result has the fastest one that was found within the limits of the problem. Ctrl-C ends the
    search early, once an order is known. Before that, it raises KeyboardInterrupt.

    Args:
        makespan: at least the longest way through the tasks of a micro-batch.
        known: orders to begin with, within the limits of the problem.
        report: called from time to time.
    """
    compile_loops()
    begun, tried = time.monotonic(), list[Named]()

    def left() -> float:
        return seconds - (time.monotonic() - begun)

    def remembered() -> Iterator[Named]:
        for named in known:
            tried.append(named)
            yield named

    state = search(levels.problem, remembered(), seconds, seed, goal=makespan)
    found = LeastMemory(levels, makespan, state)
    if state.best is None or not state.reaches_goal:
        return found
    if all(order is not state.best for _, order in tried):
        tried.append((state.best_by, state.best))
    found.reached += [(name, order) for name, order in tried if order.makespan <= makespan]
    by, best = min(found.reached, key=lambda named: levels.of(named[1]))
    found.keep(best, by)
    try:
        _descend(found, tried, left, seed, report)
        if found.is_proved and left() > 0 and not (found.state.is_proved or found.state.is_interrupted):
            assert found.state.best is not None, "an order was kept"
            state = search(found.state.problem, [(found.state.best_by, found.state.best)], left(), seed)
            assert state.best is not None, "a search ends with an order"
            found.reached.append((state.best_by, state.best))
            state.known, found.state = None, state
    except KeyboardInterrupt:
        found.state.is_interrupted = True
    return found


def _descend(
    found: LeastMemory, tried: list[Named], left: Callable[[], float], seed: int, report: Callable[[LeastMemory], None]
) -> None:
    """Search on lower and lower levels until the time is over, Ctrl-C ends a search, or the lowest level is proved.

    Args:
        tried: the orders that are known. Those that are found are added.
    """
    assert found.level is not None, "an order was kept"
    levels, seconds, searches = found.levels, FIRST_SHARE * left(), 0
    step = min((x for x in levels.problem.activations if x), default=1)  # below this, two levels hardly differ
    found.rule_out(levels.ruled_out(found.makespan, found.level))
    failed = found.ruled_out  # the highest level on which no order was found
    while left() > 0 and not (found.is_proved or found.state.is_interrupted):
        if failed >= found.level - 1:
            failed, seconds = found.ruled_out, LONGER * seconds
        level = found.level - 1 if found.level - failed <= step else (found.level + failed) // 2
        problem = levels.problem_at(level)
        searches += 1
        state = search(
            problem,
            _within(problem, tried),
            min(seconds, left()),
            seed + searches,
            lambda _: report(found),
            goal=found.makespan,
        )
        if state.best is not None and state.reaches_goal:
            tried.append((state.best_by, state.best))
            found.reached.append((state.best_by, state.best))
            found.keep(state.best, state.best_by)
        else:
            failed = max(failed, level)
            if state.bound > found.makespan:
                found.rule_out(level, state)
        found.state.is_interrupted |= state.is_interrupted
        report(found)


def _within(problem: Problem, orders: Iterable[Named]) -> Iterator[Named]:
    """Yield the orders that keep the limits of the problem. In the place of each other one, yield one that is like it.

    A list scheduler makes that one: it prefers the tasks in the sequence in which the other order starts them. If it gets
    stuck, nothing is yielded.
    """
    for name, order in orders:
        if (same := Order.of(problem, order.sequence, order.length)) is not None:
            yield name, same
        elif (similar := list_schedule(problem, order.start)) is not None:
            yield "list scheduling", similar
