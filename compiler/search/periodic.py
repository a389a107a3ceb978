"""Many micro-batches from few: an order that is good for a few is cut in its steady phase, and the cut is filled.

The tasks of some micro-batches in the middle are repeated, each time later by a period. Per repeated micro-batch, the period is
the time that the busiest rank computes for one micro-batch of every pipe. Sorted by these times the tasks are an order of the
whole problem, whose steady phase is periodic.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order, by_priority, list_schedule

LONGEST = 4  # micro-batches of a pipe that are repeated together


def smaller(problem: Problem) -> Problem | None:
    """Return the problem with fewer micro-batches, enough for a steady phase; None if it has few already."""
    counts = [pipe.micro_batches for pipe in problem.pipes]
    most = max(counts)
    wanted = max(4, 2 * problem.ranks // sum(1 for n in counts if n))
    if most < wanted + 4:
        return None
    return problem.with_micro_batches([max(1, round(n * wanted / most)) if n else 0 for n in counts])


def extended(small: Problem, order: Order, problem: Problem) -> Iterator[Order]:
    """Yield orders of a problem that continue an order of one with fewer micro-batches.

    There is one for each place of the cut and each number of micro-batches that are repeated together, where it is possible.
    """
    small_tasks, tasks, kinds = small.tasks, problem.tasks, len(problem.kinds)
    counts = [(x.micro_batches, y.micro_batches) for x, y in zip(small.pipes, problem.pipes, strict=True)]  # of each pipe
    extra = max(n - k for k, n in counts)
    busy = np.zeros(problem.ranks, np.int64)  # of each rank, for one micro-batch of every pipe
    for pipe in problem.pipes:
        for s, r in enumerate(pipe.placement):
            busy[r] += sum(column[s] for column in problem.durations) if pipe.micro_batches else 0
    period = int(busy.max())  # of one micro-batch
    least = min(k for k, _ in counts if k)
    for cut in range(1, least):
        for length in range(1, min(cut, LONGEST) + 1):
            when = np.zeros(len(tasks), np.int64)
            for c, (p, _) in enumerate(tasks.cells):
                k, n = counts[p]
                at = -(-cut * k // least)  # pipes with more micro-batches are cut later
                more = n - k
                m = np.arange(n)
                inside = (m >= at) & (m < at + more)
                source = np.where(m < at, m, m - more)
                source[inside] = np.maximum(0, at - length + (m[inside] - at) % length)
                later = np.where(m >= at + more, extra * period, 0)
                later[inside] = (length * ((m[inside] - at) // length + 1)) * period * extra // max(1, more)
                for kind in range(kinds):
                    times = order.start[small_tasks.first[c] + kind * k + source] + later
                    when[tasks.first[c] + kind * n : tasks.first[c] + (kind + 1) * n] = np.maximum.accumulate(times)
            found = by_priority(problem, when)
            if found is None:
                found = list_schedule(problem, when, look_ahead=period)
            if found is not None:
                yield found
