"""The search: list scheduling, then simulated annealing, until a time limit, a goal or a proof.

For a small problem a solver and the annealing take turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from chimerac.compiler.search import periodic, solver
from chimerac.compiler.search.bounds import RankBound, rank_bounds
from chimerac.compiler.search.fold import fold
from chimerac.compiler.search.problem import Pipe, Problem
from chimerac.compiler.search.sequences import Order, anneal, greedy_orders, one_after_another

FIRST = 120  # list schedulers that are tried before the annealing begins
KEPT = 6  # how many of the best orders are kept, all different; annealings begin with them
FOLDED = 0.7  # share of the time that a folded problem gets
FOLDED_BESIDE_SOLVER = 0.3  # the same, if the whole problem is small enough for the solver
SLICE = 0.4  # seconds of an annealing between two looks at the clock and at Ctrl-C
TRIALS = 1_500_000  # the most trials of one annealing
TRIALS_PER_TASK = 5000  # and the most for each task of the problem
HOT, COLD = 0.15, 0.005  # temperatures at the beginning and the end of an annealing, in mean durations of a task


@dataclass
class State:
    """What a search knows so far.

    Attributes:
        bounds: of each rank that has tasks.
        best_by: in words, what found the best order.
        solver_bound: 0 if the solver has proved nothing.
        pool: the best orders, all different, at most `KEPT`.
        known: the makespan and the name of the best order that was known before the search, None if there was none.
        is_interrupted: Ctrl-C has ended the search.
        goal: a makespan that is short enough, so that no shorter one is wanted; None: the shortest one is wanted.
    """

    problem: Problem
    bounds: list[RankBound]
    best: Order | None = None
    best_by: str = ""
    solver_bound: int = 0
    pool: list[Order] = field(default_factory=list)
    known: tuple[int, str] | None = None
    is_interrupted: bool = False
    goal: int | None = None

    @property
    def bound(self) -> int:
        """Return the lower bound of the makespan."""
        return max([self.solver_bound, *(b.value for b in self.bounds)])

    @property
    def is_proved(self) -> bool:
        """Return whether it is proved that no order is faster than the best one."""
        return self.best is not None and self.best.makespan <= self.bound

    @property
    def reaches_goal(self) -> bool:
        """Return whether there is a goal, and the best order reaches it."""
        return self.goal is not None and self.best is not None and self.best.makespan <= self.goal

    @property
    def is_settled(self) -> bool:
        """Return whether nothing is left to search: the best order is fast enough, or no order reaches the goal."""
        return self.is_proved or self.reaches_goal or (self.goal is not None and self.bound > self.goal)

    def offer(self, order: Order, by: str) -> bool:
        """Keep an order if it is among the best; return whether it is faster than all before."""
        if all(order.makespan != x.makespan or (order.sequence != x.sequence).any() for x in self.pool):
            self.pool = sorted([*self.pool, order], key=lambda x: x.makespan)[:KEPT]
        if self.best is not None and order.makespan >= self.best.makespan:
            return False
        self.best, self.best_by = order, by
        return True


def search(
    problem: Problem,
    known: Iterable[tuple[str, Order]],
    seconds: float,
    seed: int = 0,
    report: Callable[[State], None] = lambda state: None,
    goal: int | None = None,
) -> State:
    """Search for some seconds and return what is known then, with the best order and the lower bound of the makespan.

    First the loops of the search are compiled, which takes some seconds in the first process on a host. This is not counted.
    Once an order is known, Ctrl-C ends the search early. Before that, it raises KeyboardInterrupt.

    Args:
        known: orders to begin with, as (name, order).
        report: called after each part of the search, and about every `SLICE` seconds while it anneals.
        goal: as in `State`, at least the longest way through the tasks of a micro-batch.

    The search also ends when an order reaches the goal, when the bound shows that none can, or when the best order is proved to
    be the fastest.
    """
    state = State(problem, rank_bounds(problem), goal=goal)
    compile_loops()
    begun = time.monotonic()

    def left() -> float:
        return seconds - (time.monotonic() - begun)

    try:
        for name, order in known:
            if state.offer(order, name):
                state.known = (order.makespan, name)
            if left() <= 0:
                break
        state.offer(one_after_another(problem), "one micro-batch after another")
        if state.is_settled:
            return state
        for _ in _searches(state, seed, left):
            report(state)
            if state.is_settled or left() <= 0:
                break
    except KeyboardInterrupt:
        if state.best is None:
            raise
        state.is_interrupted = True
    return state


def _searches(state: State, seed: int, left: Callable[[], float]) -> Iterator[None]:
    """Search the problem. If it is mirrored, search the folded one in turns with it, for a share of the time."""
    whole_turns = _turns(state, seed, left, with_solver=True)
    folded = fold(state.problem)
    if folded is None:
        yield from whole_turns
        return
    half = State(folded.problem, rank_bounds(folded.problem), goal=state.goal)
    half.offer(one_after_another(folded.problem), "one micro-batch after another")
    half_turns = _turns(half, seed, left, with_solver=False)
    spent = [0.0, 0.0]  # seconds: on the folded problem, on the whole one
    share = FOLDED_BESIDE_SOLVER if len(state.problem.tasks) <= solver.MOST_TASKS else FOLDED
    while left() > 0:
        is_half = spent[0] * (1 - share) <= spent[1] * share and not half.is_settled
        begun, before = time.monotonic(), half.best
        next(half_turns if is_half else whole_turns, None)
        if half.best is not None and half.best is not before:
            order = folded.unfolded(half.best)
            assert order is not None, "an unfolded order keeps the limits, as the folded one does"
            state.offer(order, f"{half.best_by}, for half of the ranks")
        spent[0 if is_half else 1] += time.monotonic() - begun
        yield


def compile_loops() -> None:
    """Search a tiny problem: numba compiles the loops when they are called first, and stores them for later processes."""
    tiny = Problem(
        ranks=1,
        stages=1,
        pipes=(Pipe("tiny", placement=(0,), micro_batches=2),),
        kinds="FB",
        durations=((1,), (1,)),
        links=((0,),),
        activations=(1,),
        limits=(None,),
    )
    for order in greedy_orders(tiny, seed=0, tries=1):
        anneal(tiny, order, moves=1, hot=1.0, cold=0.1, target=0, seed=0)


def _turns(state: State, seed: int, left: Callable[[], float], with_solver: bool) -> Iterator[None]:
    """Search one problem until the time is over, and yield at every point at which the search may end.

    Args:
        with_solver: whether the solver is used if the problem is small enough for it.
    """
    problem = state.problem
    yield from _list_scheduling(state, seed)
    assert state.best is not None, "the caller has offered an order"
    small = periodic.smaller(problem)
    small_state = None if small is None else State(small, rank_bounds(small))
    if small_state is not None:
        small_state.offer(one_after_another(small_state.problem), "one micro-batch after another")
        yield from _list_scheduling(small_state, seed)
    is_for_solver = with_solver and len(problem.tasks) <= solver.MOST_TASKS
    annealings, in_vain, solver_seconds = 0, 0, 1.0  # in_vain: annealings since the last better order
    while left() > 0:
        before = state.best.makespan
        if small_state is not None and annealings % 3 == 0:
            yield from _periodic_orders(state, small_state, annealings // 3, seed + annealings, left)
        begin = state.best if in_vain % 2 == 0 else state.pool[(in_vain // 2) % len(state.pool)]
        for order in _annealing(state, begin, seed + annealings, left, gentle=annealings % 2 == 1):
            state.offer(order, "annealing")
            yield
        annealings += 1
        in_vain = 0 if state.best.makespan < before else in_vain + 1
        if is_for_solver and in_vain >= 2 and left() > 1:
            solver_seconds *= 4
            if 2 * solver_seconds > left():  # too little is left for a longer turn after this one
                solver_seconds = left()
            solved = solver.solve(problem, state.best, state.bound, solver_seconds, seed, state.goal)
            state.solver_bound = max(state.solver_bound, solved.bound)
            if solved.order is not None and state.offer(solved.order, "the solver"):
                in_vain = 0
            yield


def _list_scheduling(state: State, seed: int) -> Iterator[None]:
    """Offer the orders of list schedulers, and yield after each."""
    for order in greedy_orders(state.problem, seed, FIRST):
        state.offer(order, "list scheduling")
        yield


def _periodic_orders(state: State, small: State, turn: int, seed: int, left: Callable[[], float]) -> Iterator[None]:
    """Anneal an order of the problem with fewer micro-batches. If its best order is new, offer orders that continue it.

    Args:
        small: what is known of that problem.
        turn: the number of earlier calls. At the first call every best order is new.
    """
    before = small.best
    for order in _annealing(small, small.pool[turn % len(small.pool)], seed, left):
        small.offer(order, "annealing")
        yield
    assert small.best is not None, "_turns has offered an order"
    if turn == 0 or small.best is not before:
        for order in periodic.extended(small.problem, small.best, state.problem):
            state.offer(order, "a repeated steady phase")
            yield


def _annealing(state: State, order: Order, seed: int, left: Callable[[], float], gentle: bool = False) -> Iterator[Order]:
    """Yield the best order of each slice of one annealing. After the first ones, a slice takes about `SLICE` seconds.

    Args:
        order: the one that the annealing begins with.
        gentle: begin at half the temperature.
    """
    t = state.problem.tasks
    unit = max(1.0, float(t.duration.mean()))
    hot, cold = HOT * unit / (2 if gentle else 1), COLD * unit
    trials = min(TRIALS, TRIALS_PER_TASK * len(t))
    done, size = 0, 20_000  # trials: those made so far, and those of the next slice
    while done < trials and left() > 0 and not state.is_settled:
        size = min(size, trials - done)
        high, low = (hot * (cold / hot) ** (x / trials) for x in (done, done + size))
        begun = time.monotonic()
        slice_seed = seed * 1009 + done % 1009
        target = max(state.bound, state.goal or 0)
        order, best = anneal(state.problem, order, size, hot=high, cold=low, target=target, seed=slice_seed)
        yield best
        done += size
        taken = max(1e-6, time.monotonic() - begun)
        size = max(2_000, min(4 * size, int(size * SLICE / taken)))
