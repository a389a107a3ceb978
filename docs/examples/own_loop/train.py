"""Train one's own model in one's own loop: torchrun --nproc-per-node 2 train.py"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import batches

from chimerac.interpreter import Pipeline
from models import Digits

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 train.py")

torch.set_num_threads(1)
torch.manual_seed(0)  # every rank builds the same weights
model = Digits()

pipe = Pipeline(
    [model.embed, *model.blocks, model.head],
    os.environ.get("SCHEDULE", "chimera"),
    {"N": 4},  # micro-batches; D is the number of ranks
    model=model,  # gives the layers their names
    loss=F.cross_entropy,
    inputs=torch.zeros(8, 64),  # one micro-batch
)
optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)

for iteration, (images, labels) in enumerate(batches(10, samples=32)):
    loss = pipe.step(images, labels)
    norm = pipe.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    if pipe.rank == 0:
        print(f"iteration {iteration}   loss {loss:.6f}   gradient norm {norm:.4f}")

pipe.close()
assert not dist.is_initialized()  # the pipeline has destroyed the process group that it had created
