"""Train a Hugging Face model from its configuration: torchrun --nproc-per-node 2 train.py"""

import os
from pathlib import Path

import torch
import torch.nn.functional as F

from chimerac.interpreter import Pipeline
from chimerac.interpreter.adapters.huggingface import huggingface

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 train.py")

torch.set_num_threads(1)
text = torch.tensor(list(Path(__file__).read_bytes()))


def batch(samples: int) -> torch.Tensor:
    """Return windows of this file's bytes (samples, 33), the same on every rank."""
    starts = torch.randint(len(text) - 33, (samples,), generator=generator)
    return torch.stack([text[k : k + 33] for k in starts])


generator = torch.Generator().manual_seed(0)
model = huggingface(
    Path(__file__).with_name("config.json"),  # or a folder with safetensors
    {"input_ids": batch(4)[:, :-1]},  # one micro-batch of the arguments of the model's forward
    loss=lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten()),
    layers=["gpt_neox.layers"],
)
pipe = Pipeline(model, "chimera", {"N": 4})
optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)

for iteration in range(10):
    tokens = batch(16)
    loss = pipe.step(targets=tokens[:, 1:], input_ids=tokens[:, :-1])
    optimizer.step()
    optimizer.zero_grad()
    if pipe.rank == 0:
        print(f"iteration {iteration}   loss {loss:.4f}")

pipe.close()
