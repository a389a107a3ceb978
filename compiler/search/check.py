"""Check a certificate of a search again: `python -m chimerac.compiler.search.check CERTIFICATE SCHEDULE`.

Nothing of the search is imported. The schedule is compiled and verified. Then the times of its order, what its ranks hold, and
the bound of every rank that has tasks are computed from the costs in the certificate, by the definitions of docs/search.md.
`--solve SECONDS` also lets the solver of OR-tools prove its bound again, on a constraint model that is built here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.chimera_ir.files import read
from chimerac.chimera_ir.instructions import Bwd, BwdInput, BwdWeight, Fwd
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule

TASKS = (Fwd, Bwd, BwdInput, BwdWeight)
KINDS = dict(zip(TASKS, "FBIW", strict=True))

NO_LIMIT = 10**30  # more than any rank holds
WORKERS = 4  # searches that the solver runs at the same time

Task = tuple[str, int, int]  # kind, stage, micro-batch


def tasks_of(program: Program) -> list[list[Task]]:
    """Return the tasks of every rank, in order. In a found program every task has one micro-batch."""
    ranks = (program.stream(r) for r in range(program.world))
    return [[(KINDS[type(x)], x.stage, x.micro_batches[0]) for x in stream if isinstance(x, TASKS)] for stream in ranks]


def kinds_of(program: Program) -> str:
    """Return the kinds of tasks of a program: 'FIW', or 'FB'."""
    return "FIW" if any(k == "I" for tasks in tasks_of(program) for k, _, _ in tasks) else "FB"


def waits_of(task: Task, kinds: str, top: int) -> list[Task]:
    """Return what a task waits for.

    Args:
        top: the last stage.
    """
    k, s, m = task
    if k == "F":
        return [("F", s - 1, m)] if s else []
    if k == "W":
        return [("I", s, m)]
    return [("F", s, m), *([(k, s + 1, m)] if s < top else [])]


def problems(c: dict[str, Any], program: Program) -> Iterator[str]:
    """Yield in words what is wrong with a certificate of a program.

    Args:
        c: the content of the certificate.

    For a certificate of another program, or one with numbers that are not allowed, nothing else is checked.
    """
    if c["digest"] != program.digest:
        yield f"digest: the certificate has {c['digest'][:12]}..., and the program of the schedule {program.digest[:12]}..."
        return
    links, limits, held = c["links"], c["limits"], c["activations"]
    numbers = [*(x for row in [*c["costs"].values(), *links] for x in row), *held, *(x for x in limits if x is not None)]
    if any(type(x) is not int or x < 0 for x in numbers):
        yield "costs, links, activations and limits must be integers, 0 or more"
        return
    place = _places(program)
    order, kinds = tasks_of(program), kinds_of(program)
    last, top = kinds[-1], program.header.stages - 1  # the kind that frees a micro-batch; the last stage
    cost = _costs(c, kinds)
    own = {"F": program.costs.FWD, "B": program.costs.BWD, "I": program.costs.BWD_INPUT, "W": program.costs.BWD_WEIGHT}
    for k in kinds:
        if list(c["costs"][k]) != list(own[k]):
            yield f"costs of {k}: the certificate has {c['costs'][k]}, and the schedule has {list(own[k])}"
    end: dict[Task, int] = {}
    position = [0] * len(order)
    while any(position[r] < len(tasks) for r, tasks in enumerate(order)):
        for r, tasks in enumerate(order):  # the program is verified: some rank can go on
            while position[r] < len(tasks):
                k, s, _ = task = tasks[position[r]]
                waits = waits_of(task, kinds, top)
                if any(x not in end for x in waits):
                    break
                before = end[tasks[position[r] - 1]] if position[r] else 0
                end[task] = cost[k, s] + max([before, *(end[x] + _link(links, place, x, r) for x in waits)])
                position[r] += 1
    if max(end.values()) != c["makespan"]:
        yield f"makespan: the certificate says {c['makespan']}, and the order takes {max(end.values())}"
    bound = c["solver"]["bound"] if c["solver"] else 0
    for r, tasks in enumerate(order):
        peak = _most_held(tasks, held, last)
        if limits[r] is not None and peak > limits[r]:
            yield f"rank {r}: its limit is {limits[r]}, and the order holds {peak}"
    for r, found, times in bounds_of_ranks(c, program, limits):
        said = next((b for b in c["ranks"] if b["rank"] == r), None)
        if said is None or any(said[k] > found[k] for k in found):
            yield f"rank {r}: the certificate says {said}, and the rank has {found}"
        else:
            yield from _wrong_tasks(said, times, program)
        bound = max(bound, _value(found))
    if c["bound"] > bound or c["proved_optimal"] != (c["bound"] >= c["makespan"]):
        claim = f"{c['bound']}, {'' if c['proved_optimal'] else 'not '}proved optimal"
        yield f"bound: the certificate says {claim}, for the makespan {c['makespan']}; its ranks and its solver give {bound}"
    if c.get("memory"):
        yield from _wrong_memory(c, program)


def bounds_of_ranks(
    c: dict[str, Any], program: Program, limits: Sequence[int | None]
) -> Iterator[tuple[int, dict[str, int], dict[tuple[int, int], tuple[int, int, int]]]]:
    """Yield each rank that has tasks, with what `_bound` returns for it.

    Args:
        c: the content of the certificate.
        limits: of each rank, None without one.
    """
    kinds, place = kinds_of(program), _places(program)
    cost = _costs(c, kinds)
    for r, tasks in enumerate(tasks_of(program)):
        if tasks:
            top = program.header.stages - 1
            yield r, *_bound(tasks, cost, c["links"], place, kinds, c["activations"], limits[r], top)


def bound_of_all_ranks(c: dict[str, Any], program: Program, limits: Sequence[int | None]) -> int:
    """Return the greatest of the bounds of the ranks, 0 without tasks.

    Args:
        c: the content of the certificate.
        limits: of each rank, None without one.
    """
    return max((_value(found) for _, found, _ in bounds_of_ranks(c, program, limits)), default=0)


def _costs(c: dict[str, Any], kinds: str) -> dict[tuple[str, int], int]:
    """Return the cost of each kind of task of each stage.

    Args:
        c: the content of the certificate.
    """
    return {(k, s): x for k in kinds for s, x in enumerate(c["costs"][k])}


def _places(program: Program) -> dict[tuple[int, int], int]:
    """Return the rank of each (micro-batch, stage)."""
    return {(m, s): r for pipe in program.header.pipes for m in pipe.micro_batches for s, r in enumerate(pipe.placement)}


def _wrong_memory(c: dict[str, Any], program: Program) -> Iterator[str]:
    """Yield in words what is wrong with the claim that no order with lower limits is fast enough.

    Args:
        c: the content of the certificate.
    """
    order = tasks_of(program)
    memory, held, ranks = c["memory"], c["activations"], len(order)
    makespan, own, ruled_out = memory["makespan"], memory["own_limits"], memory["ruled_out"]
    if any(type(x) is not int for x in (makespan, ruled_out, *own)) or len(own) != ranks:
        yield f"memory: expected an integer makespan, an integer ruled_out, and an integer limit for each of {ranks} ranks"
        return
    if c["makespan"] > makespan:
        yield f"memory: an order may take {makespan}, and this one takes {c['makespan']}"
    most = [_most_held(tasks, held, kinds_of(program)[-1]) for tasks in order]
    for r, (limit, peak) in enumerate(zip(own, most, strict=True)):
        if peak > limit:
            yield f"memory: the own limit of rank {r} is {limit}, and the order holds {peak}"
    if memory["proved_least"] != (ruled_out == max(most) - 1):
        claim = "" if memory["proved_least"] else "not "
        yield f"memory: {claim}proved least; the order holds {max(most)} on a rank, and {ruled_out} is ruled out"
    bound = max(memory["solver"]["bound"] if memory["solver"] else 0, memory_bound(c, program))
    if bound <= makespan:
        which = f"an order that keeps the own limits and holds at most {ruled_out}"
        yield f"memory: {which} takes at least {bound}, which does not exceed {makespan}"


def memory_bound(c: dict[str, Any], program: Program) -> float:
    """Return the bound of the makespan that follows from the ranks if each holds at most what the certificate rules out.

    It is infinite if a rank could not hold even one micro-batch at a time.

    Args:
        c: the content of the certificate, with a claim about memory.
    """
    limits, held = _lower_limits(c), c["activations"]
    for limit, tasks in zip(limits, tasks_of(program), strict=True):
        of_micro_batches: dict[int, int] = {m: 0 for _, _, m in tasks}  # what each of them alone takes on this rank
        for k, s, m in tasks:
            of_micro_batches[m] += held[s] if k == "F" else 0
        if max(of_micro_batches.values(), default=0) > limit:
            return float("inf")
    return bound_of_all_ranks(c, program, limits)


def _lower_limits(c: dict[str, Any]) -> list[int]:
    """Return the limits of the ranks that a certificate rules out."""
    return [min(x, c["memory"]["ruled_out"]) for x in c["memory"]["own_limits"]]


def _value(found: Mapping[str, int]) -> int:
    """Return the bound of the makespan that follows from what `_bound` found for a rank."""
    return max(found["head"] + found["busy"] + found["tail"], found["residence"])


def _most_held(tasks: Sequence[Task], held: Sequence[int], last: str) -> int:
    """Return the most that a rank holds at once.

    Args:
        tasks: of the rank.
        held: what each stage holds for a micro-batch.
        last: the kind of task that frees a micro-batch.
    """
    now = peak = 0
    for k, s, _ in tasks:
        now += held[s] if k == "F" else 0
        peak = max(peak, now)
        now -= held[s] if k == last else 0
    return peak


def _wrong_tasks(
    said: dict[str, Any], times: Mapping[tuple[int, int], tuple[int, int, int]], program: Program
) -> Iterator[str]:
    """Yield in words which tasks of a rank do not give the head or the tail, as the certificate says that they do.

    Args:
        said: what the certificate says of the rank.
        times: by stage and micro-batch, as `_bound` returns them.
    """
    head, tail = (0 if said["head_by"] == "arrival" else 1), 2
    for name, column in (("head", head), ("tail", tail)):
        by = said["attained_by"][name]
        task = by["stage"], program.header.pipes[by["pipe"]].micro_batches[by["micro_batch"]]
        least = min(x[column] for x in times.values())
        if task not in times or times[task][column] != least:
            yield f"rank {said['rank']}: the certificate says that its {name} is attained by {by}, which gives no least time"


def _link(links: Sequence[Sequence[int]], place: dict[tuple[int, int], int], task: Task, rank: int) -> int:
    """Return the time of the message from a task to a rank.

    Args:
        place: the rank of each (micro-batch, stage).
    """
    source = place[task[2], task[1]]
    return 0 if source == rank else links[source][rank]


def _bound(
    tasks: Sequence[Task],
    cost: Mapping[tuple[str, int], int],
    links: Sequence[Sequence[int]],
    place: dict[tuple[int, int], int],
    kinds: str,
    held: Sequence[int],
    limit: int | None,
    top: int,
) -> tuple[dict[str, int], dict[tuple[int, int], tuple[int, int, int]]]:
    """Return head, busy time and tail of a rank, and its bound by what it holds (residence), as docs/search.md defines them.

    Also return the times from whose least values the head and the tail follow, by stage and micro-batch: the earliest start of
    the forward, that of the input gradient or of the B, and the least time after the last backward.

    Args:
        tasks: of the rank.
        place: the rank of each (micro-batch, stage).
        held: what each stage holds for a micro-batch.
        limit: of the rank, None without one.
        top: the last stage.
    """
    # One entry for each micro-batch of each stage of this rank.
    arrivals: list[int] = []  # the earliest start of its forward
    gradients: list[int] = []  # the earliest start of its input gradient, or of its B
    tails: list[int] = []  # the least time after its last backward here
    forwards: list[tuple[int, int]] = []  # what its forward holds, and the time of this forward
    kept = 0  # the sum, over these micro-batches, of what one holds x the least time for which it is held
    for _, s, m in (x for x in tasks if x[0] == "F"):
        way = [place[m, x] for x in range(top + 1)]  # the rank of each stage
        # The time of the message from stage x to x + 1 is hop[x], and back[x] is that of the message from x + 1 to x.
        hop = [0 if a == b else links[a][b] for a, b in pairwise(way)]
        back = [0 if a == b else links[b][a] for a, b in pairwise(way)]
        arrivals.append(sum(cost["F", x] + hop[x] for x in range(s)))
        forwards_end = sum(hop) + sum(cost["F", x] for x in range(top + 1))
        gradients.append(forwards_end + sum(cost[kinds[1], x + 1] + back[x] for x in range(s, top)))
        after = sum(cost[kinds[1], x] + back[x] for x in range(s))
        tails.append(0 if kinds[-1] == "W" else after)
        kept += held[s] * (gradients[-1] - arrivals[-1] + sum(cost[k, s] for k in kinds[1:]))
        forwards.append((held[s], cost["F", s]))
    room, fitting = Fraction(NO_LIMIT if limit is None else limit), Fraction(0)  # the rest of the limit; the time of what fits
    for weight, time in sorted(forwards, key=lambda x: (x[0] > 0, -Fraction(x[1], x[0] or 1))):
        part = min(Fraction(1), room / weight) if weight else Fraction(1)
        fitting, room = fitting + part * time, room - part * weight
    # -(-x // y) is x / y, rounded up.
    head, busy = max(min(arrivals), min(gradients) - -(-fitting // 1)), sum(cost[k, s] for k, s, _ in tasks)
    residence = min(arrivals) + -(-kept // max(1, limit)) + min(tails) if limit is not None else 0
    cells = [(s, m) for k, s, m in tasks if k == "F"]
    times = dict(zip(cells, zip(arrivals, gradients, tails, strict=True), strict=True))
    return {"head": int(head), "busy": busy, "tail": min(tails), "residence": int(residence)}, times


def solver_bounds(c: dict[str, Any]) -> list[tuple[int, Sequence[int | None]]]:
    """Return the bounds of the solver in a certificate, each with the limits for which it holds.

    Args:
        c: its content.
    """
    bounds = [(c["solver"]["bound"], c["limits"])] if c["solver"] else []
    memory = c.get("memory")
    if memory and memory["solver"]:
        bounds.append((memory["solver"]["bound"], _lower_limits(c)))
    return bounds


def proves(c: dict[str, Any], program: Program, bound: int, limits: Sequence[int | None], seconds: float) -> bool:
    """Return whether the solver proves within `seconds` that no order within limits is faster than a bound.

    Args:
        c: the content of the certificate.
        limits: of each rank, None without one.

    The solver is asked for a faster order, and must prove that there is none. Times are integers, so a faster order is faster
    by 1 or more.
    """
    from ortools.sat.python import cp_model  # 700 ms, for this option only

    place = _places(program)
    pipe_of = {m: p for p, pipe in enumerate(program.header.pipes) for m in pipe.micro_batches}
    order, kinds, top = tasks_of(program), kinds_of(program), program.header.stages - 1
    model, latest = cp_model.CpModel(), bound - 1
    start = {x: model.new_int_var(0, latest, str(x)) for tasks in order for x in tasks}
    end = {(k, s, m): at + c["costs"][k][s] for (k, s, m), at in start.items()}
    previous: dict[tuple[int, str, int], Task] = {}
    for r, tasks in enumerate(order):
        model.add_no_overlap([model.new_fixed_size_interval_var(start[x], c["costs"][x[0]][x[1]], str(x)) for x in tasks])
        for x in sorted(tasks, key=lambda x: x[2]):
            k, s, m = x
            model.add(end[x] <= latest)
            for y in waits_of(x, kinds, top):
                model.add(start[x] >= end[y] + _link(c["links"], place, y, r))
            # The micro-batches of a pipe may be exchanged, so only ascending orders are searched.
            if (before := previous.get((pipe_of[m], k, s))) is not None:
                model.add(start[x] >= end[before])
            previous[pipe_of[m], k, s] = x
        if (limit := limits[r]) is not None:
            forwards = [x for x in tasks if x[0] == "F"]
            kept = []
            for x in forwards:
                length = model.new_int_var(0, latest, f"length {x}")
                kept.append(model.new_interval_var(start[x], length, end[kinds[-1], x[1], x[2]], f"kept {x}"))
            model.add_cumulative(kept, [c["activations"][x[1]] for x in forwards], limit)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = WORKERS
    return bool(solver.solve(model) == cp_model.INFEASIBLE)


def _verdict(c: dict[str, Any], program: Program, is_solved: bool) -> Iterator[str]:
    """Yield the lines that say what holds of a certificate without problems.

    Args:
        c: its content.
        is_solved: whether the solver has proved its bounds again.
    """
    makespan, bound = c["makespan"], c["bound"]
    if is_solved or bound <= bound_of_all_ranks(c, program, c["limits"]):
        yield f"makespan {makespan}, bound {bound}: both hold, and so do the limits"
    else:
        yield f"makespan {makespan} holds, and so do the limits"
        yield f"bound {bound} is the solver's, and was not proved again: --solve SECONDS"
    if memory := c.get("memory"):
        most, ruled_out = memory["makespan"], memory["ruled_out"]
        claim = f"no order that keeps the ranks' own limits and holds at most {ruled_out} on every rank takes at most {most}"
        if memory["proved_least"]:
            claim += f", so of the orders that keep these limits and take at most {most} this one holds the least"
        if not is_solved and memory_bound(c, program) <= most:
            claim = f"the solver's claim was not proved again (--solve SECONDS): {claim}"
        yield claim


def _seconds(text: str) -> float:
    if not 0 < (seconds := float(text)) < float("inf"):
        raise ValueError
    return seconds


def main(argv: Sequence[str] | None = None) -> int:
    """Print whether the certificate holds. Return the exit status: 1 if not, 2 for a file that cannot be read or compiled."""
    parser = argparse.ArgumentParser(description="Check the certificate of a search again.")
    parser.add_argument("certificate")
    parser.add_argument("schedule")
    parser.add_argument("--solve", metavar="SECONDS", type=_seconds, help="also prove the solver's bound again")
    options = parser.parse_args(argv)
    try:
        content, program = json.loads(read(options.certificate)), compile_schedule(options.schedule).program
        found = list(problems(content, program))
        bounds = [] if found else solver_bounds(content)
        for bound, limits in bounds if options.solve is not None else []:
            if not proves(content, program, bound, limits, options.solve):
                found.append(f"within {options.solve:g} s the solver does not prove its bound {bound} again")
        verdict = [] if found else list(_verdict(content, program, is_solved=options.solve is not None))
    except ChimeraError as error:
        print(render(error.diagnostics), end="", file=sys.stderr)
        return 2
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        found = [f"{options.certificate} is no certificate of this schedule: {type(error).__name__} {error}"]
    for line in found:
        print(line)
    if found:
        return 1
    for line in verdict:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
