"""Real ranks over gloo: on CPUs, or on GPUs that several ranks may share.

gloo moves host memory. A message of a GPU is copied to pinned host memory before it is sent, and from there to the GPU
by whoever waits for it.
"""

from __future__ import annotations

import torch

from chimerac.interpreter.transport.meeting import meet, part
from chimerac.interpreter.transport.processes import HOST, Processes


def join(timeout_s: float) -> None:
    """Meet the other ranks that torchrun started. timeout_s: how long a wait may last before it is an error."""
    meet(timeout_s)


def leave() -> None:
    """Part from the others, all together: nobody's connections close under another's last message."""
    part()


class Gloo(Processes):
    """One rank's channels and collectives. The ranks have met.

    device: where its messages lie; staged: they pass through host memory, by default those that lie elsewhere.
    """

    def __init__(self, device: torch.device = HOST, staged: bool | None = None) -> None:
        super().__init__("gloo", device, device != HOST if staged is None else staged)
