"""The samples on which one replica trains in one iteration, by their numbers (docs/semantics.md, "Samples")."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.model import Values


class Samples(Protocol):
    """A source of samples. Each sample has a number."""

    def read(self, numbers: Sequence[int]) -> tuple[Values, Tensor]:
        """Return the inputs and the targets of these samples, stacked in this order."""

    def valid_targets(self, numbers: Sequence[int]) -> int:
        """Return how many targets of these samples count in the loss."""


@dataclass(frozen=True)
class Batch:
    """The samples of one replica in one iteration. size: of a micro-batch, in samples."""

    source: Samples
    seed: int
    iteration: int
    replica: int
    width: int
    micro_batches: int
    size: int

    def numbers(self, micro_batch: int) -> range:
        """Return the numbers of a micro-batch's samples: ((t W + w) N + m) b + j for all j < b.

        t: iteration; W: replicas; w: this replica; N: micro-batches; m: this micro-batch; b: samples of a micro-batch.
        """
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
