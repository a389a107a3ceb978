"""The search over orders: its results are those of brute force, and for two opposite pipes they are proved optimal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations, product

import pytest

from chimerac.compiler.search.bounds import rank_bounds
from chimerac.compiler.search.least_memory import Levels, least_memory
from chimerac.compiler.search.orders import search
from chimerac.compiler.search.problem import Pipe, Problem
from chimerac.compiler.search.sequences import Order
from tests.helpers_search import two_pipes

Task = tuple[int, int, int, str]  # pipe, stage, micro-batch, kind


def tiny(seed: int) -> Problem:
    """Return a problem that brute force can solve: two ranks, random costs, links and limits."""
    r = random.Random(seed)
    pipes, counts, kinds = r.choice(
        [
            ([(0, 1)], [3], "FB"),
            ([(0, 1)], [2], "FIW"),
            ([(0, 1), (1, 0)], [1, 1], "FIW"),
            ([(0, 1), (1, 0)], [2, 1], "FB"),
            ([(0, 1, 1, 0)], [1], "FIW"),
            ([(0, 1, 0)], [2], "FB"),
        ]
    )
    stages = len(pipes[0])
    activations = tuple(r.randint(0, 3) for _ in range(stages))
    unlimited = Problem(
        ranks=2,
        stages=stages,
        pipes=tuple(Pipe(f"p{k}", p, n) for k, (p, n) in enumerate(zip(pipes, counts, strict=True))),
        kinds=kinds,
        durations=tuple(tuple(r.randint(0, 5) for _ in range(stages)) for _ in kinds),
        links=((0, r.randint(0, 4)), (r.randint(0, 4), 0)),
        activations=activations,
        limits=(None, None),
    )
    return replace(unlimited, limits=tuple(x + r.randint(0, 3) for x in unlimited.least_limits()))


def least_makespan(problem: Problem) -> int:
    """Return the optimum, by trying every order of every rank, also those whose micro-batches do not ascend."""
    kinds, pipes = problem.kinds, problem.pipes
    tasks: list[list[Task]] = [[] for _ in range(problem.ranks)]
    for p, pipe in enumerate(pipes):
        for s, r in enumerate(pipe.placement):
            tasks[r] += [(p, s, m, k) for m in range(pipe.micro_batches) for k in kinds]

    def orders(r: int) -> Iterator[tuple[Task, ...]]:
        """Yield the orders of a rank within its limit. On each stage a micro-batch has its tasks in the order of `kinds`."""
        for order in permutations(tasks[r]):
            place = {task: i for i, task in enumerate(order)}
            if any(place[p, s, m, a] > place[p, s, m, b] for p, s, m, _ in order for a, b in pairwise(kinds)):
                continue
            held, limit = 0, problem.limits[r]
            for _, s, _, k in order:
                if k == kinds[0]:
                    held += problem.activations[s]
                if limit is not None and held > limit:
                    break
                if k == kinds[-1]:
                    held -= problem.activations[s]
            else:
                yield order

    def makespan(chosen: tuple[tuple[Task, ...], ...]) -> int:
        """Return the makespan of one order per rank, or a very large number if they deadlock."""
        end: dict[Task, int] = {}
        done, clock = [0] * problem.ranks, [0] * problem.ranks  # by rank: the number of its tasks that ended, and the time
        while any(done[r] < len(chosen[r]) for r in range(problem.ranks)):
            progress = False
            for r, order in enumerate(chosen):
                while done[r] < len(order):
                    p, s, m, k = task = order[done[r]]
                    waits = [] if k == "F" else [(p, s, m, kinds[kinds.index(k) - 1])]
                    if k == "F" and s > 0:
                        waits.append((p, s - 1, m, "F"))
                    if k == kinds[1] and s + 1 < problem.stages:
                        waits.append((p, s + 1, m, k))
                    if any(earlier not in end for earlier in waits):
                        break
                    ready = [clock[r]]
                    for earlier in waits:
                        source = pipes[p].placement[earlier[1]]
                        ready.append(end[earlier] + (problem.links[source][r] if source != r else 0))
                    clock[r] = end[task] = max(ready) + problem.durations[kinds.index(k)][s]
                    done[r], progress = done[r] + 1, True
            if not progress:
                return 10**9
        return max(end.values())

    return min(map(makespan, product(*(list(orders(r)) for r in range(problem.ranks)))))


@pytest.mark.parametrize("seed", range(40))
def test_the_search_proves_the_optimum_that_brute_force_finds(seed: int) -> None:
    problem = tiny(seed)
    optimum = least_makespan(problem)
    state = search(problem, known=[], seconds=20, seed=seed)
    assert state.best is not None
    assert max(b.value for b in rank_bounds(problem)) <= optimum
    assert (state.best.makespan, state.bound, state.is_proved) == (optimum, optimum, True)


@pytest.mark.parametrize("seed", range(40))
def test_the_search_proves_the_least_memory_that_brute_force_finds(seed: int) -> None:
    """Each rank may hold something besides activations, which counts too.

    Where tasks take no time the solver may prove too little. It then allows more than a limit at a single instant.
    """
    r, problem = random.Random(seed), tiny(seed)
    levels = Levels(problem, aside=(r.randint(0, 4), r.randint(0, 4)))
    makespan = least_makespan(problem) + r.choice([0, 0, 1, 3])
    highest = max(x + a for x, a in zip(problem.limits, levels.aside, strict=True) if x is not None)
    least = next(x for x in range(levels.least(), highest + 1) if least_makespan(levels.problem_at(x)) <= makespan)
    found = least_memory(levels, makespan, known=[], seconds=3, seed=seed)
    assert found.level == least and found.ruled_out < least
    assert found.is_proved or any(0 in column for column in problem.durations)
    assert found.state.best is not None and found.state.best.makespan <= makespan
    assert levels.of(found.state.best) == least


def test_ctrl_c_among_the_known_orders_ends_the_search() -> None:
    problem = two_pipes(ranks=4, total=8, kinds="FIW", hop=1, unit=10)
    order = search(problem, known=[], seconds=1).best
    assert order is not None

    def known() -> Iterator[tuple[str, Order]]:
        yield "given", order
        raise KeyboardInterrupt

    found = least_memory(Levels(problem, (0,) * 4), order.makespan, known(), seconds=600)
    assert found.state.is_interrupted and found.level is not None


def test_without_an_order_that_is_fast_enough_the_fastest_is_returned() -> None:
    problem = tiny(0)
    found = least_memory(Levels(problem, (0, 0)), least_makespan(problem) - 1, known=[], seconds=20)
    assert found.level is None and not found.is_proved
    assert found.state.best is not None and found.state.best.makespan == least_makespan(problem)


@pytest.mark.parametrize(
    ("problem", "makespan"),
    [
        (two_pipes(ranks=8, total=32, kinds="FB", hop=0), 108),
        (two_pipes(ranks=8, total=32, kinds="FIW", hop=0), 99),
        (two_pipes(ranks=4, total=4, kinds="FIW", hop=1, unit=10), 135),
        (two_pipes(ranks=8, total=16, kinds="FIW", hop=1, unit=10), 520),
    ],
    ids=["fused", "split", "four ranks and a hop", "eight ranks and a hop"],
)
def test_orders_for_the_placement_of_chimera_are_proved_optimal(problem: Problem, makespan: int) -> None:
    """For comparison: with the ranks and micro-batches of "fused", 1F1B takes 117, and Chimera by concatenation 126."""
    state = search(problem, known=[], seconds=60)
    assert state.best is not None
    assert (state.best.makespan, state.bound) == (makespan, makespan)
