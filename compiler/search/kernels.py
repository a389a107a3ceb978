"""Compiled loops of the search: times of an order, what it holds, and simulated annealing with incremental times.

An order is `sequence[r, i]`, the i-th task of rank r, and `length[r]`, the number of its tasks. A task starts as soon as the
task before it on its rank has ended and its waits, at most two, are over. The loops work on the columns of problem.Tasks. Their
variables x, y and u are the numbers of tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit

from chimerac.compiler.search.problem import Ints

# Of the annealing:
ON_PATH = 0.7  # share of the trials that move a task of a critical path; the others move any task
PER_STEP = 64  # trials with one temperature
PATH_EVERY = 32  # accepted moves after which a critical path is chosen again, even if the makespan is the same
SORT_EVERY = 4096  # accepted moves after which the topological order is sorted by time

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Return the function, compiled when it is called. numba keeps the code beside the module, or in a cache of the user."""
    return cast(Function, njit(cache=True)(function))


@compiled
def times(sequence: Ints, length: Ints, duration: Ints, waits: Ints, delays: Ints, start: Ints, topological: Ints) -> int:
    """Fill in the start of every task and a topological order of all tasks; return the makespan, -1 if tasks wait for each
    other."""
    ranks = len(length)
    position = np.zeros(ranks, np.int64)  # by rank: the place of its next task
    clock = np.zeros(ranks, np.int64)  # by rank: the end of the task before that
    start[:] = -1
    count, makespan, has_started = 0, 0, True
    while has_started:
        has_started = False
        for r in range(ranks):
            while position[r] < length[r]:
                x = sequence[r, position[r]]
                at = clock[r]
                ready = True
                for k in range(2):
                    y = waits[x, k]
                    if y >= 0:
                        if start[y] < 0:
                            ready = False
                            break
                        at = max(at, start[y] + duration[y] + delays[x, k])
                if not ready:
                    break
                start[x] = at
                clock[r] = at + duration[x]
                topological[count] = x
                count += 1
                position[r] += 1
                has_started = True
            makespan = max(makespan, clock[r])
    return makespan if count == len(duration) else -1


@compiled
def holds(sequence: Ints, length: Ints, held: Ints, freed: Ints, limit: Ints, after: Ints) -> bool:
    """Fill in `after`, what each rank holds after each of its tasks; return whether no rank ever exceeds its limit."""
    fits = True
    for r in range(len(length)):
        holding = 0
        for i in range(length[r]):
            x = sequence[r, i]
            holding += held[x]
            if holding > limit[r]:
                fits = False
            holding -= freed[x]
            after[r, i] = holding
    return fits


