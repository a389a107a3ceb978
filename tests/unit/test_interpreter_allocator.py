"""The allocator of a process on a CPU: freed memory stays with the process. The operating system counts its page faults."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# One rank runs GPipe: forwards allocate the activations of all micro-batches, some 100 MB, and backwards free them. The script
# prints the least number of page faults of an iteration, after a warm-up.
SCRIPT = """
import resource, torch
from torch import nn
from chimerac.interpreter import Pipeline
from tests.distributed.alone import Alone

torch.set_num_threads(1)
layers = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)]
inputs, targets = torch.ones(8 * 1024, 64), torch.zeros(8 * 1024, 64)
pipe = Pipeline(layers, "gpipe", {"D": 1, "N": 8}, loss=nn.functional.mse_loss, inputs=inputs[:1024], transport=Alone())

def page_faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    pipe.step(inputs, targets)
    for parameter in pipe.parameters():
        parameter.grad = None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(min([page_faults() for _ in range(5)][2:]))
"""


def page_faults(**variables: str) -> int:
    """Return how many page faults an iteration has in a process with these variables of the environment."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_"))} | variables
    return int(
        subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.skipif("CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="only glibc's allocator is set")
def test_an_iteration_gets_no_memory_from_the_system_unless_the_user_has_set_the_allocator() -> None:
    assert page_faults() < 100
    assert page_faults(MALLOC_TRIM_THRESHOLD_="131072") > 2000
    assert page_faults(GLIBC_TUNABLES="glibc.malloc.arena_test=8") > 2000  # glibc's own behaviour (docs/running.md)
