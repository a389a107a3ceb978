"""On GPUs: several ranks share one GPU and stage messages through pinned host memory, or each rank has its own, with NCCL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here"),
]


@pytest.mark.parametrize("schedule", ["chimera", "chimera_zb"])
@pytest.mark.parametrize("transport", ["staged", "nccl"])
def test_ranks_on_gpus_have_the_gradients_of_one_process(transport: str, schedule: str) -> None:
    if transport == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for each of two ranks")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "interpreter/run.py"]
    options = ["-p", "D=2", "-p", "N=4", "--model", "gpt-nano", "--iterations", "3", "--transport", transport]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*command, f"schedules/{schedule}.sched", *options],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert run.returncode == 0, run.stderr
    assert "gradients equal one process" in run.stdout
