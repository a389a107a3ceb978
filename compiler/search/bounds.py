"""Lower bounds of the makespan: one for each rank that has tasks, with the tasks that attain its head and its tail.

A rank is idle for at least its head before its last task, and for at least its tail after this task. So makespan >= head
+ busy + tail. One head is the time until a first micro-batch can reach the rank. The tail is 0 if backwards are split. If they
are not, it is the shortest way of a gradient from the rank back to stage 0. Two facts about memory may give larger bounds.

- A `W` frees what a micro-batch holds, or a `B` where backwards are not split. Before its first `W`, or its first `B`, a rank
  runs forwards and input gradients only, and frees nothing. The forwards that fit within its limit take at most the time c. The
  input gradients, or the `B`, start at the time g at the earliest. So the rank is idle for at least g - c before that first
  task, and this is a head too.
- A micro-batch is held from its forward to the end of its last backward: at least for its way to the last stage and back, and
  for its backwards here. These times, weighted by what is held, add up to at most limit x (makespan - arrival - tail), where
  the first micro-batch reaches the rank at `arrival`. The bound `residence` follows from this.

docs/search.md has the proofs. check.py computes the same numbers by code of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from chimerac.compiler.search.problem import Problem


@dataclass(frozen=True, slots=True)
class RankBound:
    """A bound of one rank. Times are the problem's integers.

    Attributes:
        head: the larger one of the arrival and of g - c.
        head_by: 'limit' if g - c is larger, else 'arrival'.
        busy: how long the rank computes.
        attained_by: (pipe, stage, micro-batch) of the task that gives the head, and of the one that gives the tail.
        residence: the bound by what is held, 0 if there is no limit.
    """

    rank: int
    head: int
    head_by: str
    busy: int
    tail: int
    residence: int
    attained_by: tuple[tuple[int, int, int], tuple[int, int, int]]

    @property
    def value(self) -> int:
        """Return the bound."""
        return max(self.head + self.busy + self.tail, self.residence)


def rank_bounds(problem: Problem) -> list[RankBound]:
    """Return the bound of every rank that has tasks."""
    t, kinds, busy = problem.tasks, len(problem.kinds), problem.busy()
    bounds = []
    for r in range(problem.ranks):
        # A cell is a stage of a pipe that has micro-batches.
        cells = [c for c, (p, s) in enumerate(t.cells) if problem.pipes[p].placement[s] == r]
        if not cells:
            continue

        def task(c: int, kind: int, last: bool = False) -> int:
            """Return the number of the task of this kind of a cell, for its first micro-batch or for its last one."""
            n = problem.pipes[t.cells[c][0]].micro_batches
            return t.number(c, kind, n - 1 if last else 0, kinds)

        first_cell = min(cells, key=lambda c: int(t.head[task(c, 0)]))
        arrival = int(t.head[task(first_cell, 0)])
        gradient_cell = min(cells, key=lambda c: int(t.head[task(c, 1)]))
        by_limit = int(t.head[task(gradient_cell, 1)]) - fitting(problem, r)
        last_cell = min(cells, key=lambda c: int(t.tail[task(c, kinds - 1, last=True)]))
        tail = int(t.tail[task(last_cell, kinds - 1, last=True)])
        head_by, start_cell = ("limit", gradient_cell) if by_limit > arrival else ("arrival", first_cell)
        last_micro_batch = problem.pipes[t.cells[last_cell][0]].micro_batches - 1
        attained_by = ((*t.cells[start_cell], 0), (*t.cells[last_cell], last_micro_batch))
        residence = 0
        if problem.limits[r] is not None:
            total = 0
            for c in cells:
                p, s = t.cells[c]
                held_for = int(t.head[task(c, 1)] - t.head[task(c, 0)]) + sum(column[s] for column in problem.durations[1:])
                total += problem.pipes[p].micro_batches * problem.activations[s] * held_for
            residence = arrival + -(-total // max(1, int(problem.limit_of[r]))) + tail
        bounds.append(RankBound(r, max(arrival, by_limit), head_by, busy[r], tail, residence, attained_by))
    return bounds


def fitting(problem: Problem, rank: int) -> int:
    """Return c (top of this file): an upper bound of the time of the forwards whose micro-batches a rank can hold together.

    If the limit has room for only a part of the next forward, this part counts too (the linear relaxation of a knapsack). Its
    time is rounded up.
    """
    stages = [
        (problem.activations[s], problem.durations[0][s], pipe.micro_batches)
        for pipe in problem.pipes
        for s, r in enumerate(pipe.placement)
        if r == rank and pipe.micro_batches
    ]
    left, total = int(problem.limit_of[rank]), 0
    # First the forwards that hold nothing, then those that take the most time for what they hold.
    for weight, time, n in sorted(stages, key=lambda x: (x[0] > 0, -x[1] / x[0] if x[0] else 0)):
        if weight == 0 or left >= weight * n:
            total, left = total + time * n, left - weight * n
        else:
            total += left // weight * time
            left -= left // weight * weight
            # What is left of the limit is too little for one more micro-batch of this stage. A part of its forward counts.
            # Later stages of the list take no more time for what they hold. So in this rest their forwards take no longer.
            total += -(-left * time // weight)  # rounded up
            break
    return total
