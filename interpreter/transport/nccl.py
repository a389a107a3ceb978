"""Real ranks over NCCL, with one GPU each.

NCCL has no tags. torch puts all messages of a pair of ranks on one stream of a group, so a receive that is posted early
would block a later send. Therefore every channel, for one direction, has a group of its own, and so has every collective.
The first call on a group makes its communicator and blocks until the peer comes. So all groups are used once before the
first iteration, in one global order (processes.py). The default group has no device: otherwise every new group would split
it, with all ranks taking part in each.

Waiting for a transfer blocks the GPU's stream and not the process. So a full window blocks the work that is queued after
the SEND, and the waiting times that the process measures say nothing about the GPU.

This transport has not run on several GPUs yet. The loopback's machines test the order of its calls.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.transport.gloo import join as join_gloo
from chimerac.interpreter.transport.processes import Processes


def join(timeout_s: float, local_rank: int) -> None:
    """Meet the other ranks that torchrun started, and take this rank's GPU.

    Raises ChimeraError E815 where this machine has too few GPUs or torch comes without NCCL.
    """
    if not dist.is_nccl_available():
        raise refuse("E815", "this torch comes without NCCL", help="install a torch with NCCL, or take another --transport")
    if local_rank >= torch.cuda.device_count():
        message = f"rank {local_rank} of this machine needs a GPU of its own, found {torch.cuda.device_count()}"
        raise refuse("E815", message, help="start at most as many ranks as there are GPUs, or take --transport staged")
    torch.cuda.set_device(local_rank)
    join_gloo(timeout_s)


class Nccl(Processes):
    """One rank's channels and collectives. The ranks have met, each with its GPU as the current device."""

    def __init__(self) -> None:
        super().__init__("nccl", torch.device("cuda", torch.cuda.current_device()), staged=False)
