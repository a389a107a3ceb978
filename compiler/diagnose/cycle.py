"""The shortest cycle of waits, among instructions in streams or among the tasks of an order, and how findings show it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np

from chimerac.chimera_ir.program import Ints

Item = TypeVar("Item")

MAX_WORK = 1_500_000  # waits visited before the search stops
MAX_SHOWN = 12  # the most waits, ranks or lines of a cycle that a finding shows


def shortest_cycle(target: Ints, source: Ints, lane: Ints) -> list[int]:
    """Return the numbers of the waits in a cycle with as few waits as possible.

    Wait k: node target[k] cannot run before node source[k] has run. There must be a wait, and none may ever be satisfied: then
    there is a cycle. lane[x] is the lane of node x, for instance its rank; lanes are ascending. Nodes of one lane run one after
    another. In a cycle, the source of each wait is the target of the next wait, or comes after that target in its lane. The
    search is complete for up to about a thousand waits. With more it may stop after visiting MAX_WORK waits, with the shortest
    cycle found so far.
    """
    order = np.argsort(target, kind="stable")
    target, source = target[order], source[order]
    # After wait k, the next wait of a cycle is one of begins[k] to ends[k] - 1: those in the lane of the source of k whose
    # targets are not after this source.
    begins = np.searchsorted(target, np.searchsorted(lane, lane[source])).tolist()
    ends = np.searchsorted(target, source, side="right").tolist()
    best = _any_cycle(begins, ends)
    single = np.flatnonzero((lane[target] == lane[source]) & (target <= source))  # each is a cycle of its own
    if len(single):
        best = single[:1].tolist()
    targets, lanes, sources = target.tolist(), lane[target].tolist(), source.tolist()
    source_lanes, work = lane[source].tolist(), 0
    first_of_lane = np.searchsorted(target, np.searchsorted(lane, lane[target]))
    # The first waits of all lanes come first, then the second ones, and so on.
    starts = np.argsort(np.arange(len(target)) - first_of_lane, kind="stable").tolist()
    for start in starts:  # a breadth-first search for the way back to this wait
        if len(best) <= 1 or work > MAX_WORK:
            break
        goal_node, goal_lane = targets[start], lanes[start]
        predecessor = {start: -1}  # wait -> the wait from which it was reached
        next_unvisited: dict[int, int] = {}  # lane -> its first wait that was not visited
        level, depth = [start], 1
        while level and depth < len(best):
            following: list[int] = []
            for k in level:
                if source_lanes[k] == goal_lane and sources[k] >= goal_node:
                    best, level, following = _path(predecessor, k), [], []
                    break
                for other in range(next_unvisited.get(source_lanes[k], begins[k]), ends[k]):
                    work += 1
                    if other not in predecessor:
                        predecessor[other] = k
                        following.append(other)
                next_unvisited[source_lanes[k]] = max(next_unvisited.get(source_lanes[k], 0), ends[k])
            level, depth = following, depth + 1
    return [int(k) for k in order[best]]


def _path(predecessor: dict[int, int], last: int) -> list[int]:
    """Return the waits from the start of a search to a wait."""
    path = [last]
    while predecessor[path[-1]] >= 0:
        path.append(predecessor[path[-1]])
    return path[::-1]


def _any_cycle(begins: list[int], ends: list[int]) -> list[int]:
    """Return any cycle: go from a wait to the first wait of its source's lane, and so on, until a wait repeats."""
    seen: dict[int, int] = {}  # wait -> the start from which it was reached
    for start in range(len(begins)):
        k = start
        path = []
        while k not in seen and begins[k] < ends[k]:
            seen[k] = start
            path.append(k)
            k = begins[k]
        if seen.get(k) == start:
            return path[path.index(k) :]
    raise AssertionError("the waits have no cycle")


def cycle_fact(ranks: Sequence[int]) -> str:
    """Return the fact about a cycle of waits for the message of a finding.

    Args:
        ranks: those of the cycle, ascending.
    """
    if len(ranks) == 1:
        return f"rank {ranks[0]} waits for itself"
    more = f" and {len(ranks) - MAX_SHOWN} more" if len(ranks) > MAX_SHOWN else ""
    return f"ranks {', '.join(map(str, ranks[:MAX_SHOWN]))}{more} wait for each other in a cycle"


def shown(lines: Sequence[str], what: str) -> list[str]:
    """Return the first MAX_SHOWN lines, and one that counts the others, if any.

    Args:
        what: the word for them, such as 'waits'.
    """
    return [*lines[:MAX_SHOWN], *([f"... and {len(lines) - MAX_SHOWN} more {what}"] if len(lines) > MAX_SHOWN else [])]


def consecutive_pairs(cycle: list[Item]) -> list[tuple[Item, Item]]:
    """Return each item of a cycle with the next one; the first follows the last."""
    return list(pairwise([*cycle, cycle[0]]))
