"""The problem that is searched, from a compiled schedule and from what a search is given besides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from math import gcd, lcm

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program
from chimerac.compiler.search.given import Given
from chimerac.compiler.search.problem import Pipe, Problem
from chimerac.compiler.verify import peaks

MOST_TASKS = 30_000  # the listing of more tasks may exceed the limits of a text (chimera_ir/limits.py)
Rows = Sequence[Sequence[Fraction]]


def problem_of(program: Program, given: Given) -> Problem:
    """Return the problem whose placement is that of a compiled schedule.

    Raises ChimeraError E002 for a program that no search orders or that has too many tasks, for costs, links, activations or
    limits that do not fit the schedule or are out of range, for activations without limits, and for limits that no order can
    keep.
    """
    _check_program(program)
    h, kinds = program.header, _kinds(program, given)
    all_costs, links = _costs(program, given), _links(program, given)
    costs = [all_costs[k] for k in kinds]
    scale = _scale(costs, links, h.micro_batches)
    problem = Problem(
        h.ranks,
        h.stages,
        tuple(Pipe(p.name, p.placement, len(p.micro_batches)) for p in h.pipes),
        kinds,
        _integers(costs, scale),
        _integers(links, scale),
        _activations(program, given),
        _limits(program, given),
        scale,
    )
    _check_limits(problem)
    return problem


def given_of(problem: Problem) -> Given:
    """Return what a problem has been given besides its placement, to search with the same values again."""
    scale = problem.scale
    return Given(
        costs={k: [x / scale for x in column] for k, column in zip(problem.kinds, problem.durations, strict=True)},
        links=[[x / scale for x in row] for row in problem.links],
        activations=problem.activations,
        limits=[limit for limit in problem.limits if limit is not None] or None,  # of every rank: `problem_of` leaves none out
        split=len(problem.kinds) == 3,
    )


def _check_program(program: Program) -> None:
    """Raise ChimeraError E002 for a program with tasks or replicas that a search does not order."""
    h = program.header
    if h.width != 1:
        raise refuse("E002", f"a search orders one replica, and this program has {h.width}", help="leave out --width")
    if h.kind != "training":
        raise refuse("E002", "a search orders forwards and backwards, and this program has forwards only")
    if program.recomputed_stages:
        help = "take a schedule without recompute, or its program, compiled with --recompute none"
        raise refuse("E002", "a search orders no recomputation, and stages of this schedule recompute", help=help)


def _kinds(program: Program, given: Given) -> str:
    """Return the kinds of the problem's tasks, 'FIW' or 'FB'. Raises ChimeraError E002 for too many tasks."""
    split = bool((program.table.op == Op.BWD_INPUT).any()) if given.split is None else given.split
    kinds = "FIW" if split else "FB"
    tasks = program.header.micro_batches * program.header.stages * len(kinds)
    if tasks > MOST_TASKS:
        message = f"{tasks} tasks: at most {MOST_TASKS} are searched; in the worst case more could not be written as a listing"
        raise refuse("E002", message, help="search with fewer micro-batches")
    return kinds


def _costs(program: Program, given: Given) -> Mapping[str, Sequence[Fraction]]:
    """Return the costs of F, B, I and W on each stage.

    If I or W is given and B is not, B is I + W. If B is given and neither I nor W, each of them is half of B.
    Raises ChimeraError E002 if there is not one cost for each stage.
    """
    own = {"F": program.costs.FWD, "B": program.costs.BWD, "I": program.costs.BWD_INPUT, "W": program.costs.BWD_WEIGHT}
    costs = {k: [Fraction(x) for x in v] for k, v in own.items()}
    stages = program.header.stages
    for name, values in given.costs.items():
        if len(values) != stages:
            raise refuse("E002", f"{len(values)} costs of {name} are given, and the schedule has {stages} stages")
        costs[name] = list(values)
    for name, value in given.uniform.items():
        costs[name] = [value] * stages
    stated = {*given.costs, *given.uniform}
    if "B" not in stated and {"I", "W"} & stated:
        costs["B"] = [i + w for i, w in zip(costs["I"], costs["W"], strict=True)]
    if "B" in stated and not {"I", "W"} & stated:
        costs["I"] = costs["W"] = [b / 2 for b in costs["B"]]
    return costs


def _links(program: Program, given: Given) -> Rows:
    """Return the time of a message from one rank to another, [from][to]; 0 from a rank to itself.

    Raises ChimeraError E002 if there is not one time for each pair of ranks.
    """
    ranks = program.header.ranks
    hop = Fraction(program.costs.hop) if given.hop is None else given.hop
    links = [[hop] * ranks for _ in range(ranks)] if given.links is None else given.links
    if len(links) != ranks or any(len(row) != ranks for row in links):
        rows = f"{len(links)} rows of {', '.join(str(n) for n in sorted({len(row) for row in links})[:4])} numbers"
        raise refuse("E002", f"links has {rows}; expected {ranks} rows of {ranks} numbers, one for each pair of ranks")
    return [[Fraction(0) if a == b else x for b, x in enumerate(row)] for a, row in enumerate(links)]


def _scale(costs: Rows, links: Rows, micro_batches: int) -> Fraction:
    """Return the number by which times are multiplied to become integers without a common divisor.

    Raises ChimeraError E002 for times below 0, and if the times, in units of 1 / their common denominator, are too large for a
    schedule, one by one or added up over an iteration.
    """
    times = [x for row in (*costs, *links) for x in row]
    if min(times) < 0:
        raise refuse("E002", f"a cost or a link of {min(times)} is given; costs and links are 0 or more")
    denominator = lcm(*(x.denominator for x in times))
    if max(times) * denominator > limits.COST or sum(times) * denominator * 2 * micro_batches > limits.TIME:
        message = f"as multiples of 1/{denominator}, times exceed {limits.COST}, or {limits.TIME} in an iteration"
        raise refuse("E002", message, help="give costs with fewer digits")
    divisor = gcd(*(int(x * denominator) for x in times)) or 1
    return Fraction(denominator, divisor)


def _integers(rows: Rows, scale: Fraction) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(int(x * scale) for x in row) for row in rows)


def _activations(program: Program, given: Given) -> tuple[int, ...]:
    """Return what each stage holds for a micro-batch; 1 if nothing is given.

    Raises ChimeraError E002 if there is not one number for each stage, or if one is below 0.
    """
    stages = program.header.stages
    activations = tuple(given.activations) if given.activations is not None else (1,) * stages
    if len(activations) != stages or min(activations) < 0:
        message = f"activations has {len(activations)} numbers, the least {min(activations, default=0)}"
        raise refuse("E002", f"{message}; expected one for each of {stages} stages, 0 or more")
    return activations


def _limits(program: Program, given: Given) -> tuple[int, ...]:
    """Return the most that each rank may hold; if nothing is given, on every rank the most that any rank of the program holds.

    Raises ChimeraError E002 if there is not one limit for each rank, and if activations are given without limits.
    """
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
