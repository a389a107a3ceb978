"""Runs train.py and stages.py of docs/examples/own_loop, and the training of train.py under torch.distributed.pipelining.

Usage: torchrun --nproc-per-node 2 PROJECT/tests/distributed/own_loop.py, in a folder with the files of docs/examples/own_loop.
PROJECT is the folder of this project. The results are in result.json.
"""

import contextlib
import io
import json
import os
import re
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter import Pipeline

sys.path.insert(0, str(Path.cwd()))  # as Python does for a script in the current folder


def trained_by_example(schedule: str, script: str) -> list[tuple[float, float]]:
    """Run a script of the example. Return the loss and the gradient norm of each iteration; an empty list except on rank 0."""
    os.environ["SCHEDULE"] = schedule
    with contextlib.redirect_stdout(io.StringIO()) as output:
        runpy.run_path(script)
    return [(float(loss), float(norm)) for loss, norm in re.findall(r"loss (\S+) +gradient norm (\S+)", output.getvalue())]


def trained_by_torch() -> list[float]:
    """Train the model of train.py under torch's 1F1B. Return the loss of each iteration on the last rank, zeros on the other.

    torch's schedule does not clip gradients, so they are clipped here.
    """
    from data import batches  # type: ignore[import-not-found]

    from models import Digits  # type: ignore[import-not-found]

    torch.manual_seed(0)
    model, rank = Digits(), dist.get_rank()
    layers = [model.embed, *model.blocks, model.head]
    mine = nn.Sequential(*layers[4 * rank : 4 * rank + 4])  # half of the eight layers
    schedule = Schedule1F1B(PipelineStage(mine, rank, 2, torch.device("cpu")), 4, loss_fn=F.cross_entropy)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=3e-3)
    losses = []
    for images, labels in batches(10, samples=32):
        micro_batch_losses: list[torch.Tensor] = []  # torch appends them on the last rank
        schedule.step(*([images] if rank == 0 else []), **({"target": labels, "losses": micro_batch_losses} if rank else {}))
        norm = torch.tensor([sum(float(p.grad.double().square().sum()) for p in mine.parameters() if p.grad is not None)])
        dist.all_reduce(norm)
        for p in mine.parameters():
            p.grad.mul_(min(1.0, 1.0 / (float(norm[0]) ** 0.5 + 1e-6)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(torch.stack(micro_batch_losses).detach().mean()) if micro_batch_losses else 0.0)
    return losses


def try_too_many_ranks() -> None:
    """Try to make a pipeline of more ranks than there are. This must change nothing for the pipelines that follow."""
    with contextlib.suppress(ChimeraError):
        Pipeline([nn.Linear(2, 2)] * 4, "1f1b", {"D": 4, "N": 4}, loss=F.mse_loss, inputs=torch.zeros(1, 2))
        raise AssertionError("a pipeline of 4 ranks on 2")


def main() -> None:
    """Run all trainings; rank 0 writes the losses, and for the examples the gradient norms, to result.json."""
    try_too_many_ranks()
    # Each run of an example creates a process group and destroys it.
    examples = {
        script: {name: trained_by_example(name, script) for name in ("chimera", "1f1b")} for script in ("train.py", "stages.py")
    }
    dist.init_process_group("gloo")
    torch_losses: list[list[float]] = [[], []]
    dist.all_gather_object(torch_losses, trained_by_torch())
    if dist.get_rank() == 0:
        Path("result.json").write_text(json.dumps({**examples, "torch": torch_losses[-1]}))  # the last rank's
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
