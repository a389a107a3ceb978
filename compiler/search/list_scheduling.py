"""Compiled loops of list scheduling. They work on the columns of problem.Tasks."""

from __future__ import annotations

import numpy as np

from chimerac.compiler.search.kernels import compiled
from chimerac.compiler.search.problem import Ints

FAR = 2**62


@compiled
def list_schedule(
    letters_of: Ints,
    letter_counts: Ints,
    letter_first: Ints,
    letter_size: Ints,
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
    """Schedule all tasks, at each turn on the rank that can start one earliest; return whether it came to the end.

    Of the tasks of that rank that could start within `look_ahead` of the earliest one, that of the least priority starts. caps:
    the most micro-batches of a cell between their forward and their input gradient. A forward leaves room for every other cell
    of its rank that has forwards left and nothing alive, so that cells cannot block each other (docs/language.md, the reserve).
    """
    ranks = len(length)
    start = np.full(len(duration), -1, np.int64)
    done = np.zeros(len(letter_first), np.int64)
    clock = np.zeros(ranks, np.int64)
    now = np.zeros(ranks, np.int64)
    best_of = np.full(ranks, -2, np.int64)  # earliest start on each rank; -2: unknown, -1: nothing can start
    length[:] = 0
    for _ in range(len(duration)):
        chosen_rank, chosen_at = -1, FAR
        for r in range(ranks):
            if best_of[r] == -2:
                least = FAR
                for k in range(letter_counts[r]):
                    at = _earliest(
                        letters_of[r, k], r, letters_of, letter_counts, letter_first, letter_size, kinds, done, caps, start,
                        clock, now, duration, waits, delays, held, limit,
                    )  # fmt: skip
                    if at >= 0:
                        least = min(least, at)
                best_of[r] = -1 if least == FAR else least
            if best_of[r] >= 0 and best_of[r] < chosen_at:
                chosen_rank, chosen_at = r, best_of[r]
        if chosen_rank < 0:
            return False
        r = chosen_rank
        task, task_at = -1, 0
        for k in range(letter_counts[r]):
            a = letters_of[r, k]
            at = _earliest(
                a, r, letters_of, letter_counts, letter_first, letter_size, kinds, done, caps, start, clock, now,
                duration, waits, delays, held, limit,
            )  # fmt: skip
            if at < 0 or at > chosen_at + look_ahead:
                continue
            x = letter_first[a] + done[a]
            if task < 0 or priority[x] < priority[task] or (priority[x] == priority[task] and at < task_at):
                task, task_at = x, at
                chosen = a
        start[task] = task_at
        clock[r] = task_at + duration[task]
        now[r] += held[task] - freed[task]
        sequence[r, length[r]] = task
        length[r] += 1
        done[chosen] += 1
        best_of[r] = -2
        for k in range(2):
            if feeds[task, k] >= 0:
                best_of[rank[feeds[task, k]]] = -2
    return True


@compiled
def _earliest(
    a: int,
    r: int,
    letters_of: Ints,
    letter_counts: Ints,
    letter_first: Ints,
    letter_size: Ints,
    kinds: int,
    done: Ints,
    caps: Ints,
    start: Ints,
    clock: Ints,
    now: Ints,
    duration: Ints,
    waits: Ints,
    delays: Ints,
    held: Ints,
    limit: Ints,
) -> int:
    """Return when the next task of a letter could start on its rank, -1 if it cannot."""
    if done[a] == letter_size[a]:
        return -1
    x = letter_first[a] + done[a]
    at = clock[r]
    for k in range(2):
        y = waits[x, k]
        if y >= 0:
            if start[y] < 0:
                return -1
            at = max(at, start[y] + duration[y] + delays[x, k])
    if a % kinds == 0:
        if done[a] - done[a + 1] >= caps[a // kinds]:
            return -1
        needed = now[r] + held[x]
        for k in range(letter_counts[r]):
            b = letters_of[r, k]
            if b != a and b % kinds == 0 and done[b] < letter_size[b] and done[b] == done[b + kinds - 1]:
                needed += held[letter_first[b]]
        if needed > limit[r]:
            return -1
    return int(at)
