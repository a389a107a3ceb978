"""Mirrored placements: half of the ranks decide for all.

Two pipes in opposite directions look the same from both ends: rank r and rank D - 1 - r have the same stages, and the pipes
change places. If links and limits are mirrored too, an order of the first half of the ranks gives an order of all ranks: the
other half does the same at the same times. The folded problem has half of the tasks. Its best order may be worse than that of
the whole problem, which is searched too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order, by_priority


@dataclass(frozen=True, slots=True)
class Folded:
    """A whole problem and its folded one.

    Attributes:
        problem: the folded one, which has the first half of the ranks, and one of each two mirrored pipes.
        partner: for each pipe of the whole problem the number of its mirror image.
        kept: the pipes of the folded problem, by their numbers in the whole one.
    """

    whole: Problem
    problem: Problem
    partner: tuple[int, ...]
    kept: tuple[int, ...]

    def unfolded(self, order: Order) -> Order | None:
        """Return the order of the whole problem in which mirrored ranks do the same.

        Args:
            order: of the folded problem. It keeps the limits there, so the order of the whole problem keeps them too, and the
                result is not None.
        """
        small, whole, kinds = self.problem.tasks, self.whole.tasks, len(self.whole.kinds)
        place = np.zeros(len(small), np.int64)
        for r in range(self.problem.ranks):
            place[order.rows(r)] = np.arange(order.length[r])
        priority = np.zeros(len(whole), np.int64)
        first = {cell: int(whole.first[c]) for c, cell in enumerate(whole.cells)}
        for c, (kept_pipe, s) in enumerate(small.cells):
            p = self.kept[kept_pipe]
            n = kinds * self.whole.pipes[p].micro_batches
            for q in (p, self.partner[p]):
                priority[first[q, s] : first[q, s] + n] = place[small.first[c] : small.first[c] + n]
        return by_priority(self.whole, priority)


def fold(problem: Problem) -> Folded | None:
    """Return the folded problem; None if the number of ranks is odd, or if the links, the limits or the pipes are not mirrored.

    The mirror image of a pipe is another pipe with as many micro-batches, whose stages are on the mirrored ranks. None also if
    the limit of a rank does not allow it to hold a micro-batch and its mirror image at once.
    """
    last = problem.ranks - 1
    if problem.ranks % 2 or problem.limits != problem.limits[::-1]:
        return None
    if problem.links != tuple(row[::-1] for row in problem.links[::-1]):
        return None
    partner = [-1] * len(problem.pipes)
    for p, pipe in enumerate(problem.pipes):
        mirrored = tuple(last - r for r in pipe.placement)
        for q in range(p + 1, len(problem.pipes)):
            other = problem.pipes[q]
            if partner[p] < 0 and partner[q] < 0 and (other.placement, other.micro_batches) == (mirrored, pipe.micro_batches):
                partner[p], partner[q] = q, p
    if -1 in partner:
        return None
    kept = tuple(p for p, q in enumerate(partner) if p < q)
    half = problem.ranks // 2
    kept_pipes = [problem.pipes[p] for p in kept]
    pipes = [replace(x, placement=tuple(min(r, last - r) for r in x.placement), link_ranks=x.placement) for x in kept_pipes]
    folded = replace(problem, ranks=half, pipes=tuple(pipes), limits=problem.limits[:half])
    if not folded.allows_one_micro_batch():
        return None
    return Folded(problem, folded, tuple(partner), kept)
