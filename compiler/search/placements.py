"""Other placements: which rank runs which stage of a pipe.

With uneven stages, the given placement may give one rank more work than another. With uneven links, it may send messages over
slow ones. Two stages of a pipe may swap their ranks, and two ranks may swap all their stages. Every rank keeps its number of
stages of each pipe. Placements are compared by the orders of a few list schedulers, and where these take the same time, by how
equal the work of the ranks is. A better swap is kept. If there is none, a few random swaps of the best placement are made, and
the next swaps start from there. At the end the best placements are searched for a short time each.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf

import numpy as np

from chimerac.compiler.search.bounds import rank_bounds
from chimerac.compiler.search.orders import compile_loops, search
from chimerac.compiler.search.problem import Pipe, Problem
from chimerac.compiler.search.sequences import Order, Rule, by_rule, one_after_another, rules

COMPARED_BY = 6  # list schedulers: those with the best orders for the given placement
CLIMBING = 0.6  # share of the time in which swaps are tried
FINALISTS = 4  # placements that are searched in the rest of the time; the given one is one of them
RANDOM_SWAPS = 3  # made together where no single swap gives a better placement
IN_VAIN = 2000  # the climbing ends if more placements than this in a row are not new

Pipes = tuple[Pipe, ...]
Limits = Sequence[int | None]  # by rank


@dataclass
class Placed:
    """The best placement so far.

    Attributes:
        problem: with this placement.
        order: the best order that is known for it.
        known: the makespan and the name of the best order of the given placement that was known before the search, None if
            there was none.
        bound: a lower bound of the makespan that holds for every placement.
        is_interrupted: Ctrl-C has ended the search.
    """

    problem: Problem
    order: Order
    known: tuple[int, str] | None
    bound: int
    is_interrupted: bool = False

    def offer(self, problem: Problem, order: Order) -> None:
        """Keep a placement and its order if the order is faster than the best one."""
        if order.makespan < self.order.makespan:
            self.problem, self.order = problem, order


def best_placement(
    problem: Problem,
    known: Iterable[tuple[str, Order]],
    seconds: float,
    seed: int = 0,
    report: Callable[[Placed], None] = lambda placed: None,
    limits_for: Callable[[Pipes], Limits] | None = None,
) -> Placed:
    """Search for some seconds among placements, and return the best one. Each rank keeps its number of stages of each pipe.

    As in `orders.search`, the loops are compiled first, and Ctrl-C ends the search early.

    Args:
        problem: with the given placement.
        known: orders for it, as (name, order).
        report: called after each placement.
        limits_for: returns the limits of the ranks with another placement; None: the limits stay as they are.
    """
    compile_loops()
    begun = time.monotonic()

    def left(share: float = 1.0) -> float:
        """Return how many seconds are left of a share of the time."""
        return share * seconds - (time.monotonic() - begun)

    known = sorted(known, key=lambda x: x[1].makespan)
    first = known[0][1] if known else one_after_another(problem)
    placed = Placed(problem, first, (first.makespan, known[0][0]) if known else None, bound_of_every_placement(problem))
    try:
        climbed: dict[Pipes, tuple[int, Problem]] = {}  # by placement that has an order: its makespan, and the problem
        for moved, order in _climb(problem, limits_for or (lambda pipes: problem.limits), np.random.default_rng(seed)):
            if order is not None:
                climbed[moved.pipes] = (order.makespan, moved)
                placed.offer(moved, order)
            report(placed)
            if left(CLIMBING) <= 0 or placed.order.makespan <= placed.bound:
                break
        climbed.pop(problem.pipes, None)
        best = sorted(climbed.values(), key=lambda x: x[0])[: FINALISTS - 1]
        finalists = [problem, *(x for _, x in best)]
        for k, finalist in enumerate(finalists):
            if placed.order.makespan <= placed.bound:
                break
            state = search(finalist, known if k == 0 else [], left() / (len(finalists) - k), seed)
            assert state.best is not None, "a search ends with an order"
            placed.offer(finalist, state.best)
            report(placed)
            if state.is_interrupted:
                placed.is_interrupted = True
                break
    except KeyboardInterrupt:
        placed.is_interrupted = True
    return placed


def bound_of_every_placement(problem: Problem) -> int:
    """Return a lower bound of the makespan that holds for every placement.

    It is the largest of these bounds. Some rank computes for at least as long as the ranks do on average. And the makespan is
    at least the bound (bounds.py) of a rank that has one stage of one pipe alone, if messages take no time.
    """
    cells = problem.tasks.cells
    pipes = list(problem.pipes)
    for p in {p for p, _ in cells}:
        own = tuple(cells.index((p, s)) for s in range(problem.stages))  # a rank for each stage of each pipe
        pipes[p] = replace(pipes[p], placement=own)
    alone = replace(
        problem,
        ranks=len(cells),
        pipes=tuple(pipe for pipe in pipes if pipe.micro_batches),
        links=((0,) * len(cells),) * len(cells),
        limits=(None,) * len(cells),
    )
    return max(-(-sum(problem.busy()) // problem.ranks), *(b.value for b in rank_bounds(alone)))


def _climb(
    problem: Problem, limits_for: Callable[[Pipes], Limits], random: np.random.Generator
) -> Iterator[tuple[Problem, Order | None]]:
    """Yield the problem with the given placement, then problems with other placements; some may be yielded again.

    Each comes with the fastest order of the list schedulers, or None if they make no order. It ends after more than `IN_VAIN`
    placements in a row that are not new.
    """
    orders = [(rule, order) for rule in rules(problem) if (order := by_rule(problem, rule)) is not None]
    compared_by = [rule for rule, _ in sorted(orders, key=lambda x: x[1].makespan)[:COMPARED_BY]] or rules(problem)
    tried: dict[Pipes, tuple[Order | None, tuple[float, int]]] = {}  # by placement: its fastest order, and what is compared
    in_vain = 0  # placements since the last one that was new

    def evaluated(pipes: Pipes) -> tuple[Problem, Order | None]:
        """Return the problem with the placement of `pipes`, and its fastest order."""
        nonlocal in_vain
        in_vain = in_vain + 1 if pipes in tried else 0
        other = replace(problem, pipes=pipes, limits=tuple(limits_for(pipes)))
        if pipes not in tried:
            order = _fastest(other, compared_by)
            # Of placements with equal makespans, the one whose ranks have more equal work is better: where two ranks have too
            # much, a swap that relieves one of them leaves the makespan as it is.
            unevenness = sum(busy**2 for busy in other.busy())
            tried[pipes] = order, (inf if order is None else order.makespan, unevenness)
        return other, tried[pipes][0]

    def is_better(pipes: Pipes, than: Pipes) -> bool:
        return tried[pipes][1] < tried[than][1]

    here = best = problem.pipes
    while in_vain <= IN_VAIN:
        yield evaluated(here)
        swapped = list(_swapped(here))
        for k in random.permutation(len(swapped)):
            yield evaluated(swapped[k])
            if is_better(swapped[k], here):
                here = swapped[k]
                break
        else:
            best = here if is_better(here, best) else best
            here = best
            for _ in range(RANDOM_SWAPS if swapped else 0):
                choices = list(_swapped(here))
                here = choices[random.integers(len(choices))]


def _fastest(problem: Problem, compared_by: Sequence[Rule]) -> Order | None:
    """Return the fastest order of some list schedulers; None if a rank cannot hold one micro-batch, or if all get stuck."""
    if not problem.allows_one_micro_batch():
        return None
    orders = [order for rule in compared_by if (order := by_rule(problem, rule)) is not None]
    return min(orders, key=lambda x: x.makespan, default=None)


def _swapped(pipes: Pipes) -> Iterator[Pipes]:
    """Yield the placements in which two stages of a pipe have swapped their ranks, or two ranks all their stages.

    Two ranks swap all stages only if they have equally many of each pipe, and only if there are several pipes.
    """
    for p, pipe in enumerate(pipes):
        for a, b in combinations(range(len(pipe.placement)), 2):
            if pipe.placement[a] != pipe.placement[b]:
                placement = list(pipe.placement)
                placement[a], placement[b] = placement[b], placement[a]
                yield (*pipes[:p], replace(pipe, placement=tuple(placement)), *pipes[p + 1 :])
    counts = [Counter(pipe.placement) for pipe in pipes]
    for a, b in combinations(sorted({r for pipe in pipes for r in pipe.placement}), 2):
        if len(pipes) > 1 and all(count[a] == count[b] for count in counts):
            other = {a: b, b: a}
            yield tuple(replace(pipe, placement=tuple(other.get(r, r) for r in pipe.placement)) for pipe in pipes)
