"""Find an order close to the given one that does not deadlock, by moving tasks earlier that others wait for."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from chimerac.chimera_ir.program import OVERLAP, Program
from chimerac.compiler.tasks import TaskIndex, data_edges, earliest, task_costs

MAX_WORK = 500_000  # tasks and dependencies examined, list entries moved, and an eighth of those compared, in one search
MAX_SHOWN = 8  # moves that a suggestion shows, at most


class _SearchLimitError(Exception):
    """The search has exceeded MAX_WORK."""


class _Ranks:
    """A simulation of ranks that run their tasks in order. A unit is a task or an overlapped pair, numbered by its first row.

    Attributes:
        rank: of each row.
        needs: by unit, the units that it waits for.
        remaining: by rank, the units that have not run, the next one at the end.
        done: by unit, whether it has run.
        order: by rank, the units that have run.
        work: what MAX_WORK limits.
    """

    def __init__(self, tasks: Program) -> None:
        is_first = (tasks.table.flags & OVERLAP > 0).astype(np.int64)
        is_second = np.concatenate([[0], is_first[:-1]])
        edges = data_edges(tasks, TaskIndex.of(tasks), hop=0)
        self.rank = tasks.rank_of.tolist()
        self.needs: list[list[int]] = [[] for _ in range(len(tasks))]
        for source, target in zip(edges.source.tolist(), edges.target.tolist(), strict=True):
            source_unit, target_unit = source - int(is_second[source]), target - int(is_second[target])
            if source_unit != target_unit:
                self.needs[target_unit].append(source_unit)
        units = np.flatnonzero(is_second == 0)
        bounds = np.searchsorted(units, tasks.offsets).tolist()
        self.remaining = [units[a:b].tolist()[::-1] for a, b in pairwise(bounds)]
        self.done = [False] * len(tasks)
        self.order: list[list[int]] = [[] for _ in self.remaining]
        self.work = 0

    def first_unmet(self, unit: int) -> int | None:
        """Return a unit that has not run and that this one waits for; None if this one can run."""
        self.work += 1 + len(self.needs[unit])
        if self.work > MAX_WORK:
            raise _SearchLimitError
        return next((x for x in self.needs[unit] if not self.done[x]), None)

    def run(self) -> None:
        """Run until every rank has finished or waits."""
        blocked_on: dict[int, list[int]] = {}
        ready = [*range(len(self.remaining))]
        while ready:
            rank = ready.pop()
            while self.remaining[rank]:
                unit = self.remaining[rank][-1]
                needed = self.first_unmet(unit)
                if needed is not None:
                    blocked_on.setdefault(needed, []).append(rank)
                    break
                self.done[unit] = True
                self.order[rank].append(self.remaining[rank].pop())
                ready += blocked_on.pop(unit, [])

    def next_to_advance(self, preferred: set[int]) -> int | None:
        """Return a unit that can run now and that a rank waits for, directly or through other units.

        Units of preferred ranks come first, then those that are earliest in their rank's remaining order. Return None if
        there is no such unit, which can happen only if overlapped pairs wait for each other or for themselves.
        """
        candidates: list[tuple[bool, int, int]] = []
        for remaining in self.remaining:
            unit, seen = remaining[-1] if remaining else None, set[int]()
            while unit is not None and (needed := self.first_unmet(unit)) is not None:
                seen.add(unit)
                unit = needed if needed not in seen else None
            if unit is not None:
                own_remaining = self.remaining[self.rank[unit]]
                self.work += len(own_remaining) // 8  # `index` compares about eight entries in the time of one dependency
                candidates.append((self.rank[unit] not in preferred, len(own_remaining) - own_remaining.index(unit), unit))
        return min(candidates)[2] if candidates else None


def repair_order(tasks: Program) -> tuple[Program, list[tuple[int, int]]] | None:
    """Return a program of tasks without the deadlock, and the moves that lead to it; no moves if the tasks do not deadlock.

    A move is (row that moves earlier, row before which it moves).

    Args:
        tasks: those of one replica.

    Return None if no such program is found: the search takes more than MAX_WORK, or overlapped pairs wait for each other or for
    themselves.
    """
    ranks = _Ranks(tasks)
    moves: list[tuple[int, int]] = []
    try:
        ranks.run()
        while any(ranks.remaining):
            unit = ranks.next_to_advance({ranks.rank[moved] for moved, _ in moves})
            if unit is None:
                return None
            own_remaining = ranks.remaining[ranks.rank[unit]]
            moves.append((unit, own_remaining[-1]))
            ranks.work += len(own_remaining)
            own_remaining.remove(unit)
            own_remaining.append(unit)
            ranks.run()
    except _SearchLimitError:
        return None
    pair = tasks.table.flags & OVERLAP
    rows = [row for order in ranks.order for unit in order for row in range(unit, unit + (2 if pair[unit] else 1))]
    changed = replace(tasks, table=tasks.table.take(np.array(rows, np.int64)))
    stuck = earliest(changed, task_costs(changed), data_edges(changed, TaskIndex.of(changed), hop=0)).stuck
    return None if stuck else (changed, moves)


def task_name(tasks: Program, row: int) -> str:
    """Return the name of a task for messages. The first row of an overlapped pair gives the name of the pair."""
    text = tasks.text(row)
    return f"{text.removesuffix(' overlap')} & {tasks.text(row + 1)}" if tasks.table.flags[row] & OVERLAP else text


def moves_help(tasks: Program, moves: list[tuple[int, int]], result: str) -> str:
    """Return the help that suggests these moves, at most MAX_SHOWN of them.

    Args:
        result: the effect of the moves, as tried.
    """
    lines = [
        f"let rank {tasks.rank_of[a]} run {task_name(tasks, a)} before {task_name(tasks, b)}" for a, b in moves[:MAX_SHOWN]
    ]
    if len(moves) > MAX_SHOWN:
        lines.append(f"and {len(moves) - MAX_SHOWN} more like these")
    tried = "tried" if len(moves) == 1 else f"these {len(moves)} moves were tried together"
    return "\n".join(lines) + f"; {tried}: {result}"
