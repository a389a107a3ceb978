"""What a rank can measure of itself: memory, processors, and how much of an iteration it waited."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Sequence

import torch

from chimerac.interpreter.runtime.times import Times


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


def computed_and_taken_s(times: Times) -> tuple[float, float]:
    """Return how long a rank computed, and the time from its first instruction to the end of its last task."""
    last = int(times.end[times.task].max(initial=int(times.start[0]))) if len(times.start) else 0
    return times.task_ns / 1e9, (last - int(times.start[0])) / 1e9 if len(times.start) else 0.0


def bubbles(computed_s: Sequence[float], taken_s: Sequence[float]) -> list[float]:
    """Return the share of the iteration that each rank did not compute. taken_s: from its start to its last task's end.

    Every rank is charged until the last one is done: idle over total, as the simulator counts.
    """
    makespan = max(taken_s, default=0.0)
    return [1 - computed / makespan if makespan else 0.0 for computed in computed_s]
