"""What a process has left of its machine: memory and processors."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch

CGROUPS = Path("/sys/fs/cgroup")


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory_bytes(device: torch.device) -> int:
    """Return how much memory this process can still take: of its GPU, or of the machine and the container around it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_left_in_cgroups()])


def _left_in_cgroups() -> list[int]:
    """Return what the memory limits of this process's cgroups leave. psutil knows the machine's memory only."""
    found = []
    for folder, limit, used in _limited_cgroups():
        try:
            stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = int(stats.get("total_inactive_file", stats.get("inactive_file", 0)))  # given up when memory is short
            found.append(max(0, int((folder / limit).read_text()) - int((folder / used).read_text()) + cached))
        except (OSError, ValueError):  # no limit ("max"), or no such file
            continue
    return found


def _limited_cgroups() -> list[tuple[Path, str, str]]:
    """Return the folders that may limit this process, and the names of their files: of version 2, then of version 1."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        version_2 = not controllers
        if version_2 or "memory" in controllers.split(","):
            root = CGROUPS if version_2 else CGROUPS / "memory"
            names = ("memory.max", "memory.current") if version_2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
            own = root / path.lstrip("/")
            found += [(folder, *names) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return found
