"""The samples on which one replica trains in one iteration: read from a source by their numbers, or given as tensors.

The numbers of the samples are in docs/semantics.md, "Samples and random numbers".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from torch import Tensor

from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.memory import in_own_memory
from chimerac.interpreter.runtime.model import Values


class MicroBatches(Protocol):
    """The micro-batches of one replica in one iteration."""

    @property
    def divisor(self) -> float:
        """Return the number by which the loss of each micro-batch is divided."""

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch, on any device."""

    def targets(self, micro_batch: int) -> Tensor:
        """Return the targets of a micro-batch, on any device."""

    def draws(self, micro_batch: int) -> Draws:
        """Return what a micro-batch's random numbers depend on."""


class Samples(Protocol):
    """A source of samples. Each sample has a number."""

    def read(self, numbers: Sequence[int]) -> tuple[Values, Tensor]:
        """Return the inputs and the targets of these samples, stacked in this order."""

    def valid_targets(self, numbers: Sequence[int]) -> int:
        """Return how many targets of these samples count in the loss."""


@dataclass(frozen=True)
class Batch:
    """The samples of one replica in one iteration, read from a source.

    iteration: the number of the batch; width: the number of replicas; size: samples of a micro-batch. accumulated: how many
    batches one weight update has. The loss is then a mean over all of them: update t has the batches from t * accumulated
    to (t + 1) * accumulated - 1.
    """

    source: Samples
    seed: int
    iteration: int
    replica: int
    width: int
    micro_batches: int
    size: int
    accumulated: int = 1

    def numbers(self, micro_batch: int) -> range:
        """Return the numbers of a micro-batch's samples: ((t W + w) N + m) b + j for all j < b.

        t: number of the batch; W: replicas; w: this replica; N: micro-batches; m: this micro-batch; b: its samples.
        """
        index = (self.iteration * self.width + self.replica) * self.micro_batches + micro_batch
        return range(index * self.size, (index + 1) * self.size)

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch."""
        inputs = self.source.read(self.numbers(micro_batch))[0]
        return in_own_memory(inputs, [False] * len(inputs))

    def targets(self, micro_batch: int) -> Tensor:
        """Return the targets of a micro-batch."""
        return in_own_memory([self.source.read(self.numbers(micro_batch))[1]], [False])[0]

    def draws(self, micro_batch: int) -> Draws:
        """Return what a micro-batch's random numbers depend on."""
        return Draws(self.seed, self.iteration // self.accumulated, tuple(self.numbers(micro_batch)))

    @cached_property
    def divisor(self) -> float:
        """Return the number of valid targets of all batches of the weight update."""
        first = self.iteration // self.accumulated * self.accumulated
        return self._valid_targets_of(range(first, first + self.accumulated))

    @cached_property
    def valid_targets(self) -> int:
        """Return the number of valid targets of this batch, in all micro-batches of all replicas."""
        return self._valid_targets_of(range(self.iteration, self.iteration + 1))

    def _valid_targets_of(self, batches: range) -> int:
        samples = self.width * self.micro_batches * self.size
        return self.source.valid_targets(range(batches.start * samples, batches.stop * samples))


class TensorBatch:
    """The tensors of one replica, cut into micro-batches along their first dimension.

    inputs: None on ranks without the first stage; targets: None on ranks without the last one. divisor: the loss of each
    micro-batch is divided by it. draws: of each micro-batch.
    """

    def __init__(
        self, inputs: Values | None, targets: Tensor | None, micro_batches: int, divisor: float, draws: Sequence[Draws]
    ) -> None:
        self.divisor, self._draws = divisor, draws
        parts = [t.chunk(micro_batches) for t in inputs or ()]
        self._inputs = list(zip(*parts, strict=True))
        self._targets = () if targets is None else targets.chunk(micro_batches)

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch: views of the batch."""
        return self._inputs[micro_batch]

    def targets(self, micro_batch: int) -> Tensor:
        """Return the targets of a micro-batch: a view of the batch."""
        return self._targets[micro_batch]

    def draws(self, micro_batch: int) -> Draws:
        """Return what a micro-batch's random numbers depend on."""
        return self._draws[micro_batch]
