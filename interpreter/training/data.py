"""Samples: windows of bytes from a text, numbered as docs/semantics.md says, in one seeded order.

Sample k is a window of the text; which one depends on the seed and k alone. So every schedule, depth and width trains
on the same samples in the same iterations, and loss curves can be laid over each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.training.text import Text, windows

Values = tuple[Tensor, ...]


class Samples(Protocol):
    """Where samples come from, by their numbers."""

    def read(self, numbers: Sequence[int]) -> tuple[Values, Tensor]:
        """Return the inputs and the targets of these samples, stacked in this order."""

    def valid_targets(self, numbers: Sequence[int]) -> int:
        """Return how many targets of these samples count."""


@dataclass(frozen=True)
class Windows:
    """Samples of `length` bytes, each to predict the bytes one further on; windows do not overlap in their inputs."""

    text: Text
    length: int
    seed: int

    @property
    def count(self) -> int:
        """Return how many samples the text has before it begins anew, in another order."""
        return (len(self.text) - 1) // self.length

    def read(self, numbers: Sequence[int]) -> tuple[Values, Tensor]:
        """Return inputs and targets of these samples."""
        starts = [self._window(k) * self.length for k in numbers]
        tokens = torch.from_numpy(windows(self.text, starts, self.length + 1).astype(np.int64))  # (b, L + 1)
        return (tokens[:, :-1],), tokens[:, 1:]  # (b, L) each

    def valid_targets(self, numbers: Sequence[int]) -> int:
        """Return how many targets these samples have: every byte counts."""
        return len(numbers) * self.length

    def _window(self, number: int) -> int:
        epoch, place = divmod(number, self.count)
        return int(_order(self.seed, epoch, self.count)[place])


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


@dataclass(frozen=True)
class Batch:
    """What one replica trains on in one iteration. size: samples of a micro-batch."""

    source: Samples
    seed: int
    iteration: int
    replica: int
    width: int
    micro_batches: int
    size: int

    def numbers(self, micro_batch: int) -> range:
        """Return the numbers of a micro-batch's samples: ((t W + w) N + m) b + j for j < b."""
        place = (self.iteration * self.width + self.replica) * self.micro_batches + micro_batch
        return range(place * self.size, (place + 1) * self.size)

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch."""
        return self.source.read(self.numbers(micro_batch))[0]

    def targets(self, micro_batch: int) -> Tensor:
        """Return the targets of a micro-batch."""
        return self.source.read(self.numbers(micro_batch))[1]

    def draws(self, micro_batch: int) -> Draws:
        """Return what a micro-batch's random numbers depend on."""
        return Draws(self.seed, self.iteration, tuple(self.numbers(micro_batch)))

    @cached_property
    def valid_targets(self) -> int:
        """Return the number of valid targets of the whole iteration: all micro-batches of all replicas."""
        samples = self.width * self.micro_batches * self.size
        return self.source.valid_targets(range(self.iteration * samples, (self.iteration + 1) * samples))
