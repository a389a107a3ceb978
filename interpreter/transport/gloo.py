"""Real ranks over gloo: on CPUs, or on GPUs that several ranks may share.

gloo moves host memory. The sender copies a message from its GPU to pinned host memory. The receiver copies it to its GPU
when it waits for the message.
"""

from __future__ import annotations

import torch

from chimerac.interpreter.transport.meeting import meet, part
from chimerac.interpreter.transport.processes import HOST, Processes


def join(timeout_s: float) -> None:
    """Meet the other ranks that torchrun started. timeout_s: how long a wait may last before it is an error."""
    meet(timeout_s)


def leave() -> None:
    """Part from the others, all together, so that no connection closes before the last message has arrived."""
    part()


class Gloo(Processes):
    """One rank's channels and collectives. The ranks have met.

    device: where messages lie; staged: they pass through host memory; by default where the device is not the host.
    """

    def __init__(self, device: torch.device = HOST, staged: bool | None = None) -> None:
        super().__init__("gloo", device, device != HOST if staged is None else staged)
