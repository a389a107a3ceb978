"""The problem that is searched: tasks on ranks, what they cost and wait for, and what a rank may hold.

Micro-batches of one pipe cost the same, so they may be exchanged: if the k-th forward of a stage, by time, is given to
micro-batch k, and the same for its backwards, every wait still holds and every rank holds as much as before. So some order
with the least makespan has the micro-batches of each (pipe, stage, kind) in ascending order, and only such orders are searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pipe:
    """A pipe: its name, the rank of each stage, and the number of its micro-batches.

    Attributes:
        link_ranks: the rank of each stage, as `Problem.links` numbers them; empty if these are the ranks of the placement. They
            differ in a folded problem (fold.py).
    """

    name: str
    placement: tuple[int, ...]
    micro_batches: int
    link_ranks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Problem:
    """What is to be ordered. Times are integers without a common divisor; `scale` of them make one unit of the given costs.

    Attributes:
        kinds: 'FB', or 'FIW' with a split backward.
        durations: of a task, per kind and stage.
        links: the time of a message from one rank to another, [from][to].
        activations: per stage, what a rank holds of a micro-batch from the start of its F to the end of its B or W on this
            stage.
        limits: the most that each rank may hold, in the unit of `activations`; None for no limit.
    """

    ranks: int
    stages: int
    pipes: tuple[Pipe, ...]
    kinds: str
    durations: tuple[tuple[int, ...], ...]
    links: tuple[tuple[int, ...], ...]
    activations: tuple[int, ...]
    limits: tuple[int | None, ...]
    scale: Fraction = Fraction(1)

    def with_micro_batches(self, counts: Sequence[int]) -> Problem:
        """Return the same problem with other numbers of micro-batches, one for each pipe."""
        pipes = tuple(replace(pipe, micro_batches=n) for pipe, n in zip(self.pipes, counts, strict=True))
        return replace(self, pipes=pipes)

    @cached_property
    def tasks(self) -> Tasks:
        """Return all tasks, as columns."""
        return Tasks.of(self)

    @cached_property
    def limit_of(self) -> Ints:
        """Return the limit of each rank; where there is none, a number that no rank can exceed."""
        most = sum(self.activations) * sum(pipe.micro_batches for pipe in self.pipes) + 1
        return np.array([most if x is None else x for x in self.limits], np.int64)

    def delay(self, pipe: int, stage: int, to: int) -> int:
        """Return the time of a message from a stage of a pipe to the stage `to`; 0 if both are on one rank."""
        link_ranks = self.pipes[pipe].link_ranks or self.pipes[pipe].placement
        return 0 if link_ranks[stage] == link_ranks[to] else self.links[link_ranks[stage]][link_ranks[to]]

    def least_limits(self) -> list[int]:
        """Return for each rank the least limit that an order can keep: the most that one micro-batch needs on its stages there.

        With these limits on all ranks, the micro-batches can run one after another.
        """
        held = [[0] * self.ranks for _ in self.pipes]
        for of_pipe, pipe in zip(held, self.pipes, strict=True):
            for s, r in enumerate(pipe.placement):
                of_pipe[r] += self.activations[s] if pipe.micro_batches else 0
        return [max(of_pipe[r] for of_pipe in held) for r in range(self.ranks)]

    def allows_one_micro_batch(self) -> bool:
        """Return whether every rank may hold one micro-batch at a time, so that some order keeps the limits."""
        limits = zip(self.limits, self.least_limits(), strict=True)
        return all(limit is None or limit >= least for limit, least in limits)

    def busy(self) -> list[int]:
        """Return how long each rank computes."""
        t = self.tasks
        return [int(t.duration[t.rank == r].sum()) for r in range(self.ranks)]


@dataclass(frozen=True, slots=True)
class Tasks:
    """All tasks as columns. Task number first[c] + k * n + m is kind k of micro-batch m of cell c, which has n micro-batches.

    A cell is a stage of a pipe that has micro-batches. A series is the tasks of one kind of a cell, by micro-batch. Its number
    is c x the number of kinds + k.

    Attributes:
        cells: the pipe and the stage of each cell.
        first: the first task of each cell, and at the end the number of all tasks.
        waits: the tasks that it waits for, at most two, -1 for none.
        delays: the times of their messages.
        feeds: the tasks that wait for it, at most two, -1 for none.
        held: what an F begins to hold.
        freed: what a W frees, or a B where backwards are not split; held and freed are 0 for other tasks.
        head: a lower bound of the time at which the task starts.
        tail: a lower bound of the time from its end to the end of the iteration.

    The other columns have an entry for each task.
    """

    cells: tuple[tuple[int, int], ...]
    first: Ints
    series: Ints
    micro_batch: Ints
    rank: Ints
    duration: Ints
    waits: Ints
    delays: Ints
    feeds: Ints
    held: Ints
    freed: Ints
    head: Ints
    tail: Ints

    def __len__(self) -> int:
        return len(self.rank)

    @staticmethod
    def of(problem: Problem) -> Tasks:
        kinds, pipes = len(problem.kinds), problem.pipes
        cells = tuple((p, s) for p, pipe in enumerate(pipes) if pipe.micro_batches for s in range(problem.stages))
        counts = np.array([pipes[p].micro_batches for p, _ in cells], np.int64)
        first = np.concatenate([[0], np.cumsum(counts * kinds)]).astype(np.int64)
        size = int(first[-1])
        columns = {name: np.zeros(size, np.int64) for name in ("series", "micro_batch", "rank", "duration", "held", "freed")}
        waits, delays = np.full((size, 2), -1, np.int64), np.zeros((size, 2), np.int64)
        feeds = np.full((size, 2), -1, np.int64)
        where = {cell: c for c, cell in enumerate(cells)}
        for c, (p, s) in enumerate(cells):
            n, rank = pipes[p].micro_batches, pipes[p].placement[s]
            rows = [np.arange(first[c] + k * n, first[c] + (k + 1) * n) for k in range(kinds)]
            for k, row in enumerate(rows):
                columns["series"][row] = c * kinds + k
                columns["micro_batch"][row] = np.arange(n)
                columns["rank"][row] = rank
                columns["duration"][row] = problem.durations[k][s]
            columns["held"][rows[0]] = columns["freed"][rows[-1]] = problem.activations[s]
            pairs = [(rows[0], rows[1], 1, 0)]  # tasks waited for, waiting tasks, index of the wait, delay
            if kinds == 3:
                pairs.append((rows[1], rows[2], 0, 0))
            for other, k in ((s - 1, 0), (s + 1, 1)):
                if 0 <= other < problem.stages:
                    before = np.arange(n) + first[where[p, other]] + k * n
                    pairs.append((before, rows[k], 0, problem.delay(p, other, s)))
            for before, row, slot, delay in pairs:
                waits[row, slot], delays[row, slot] = before, delay
                # A task feeds the one of its kind on another stage (0), and the one of the next kind on its own stage (1).
                feeds[before, 1 if slot == 1 or (kinds == 3 and row is rows[2]) else 0] = row
        head, tail = _heads(problem, cells, first), _tails(problem, cells, first)
        return Tasks(cells, first, waits=waits, delays=delays, feeds=feeds, head=head, tail=tail, **columns)

    def number(self, cell: int, kind: int, micro_batch: int, kinds: int) -> int:
        """Return the number of a task.

        Args:
            kind: its index in `Problem.kinds`.
            kinds: how many there are.
        """
        n = int(self.first[cell + 1] - self.first[cell]) // kinds
        return int(self.first[cell]) + kind * n + micro_batch


def _along(problem: Problem, p: int) -> tuple[list[int], list[int]]:
    """Return, for each stage of pipe p, the least time from the start of the iteration to a forward, and to a backward.

    For a split backward it is the time to the I.
    """
    forward, backward = problem.durations[:2]
    last = problem.stages - 1
    starts = [0]
    for s in range(last):
        starts.append(starts[s] + forward[s] + problem.delay(p, s, s + 1))
    back = [0] * problem.stages
    back[last] = starts[last] + forward[last]
    for s in range(last, 0, -1):
        back[s - 1] = back[s] + backward[s] + problem.delay(p, s, s - 1)
    return starts, back


def _heads(problem: Problem, cells: Sequence[tuple[int, int]], first: Ints) -> Ints:
    """Return the head of each task: the way along its pipe, and the tasks of its series before it."""
    found = np.zeros(int(first[-1]), np.int64)
    for c, (p, s) in enumerate(cells):
        n = problem.pipes[p].micro_batches
        starts, back = _along(problem, p)
        earliest = [starts[s], back[s], back[s] + problem.durations[1][s]]
        for k in range(len(problem.kinds)):
            a = int(first[c]) + k * n
            found[a : a + n] = earliest[k] + np.arange(n) * problem.durations[k][s]
    return found


def _tails(problem: Problem, cells: Sequence[tuple[int, int]], first: Ints) -> Ints:
    """Return the tail of each task: the tasks of its series after it, and what must follow the last one of them."""
    found = np.zeros(int(first[-1]), np.int64)
    split = len(problem.kinds) == 3
    for c, (p, s) in enumerate(cells):
        n = problem.pipes[p].micro_batches
        after = [0] * problem.stages  # by stage, from the end of a B or an I to the end of all that needs it
        if split:
            after[0] = problem.durations[2][0]
        for x in range(1, problem.stages):
            below = problem.delay(p, x, x - 1) + problem.durations[1][x - 1] + after[x - 1]
            after[x] = max(below, problem.durations[2][x] if split else 0)
        starts, back = _along(problem, p)
        of_kinds = [  # after a forward, after a B or an I, after a W
            back[s] - starts[s] - problem.durations[0][s] + problem.durations[1][s] + after[s],
            after[s],
            0,
        ]
        for k in range(len(problem.kinds)):
            a = int(first[c]) + k * n
            found[a : a + n] = of_kinds[k] + np.arange(n - 1, -1, -1) * problem.durations[k][s]
    return found
