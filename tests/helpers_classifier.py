"""A classifier that has no code for pipelines, random batches for it, and its pipeline on each rank in loopback."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.chimera_ir.program import Program
from chimerac.interpreter import Pipeline
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback

WIDTH, CLASSES, SAMPLES = 12, 5, 3  # features of a sample; classes; samples of a micro-batch


class Net(nn.Module):
    """The classifier.

    Args:
        depth: the number of layers between the first and the last.
        drop: the probability of dropout.
    """

    def __init__(self, depth: int = 6, drop: float = 0.0) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.middle = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(drop)) for _ in range(depth)
        )
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.middle:
            x = layer(x)
        return self.last(x)

    def layers(self) -> list[nn.Module]:
        return [self.first, *self.middle, self.last]


def net(seed: int = 0, **sizes: Any) -> Net:
    """Return a classifier with weights of this seed.

    Args:
        sizes: arguments of Net.
    """
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Net(**sizes)


def batch(samples: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, WIDTH, generator=generator), torch.randint(0, CLASSES, (samples,), generator=generator)


def pipeline(program: Program | str | Path, transport: Transport, model: Net | None = None, **options: Any) -> Pipeline:
    """Return the pipeline of a rank.

    Args:
        model: by default `net()`.
        options: arguments of Pipeline; and net_layers, the layers of the pipeline if not those of the model.
    """
    model = model or net()
    layers = options.pop("net_layers", model.layers())
    example = torch.zeros(SAMPLES, WIDTH)
    arguments: dict[str, Any] = {"loss": F.cross_entropy, "inputs": example, "model": model, "transport": transport}
    return Pipeline(layers, program, **(arguments | options))


def on_all_ranks(program: Program, run: Callable[[Pipeline], Any], **options: Any) -> list[Any]:
    """Return what `run` returns on each rank, in loopback.

    Args:
        options: of `pipeline`.
    """
    return run_in_loopback(program, lambda transport: run(pipeline(program, transport, **options)))


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-4, atol=1e-6)
