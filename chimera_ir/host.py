"""What this process may use of its host: how many processors, and the cgroups that limit it."""

from __future__ import annotations

import os
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
# Environment variables for a process whose memory is limited: further threads of numpy would only take memory.
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def processors() -> int:
    """Return how many processors this process may use, by its affinity and the quotas of its cgroups.

    A quota of 2.5 processors counts as 2, one below 1 as 1.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([allowed, *_quotas()]))


def cgroups(controller: str) -> list[tuple[Path, int]]:
    """Return the folders of the cgroups that may limit this process, each with its version of cgroups, 1 or 2.

    There are none on a system without cgroups.

    Args:
        controller: what they limit, such as "memory".

    The names of a folder's files differ between the versions.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    folders = []
    # A line is NUMBER:CONTROLLERS:PATH. That of version 2 names no controllers.
    for _, controllers, path in (line.split(":", 2) for line in lines):
        version = 1 if controllers else 2
        if version == 2 or controller in controllers.split(","):
            root = CGROUPS if version == 2 else CGROUPS / controller
            own = root / path.lstrip("/")
            folders += [(folder, version) for folder in (own, *own.parents) if folder.is_relative_to(root)]
    return folders


def _quotas() -> list[int]:
    """Return how many whole processors each quota of this process allows. A cgroup without a quota gives no number."""
    allowed = []
    for folder, version in cgroups("cpu"):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:  # version 1 writes -1 for no quota
                allowed.append(int(quota) // int(period))
        except (OSError, ValueError):  # no quota ("max"), or no such file
            continue
    return allowed
