"""Train, and measure the loss on samples that are not trained on: torchrun --nproc-per-node 2 evaluation.py"""

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter import Pipeline

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 evaluation.py")

# A generator for the samples alone, so that all ranks draw the same samples. From torch's default generator each rank also
# draws for the dropout of its own stages.
generator = torch.Generator().manual_seed(0)
centres = torch.randn(4, 16, generator=generator)


def samples(count: int) -> tuple[Tensor, Tensor]:
    """Return points around four centres (count, 16), and the number of the centre of each (count,)."""
    labels = torch.randint(0, 4, (count,), generator=generator)
    return centres[labels] + 0.5 * torch.randn(count, 16, generator=generator), labels


torch.manual_seed(0)  # every rank builds the same weights
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
held_out = samples(32)
with Pipeline(model, "chimera", {"N": 4}, loss=F.cross_entropy, inputs=held_out[0][:8]) as pipe:
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    for iteration in range(15):
        pipe.step(*samples(32))
        optimizer.step()
        optimizer.zero_grad()
        if iteration % 5 == 4:
            loss = pipe.evaluate(*held_out)  # all ranks together; without gradients, and without dropout
            if pipe.rank == 0:
                print(f"iteration {iteration}   held-out loss {loss:.4f}")
