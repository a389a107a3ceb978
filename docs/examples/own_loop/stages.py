"""Every rank builds only its own stages: torchrun --nproc-per-node 2 stages.py"""

import os

import torch
import torch.nn.functional as F
from data import batches
from torch import nn

from chimerac.interpreter import Pipeline, held_stages
from models import Block

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 stages.py")

torch.set_num_threads(1)
SCHEDULE, SIZES = os.environ.get("SCHEDULE", "chimera"), {"N": 4}


def build(stage: int, count: int) -> nn.Module:
    """Return one of `count` stages. All have blocks, the first one an embedding too, and the last one a head."""
    torch.manual_seed(stage)  # every rank that holds this stage builds the same weights
    blocks = [Block(64) for _ in range(6 // count)]
    return nn.Sequential(
        *([nn.Linear(64, 64)] if stage == 0 else []), *blocks, *([nn.Linear(64, 10)] if stage == count - 1 else [])
    )


own, count = held_stages(SCHEDULE, SIZES)
pipe = Pipeline(
    {s: (f"stage{s}", build(s, count)) for s in own},  # with a prefix for the names of parameters
    SCHEDULE,
    SIZES,
    loss=F.cross_entropy,
    inputs=torch.zeros(8, 64),  # one micro-batch
)
optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)

for iteration, (images, labels) in enumerate(batches(4, samples=32)):
    loss = pipe.step(images, labels)
    norm = pipe.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    if pipe.rank == 0:
        print(f"iteration {iteration}   loss {loss:.6f}   gradient norm {norm:.4f}")

pipe.close()
