"""Schedules as torch.distributed.pipelining generates and lowers them, without process groups, models or verification."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from torch.distributed.pipelining import schedules as theirs

logging.getLogger(theirs.__name__).setLevel(logging.ERROR)


class _Unverified(theirs.PipelineScheduleMulti):
    """Leaves out the counts by which a schedule is validated before it is lowered; constructors know all placements."""

    def _validate_and_set_stage_mapping(self, actions: object) -> None:
        pass


class _Looped(theirs.ScheduleInterleaved1F1B, _Unverified):
    pass


class _V(theirs.ScheduleZBVZeroBubble, _Unverified):
    pass


# Its Schedule1F1B decides while it runs, and its lowering rejects what it draws; its interleaved one with a single stage
# per rank has as many tasks, transfers and dependencies.
KINDS = {"1f1b": (_Looped, 1), "interleaved": (_Looped, 2), "zb_v": (_V, 2)}


def lowered(name: str, D: int, N: int) -> int:  # noqa: N803
    """Generate and lower a schedule, all ranks' actions; return how many there are."""
    kind, stages = KINDS[name]
    mine = [SimpleNamespace(num_stages=stages * D, group_size=D, group_rank=0, submod=None) for _ in range(stages)]
    return sum(map(len, kind(mine, N).pipeline_order_with_comms.values()))
