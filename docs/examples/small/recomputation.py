"""Recomputation: less memory for the same gradients. torchrun --nproc-per-node 2 recomputation.py"""

import os

import torch
import torch.nn.functional as F
from torch import nn

from chimerac.interpreter import Pipeline

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 recomputation.py")

torch.manual_seed(0)
model = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.Dropout(0.2), nn.ReLU())])
images, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))

for recompute in ("none", "all"):  # or a list of stages, such as "0,2..5"
    with Pipeline(model, "1f1b", {"N": 4}, loss=F.cross_entropy, inputs=images[:8], recompute=recompute) as pipe:
        torch.manual_seed(1)  # the same dropout for "none" and "all"; a recomputed forward repeats its dropout anyway
        loss, norm = pipe.step(images, labels), pipe.grad_norm()
        if pipe.rank == 0:
            print(f"recompute {recompute}   loss {loss:.6f}   gradient norm {norm:.6f}")
        for parameter in pipe.parameters():  # the next pipeline has the same parameters
            parameter.grad = None
