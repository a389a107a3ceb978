"""Plans an ALLREDUCE for every parameter group on every rank that holds it.

    at end             after the rank's last task
    eager              right after the rank's last weight gradient of the group; if it is in an overlapped pair, after the pair
    eager where idle   in the first gap (a time when the rank idles) between that gradient and the rank's last task; if there
                       is none, at the end (Chimera's eager-sync-opt: Li and Hoefler, SC'21, section 3.2)

A rank that has no gradient of the group, since its pipe has no micro-batches, is ready for the collective from the start.

All collectives follow one total order, by the moment at which their last member launches them. Every rank launches its
collectives in this order. Those of a single rank are removed later, when the width is known (width.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chimerac.chimera_ir.instructions import AllReduce, Op, stage_group
from chimerac.chimera_ir.program import OVERLAP, Ints, Program, Table
from chimerac.compiler.lower.insert import Insertion
from chimerac.compiler.syntax.nodes import SyncPolicy
from chimerac.compiler.tasks import Timing, total_order


@dataclass(frozen=True, slots=True)
class _Launch:
    """The launch of a group's collective on one rank, before row `slot` of the program.

    Attributes:
        group: the number of the group.
    """

    group: int
    rank: int
    slot: int


def gradient_sync(
    program: Program, timing: Timing, policy: SyncPolicy, in_one_order: bool = False
) -> tuple[Insertion, tuple[AllReduce, ...]]:
    """Return the gradient sync of a program of tasks, and the collectives to which the insertion's column `operand` refers.

    Args:
        timing: of this program (`task_times` in compiler/tasks.py).
        in_one_order: all ranks have the collectives and the transfers in one common order (transfers.py). In it a collective
            comes right after the last of the tasks before its launches.
    """
    h = program.header
    groups = [((s,), stage_group(s)) for s in range(h.stages)] + [(t.stages, t.name) for t in h.tied]
    all_reduces = tuple(AllReduce(name, stages[0], h.holders(stages)) for stages, name in groups)
    launches = _launches(program, timing, policy, [stages for stages, _ in groups], all_reduces)
    group, rank, slot = (np.array([getattr(x, k) for x in launches], np.int64) for k in ("group", "rank", "slot"))
    # A collective runs when its last member has launched it. `complete`, by group: the end of the task before this last launch
    # or, in one order, the place of that task plus 1; 0 if each member launches it before its first task.
    place, keys = total_order(program, timing) if in_one_order else (None, None)
    moments = np.concatenate([[0], timing.end if place is None else place + 1])
    complete = np.zeros(len(groups), np.int64)
    np.maximum.at(complete, group, moments[np.where(slot == program.offsets[rank], 0, slot)])
    order = np.lexsort((rank, group, complete[group]))
    group, rank, slot = group[order], rank[order], slot[order]
    if keys is not None:
        slot = np.searchsorted(keys, rank * len(program) + complete[group])
        # A transfer of the task at place p has the tie 2p (transfers.py). This collective comes right after it: 2p + 1.
        tie = 2 * complete[group] - 1
    else:
        # No rank launches a collective before those that precede it in the order. An offset larger than any slot separates the
        # ranks, so that one running maximum is enough for all of them.
        by_rank, rank_offset = np.argsort(rank, kind="stable"), rank * (len(program) + 1)
        slot[by_rank] = np.maximum.accumulate((slot + rank_offset)[by_rank]) - rank_offset[by_rank]
        tie = np.arange(len(order))
    table = Table.of(
        np.full(len(order), Op.ALLREDUCE),
        stage=np.array([all_reduces[g].stage for g in group.tolist()], np.int64),
        operand=group,
    )
    priority = np.full(len(order), 0 if in_one_order else 2)  # 2: after the transfers in the same slot
    return Insertion(table, rank, slot, priority, tie), all_reduces


def _launches(
    program: Program,
    timing: Timing,
    policy: SyncPolicy,
    groups: list[tuple[int, ...]],
    all_reduces: tuple[AllReduce, ...],
) -> list[_Launch]:
    """Return the launches of all groups on all their ranks.

    Args:
        groups, all_reduces: the stages and the all-reduce of each.
    """
    h, t = program.header, program.table
    last = np.full((len(h.pipes), h.stages), -1, np.int64)  # row of the last weight gradient, -1 where there is none
    weight = np.flatnonzero((t.op == Op.BWD) | (t.op == Op.BWD_WEIGHT))
    np.maximum.at(last, (t.pipe[weight], t.stage[weight]), weight)
    gaps = _gaps(program, timing) if policy == "eager where idle" else {}
    result = []
    for g, stages in enumerate(groups):
        last_gradient: dict[int, int] = {}  # rank -> row of its last weight gradient of the group, or -1
        for p, pipe in enumerate(h.pipes):
            for s in stages:
                last_gradient[pipe.placement[s]] = max(last_gradient.get(pipe.placement[s], -1), int(last[p, s]))
        for rank in all_reduces[g].ranks:
            begin, end = int(program.offsets[rank]), int(program.offsets[rank + 1])
            ready = last_gradient[rank] + 1 or begin  # the first row of the rank if it has no gradient of the group
            slot = end  # the policy "at end"
            if policy == "eager":
                slot = ready + int(ready < end and bool(t.flags[ready - 1] & OVERLAP))  # a pair stays together
            elif policy == "eager where idle":
                idle = gaps[rank]
                place = int(np.searchsorted(idle, ready))
                slot = int(idle[place]) if place < len(idle) else end
            result.append(_Launch(g, rank, slot))
    return result


def _gaps(program: Program, timing: Timing) -> dict[int, Ints]:
    """Return for each rank the rows before which it idles, ascending."""
    result = {}
    for rank in range(program.world):
        begin, end = int(program.offsets[rank]), int(program.offsets[rank + 1])
        before = np.concatenate([[0], timing.end[begin : end - 1]]) if end > begin else np.zeros(0, np.int64)
        result[rank] = begin + np.flatnonzero(timing.start[begin:end] > before)
    return result
