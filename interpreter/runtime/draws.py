"""Random numbers of dropout in the presets: they depend on (seed, iteration, sample, layer, site in the layer) alone.

So dropout is the same under every schedule, partition and number of ranks, and in a recomputed forward. The numbers of torch's
own dropout depend on the order of the tasks, because all tasks of a process draw from one generator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chimerac.interpreter.runtime.model import seed_from


@dataclass(frozen=True, slots=True)
class Draws:
    """What the random numbers of one forward depend on, besides the layer and the site in it.

    Attributes:
        samples: the number of each sample of the micro-batch.
    """

    seed: int
    iteration: int
    samples: Sequence[int]


# Two values: a function, and the number of a micro-batch. The function takes this number and returns the draws of the
# micro-batch. It is called by layers that draw, by stages of traced modules that draw (adapters/stages.py), and by TimedStage
# (training/timed.py), which reads the numbers of the samples. Each thread has its own value, because the ranks of the loopback
# are threads of one process.
_current: ContextVar[tuple[Callable[[int], Draws], int]] = ContextVar("draws")

# set_draws((draws_of, micro_batch)): the layers that this thread calls from now on draw the numbers of this micro-batch.
set_draws = _current.set


@contextmanager
def drawing(draws: Draws) -> Iterator[None]:
    """Set the draws of the layers that are called inside this context."""
    token = _current.set((lambda _: draws, 0))  # these draws, whatever the micro-batch
    try:
        yield
    finally:
        _current.reset(token)


def current_draws() -> Draws:
    """Return the draws of the forward that is running."""
    draws_of, micro_batch = _current.get()
    return draws_of(micro_batch)


class Dropout(nn.Module):
    """Dropout whose mask is a function of (seed, iteration, sample, layer, site).

    Args:
        probability: that a number of the input becomes 0; the others are divided by 1 - probability.
        layer: the number of the layer in the model.
        site: the number of the dropout in its layer.

    The first dimension of the input counts the samples.
    """

    def __init__(self, probability: float, layer: int, site: int) -> None:
        super().__init__()
        self.probability, self.layer, self.site = probability, layer, site

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.probability == 0:
            return x
        draws = current_draws()
        masks = []
        for sample in draws.samples:
            seed = seed_from(draws.seed, draws.iteration, sample, self.layer, self.site)
            generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device gets the same numbers
            masks.append(torch.rand(x.shape[1:], generator=generator) >= self.probability)
        return x * torch.stack(masks).to(x.device) / (1 - self.probability)
