"""A module with a forward of its own, cut between its layers as it is: torchrun --nproc-per-node 2 any_module.py"""

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter import Pipeline
from chimerac.interpreter.adapters.model import cut

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 any_module.py")


class Net(nn.Module):
    """Its forward adds the input after each block, which an nn.Sequential of its layers would not do."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for block in self.blocks:
            y = torch.relu(block(y)) + x  # each stage computes the sums that it needs, with x from the batch
        return self.head(y)


torch.manual_seed(0)
images, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))
model = cut(Net, {"x": images[:8]}, loss=F.cross_entropy, layers=["blocks"])  # a stage has only its own parameters

with Pipeline(model, "chimera", {"N": 4}) as pipe:
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    for iteration in range(20):
        loss = pipe.step(targets=labels, x=images)
        optimizer.step()
        optimizer.zero_grad()
        if pipe.rank == 0 and iteration % 5 == 4:
            print(f"iteration {iteration}   loss {loss:.4f}")
