"""Random numbers inside a layer: functions of (seed, iteration, sample, layer) and of nothing else.

So dropout is the same under every schedule, cut and number of ranks, and when a forward is run again. torch's own
dropout draws from one generator per process, in the order in which a schedule happens to run its tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chimerac.interpreter.runtime.model import number_from


@dataclass(frozen=True, slots=True)
class Draws:
    """What the random numbers of one forward depend on. samples: the number of each sample of the micro-batch."""

    seed: int
    iteration: int
    samples: tuple[int, ...]


# Per thread of execution: several ranks of one process run their forwards with their own.
_current: ContextVar[Draws] = ContextVar("draws")


@contextmanager
def drawing(draws: Draws) -> Iterator[None]:
    """Let the layers called inside draw for these samples."""
    token = _current.set(draws)
    try:
        yield
    finally:
        _current.reset(token)


def current_draws() -> Draws:
    """Return what the random numbers of the forward that runs now depend on."""
    return _current.get()


class Dropout(nn.Module):
    """Dropout whose mask is a function of (seed, iteration, sample, layer, site).

    site: tells the dropouts of one layer apart. The first dimension of the input is the samples.
    """

    def __init__(self, probability: float, layer: int, site: int) -> None:
        super().__init__()
        self.probability, self.place = probability, (layer, site)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        draws = current_draws()
        masks = []
        for sample in draws.samples:
            seed = number_from(draws.seed, draws.iteration, sample, *self.place)
            generator = torch.Generator().manual_seed(seed)  # on the CPU: the same numbers for every device
            masks.append(torch.rand(x.shape[1:], generator=generator) >= self.probability)
        return x * torch.stack(masks).to(x.device) / (1 - self.probability)
