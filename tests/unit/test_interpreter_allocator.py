"""The allocator of a process on a CPU: freed memory stays with the process. The operating system is the judge."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The script creates a pipeline. Then it allocates 64 MiB in pieces of 1 MiB and frees them. It prints how many MiB of them the
# process still holds, and whether the runtime has set the allocator.
SCRIPT = """
import resource, torch
from torch import nn
from chimerac.interpreter import Pipeline
from chimerac.interpreter.runtime.allocator import keep_freed_memory
from tests.distributed.alone import Alone

layers, example = [nn.Linear(4, 4)], torch.ones(2, 4)
Pipeline(layers, "gpipe", {"D": 1, "N": 1}, loss=nn.functional.mse_loss, inputs=example, transport=Alone())

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20

before = resident()
pieces = [torch.zeros(2**18) for _ in range(64)]
assert resident() - before > 60
del pieces
print(resident() - before, int(keep_freed_memory()))
"""


def kept_mib(**variables: str) -> tuple[float, bool]:
    """Return how many MiB of 64 freed ones a process still holds, and whether it has set the allocator.

    Args:
        variables: of the environment.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))} | variables
    rank = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    kept, is_set = rank.stdout.split()
    return float(kept), is_set == "1"


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="only glibc's allocator is set")
def test_freed_memory_stays_with_the_process_unless_the_user_has_set_the_allocator() -> None:
    kept, is_set = kept_mib()
    assert kept > 60 and is_set
    kept, is_set = kept_mib(MALLOC_TRIM_THRESHOLD_="131072")
    assert kept < 10 and not is_set
    # With glibc's own behaviour, how much is kept depends on the layout of the heap.
    _, is_set = kept_mib(GLIBC_TUNABLES="glibc.malloc.arena_test=8")
    assert not is_set