@compiled
def anneal(
    sequence: Ints,
    length: Ints,
    series: Ints,
    rank: Ints,
    duration: Ints,
    waits: Ints,
    delays: Ints,
    feeds: Ints,
    held: Ints,
    freed: Ints,
    limit: Ints,
    tail: Ints,
    moves: int,
    reach: int,
    hot: float,
    cold: float,
    target: int,
    seed: int,
    best: Ints,
) -> int:
    """Anneal an order in place: try `moves` moves, while the temperature falls from hot to cold. Return the least makespan.

    The order with the least makespan is written to `best`. Temperatures are in the unit of the durations. A move takes a task
    up to `reach` places earlier or later on its rank, in most trials (ON_PATH) a task of a critical path. A move that would let
    a rank hold more than its limit is not made. The times that a move changes are computed in a topological order, which is
    repaired with every move. As soon as one of these times is too late for the threshold of the trial, the move is undone. A
    move that makes a cycle is undone too. The annealing ends early if the makespan reaches `target`.
    """
    np.random.seed(seed)
    size, ranks = len(duration), len(length)
    start = np.zeros(size, np.int64)
    topological = np.zeros(size, np.int64)
    place_in_all = np.zeros(size, np.int64)  # of each task in `topological`
    place = np.zeros(size, np.int64)  # of each task on its rank
    rest = np.zeros(size, np.int64)  # by task: the work after it on its rank
    after = np.zeros_like(sequence)  # what each rank holds after each of its tasks
    current = times(sequence, length, duration, waits, delays, start, topological)
    holds(sequence, length, held, freed, limit, after)
    for r in range(ranks):
        total = 0
        for i in range(length[r] - 1, -1, -1):
            x = sequence[r, i]
            place[x] = i
            rest[x] = total
            total += duration[x]
    for i in range(size):
        place_in_all[topological[i]] = i
    least = current
    best[:] = sequence
    dirty = np.zeros(size, np.bool_)  # by task: whether its start has to be computed again
    touched = np.zeros(size, np.int64)  # the tasks that were dirty in this trial
    changed = np.zeros(size, np.int64)  # the tasks whose start has changed in this trial
    before = np.zeros(size, np.int64)  # the earlier starts of `changed`
    mark = np.zeros(size, np.bool_)  # by task: whether it moves with the task of this trial in `topological`
    section = np.zeros(size, np.int64)  # the section of `topological` that a trial changes, as it was before the trial
    marked_tasks = np.zeros(size, np.int64)  # the marked tasks of this section
    path = np.zeros(size, np.int64)  # a critical path
    path_length = 0
    accepted = 0  # moves
    stale = True  # whether the critical path has to be computed again
    temperature = hot
    falling = (cold / hot) ** (1.0 / max(1.0, moves / PER_STEP)) if hot > 0 else 1.0
    for trial in range(moves):
        if least <= target:
            break
        if trial % PER_STEP == 0:
            temperature *= falling
        if stale:
            path_length = _critical(sequence, length, place, start, duration, waits, delays, rank, current, path)
            stale = False
        u = path[np.random.randint(path_length)] if np.random.random() < ON_PATH else np.random.randint(size)
        r, i = rank[u], place[u]
        # From place i to place j. A task passes no task of its series, none that waits for it, and none for which it waits.
        distance = 1 + np.random.randint(reach)
        goes_later = np.random.random() < 0.5
        j = i
        if goes_later:
            while j + 1 < length[r] and j - i < distance:
                y = sequence[r, j + 1]
                if series[y] == series[u] or waits[y, 0] == u or waits[y, 1] == u:
                    break
                j += 1
        else:
            while j > 0 and i - j < distance:
                y = sequence[r, j - 1]
                if series[y] == series[u] or waits[u, 0] == y or waits[u, 1] == y:
                    break
                j -= 1
        if j == i:
            continue
        low, high = min(i, j), max(i, j)
        # Whether the rank would keep its limit at the places that change, low to high.
        holding = after[r, low - 1] if low > 0 else 0
        fits = True
        for k in range(low, high + 1):
            x = u if k == j else sequence[r, k + 1 if goes_later else k - 1]
            holding += held[x]
            if holding > limit[r]:
                fits = False
                break
            holding -= freed[x]
        if not fits:
            continue
        threshold = current
        if temperature > 0:  # the Metropolis criterion: a worse makespan is accepted up to a random threshold
            threshold += int(-temperature * np.log(1.0 - np.random.random()))
        # Move the task.
        first, last = place_in_all[sequence[r, low]], place_in_all[sequence[r, high]]
        _shift(sequence, place, r, i, j)
        # Repair the section of the topological order from the first to the last of the tasks at these places.
        marked_count = 0
        mark[u] = True
        cycle = False
        # Mark the tasks that must stay after u if it goes later, or before u if it goes earlier, because of waits or the orders
        # of other ranks. u passes tasks of its own rank: if one of these is marked, the move makes a cycle.
        begin, end, side = (first, last + 1, 1) if goes_later else (last, first - 1, -1)
        related = waits if goes_later else feeds
        for p in range(begin, end, side):
            x = topological[p]
            section[p - first] = x
            if x != u:
                marked = False
                for k in range(2):
                    y = related[x, k]
                    if y >= 0 and mark[y]:
                        marked = True
                beside = place[x] - side
                if rank[x] == r:
                    if marked:
                        cycle = True
                        break
                elif not marked and 0 <= beside < length[rank[x]] and mark[sequence[rank[x], beside]]:
                    marked = True
                mark[x] = marked
            if mark[x]:
                marked_tasks[marked_count] = x
                marked_count += 1
        if cycle:
            for p in range(first, last + 1):
                mark[topological[p]] = False
            _shift(sequence, place, r, j, i)
            continue
        # If u goes later, the marked tasks come after the others of the section, else before. Both groups keep their order.
        free_place = first if goes_later else first + marked_count
        for p in range(first, last + 1):
            x = section[p - first]
            if not mark[x]:
                topological[free_place] = x
                free_place += 1
        for k in range(marked_count):
            topological[free_place + k if goes_later else first + marked_count - 1 - k] = marked_tasks[k]
        for p in range(first, last + 1):
            x = topological[p]
            place_in_all[x] = p
            mark[x] = False
        # The work that is left on the rank after each of the tasks at the places low to high.
        total = rest[sequence[r, high + 1]] + duration[sequence[r, high + 1]] if high + 1 < length[r] else 0
        for k in range(high, low - 1, -1):
            rest[sequence[r, k]] = total
            total += duration[sequence[r, k]]
        # Times of the tasks that the move changes. At first the tasks at these places and the next one are dirty.
        waiting, touches, changes = 0, 0, 0  # how many tasks are dirty; the lengths of `touched` and `changed`
        for k in range(low, min(high + 2, length[r])):
            x = sequence[r, k]
            dirty[x] = True
            touched[touches] = x
            touches += 1
            waiting += 1
        p = first
        late = False
        while waiting > 0:
            x = topological[p]
            p += 1
            if not dirty[x]:
                continue
            dirty[x] = False
            waiting -= 1
            rx, at = rank[x], 0
            if place[x] > 0:
                y = sequence[rx, place[x] - 1]
                at = start[y] + duration[y]
            for k in range(2):
                y = waits[x, k]
                if y >= 0:
                    at = max(at, start[y] + duration[y] + delays[x, k])
            if at + duration[x] + max(rest[x], tail[x]) > threshold:
                late = True
                break
            if at != start[x]:
                changed[changes] = x
                before[changes] = start[x]
                changes += 1
                start[x] = at
                if place[x] + 1 < length[rx]:
                    y = sequence[rx, place[x] + 1]
                    if not dirty[y]:
                        dirty[y] = True
                        touched[touches] = y
                        touches += 1
                        waiting += 1
                for k in range(2):
                    y = feeds[x, k]
                    if y >= 0 and not dirty[y]:
                        dirty[y] = True
                        touched[touches] = y
                        touches += 1
                        waiting += 1
        if late:
            for k in range(touches):
                dirty[touched[k]] = False
            for k in range(changes - 1, -1, -1):
                start[changed[k]] = before[k]
            for p in range(first, last + 1):
                x = section[p - first]
                topological[p] = x
                place_in_all[x] = p
            _shift(sequence, place, r, j, i)
            total = rest[sequence[r, high + 1]] + duration[sequence[r, high + 1]] if high + 1 < length[r] else 0
            for k in range(high, low - 1, -1):
                rest[sequence[r, k]] = total
                total += duration[sequence[r, k]]
            continue
        holding = after[r, low - 1] if low > 0 else 0
        for k in range(low, high + 1):
            holding += held[sequence[r, k]] - freed[sequence[r, k]]
            after[r, k] = holding
        makespan = 0
        for k in range(ranks):
            if length[k] > 0:
                x = sequence[k, length[k] - 1]
                makespan = max(makespan, start[x] + duration[x])
        accepted += 1
        if makespan != current or accepted % PATH_EVERY == 0:
            stale = True
        current = makespan
        if current < least:
            least = current
            best[:] = sequence
        if accepted % SORT_EVERY == 0:  # by time, which keeps the sections short
            for p in range(1, size):
                x = topological[p]
                k = p - 1
                while k >= 0 and start[topological[k]] > start[x]:
                    topological[k + 1] = topological[k]
                    k -= 1
                topological[k + 1] = x
            for p in range(size):
                place_in_all[topological[p]] = p
    return least


