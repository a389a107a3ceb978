"""Generates and lowers schedules with torch.distributed.pipelining, without process groups, models or validation."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from torch.distributed.pipelining import schedules as theirs

# The constructors warn of each bubble that they add to a schedule; the warnings would take part of the measured time.
logging.getLogger(theirs.__name__).setLevel(logging.ERROR)


class _Unverified(theirs.PipelineScheduleMulti):
    """Skips the validation of a schedule before it is lowered. The constructors already know all placements."""

    def _validate_and_set_stage_mapping(self, actions: object) -> None:
        pass


class _Looped(theirs.ScheduleInterleaved1F1B, _Unverified):
    pass


class _V(theirs.ScheduleZBVZeroBubble, _Unverified):
    pass


# torch's Schedule1F1B has no order before it runs, so it cannot be lowered. Its interleaved schedule with one stage per rank
# has the same number of tasks, transfers and dependencies. Of each schedule: its class, and the stages of a rank.
KINDS = {"1f1b": (_Looped, 1), "interleaved": (_Looped, 2), "zb_v": (_V, 2)}


def lowered(name: str, D: int, N: int) -> int:  # noqa: N803
    """Generate and lower a schedule for all ranks; return the number of actions."""
    kind, count = KINDS[name]
    stages_of_rank = [SimpleNamespace(num_stages=count * D, group_size=D, group_rank=0, submod=None) for _ in range(count)]
    return sum(map(len, kind(stages_of_rank, N).pipeline_order_with_comms.values()))
