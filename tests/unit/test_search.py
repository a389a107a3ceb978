"""The search over orders: against brute force, its bounds, its parts, and the texts of its results."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations, product

import numpy as np
import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.exchange.listing_text import folded, pipe_names, with_suffix
from chimerac.compiler.search import periodic
from chimerac.compiler.search.bounds import rank_bounds
from chimerac.compiler.search.fold import fold
from chimerac.compiler.search.given import Given
from chimerac.compiler.search.orders import search
from chimerac.compiler.search.problem import Pipe, Problem
from chimerac.compiler.search.sequences import Order, anneal, greedy_orders, one_after_another
from chimerac.compiler.search.solver import solve
from chimerac.compiler.search.start import library_orders, order_of, problem_of
from chimerac.compiler.search.text import schedule_text
from tests.helpers_command import SIGINT_ON
from tools import ROOT
from tools.bench_search import FOLDER, GROUPS, settings_of, stored, with_shipped

Task = tuple[int, int, int, str]  # pipe, stage, micro-batch, kind


def uniform(pipes: list[tuple[int, ...]], counts: list[int], kinds: str, hop: int, limit: int | None, unit: int = 1) -> Problem:
    """Return a problem of equal stages: F, I and W take `unit`, and B takes twice as long.

    pipes, counts: the placement of every pipe, and its number of micro-batches; kinds: "FB" or "FIW".
    """
    ranks, stages = max(max(p) for p in pipes) + 1, len(pipes[0])
    costs = {"F": unit, "B": 2 * unit, "I": unit, "W": unit}
    return Problem(
        ranks,
        stages,
        tuple(Pipe(f"p{k}", p, n) for k, (p, n) in enumerate(zip(pipes, counts, strict=True))),
        kinds,
        tuple((costs[k],) * stages for k in kinds),
        ((hop,) * ranks,) * ranks,
        (1,) * stages,
        (limit,) * ranks,
        Fraction(unit),
    )


def two_pipes(ranks: int, total: int, kinds: str, hop: int, unit: int = 1) -> Problem:
    """Return a problem of two opposite pipes with `total` micro-batches. A rank may hold as many as there are ranks."""
    down = tuple(range(ranks))
    return uniform([down, down[::-1]], [total // 2, total - total // 2], kinds, hop, ranks, unit)


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
    weights = tuple(r.randint(0, 3) for _ in range(stages))
    free = Problem(
        2,
        stages,
        tuple(Pipe(f"p{k}", p, n) for k, (p, n) in enumerate(zip(pipes, counts, strict=True))),
        kinds,
        tuple(tuple(r.randint(0, 5) for _ in range(stages)) for _ in kinds),
        ((0, r.randint(0, 4)), (r.randint(0, 4), 0)),
        weights,
        (None, None),
    )
    limits = tuple(x + r.randint(0, 3) for x in free.least_limits())
    return Problem(2, stages, free.pipes, kinds, free.durations, free.links, weights, limits)


def least_makespan(problem: Problem) -> int:
    """Return the optimum, by trying every order of every rank, also those whose micro-batches do not ascend."""
    kinds, pipes = problem.kinds, problem.pipes
    tasks: list[list[Task]] = [[] for _ in range(problem.ranks)]
    for p, pipe in enumerate(pipes):
        for s, r in enumerate(pipe.placement):
            tasks[r] += [(p, s, m, k) for m in range(pipe.micro_batches) for k in kinds]

    def orders(r: int) -> Iterator[tuple[Task, ...]]:
        """Yield the orders of a rank in which no kind of task is before its predecessor and no limit is exceeded."""
        for order in permutations(tasks[r]):
            place = {x: i for i, x in enumerate(order)}
            if any(place[p, s, m, a] > place[p, s, m, b] for p, s, m, _ in order for a, b in pairwise(kinds)):
                continue
            held, limit = 0, problem.limits[r]
            for _, s, _, k in order:
                held += problem.weights[s] * (k == kinds[0])
                if limit is not None and held > limit:
                    break
                held -= problem.weights[s] * (k == kinds[-1])
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
                    p, s, m, k = x = order[done[r]]
                    waits = [(p, s, m, kinds[kinds.index(k) - 1])] * (k != "F")
                    waits += [(p, s - 1, m, "F")] * (k == "F" and s > 0)
                    waits += [(p, s + 1, m, k)] * (k == kinds[1] and s + 1 < problem.stages)
                    if any(y not in end for y in waits):
                        break
                    ready = [clock[r]]
                    for y in waits:
                        source = pipes[p].placement[y[1]]
                        ready.append(end[y] + (problem.links[source][r] if source != r else 0))
                    clock[r] = end[x] = max(ready) + problem.durations[kinds.index(k)][s]
                    done[r], progress = done[r] + 1, True
            if not progress:
                return 10**9
        return max(end.values())

    return min(map(makespan, product(*(list(orders(r)) for r in range(problem.ranks)))))


@pytest.mark.parametrize("seed", range(40))
def test_tiny_problems_are_solved_and_proved_as_by_brute_force(seed: int) -> None:
    problem = tiny(seed)
    optimum = least_makespan(problem)
    state = search(problem, [], 20, seed)
    assert state.best is not None
    assert max(b.value for b in rank_bounds(problem)) <= optimum
    assert (state.best.makespan, state.bound, state.is_proved) == (optimum, optimum, True)


@pytest.mark.parametrize(
    ("problem", "makespan"),
    [
        (two_pipes(8, 32, "FB", 0), 108),
        (two_pipes(8, 32, "FIW", 0), 99),
        (two_pipes(4, 4, "FIW", 1, unit=10), 135),
        (two_pipes(8, 16, "FIW", 1, unit=10), 520),
    ],
    ids=["fused", "split", "small", "hop"],
)
def test_published_placements_are_proved_optimal(problem: Problem, makespan: int) -> None:
    """1F1B takes 117 at the first setting, and Chimera by concatenation 126."""
    state = search(problem, [], 60)
    assert state.best is not None
    assert (state.best.makespan, state.bound) == (makespan, makespan)


def test_the_limit_raises_the_bound_if_there_are_hops() -> None:
    """The first micro-batch reaches a middle rank after (D/2 - 1) forwards and hops.

    The rank then idles for (D - 1) hops more, since it may run no more than D forwards before its first W.
    """
    for ranks, hop in ((8, 1), (8, 5), (16, 1)):
        problem = two_pipes(ranks, 2 * ranks, "FIW", hop, unit=10)
        best = max(rank_bounds(problem), key=lambda b: b.value)
        assert best.head == (ranks // 2 - 1) * (10 + hop) + (ranks - 1) * hop and best.head_by == "limit"


def test_a_mirrored_problem_is_folded_in_the_middle() -> None:
    problem = two_pipes(4, 8, "FIW", 2, unit=10)
    half = fold(problem)
    assert half is not None and half.problem.ranks == 2 and len(half.problem.tasks) * 2 == len(problem.tasks)
    for order in greedy_orders(half.problem, 0, 30):
        whole = half.unfolded(order)
        assert whole is not None and whole.makespan == order.makespan
        for r in range(4):  # mirrored ranks do the same at the same times
            assert sorted(whole.start[whole.rows(r)].tolist()) == sorted(whole.start[whole.rows(3 - r)].tolist())


def test_a_problem_that_is_not_mirrored_or_has_too_low_limits_is_not_folded() -> None:
    problem = two_pipes(4, 8, "FIW", 2, unit=10)
    links = [list(row) for row in problem.links]
    links[0][1] = 3
    assert fold(replace(problem, links=tuple(map(tuple, links)))) is None
    assert fold(replace(problem, limits=(4, 4, 4, 5))) is None
    assert fold(uniform([(0, 1, 2, 3)], [4], "FB", 0, None)) is None
    assert fold(two_pipes(4, 7, "FB", 0)) is None  # pipes of three and four micro-batches
    assert fold(replace(problem, limits=(1,) * 4)) is None  # no rank can hold a micro-batch and its mirror image


@pytest.mark.parametrize(
    ("name", "parameters"), [("chimera_any", {"D": 2, "N": 1}), ("gems", {"D": 4, "N": 4}), ("1f1b", {"D": 1, "N": 3})]
)
def test_unusual_placements_are_searched(name: str, parameters: dict[str, int]) -> None:
    """A pipe without micro-batches, a limit of one micro-batch, one rank."""
    problem = problem_of(compile_schedule(name, parameters).program, Given())
    state = search(problem, [], 0.5)
    assert state.best is not None
    _, compiled = schedule_text(problem, state.best, "found", [], [])
    assert simulate(compiled.program).makespan == state.best.makespan


@pytest.mark.parametrize("seed", range(6))
def test_incremental_times_are_those_of_the_whole_order(seed: int) -> None:
    r = random.Random(seed)
    kinds = r.choice(["FB", "FIW"])
    problem = two_pipes(4, r.randint(5, 12), kinds, r.randint(0, 3), unit=4)
    order = one_after_another(problem)
    for k in range(20):
        last, best = anneal(problem, order, 500, 6.0, 0.1, 0, seed * 100 + k)
        assert best.makespan <= order.makespan  # the best one is chosen by its incremental time
        for found in (last, best):
            again = Order.of(problem, found.sequence, found.length)
            assert again is not None and again.makespan == found.makespan
            assert sorted(np.concatenate([found.rows(x) for x in range(4)]).tolist()) == list(range(len(problem.tasks)))
        order = last


def test_a_higher_limit_makes_the_best_greedy_order_no_slower() -> None:
    makespans = []
    for limit in (2, 3, 4, 8, None):
        down = tuple(range(4))
        problem = uniform([down, down[::-1]], [4, 4], "FIW", 1, limit, unit=5)
        orders = [one_after_another(problem), *greedy_orders(problem, 0, 40)]
        assert len(orders) == 41  # no list scheduler got stuck
        makespans.append(min(x.makespan for x in orders))
    assert makespans == sorted(makespans, reverse=True)


def test_an_order_of_few_micro_batches_is_continued() -> None:
    problem = two_pipes(4, 32, "FIW", 1, unit=10)
    small = periodic.smaller(problem)
    assert small is not None and [p.micro_batches for p in small.pipes] == [4, 4]
    state = search(small, [], 0.5)
    assert state.best is not None
    found = list(periodic.extended(small, state.best, problem))
    assert found and min(x.makespan for x in found) < one_after_another(problem).makespan / 2


@pytest.mark.parametrize("name", ["1f1b", "chimera_zb", "gpipe", "zb_v", "gems"])
def test_a_text_compiles_to_its_order(name: str) -> None:
    """A schedule of the library is read as an order and written as a listing: it has the same order and is no slower."""
    program = compile_schedule(name, {"D": 4, "N": 8}).program
    problem = problem_of(program, Given(hop=Fraction(1, 2)))
    order = order_of(problem, program)
    assert order is not None
    text, compiled = schedule_text(problem, order, "again", ["a comment"], ["sync eager"])
    assert len(text) < 6000
    before = simulate(program, {"hop": 0.5})
    assert Fraction(simulate(compiled.program).makespan) / problem.scale <= Fraction(before.makespan, before.scale)
    assert order_of(problem_of(compiled.program, Given()), compiled.program) is not None
    found = order_of(problem, compiled.program)
    assert found is not None and (found.sequence == order.sequence).all() and found.makespan == order.makespan


def test_the_library_gives_first_orders() -> None:
    program = compile_schedule("1f1b", {"D": 4, "N": 8}).program
    names = [name for name, _ in library_orders(problem_of(program, Given(split=True)))]
    assert {"1f1b", "zb_h1"} <= set(names) and not {"gpipe", "zb_h2"} & set(names)  # more than four activations
    chimera = compile_schedule("chimera", {"D": 4, "N": 8}).program
    assert {"chimera", "chimera_zb"} <= {name for name, _ in library_orders(problem_of(chimera, Given(split=True)))}


def test_repetitions_are_folded() -> None:
    words = list("ab" * 3 + "c" + "d" * 4 + "xyxyz" * 2)
    assert folded(words) == [(3, ["a", "b"]), "c", (4, ["d"]), (2, ["x", "y", "x", "y", "z"])]


def test_names_of_pipes_are_distinct_and_no_longer_than_names_may_be() -> None:
    assert pipe_names(["down[0]", "F", "order", "down_0"]) == ["down_0", "F_", "order_", "down_0_"]
    long = "x" * 64
    assert pipe_names([long, f"{long}[0]", f"{long}[1]"]) == [long, "x" * 63 + "_", "x" * 62 + "__"]
    assert with_suffix(long, "_found") == "x" * 58 + "_found"


@pytest.mark.parametrize("group", GROUPS)
def test_the_settings_that_were_searched_are_drawn_from_their_seeds(group: str) -> None:
    rows = json.loads((FOLDER / f"{group}.json").read_text(encoding="utf-8"))
    assert [{k: v for k, v in row.items() if k != "found"} for row in rows] == [vars(s) for s in settings_of(group)]


@pytest.mark.parametrize("group", GROUPS)
def test_the_results_of_searches_are_between_the_bound_and_the_library(group: str) -> None:
    for setting, found in zip(settings_of(group), stored(group), strict=True):
        problem = setting.problem()
        bound = float(max(b.value for b in rank_bounds(problem)) / problem.scale)
        assert bound <= found["bound"] <= found["makespan"] and found["proved"] == (found["bound"] == found["makespan"])
        assert found["shipped_makespan"] is None or found["makespan"] <= found["shipped_makespan"]


@pytest.mark.parametrize(("group", "row"), [("published", 5), ("uneven", 5), ("small", 12)])
def test_the_shipped_schedules_of_the_tables_are_those_of_the_library(group: str, row: int) -> None:
    found = stored(group)[row]
    assert with_shipped(settings_of(group)[row], found) == found


def test_a_program_without_backwards_is_refused() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    with pytest.raises(ChimeraError, match="forwards only"):
        problem_of(replace(program, header=replace(program.header, kind="evaluation")), Given())


def test_the_solver_returns_a_bound_only_if_it_is_higher_than_the_given_one() -> None:
    problem = two_pipes(4, 4, "FB", 0)
    optimum = search(problem, [], 20)
    assert optimum.best is not None and optimum.best.makespan == optimum.bound
    assert solve(problem, optimum.best, optimum.bound, 20, 0).bound == 0


UNPROVED = 494  # the bound of the ranks for two_pipes(4, 16, "FIW", 1, unit=10); an hour does not prove more


def test_ctrl_c_stops_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the solver has begun: `solve` ends at once, although it may take an hour."""
    problem = two_pipes(4, 16, "FIW", 1, unit=10)
    calls = []

    def interrupted(running: list[Future[object]], timeout: float) -> None:
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        wait(running, timeout)

    monkeypatch.setattr("chimerac.compiler.search.solver.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(problem, one_after_another(problem), UNPROVED, 3600, 0)
    assert len(calls) > 1


INTERRUPTED = """
import os, signal, threading
from chimerac.compiler.search.sequences import one_after_another
from chimerac.compiler.search.solver import solve
from tests.unit.test_search import UNPROVED, two_pipes

problem = two_pipes(4, 16, "FIW", 1, unit=10)
order = one_after_another(problem)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    solve(problem, order, UNPROVED, 3600, 0)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_stops_the_solver() -> None:
    """In a process of its own, where the test is in the main thread: the solver catches no signals itself."""
    command = [sys.executable, "-c", INTERRUPTED]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=SIGINT_ON, timeout=100)
    assert completed.stdout.split() == ["interrupted"], completed.stderr
