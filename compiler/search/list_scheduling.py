"""Compiled loops of list scheduling. They work on the columns of problem.Tasks."""

from __future__ import annotations

import numpy as np

from chimerac.compiler.search.kernels import compiled
from chimerac.compiler.search.problem import Ints

FAR = 2**62  # later than any time of a problem


@compiled
def list_schedule(
    series_on: Ints,
    series_counts: Ints,
    series_first: Ints,
    series_size: Ints,
    kinds: int,
    priority: Ints,
    look_ahead: int,
    caps: Ints,
    duration: Ints,
    waits: Ints,
    delays: Ints,
    feeds: Ints,
    rank: Ints,
    held: Ints,
    freed: Ints,
    limit: Ints,
    sequence: Ints,
    length: Ints,
) -> bool:
    """Schedule one task after another, always on the rank that can start one earliest; return whether all tasks could start.

    Of the tasks of that rank that could start within `look_ahead` of its earliest one, the one with the least priority starts,
    of equal ones the one that could start first. A forward leaves room for one micro-batch of every other cell of its rank that
    has forwards left and nothing alive, so that cells cannot block each other (docs/language.md, the reserve).

    Args:
        series_on: [rank, k] -> the k-th series of a rank.
        series_counts: how many series each rank has.
        series_first, series_size: the first task of a series, and the number of its tasks.
        kinds: the number of kinds.
        priority: of each task.
        caps: for each cell, the most micro-batches whose forward has started and whose B or I has not.
        limit: of each rank.
        sequence, length: the order, which is filled in.

    The others are columns of Tasks.
    """
    ranks = len(length)
    start = np.full(len(duration), -1, np.int64)
    done = np.zeros(len(series_first), np.int64)  # by series: the number of its tasks that have started
    clock = np.zeros(ranks, np.int64)
    holding = np.zeros(ranks, np.int64)  # by rank: what it holds after its last task
    earliest_on = np.full(ranks, -2, np.int64)  # by rank: the earliest start of a task; -2: unknown, -1: no task can start
    length[:] = 0
    for _ in range(len(duration)):
        chosen_rank, chosen_at = -1, FAR
        for r in range(ranks):
            if earliest_on[r] == -2:
                least = FAR
                for k in range(series_counts[r]):
                    at = _earliest(
                        series_on[r, k], r, series_on, series_counts, series_first, series_size, kinds, done, caps, start,
                        clock, holding, duration, waits, delays, held, limit,
                    )  # fmt: skip
                    if at >= 0:
                        least = min(least, at)
                earliest_on[r] = -1 if least == FAR else least
            if earliest_on[r] >= 0 and earliest_on[r] < chosen_at:
                chosen_rank, chosen_at = r, earliest_on[r]
        if chosen_rank < 0:
            return False
        r = chosen_rank
        task, task_at = -1, 0
        for k in range(series_counts[r]):
            series = series_on[r, k]
            at = _earliest(
                series, r, series_on, series_counts, series_first, series_size, kinds, done, caps, start, clock, holding,
                duration, waits, delays, held, limit,
            )  # fmt: skip
            if at < 0 or at > chosen_at + look_ahead:
                continue
            x = series_first[series] + done[series]
            if task < 0 or priority[x] < priority[task] or (priority[x] == priority[task] and at < task_at):
                task, task_at = x, at
                chosen_series = series
        start[task] = task_at
        clock[r] = task_at + duration[task]
        holding[r] += held[task] - freed[task]
        sequence[r, length[r]] = task
        length[r] += 1
        done[chosen_series] += 1
        earliest_on[r] = -2
        for k in range(2):
            if feeds[task, k] >= 0:
                earliest_on[rank[feeds[task, k]]] = -2
    return True


@compiled
def _earliest(
    series: int,
    r: int,
    series_on: Ints,
    series_counts: Ints,
    series_first: Ints,
    series_size: Ints,
    kinds: int,
    done: Ints,
    caps: Ints,
    start: Ints,
    clock: Ints,
    holding: Ints,
    duration: Ints,
    waits: Ints,
    delays: Ints,
    held: Ints,
    limit: Ints,
) -> int:
    """Return when the next task of a series could start on its rank r; -1 if it cannot start yet, or if all have started."""
    if done[series] == series_size[series]:
        return -1
    x = series_first[series] + done[series]
    at = clock[r]
    for k in range(2):
        y = waits[x, k]
        if y >= 0:
            if start[y] < 0:
                return -1
            at = max(at, start[y] + duration[y] + delays[x, k])
    if series % kinds == 0:  # a forward
        if done[series] - done[series + 1] >= caps[series // kinds]:
            return -1
        needed = holding[r] + held[x]
        for k in range(series_counts[r]):
            other = series_on[r, k]
            is_forward = other % kinds == 0
            # A micro-batch of a cell is alive from its forward to its last task: B, or W if the backward is split. None is
            # alive if as many of these last tasks have started as forwards.
            if other != series and is_forward and done[other] < series_size[other] and done[other] == done[other + kinds - 1]:
                needed += held[series_first[other]]
        if needed > limit[r]:
            return -1
    return int(at)
