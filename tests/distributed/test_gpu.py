"""On GPUs: ranks over NCCL or through pinned host memory, the loopback with a CUDA stream for each rank, and the profiling."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from chimerac.chimera_ir.instructions import Fwd, Task
from chimerac.chimera_ir.profile import profile_from_json
from chimerac.chimera_ir.textline import instruction_text
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.partitioned import partitioned
from tests.distributed.alone import Alone
from tests.distributed.gpu_ranks import CASES
from tests.distributed.test_loopback import SHIPPED, model_for, shipped
from tests.helpers import program
from tests.helpers_loopback import SEED, batch_of, deep_model, description_of, run_and_compare, stages_of
from tests.helpers_processes import RUN, results_of, run_command, run_script

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU here"),
]


@pytest.fixture(scope="module")
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Return what each of two ranks that share a GPU has found (gpu_ranks.py)."""
    found: list[Any] = results_of("gpu_ranks.py", 2, tmp_path_factory.mktemp("gpu") / "out")
    return found


@pytest.mark.parametrize("schedule", ["chimera", "chimera_zb", "dualpipe"])
@pytest.mark.parametrize("transport", ["staged", "nccl"])
def test_ranks_on_gpus_have_the_gradients_of_one_process(transport: str, schedule: str) -> None:
    if transport == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a GPU for each of two ranks")
    options = ["-p", "D=2", "-p", "N=4", "--model", "gpt-nano", "--iterations", "3", "--transport", transport]
    assert "gradients equal one process" in run_script("interpreter/run.py", 2, f"schedules/{schedule}.sched", *options)


def test_pipelines_in_process_groups_on_one_gpu_have_the_losses_and_gradients_of_one_process(of_ranks: list[Any]) -> None:
    for found in (results["cases"] for results in of_ranks):
        assert len(found) == 2 * len(CASES)
        for name, result in found.items():
            assert result["transport"] == ("Nccl" if name.endswith("nccl") else "Gloo"), name
            assert result["losses"] < 1e-5, name
            assert result["gradients"] < 1e-4, name
    # Over NCCL a step waits for the GPU at most once, for the loss, whatever the number of micro-batches.
    for results in of_ranks:
        assert {result["waits"] for name, result in results["cases"].items() if name.endswith("nccl")} <= {0, 1}


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_the_times_of_instructions_are_those_of_the_gpu(backend: str, of_ranks: list[Any]) -> None:
    """Rank 1 lets the GPU work for at least 15 ms in each of its four forwards, and rank 0 waits for their gradients."""
    fast, slow = (results["slow"][backend] for results in of_ranks)
    assert slow["computed"] > 4 * 15
    assert fast["value_wait"] > 3 * 15, "rank 0 waits for the gradients of rank 1"
    assert fast["computed"] < fast["elapsed"] - fast["value_wait"] + 1
    assert fast["is_ordered"] and slow["is_ordered"]


@pytest.mark.parametrize("name", SHIPPED)
def test_in_loopback_on_a_gpu_each_schedule_has_the_bits_of_one_process(name: str) -> None:
    p = shipped(name, 4)
    run_and_compare(p, model_for(p), seed=1, every_post=True, iterations=3, device=torch.device("cuda"))


def test_the_range_of_a_forward_in_torchs_profiler_has_its_kernels() -> None:
    device, model = torch.device("cuda"), deep_model(3)
    p = program("gpipe", D=1, N=2)
    parts = partitioned(p, model, description_of(model))
    transport = Alone()
    transport.device = device
    stages = {s: stage.to(device) for s, stage in stages_of(p, parts, 0, SEED).items()}
    executor = Executor(p, model, stages, parts.boundary_table, transport, profile_ranges=True)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        executor.run(batch_of(p, 0))
    times = {event.key: event.device_time_total for event in profiler.key_averages()}
    tasks = [i for i in p.stream(0) if isinstance(i, Task)]
    assert {instruction_text(i, p.pipe_names) for i in tasks} <= set(times)
    # The kernels of a backward are launched by a thread of autograd, whose calls are not in the range.
    assert all(times[instruction_text(i, p.pipe_names)] > 0 for i in tasks if isinstance(i, Fwd))


def test_a_model_that_needs_more_memory_than_the_gpu_has_is_refused() -> None:
    options = ["--transport", "staged", "--model", "gpt-small", "--micro-batch", "100000", "--iterations", "1"]
    result = run_command(sys.executable, RUN, "schedules/1f1b.sched", "-p", "D=2", "-p", "N=4", *options)
    assert result.returncode == 1
    assert "E818" in result.stderr and "GPU 0 of this host" in result.stderr


def test_a_profile_is_measured_on_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    options = ("--model", "gpt-nano", "--seq-len", "32", "--device", "cuda", "--ranks", "2", "--repeats", "3", "-o", str(out))
    result = run_command(sys.executable, "-m", "chimerac.interpreter.profiling", *options, timeout_s=100)
    assert result.returncode == 0, result.stderr
    sizes = profile_from_json(out.read_text()).sizes
    assert sum(layer.forward_s for size in sizes for layer in size.layers) > 0
