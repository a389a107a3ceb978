"""Real ranks over gloo: on CPUs, or on GPUs that several ranks may share.

gloo sends and receives host memory. The sender copies a message from its GPU to pinned host memory. The receiver copies it
to its GPU when it waits for the message.
"""

from __future__ import annotations

import torch

from chimerac.interpreter.transport.processes import HOST, Processes
from chimerac.interpreter.transport.rendezvous import Rendezvous, initialize, shutdown


def join(timeout_s: float) -> None:
    """Join the other ranks that torchrun started. timeout_s: after how long a wait is an error."""
    initialize(timeout_s)


def leave() -> None:
    """Leave once all ranks are at the shutdown barrier, so that no connection closes before the last message has arrived."""
    shutdown()


class Gloo(Processes):
    """One rank's channels and collectives. The ranks must have joined.

    device: where messages are; staged: whether they pass through host memory; by default if the device is not the host. ranks:
    by default those of the job.
    """

    def __init__(self, device: torch.device = HOST, staged: bool | None = None, ranks: Rendezvous | None = None) -> None:
        super().__init__("gloo", device, device != HOST if staged is None else staged, ranks)
