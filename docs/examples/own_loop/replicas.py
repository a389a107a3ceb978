"""Two pipelines of two ranks each, with one's own data parallelism: torchrun --nproc-per-node 4 replicas.py"""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import batches
from torch.distributed.device_mesh import init_device_mesh

from chimerac.interpreter import Pipeline
from models import Digits

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 4 replicas.py")

torch.set_num_threads(1)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
replica = mesh.get_local_rank("dp")
torch.manual_seed(0)  # every rank builds the same weights
model = Digits()

pipe = Pipeline(
    [model.embed, *model.blocks, model.head],
    "chimera",
    {"N": 4},
    model=model,
    loss=F.cross_entropy,
    inputs=torch.zeros(8, 64),  # one micro-batch
    process_group=mesh.get_group("pp"),  # D is its number of ranks
)
optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)

for iteration, (images, labels) in enumerate(batches(4, samples=64)):
    mine = slice(32 * replica, 32 * replica + 32)  # this replica's half of the samples: four micro-batches
    loss = torch.tensor(pipe.step(images[mine], labels[mine]))
    for value in (loss, *(p.grad for p in pipe.parameters())):  # each becomes the mean over both replicas
        dist.all_reduce(value.div_(2), group=mesh.get_group("dp"))
    optimizer.step()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"iteration {iteration}   loss {loss:.6f}")

pipe.close()
