"""A search with a constraint solver, OR-tools CP-SAT: for a small problem it may find a better order or a higher bound.

Where tasks take no time, its model allows a rank to exceed its limit at a single instant. So there its bound may be lower than
it could be.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from math import ceil

import numpy as np
from ortools.sat.python import cp_model

from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order, by_priority

MOST_TASKS = 600  # with more tasks, the solver proves nothing within minutes
WORKERS = 8  # strategies that the solver runs at the same time; with fewer it proves much less, also on two processors


@dataclass(frozen=True, slots=True)
class Solved:
    """What the solver found within its time.

    Attributes:
        bound: a lower bound of the makespan: goal + 1 if it proved that no order reaches the goal; otherwise 0 if it found no
            order, or proved nothing better than the known bound.
        order: its best one, None if it found none, or if no sequence of tasks was found for its times.
    """

    bound: int
    order: Order | None


def solve(problem: Problem, best: Order, bound: int, seconds: float, seed: int, goal: int | None = None) -> Solved:
    """Return what the solver finds within a time.

    Args:
        best, bound: the best known order and lower bound, from which it begins; with a goal, only from the bound.
        goal: a makespan below that of `best`. Then the solver is asked for any order that reaches it, or for a proof that there
            is none, which is the bound goal + 1. None: it is asked for the fastest order.
    """
    model, start, makespan = _model(problem, best.makespan if goal is None else goal)
    model.add(makespan >= bound)
    if goal is None:
        for x, variable in start.items():
            model.add_hint(variable, int(best.start[x]))
        model.minimize(makespan)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(0.1, seconds)
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = seed
    solver.parameters.catch_sigint_signal = False
    status = _status(solver, model)
    if status == cp_model.INFEASIBLE and goal is not None:
        return Solved(goal + 1, None)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solved(0, None)
    order = _in_order_of_time(problem, [solver.value(start[x]) for x in range(len(start))])
    proved = 0 if goal is not None else ceil(solver.best_objective_bound - 1e-6)
    return Solved(proved if proved > bound else 0, order)


def _status(solver: cp_model.CpSolver, model: cp_model.CpModel) -> cp_model.CpSolverStatus:
    """Run the solver in a thread of its own and return its status. So Ctrl-C reaches this thread, which stops the solver."""
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(solver.solve, model)
        try:
            while not running.done():
                wait([running], timeout=0.2)
        except KeyboardInterrupt:
            while not running.done():  # a solver that has not begun yet ignores the call, so it is repeated
                solver.stop_search()
                wait([running], timeout=0.1)
            raise
        return running.result()


def _model(problem: Problem, horizon: int) -> tuple[cp_model.CpModel, dict[int, cp_model.IntVar], cp_model.IntVar]:
    """Return a model of a problem, the starts of its tasks and its makespan.

    Args:
        horizon: an upper bound of all times.
    """
    t, kinds = problem.tasks, len(problem.kinds)
    model = cp_model.CpModel()
    makespan = model.new_int_var(0, horizon, "makespan")
    start = {x: model.new_int_var(int(t.head[x]), horizon, f"s{x}") for x in range(len(t))}
    end = {x: start[x] + int(t.duration[x]) for x in start}
    for x in start:
        for y, delay in zip(t.waits[x].tolist(), t.delays[x].tolist(), strict=True):
            if y >= 0:
                model.add(start[x] >= end[y] + delay)
        if x and t.series[x] == t.series[x - 1]:  # micro-batches in ascending order, as problem.py says
            model.add(start[x] >= end[x - 1])
        model.add(makespan >= end[x] + int(t.tail[x]))
    for r in range(problem.ranks):
        rows = np.flatnonzero(t.rank == r).tolist()
        model.add_no_overlap([model.new_fixed_size_interval_var(start[x], int(t.duration[x]), f"i{x}") for x in rows])
        if problem.limits[r] is None:
            continue
        intervals, amounts = [], []  # while a micro-batch is held, and how much it takes of the limit
        for x in rows:
            if t.series[x] % kinds == 0 and t.held[x]:
                last = t.number(int(t.series[x]) // kinds, kinds - 1, int(t.micro_batch[x]), kinds)
                length = model.new_int_var(0, horizon, f"l{x}")
                intervals.append(model.new_interval_var(start[x], length, end[last], f"k{x}"))
                amounts.append(int(t.held[x]))
        model.add_cumulative(intervals, amounts, int(problem.limit_of[r]))
    return model, start, makespan


def _in_order_of_time(problem: Problem, start: list[int]) -> Order | None:
    """Return the order of tasks that start at these times.

    Tasks that take no time may start together with others of their rank. Of tasks with the same start, those that take no time
    are placed first, and later kinds before earlier ones, since a last backward frees what a forward holds. But a task is
    placed only after those that it waits for, and only if its rank then keeps its limit. None if no task of the earliest start
    can be placed.
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
