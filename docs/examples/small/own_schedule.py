"""Python writes schedules as text, simulates them, and runs the fastest: torchrun --nproc-per-node 2 own_schedule.py"""

import os

import torch
import torch.nn.functional as F
from torch import nn

from chimerac.compiler import compile_text, simulate
from chimerac.interpreter import Pipeline

if "RANK" not in os.environ:
    raise SystemExit("start it with: torchrun --nproc-per-node 2 own_schedule.py")


def schedule(first: int) -> str:
    """Return a schedule in which rank 0 runs `first` forwards before its first backward, and rank 1 runs one."""
    return f"""
        schedule mine  param N = 4  ranks 2  stages 2
        pipe main {{ stage s on rank s   micro_batches N }}
        order listing for rank r {{
            let warm_up = min(N, if r == 0 then {first} else 1)
            repeat warm_up - 1 {{ F }}
            repeat N - warm_up + 1 {{ F  B }}
            repeat warm_up - 1 {{ B }}
        }}"""


makespans = {first: simulate(compile_text(schedule(first)).program, {"hop": 1}).makespan for first in (1, 2, 3, 4)}
best = min(makespans, key=makespans.__getitem__)

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
images, labels = torch.randn(32, 16), torch.randint(0, 4, (32,))
with Pipeline(model, schedule(best), loss=F.cross_entropy, inputs=images[:8]) as pipe:
    loss = pipe.step(images, labels)
    if pipe.rank == 0:
        print(f"makespans {makespans}: {best} forwards first   loss {loss:.4f}")
