"""What a rank measures of its process: memory and processors."""

from __future__ import annotations

import os
import resource
import sys

import torch


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most memory that this process has held at once: on its GPU, or all of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