@compiled
def _shift(sequence: Ints, place: Ints, r: int, i: int, j: int) -> None:
    """Move the task at place i of rank r to place j."""
    x = sequence[r, i]
    if i < j:
        for k in range(i, j):
            y = sequence[r, k + 1]
            sequence[r, k] = y
            place[y] = k
    else:
        for k in range(i, j, -1):
            y = sequence[r, k - 1]
            sequence[r, k] = y
            place[y] = k
    sequence[r, j] = x
    place[x] = j


@compiled
def _critical(
    sequence: Ints,
    length: Ints,
    place: Ints,
    start: Ints,
    duration: Ints,
    waits: Ints,
    delays: Ints,
    rank: Ints,
    makespan: int,
    path: Ints,
) -> int:
    """Fill in a critical path, chosen at random where there are several; return its length."""
    count, x = 0, -1
    for r in range(len(length)):
        if length[r] > 0:
            y = sequence[r, length[r] - 1]
            if start[y] + duration[y] == makespan and (x < 0 or np.random.random() < 0.5):
                x = y
    while x >= 0:
        path[count] = x
        count += 1
        before = -1  # the task before x on the path
        if place[x] > 0:
            y = sequence[rank[x], place[x] - 1]
            if start[y] + duration[y] == start[x]:
                before = y
        for k in range(2):
            y = waits[x, k]
            tight = y >= 0 and start[y] + duration[y] + delays[x, k] == start[x]
            if tight and (before < 0 or np.random.random() < 0.5):
                before = y
        x = before
    return count
