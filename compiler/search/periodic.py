"""Many micro-batches from few: an order that is good for a few is cut in its steady phase, and the cut is filled.

The tasks of the last few micro-batches before the cut are repeated, each repetition later than the one before by a period. In a
pipe that gets the most further micro-batches, the period is the number of repeated micro-batches x the time that the busiest
rank computes for one micro-batch of every pipe. In a pipe that gets fewer, it is longer. Sorted by the times that result, the
tasks are an order of the whole problem.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order, by_priority, list_schedule

LONGEST = 4  # the most micro-batches of a pipe that are repeated together


def smaller(problem: Problem) -> Problem | None:
    """Return the problem with fewer micro-batches, but enough for a steady phase; None if it has few already."""
    counts = [pipe.micro_batches for pipe in problem.pipes]
    most = max(counts)
    wanted = max(4, 2 * problem.ranks // sum(1 for n in counts if n))
    if most < wanted + 4:
        return None
    return problem.with_micro_batches([max(1, round(n * wanted / most)) if n else 0 for n in counts])


def extended(small: Problem, order: Order, problem: Problem) -> Iterator[Order]:
    """Yield orders of a problem that continue an order of `small`, the same problem with fewer micro-batches.

    There is one for each place of the cut and each number of micro-batches that are repeated together. If the times give no
    order that keeps the waits and the limits, a list scheduler makes one with the times as priorities, if it can.
    """
    small_tasks, tasks, kinds = small.tasks, problem.tasks, len(problem.kinds)
    # Of each pipe: the number of its micro-batches in `small`, and in `problem`.
    counts = [(x.micro_batches, y.micro_batches) for x, y in zip(small.pipes, problem.pipes, strict=True)]
    most_added = max(many - few for few, many in counts)
    busy = np.zeros(problem.ranks, np.int64)  # by rank: its time for one micro-batch of every pipe that has any
    for pipe in problem.pipes:
        for s, r in enumerate(pipe.placement):
            busy[r] += sum(column[s] for column in problem.durations) if pipe.micro_batches else 0
    per_micro_batch = int(busy.max())  # the part of a period for each repeated micro-batch
    least = min(few for few, _ in counts if few)
    for cut in range(1, least):
        for length in range(1, min(cut, LONGEST) + 1):
            when = np.zeros(len(tasks), np.int64)  # by task: the time by which the tasks are sorted
            for c, (p, _) in enumerate(tasks.cells):
                few, many = counts[p]
                at = -(-cut * few // least)  # pipes with more micro-batches are cut later
                added = many - few
                m = np.arange(many)
                inside = (m >= at) & (m < at + added)  # the micro-batches that fill the cut
                # The micro-batch of `small` whose start is taken, and how much later the task of `problem` is.
                source = np.where(m < at, m, m - added)
                source[inside] = np.maximum(0, at - length + (m[inside] - at) % length)
                later = np.where(m >= at + added, most_added * per_micro_batch, 0)
                # A pipe to which fewer micro-batches are added has a longer period: all pipes fill the cut in the same time.
                later[inside] = (length * ((m[inside] - at) // length + 1)) * per_micro_batch * most_added // max(1, added)
                for kind in range(kinds):
                    times = order.start[small_tasks.first[c] + kind * few + source] + later
                    begin = tasks.first[c] + kind * many
                    when[begin : begin + many] = np.maximum.accumulate(times)
            found = by_priority(problem, when)
            if found is None:
                found = list_schedule(problem, when, look_ahead=per_micro_batch)
            if found is not None:
                yield found
