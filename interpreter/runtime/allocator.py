"""The C library's allocator on CPUs: memory that is freed stays with the process, for the next iteration.

A task frees the activations of its micro-batch, and later tasks allocate as much again. By default glibc may return freed
memory to the operating system. The system then gives it back page by page, and clears each page. This slows the tasks down,
most of all the forwards of a rank that keeps several micro-batches.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# From this size on, an allocation is a mapping of its own, which goes back to the system when it is freed. glibc allows no
# larger value.
_LARGEST_THRESHOLD = 32 * 2**20
# glibc's environment variables that set these two parameters, or turn off its adaptation of them.
_CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_TOP_PAD_")


@cache
def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, except for blocks of 32 MiB and more. Return whether it does so.

    Only the first call has an effect. It has none if the environment has a variable of `_CHOICES`, or an entry of glibc.malloc
    in GLIBC_TUNABLES, or with a C library other than glibc.
    """
    if any(name in os.environ for name in _CHOICES) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    try:
        mallopt, _ = ctypes.CDLL(None).mallopt, ctypes.CDLL(None).gnu_get_libc_version
    except (AttributeError, OSError, TypeError):
        return False  # not glibc
    # Setting one threshold turns off glibc's own adaptation of both. So both are set.
    never = -1
    return bool(mallopt(_M_TRIM_THRESHOLD, never)) and bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD))
