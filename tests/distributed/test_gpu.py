"""On GPUs: two ranks stage messages through pinned host memory, also if they share one GPU, or use NCCL on a GPU each."""

from __future__ import annotations

import pytest
import torch

from tests.helpers_processes import run_script

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here"),
]


@pytest.mark.parametrize("schedule", ["chimera", "chimera_zb", "dualpipe"])
@pytest.mark.parametrize("transport", ["staged", "nccl"])
def test_ranks_on_gpus_have_the_gradients_of_one_process(transport: str, schedule: str) -> None:
    if transport == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for each of two ranks")
    options = ["-p", "D=2", "-p", "N=4", "--model", "gpt-nano", "--iterations", "3", "--transport", transport]
    assert "gradients equal one process" in run_script("interpreter/run.py", 2, f"schedules/{schedule}.sched", *options)
