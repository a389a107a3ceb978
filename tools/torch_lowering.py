"""Generates and lowers schedules with torch.distributed.pipelining, without process groups, models or validation."""

from __future__ import annotations

import logging
from types import SimpleNamespace

from torch.distributed.pipelining import schedules as theirs

# If the constructor of a schedule logged a warning, printing it would take part of the measured time.
logging.getLogger(theirs.__name__).setLevel(logging.ERROR)


class _Unverified(theirs.PipelineScheduleMulti):
    """Skips the validation of a schedule before it is lowered.

    The validation would also set the placement. The constructors have set it before. The lowering calls this method with
    super(). So this class is the last base of the classes below: only there does super() find it.
    """

    def _validate_and_set_stage_mapping(self, actions: object) -> None:
        pass


class _Looped(theirs.ScheduleInterleaved1F1B, _Unverified):
    """Interleaved 1F1B."""


class _V(theirs.ScheduleZBVZeroBubble, _Unverified):
    """ZB-V."""


# torch does not lower its Schedule1F1B, whose own loop sends and receives. Its interleaved schedule with one stage per rank
# has the same number of tasks, transfers and dependencies. Of each schedule: its class, and how many stages a rank has.
KINDS = {"1f1b": (_Looped, 1), "interleaved": (_Looped, 2), "zb_v": (_V, 2)}


def lowered(name: str, D: int, N: int) -> int:  # noqa: N803
    """Generate and lower a schedule for all ranks; return the number of actions of all ranks.

    Args:
        name: a key of KINDS.
    """
    schedule_class, count = KINDS[name]
    stages_of_rank = [SimpleNamespace(num_stages=count * D, group_size=D, group_rank=0, submod=None) for _ in range(count)]
    schedule = schedule_class(stages_of_rank, N)  # the constructor for one rank makes and lowers the orders of all ranks
    return sum(map(len, schedule.pipeline_order_with_comms.values()))
