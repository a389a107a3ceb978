"""Ranks that are processes, over gloo: on CPUs, or on GPUs that several ranks may share.

gloo sends and receives host memory. If messages are on GPUs, the sender copies each to pinned host memory, and the receiver
copies it to its own GPU when it waits for it.
"""

from __future__ import annotations

import torch

from chimerac.interpreter.transport.processes import CPU, Processes
from chimerac.interpreter.transport.rendezvous import Rendezvous, initialize, shutdown


def join(timeout_s: float) -> None:
    """Connect to the other ranks that torchrun started.

    Args:
        timeout_s: seconds after which a wait for them is an error.

    Raises the errors of `initialize`.
    """
    initialize(timeout_s)


def leave() -> None:
    """Disconnect when all ranks have reached the shutdown barrier, so that no connection closes before its last message."""
    shutdown()


def gpu_of(local_rank: int) -> torch.device:
    """Return the GPU of a rank.

    Args:
        local_rank: its number on its host.

    If a host has more ranks than GPUs, ranks share GPUs.
    """
    return torch.device("cuda", local_rank % torch.cuda.device_count())


class Gloo(Processes):
    """One rank's channels and collectives. The ranks must have joined.

    Args:
        device: where messages are.
        staged: whether messages are copied through host memory; None: only if they are on a GPU.
        ranks: the rendezvous of these ranks; by default that of the job.
    """

    def __init__(self, device: torch.device = CPU, staged: bool | None = None, ranks: Rendezvous | None = None) -> None:
        super().__init__("gloo", device, device != CPU if staged is None else staged, ranks)
