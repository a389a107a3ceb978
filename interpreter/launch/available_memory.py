"""The memory that this process can still allocate: of its GPU, or of its host."""

from __future__ import annotations

import psutil
import torch

from chimerac.chimera_ir.host import cgroups

# version of cgroups -> the names of its files for the limit and the usage
_FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def available_memory_bytes(device: torch.device) -> int:
    """Return how many more bytes this process can take from a GPU, or from its host within the limits of its cgroups."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return min([int(psutil.virtual_memory().available), *_available_in_cgroups()])


def _available_in_cgroups() -> list[int]:
    """Return how many bytes each limit of this process's cgroups leaves. psutil reads only the memory of the host."""
    available = []
    for folder, version in cgroups("memory"):
        limit, used = _FILES[version]
        try:
            stats = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cached = int(stats.get("total_inactive_file", stats.get("inactive_file", 0)))  # freed when memory is short
            available.append(max(0, int((folder / limit).read_text()) - int((folder / used).read_text()) + cached))
        except (OSError, ValueError):  # no limit ("max"), or no such file
            continue
    return available
