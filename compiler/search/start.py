"""From a compiled schedule to a problem, and from the library to orders of it."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import RECOMPUTE, Program
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.search.given import Given
from chimerac.compiler.search.problem import Ints, Pipe, Problem
from chimerac.compiler.search.sequences import Order, by_priority
from chimerac.compiler.tasks import TaskIndex
from chimerac.compiler.verify import peaks

MOST_TASKS = 30_000  # of one replica: a text of so many tasks can still be read


def problem_of(program: Program, given: Given) -> Problem:
    """Return the problem whose placement is that of a compiled schedule.

    Raises ChimeraError E002 for costs, links or limits that do not fit the schedule, and for limits that no order can keep.
    """
    h = program.header
    if h.width != 1:
        raise refuse("E002", f"a search orders one replica, and this program has {h.width}", help="leave out --width")
    if h.kind != "training":
        raise refuse("E002", "a search orders forwards and backwards, and this program has forwards only")
    if program.recomputed_stages:
        help = "give --recompute none"
        raise refuse("E002", "a search orders no recomputation, and stages of this schedule recompute", help=help)
    split = bool((program.table.op == Op.BWD_INPUT).any()) if given.split is None else given.split
    kinds = "FIW" if split else "FB"
    tasks = h.micro_batches * h.stages * len(kinds)
    if tasks > MOST_TASKS:
        message = f"{tasks} tasks: the order of more than {MOST_TASKS} could not be written as a listing"
        raise refuse("E002", message, help="search with fewer micro-batches")
    own = {"F": program.costs.FWD, "B": program.costs.BWD, "I": program.costs.BWD_INPUT, "W": program.costs.BWD_WEIGHT}
    costs = {k: [Fraction(x) for x in v] for k, v in own.items()}
    for name, values in given.costs.items():
        if len(values) != h.stages:
            raise refuse("E002", f"{len(values)} costs of {name} are given, and the schedule has {h.stages} stages")
        costs[name] = list(values)
    for name, value in given.uniform.items():
        costs[name] = [value] * h.stages
    stated = {*given.costs, *given.uniform}
    if "B" not in stated and {"I", "W"} & stated:
        costs["B"] = [i + w for i, w in zip(costs["I"], costs["W"], strict=True)]
    if "B" in stated and not {"I", "W"} & stated:
        costs["I"] = costs["W"] = [b / 2 for b in costs["B"]]
    hop = Fraction(program.costs.hop) if given.hop is None else given.hop
    links = [[hop] * h.ranks for _ in range(h.ranks)] if given.links is None else [list(row) for row in given.links]
    if len(links) != h.ranks or any(len(row) != h.ranks for row in links):
        rows = f"{len(links)} rows of {', '.join(str(n) for n in sorted({len(row) for row in links})[:4])} numbers"
        raise refuse("E002", f"links has {rows}; expected {h.ranks} rows of {h.ranks} numbers, one for each pair of ranks")
    links = [[Fraction(0) if a == b else x for b, x in enumerate(row)] for a, row in enumerate(links)]
    everything = [*(x for k in kinds for x in costs[k]), *(x for row in links for x in row)]
    if min(everything) < 0:
        raise refuse("E002", f"a cost of {min(everything)} is given; costs are 0 or more")
    scale = lcm(*(x.denominator for x in everything))
    if max(everything) * scale > limits.COST or sum(everything) * scale * 2 * h.micro_batches > limits.TIME:
        message = f"in units of 1/{scale} of a cost, costs exceed {limits.COST}, the most that a schedule can state"
        raise refuse("E002", message, help="give costs with fewer digits")
    divisor = gcd(*(int(x * scale) for x in everything)) or 1
    exact = Fraction(scale, divisor)
    weights = tuple(given.activations) if given.activations is not None else (1,) * h.stages
    if len(weights) != h.stages or min(weights) < 0:
        message = f"activations has {len(weights)} numbers, the least {min(weights, default=0)}"
        raise refuse("E002", f"{message}; expected one for each of {h.stages} stages, 0 or more")
    problem = Problem(
        h.ranks,
        h.stages,
        tuple(Pipe(p.name, p.placement, len(p.micro_batches)) for p in h.pipes),
        kinds,
        tuple(tuple(int(x * exact) for x in costs[k]) for k in kinds),
        tuple(tuple(int(x * exact) for x in row) for row in links),
        weights,
        _limits(program, given),
        exact,
    )
    _check_limits(problem)
    return problem


def _limits(program: Program, given: Given) -> tuple[int, ...]:
    ranks = program.header.ranks
    match given.limits:
        case None if given.activations is not None:
            message = "what a stage holds is given, and no limit of what a rank may hold"
            raise refuse("E002", message, help="give --limit or limits, in the same unit")
        case None:
            return (max(peaks(program).activations),) * ranks
        case int():
            return (given.limits,) * ranks
        case _:
            if len(given.limits) != ranks:
                raise refuse("E002", f"{len(given.limits)} limits are given, and the schedule has {ranks} ranks")
            return tuple(given.limits)


def _check_limits(problem: Problem) -> None:
    """Raise ChimeraError E002 for a limit that no order keeps."""
    least = problem.least_limits()
    for r, (limit, needed) in enumerate(zip(problem.limits, least, strict=True)):
        if limit is not None and limit < needed:
            message = f"no order holds at most {limit} on rank {r}: one micro-batch there takes {needed}"
            raise refuse("E002", message, help=f"the least limit of all ranks that has an order is {max(least)}")


def order_of(problem: Problem, program: Program) -> Order | None:
    """Return the order of a program as one of this problem; None if it is for another placement or exceeds a limit.

    Full backwards are split, or split ones joined at their input gradient, where the kinds differ. Pipes may have other names
    and another sequence.
    """
    h, kinds = program.header, problem.kinds
    if (h.ranks, h.stages, h.width, h.micro_batch_size) != (problem.ranks, problem.stages, 1, (1, 1)):
        return None
    if (program.table.flags & RECOMPUTE).any():
        return None
    others = list(range(len(h.pipes)))
    match: list[int] = []
    for pipe in problem.pipes:
        wanted = (pipe.placement, pipe.micro_batches)
        same = [q for q in others if (h.pipes[q].placement, len(h.pipes[q].micro_batches)) == wanted]
        if not same:
            return None
        match.append(same[0])
        others.remove(same[0])
    if any(h.pipes[q].micro_batches for q in others):
        return None
    t, index = problem.tasks, TaskIndex.of(program)
    when = np.zeros(len(t), np.int64)
    for c, (p, s) in enumerate(t.cells):
        keys = s * h.micro_batches + np.array(h.pipes[match[p]].micro_batches, np.int64)
        rows: list[Ints] = [2 * index.forward[keys], 2 * index.backward[keys]]
        if kinds == "FIW":
            rows.append(2 * index.weight[keys] + (index.weight[keys] == index.backward[keys]))
        n = len(keys)
        for k, row in enumerate(rows):  # micro-batches of a kind in ascending order: docstring of problem.py
            a = int(t.first[c]) + k * n
            when[a : a + n] = np.sort(row)
    return by_priority(problem, when)


def library_orders(problem: Problem) -> Iterator[tuple[str, Order]]:
    """Yield the schedules of the library that have this placement and keep its limits, in the order of their names."""
    total = sum(pipe.micro_batches for pipe in problem.pipes)
    pairs = len(problem.pipes) // 2
    for name in names():
        for sizes in ({"D": problem.ranks, "N": total, "f": pairs}, {"D": problem.ranks, "N": total}):
            try:
                program = compile_source(find(name), sizes).program
            except ChimeraError:  # it has no such parameter, or cannot run at these sizes
                continue
            if (order := order_of(problem, program)) is not None:
                yield name, order
            break
