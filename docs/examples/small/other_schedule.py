"""Save under one schedule, go on under another one: torchrun --nproc-per-node 2 other_schedule.py"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from chimerac.interpreter import Pipeline, load_checkpoint, save_checkpoint

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 other_schedule.py")

torch.manual_seed(0)
images, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))
dist.init_process_group("gloo")
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
dist.broadcast_object_list(folder)  # every rank gets the folder of rank 0


def pipeline(schedule: str) -> tuple[Pipeline, torch.optim.Optimizer]:
    """Return a pipeline and its optimizer. Each call draws new initial weights."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    pipe = Pipeline(model, schedule, {"N": 4}, loss=F.cross_entropy, inputs=images[:8])
    return pipe, torch.optim.AdamW(pipe.parameters(), lr=1e-2)


for schedule, is_first in (("chimera", True), ("1f1b", False)):
    pipe, optimizer = pipeline(schedule)
    if not is_first:
        load_checkpoint(folder[0], pipe, optimizer)
    for iteration in range(5):
        loss = pipe.step(images, labels)
        optimizer.step()
        optimizer.zero_grad()
        if pipe.rank == 0:
            print(f"{schedule} {iteration}   loss {loss:.4f}")
    if is_first:
        save_checkpoint(folder[0], pipe, optimizer)
    pipe.close()
dist.destroy_process_group()
