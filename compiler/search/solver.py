"""The problem for a constraint solver, OR-tools CP-SAT, which proves small cases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import ceil

import numpy as np
from ortools.sat.python import cp_model

from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order, by_priority

MOST_TASKS = 600  # with more, the solver proves nothing within minutes
WORKERS = 4  # searches of different strategies that it runs at the same time


@dataclass(frozen=True, slots=True)
class Solved:
    """What the solver found within its time.

    bound: a lower bound of the makespan, 0 if it is not better than the known one; order: its best one, None if it found none.
    """

    bound: int
    order: Order | None


def solve(problem: Problem, best: Order, bound: int, seconds: float, seed: int) -> Solved:
    """Return what the solver finds within a time. best, bound: those that are known, from which it begins."""
    model, start, makespan = _model(problem, best.makespan)
    for x, variable in start.items():
        model.add_hint(variable, int(best.start[x]))
    model.add(makespan >= bound)
    model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.1, seconds)
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False
    status = _status(solver, model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(0, None)
    order = _in_order_of_time(problem, [solver.value(start[x]) for x in range(len(start))])
    proved = ceil(solver.best_objective_bound - 1e-6)
    return Solved(proved if proved > bound else 0, order)


def _status(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Return the status of a solver that runs in a thread of its own: so Ctrl-C reaches this one, and stops it."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(solver.solve, model)
        try:
            while not running.done():
                wait([running], timeout=0.2)
        except KeyboardInterrupt:
            while not running.done():  # a solver that has not begun yet ignores the first call
                solver.stop_search()
                wait([running], timeout=0.1)
            raise
        return running.result()


def _model(problem: Problem, horizon: int) -> tuple[cp_model.CpModel, dict[int, cp_model.IntVar], cp_model.IntVar]:
    """Return a model of a problem, the starts of its tasks and its makespan. horizon: an upper bound of all times."""
    t, kinds = problem.tasks, len(problem.kinds)
    model = cp_model.CpModel()
    makespan = model.new_int_var(0, horizon, "makespan")
    start = {x: model.new_int_var(int(t.head[x]), horizon, f"s{x}") for x in range(len(t))}
    end = {x: start[x] + int(t.duration[x]) for x in start}
    for x in start:
        for y, delay in zip(t.waits[x].tolist(), t.delays[x].tolist(), strict=True):
            if y >= 0:
                model.add(start[x] >= end[y] + delay)
        if x and t.series[x] == t.series[x - 1]:
            model.add(start[x] >= end[x - 1])
        model.add(makespan >= end[x] + int(t.tail[x]))
    for r in range(problem.ranks):
        rows = np.flatnonzero(t.rank == r).tolist()
        model.add_no_overlap([model.new_fixed_size_interval_var(start[x], int(t.duration[x]), f"i{x}") for x in rows])
        if problem.limits[r] is None:
            continue
        kept, weights = [], []
        for x in rows:
            if t.series[x] % kinds == 0 and t.held[x]:
                last = t.number(int(t.series[x]) // kinds, kinds - 1, int(t.micro_batch[x]), kinds)
                length = model.new_int_var(0, horizon, f"l{x}")
                kept.append(model.new_interval_var(start[x], length, end[last], f"k{x}"))
                weights.append(int(t.held[x]))
        model.add_cumulative(kept, weights, int(problem.limit_of[r]))
    return model, start, makespan


def _in_order_of_time(problem: Problem, start: list[int]) -> Order | None:
    """Return the order of tasks that start at these times.

    Tasks that cost nothing may start together with others on their rank. They come first, those that free something before
    those that hold something, and each after what it waits for. None if no such order keeps the limits.
    """
    t, holding = problem.tasks, [0] * problem.ranks
    place = np.zeros(len(t), np.int64)
    left = sorted(range(len(t)), key=lambda x: (start[x], int(t.duration[x]) > 0, -(int(t.series[x]) % len(problem.kinds))))
    is_done = [False] * len(t)
    for turn in range(len(t)):
        ready = (x for x in left if all(y < 0 or is_done[y] for y in t.waits[x].tolist()))
        fitting = (x for x in ready if holding[t.rank[x]] + t.held[x] <= problem.limit_of[t.rank[x]])
        x = next(fitting, -1)
        if x < 0 or start[x] > start[left[0]]:
            return None
        holding[t.rank[x]] += int(t.held[x] - t.freed[x])
        place[x], is_done[x] = turn, True
        left.remove(x)
    return by_priority(problem, place)
