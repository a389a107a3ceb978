"""The memory and the processors of the host that this process can use."""

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
    """Return how much memory this process can still allocate: of its GPU, or of the host and its container."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_available_in_cgroups()])


def _available_in_cgroups() -> list[int]:
    """Return for each cgroup of this process how many bytes its limit leaves. psutil reads only the host's memory."""
    available = []
    for folder, limit, used in _limited_cgroups():
        try:
            stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = int(stats.get("total_inactive_file", stats.get("inactive_file", 0)))  # freed when memory is short
            available.append(max(0, int((folder / limit).read_text()) - int((folder / used).read_text()) + cached))
        except (OSError, ValueError):  # no limit ("max"), or no such file
            continue
    return available


def _limited_cgroups() -> list[tuple[Path, str, str]]:
    """Return the folders of the cgroups that may limit this process, with the names of their files for limit and usage.

    The names differ between the versions 1 and 2 of cgroups.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        version_2 = not controllers
        if version_2 or "memory" in controllers.split(","):
            root = CGROUPS if version_2 else CGROUPS / "memory"
            names = ("memory.max", "memory.current") if version_2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
            own = root / path.lstrip("/")
            folders += [(folder, *names) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders
