"""Runs pipelines on two ranks that share a GPU, over NCCL and over gloo, and writes what each rank finds as JSON.

Usage: PYTHONPATH=. torchrun --nproc-per-node 2 tests/distributed/gpu_ranks.py OUT

NCCL refuses two ranks on one GPU of a host. So each rank tells it that it is a host of its own (NCCL_HOSTID).
"""

import json
import os
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from chimerac.interpreter import Pipeline
from tests.helpers_classifier import CLASSES, SAMPLES, WIDTH, batch, net

CASES = {
    "1f1b": {"D": 2, "N": 6},
    "chimera": {"D": 2, "N": 4},
    "chimera_recompute": {"D": 2, "N": 4},
    "dualpipe": {"D": 2, "N": 4},
    "interleaved": {"D": 2, "N": 4},
    "zb_v": {"D": 2, "N": 4},
}
DEVICE = torch.device("cuda", 0)
SLOW_MS, CYCLES_PER_S = 20.0, 1.5e9  # GPUs have 1.2 to 2 GHz


def run(schedule: str, sizes: dict[str, int], group: dist.ProcessGroup) -> dict[str, object]:
    """Run two steps of a schedule, each followed by an evaluation, and compare them with one process.

    The result has the transport, the largest differences of the losses and of the gradients, and how often a third step waits
    for the GPU. The gradients of the second step are added to those of the first.
    """
    model, reference = net(depth=8), net(depth=8).to(DEVICE)
    inputs, targets = batch(sizes["N"] * SAMPLES)
    example = torch.zeros(SAMPLES, WIDTH)
    with Pipeline(
        model.layers(), schedule, sizes, model=model, loss=F.cross_entropy, inputs=example, device=DEVICE, process_group=group
    ) as pipe:
        losses, of_gradients = [], []
        for _ in range(2):
            losses.append(pipe.step(inputs, targets))
            loss = F.cross_entropy(reference(inputs.to(DEVICE)), targets.to(DEVICE))
            loss.backward()
            of_gradients.append(difference(pipe, reference))
            losses.append(pipe.evaluate(inputs, targets))
        return {
            "transport": type(pipe.transport).__name__,
            "losses": max(abs(value / float(loss) - 1) for value in losses),
            "gradients": max(of_gradients),
            "waits": waits(pipe, inputs, targets),
        }


def difference(pipe: Pipeline, reference: nn.Module) -> float:
    """Return the largest difference of a gradient, relative to the largest value of that gradient."""
    expected = dict(reference.named_parameters())
    return max(
        float((p.grad - e.grad).abs().max() / e.grad.abs().max())
        for name, p in pipe.named_parameters()
        if p.grad is not None and (e := expected[name]).grad is not None
    )


def waits(pipe: Pipeline, inputs: torch.Tensor, targets: torch.Tensor) -> int:
    """Return how often torch's own check finds that a step waits for the GPU."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pipe.step(inputs, targets)
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(w.message) for w in caught)


class Slow(nn.Module):
    """Lets the GPU work for about SLOW_MS in each forward. The process does not wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.is_cuda:  # not when the model is described: that is done on the CPU
            torch.cuda._sleep(round(SLOW_MS * 1e-3 * CYCLES_PER_S))
        return self.layer(x)


def run_slow(group: dist.ProcessGroup) -> dict[str, object]:
    """Return the measured times of a step in which the GPU of rank 1 works for long, in ms, and whether they are ordered."""
    layers = [nn.Linear(WIDTH, WIDTH), Slow()]
    inputs, targets = batch(4 * SAMPLES)
    example = torch.zeros(SAMPLES, WIDTH)
    with Pipeline(
        layers, "1f1b", {"D": 2, "N": 4}, loss=F.cross_entropy, inputs=example, split=[1, 1], device=DEVICE, process_group=group
    ) as pipe:
        for _ in range(2):
            pipe.step(inputs, targets)
        figures, times = pipe.figures, pipe.times
        return {
            "computed": figures.computed_s * 1e3,
            "elapsed": figures.elapsed_s * 1e3,
            "value_wait": figures.value_wait_s * 1e3,
            "is_ordered": bool((times.end >= times.start).all()) and times.sent <= times.finish,
        }


def main() -> None:
    """Run every case over both backends, and write the results of both ranks."""
    os.environ |= {"NCCL_HOSTID": f"host {os.environ['RANK']}", "NCCL_SOCKET_IFNAME": "lo"}
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("gloo")
    groups = {name: dist.new_group(backend=name) for name in ("nccl", "gloo")}
    found = {f"{schedule} over {name}": run(schedule, CASES[schedule], groups[name]) for schedule in CASES for name in groups}
    results = {"cases": found, "slow": {name: run_slow(groups[name]) for name in groups}}
    of_ranks: list[dict[str, object] | None] = [None, None]
    dist.all_gather_object(of_ranks, results)
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(of_ranks))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
