"""The parts of the search: bounds, folded problems, annealing, list scheduling, and orders of few micro-batches."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from chimerac.compiler.search import periodic
from chimerac.compiler.search.bounds import rank_bounds
from chimerac.compiler.search.fold import fold
from chimerac.compiler.search.orders import search
from chimerac.compiler.search.sequences import Order, anneal, greedy_orders, one_after_another
from tests.helpers_search import two_pipes, uniform


def test_the_limit_raises_the_bound_if_there_are_hops() -> None:
    """On D ranks, the first micro-batch reaches a middle rank after D/2 - 1 forwards and as many hops.

    Before its first W, the rank idles for at least D - 1 hops more, since it may run no more than D forwards until then.
    """
    for ranks, hop in ((8, 1), (8, 5), (16, 1)):
        problem = two_pipes(ranks, total=2 * ranks, kinds="FIW", hop=hop, unit=10)
        best = max(rank_bounds(problem), key=lambda b: b.value)
        assert best.head == (ranks // 2 - 1) * (10 + hop) + (ranks - 1) * hop and best.head_by == "limit"


def test_a_mirrored_problem_is_folded_in_the_middle() -> None:
    problem = two_pipes(ranks=4, total=8, kinds="FIW", hop=2, unit=10)
    half = fold(problem)
    assert half is not None and half.problem.ranks == 2 and len(half.problem.tasks) * 2 == len(problem.tasks)
    for order in greedy_orders(half.problem, seed=0, tries=30):
        whole = half.unfolded(order)
        assert whole is not None and whole.makespan == order.makespan
        for r in range(4):  # tasks of mirrored ranks start at the same times
            assert sorted(whole.start[whole.rows(r)].tolist()) == sorted(whole.start[whole.rows(3 - r)].tolist())


def test_a_problem_that_is_not_mirrored_or_has_too_low_limits_is_not_folded() -> None:
    problem = two_pipes(ranks=4, total=8, kinds="FIW", hop=2, unit=10)
    links = [list(row) for row in problem.links]
    links[0][1] = 3
    assert fold(replace(problem, links=tuple(map(tuple, links)))) is None
    assert fold(replace(problem, limits=(4, 4, 4, 5))) is None
    assert fold(uniform(pipes=[(0, 1, 2, 3)], counts=[4], kinds="FB", hop=0, limit=None)) is None
    assert fold(two_pipes(ranks=4, total=7, kinds="FB", hop=0)) is None  # pipes of three and four micro-batches
    assert fold(replace(problem, limits=(1,) * 4)) is None  # no rank can hold a micro-batch and its mirror image


@pytest.mark.parametrize("seed", range(6))
def test_incremental_times_are_those_of_the_whole_order(seed: int) -> None:
    r = random.Random(seed)
    kinds = r.choice(["FB", "FIW"])
    problem = two_pipes(ranks=4, total=r.randint(5, 12), kinds=kinds, hop=r.randint(0, 3), unit=4)
    order = one_after_another(problem)
    for k in range(20):
        last, best = anneal(problem, order, moves=500, hot=6.0, cold=0.1, target=0, seed=seed * 100 + k)
        assert best.makespan <= order.makespan  # `anneal` chooses the best one by incremental times
        for annealed in (last, best):
            again = Order.of(problem, annealed.sequence, annealed.length)
            assert again is not None and again.makespan == annealed.makespan
            tasks = np.concatenate([annealed.rows(rank) for rank in range(4)])
            assert sorted(tasks.tolist()) == list(range(len(problem.tasks)))
        order = last


def test_a_higher_limit_makes_the_best_greedy_order_no_slower() -> None:
    makespans = []
    for limit in (2, 3, 4, 8, None):
        down = tuple(range(4))
        problem = uniform([down, down[::-1]], counts=[4, 4], kinds="FIW", hop=1, limit=limit, unit=5)
        orders = [one_after_another(problem), *greedy_orders(problem, seed=0, tries=40)]
        assert len(orders) == 1 + 40  # no list scheduler got stuck
        makespans.append(min(x.makespan for x in orders))
    assert makespans == sorted(makespans, reverse=True)


def test_an_order_of_few_micro_batches_is_extended_to_many() -> None:
    problem = two_pipes(ranks=4, total=32, kinds="FIW", hop=1, unit=10)
    small = periodic.smaller(problem)
    assert small is not None and [p.micro_batches for p in small.pipes] == [4, 4]
    state = search(small, known=[], seconds=0.5)
    assert state.best is not None
    orders = list(periodic.extended(small, state.best, problem))
    assert orders and min(order.makespan for order in orders) < one_after_another(problem).makespan / 2
