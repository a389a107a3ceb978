"""Orders that are known before a search: that of the given schedule, and those of the library for the same placement."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import RECOMPUTE, Program
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.search.problem import Ints, Problem
from chimerac.compiler.search.sequences import Order, by_priority
from chimerac.compiler.tasks import TaskIndex


def order_of(problem: Problem, program: Program) -> Order | None:
    """Return the order of a program as one of this problem; None if the program does not fit the problem or exceeds a limit.

    Where the kinds of tasks differ, a full backward becomes an I and a W right after it, and a split one becomes a B in the
    place of its I. Pipes may have other names and be in another sequence, and micro-batches may have another size. Other
    placements or numbers of micro-batches do not fit, and neither do replicas or recomputation.
    """
    h, kinds = program.header, problem.kinds
    if (h.ranks, h.stages, h.width) != (problem.ranks, problem.stages, 1):
        return None
    if (program.table.flags & RECOMPUTE).any():
        return None
    unmatched = list(range(len(h.pipes)))  # pipes of the program, by number
    matched: list[int] = []  # by pipe of the problem: the pipe of the program
    for pipe in problem.pipes:
        wanted = (pipe.placement, pipe.micro_batches)
        same = [q for q in unmatched if (h.pipes[q].placement, len(h.pipes[q].micro_batches)) == wanted]
        if not same:
            return None
        matched.append(same[0])
        unmatched.remove(same[0])
    if any(h.pipes[q].micro_batches for q in unmatched):
        return None
    t, index = problem.tasks, TaskIndex.of(program)
    priority = np.zeros(len(t), np.int64)
    for c, (p, s) in enumerate(t.cells):
        keys = s * h.micro_batches + np.array(h.pipes[matched[p]].micro_batches, np.int64)
        # Twice the row of the program, so that the W of a full backward can be placed between its row and the next one.
        places: list[Ints] = [2 * index.forward[keys], 2 * index.backward[keys]]
        if kinds == "FIW":
            places.append(2 * index.weight[keys] + (index.weight[keys] == index.backward[keys]))
        n = len(keys)
        for k, of_kind in enumerate(places):  # with micro-batches in ascending order, as problem.py says
            begin = int(t.first[c]) + k * n
            priority[begin : begin + n] = np.sort(of_kind)
    return by_priority(problem, priority)


def library_orders(problem: Problem) -> Iterator[tuple[str, Order]]:
    """Yield the orders of library schedules that fit the problem and keep its limits: name and order, sorted by name.

    A schedule is compiled with the numbers of ranks (D) and micro-batches (N) of the problem and, where it allows that, with
    the number of pairs of pipes (f). Its other parameters have their defaults.
    """
    total = sum(pipe.micro_batches for pipe in problem.pipes)
    pairs = len(problem.pipes) // 2
    for name in names():
        for sizes in ({"D": problem.ranks, "N": total, "f": pairs}, {"D": problem.ranks, "N": total}):
            try:
                program = compile_source(find(name), sizes).program
            except ChimeraError:  # the schedule has no such parameter, or cannot run at these sizes
                continue
            if (order := order_of(problem, program)) is not None:
                yield name, order
            break
