"""Train a Hugging Face model from its configuration: torchrun --nproc-per-node 2 train.py"""

import os
from pathlib import Path

import torch
import torch.nn.functional as F

from chimerac.interpreter import Pipeline
from chimerac.interpreter.adapters.huggingface import huggingface

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 train.py")

LENGTH = 32  # bytes of a sample
torch.set_num_threads(1)
text = torch.tensor(list(Path(__file__).read_bytes()))
generator = torch.Generator().manual_seed(0)  # every rank draws the same windows


def batch(samples: int) -> torch.Tensor:
    """Return windows of this file's bytes (samples, LENGTH + 1): the inputs, and one byte more for the targets."""
    starts = torch.randint(len(text) - LENGTH - 1, (samples,), generator=generator)
    return torch.stack([text[k : k + LENGTH + 1] for k in starts])


model = huggingface(
    Path(__file__).with_name("config.json"),  # or a folder with such a file and safetensors
    {"input_ids": batch(4)[:, :-1]},  # the arguments of the model's forward, of one micro-batch
    loss=lambda logits, targets: F.cross_entropy(logits.flatten(0, 1), targets.flatten()),
    layers=["gpt_neox.layers"],
)
pipe = Pipeline(model, "chimera", {"N": 4})
optimizer = torch.optim.AdamW(pipe.parameters(), lr=3e-3)

for iteration in range(10):
    tokens = batch(16)  # four micro-batches
    loss = pipe.step(targets=tokens[:, 1:], input_ids=tokens[:, :-1])
    optimizer.step()
    optimizer.zero_grad()
    if pipe.rank == 0:
        print(f"iteration {iteration}   loss {loss:.4f}")

pipe.close()
