"""Any list of modules, such as an nn.Sequential, becomes a pipeline: torchrun --nproc-per-node 2 sequential.py"""

import os

import torch
import torch.nn.functional as F
from torch import nn

from chimerac.interpreter import Pipeline

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 sequential.py")

torch.manual_seed(0)  # every rank builds the same weights, and draws the same samples
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
images, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))

# 4 micro-batches of 8 samples. Each rank has a stage of each of two pipes, which run in opposite directions.
with Pipeline(model, "chimera", {"N": 4}, loss=F.cross_entropy, inputs=images[:8]) as pipe:
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    for iteration in range(20):
        loss = pipe.step(images, labels)
        optimizer.step()
        optimizer.zero_grad()
        if pipe.rank == 0 and iteration % 5 == 4:
            print(f"iteration {iteration}   loss {loss:.4f}")
