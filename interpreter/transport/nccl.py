"""Real ranks over NCCL, with one GPU each.

NCCL has no tags, and torch keeps the messages of an unordered pair of ranks on one stream of a group: receives posted
early would stand in the way of sends there. So every channel has a group of its own, for one direction, and collectives
are apart. A group's communicator is made by the first call on it, which blocks until its peer comes: they are all made
before the first iteration, in one global order (processes.py). A device is not bound to the default group: that would
make every new group split it, and all ranks would take part in each.

Waiting for a transfer holds back the GPU's stream and not the process. So a full window, too, holds back the work that
is queued after the SEND, and waiting times measured by the process say nothing about the GPU.

Not run on several GPUs yet: the order of its calls is held by the loopback's machines.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from chimerac.interpreter.transport.gloo import join as join_gloo
from chimerac.interpreter.transport.processes import Processes


def join(timeout_s: float, local_rank: int) -> None:
    """Meet the other ranks that torchrun started, and take this rank's GPU.

    Raises ConnectionError where this machine has too few GPUs or torch comes without NCCL.
    """
    if not dist.is_nccl_available():
        raise ConnectionError("this torch comes without NCCL")
    if local_rank >= torch.cuda.device_count():
        raise ConnectionError(f"rank {local_rank} of this machine needs a GPU of its own, found {torch.cuda.device_count()}")
    torch.cuda.set_device(local_rank)
    join_gloo(timeout_s)


class Nccl(Processes):
    """One rank's channels and collectives. The ranks have met, each with its GPU as the current device."""

    def __init__(self) -> None:
        super().__init__("nccl", torch.device("cuda", torch.cuda.current_device()), staged=False)
