"""Batches: the samples that one replica reads in one run of its streams, by their numbers or as given tensors.

A sample has inputs, which the first layer takes; targets, which the loss takes; and fields, such as an attention mask, which
any layer may take. Each rank reads only what its own stages take. docs/semantics.md, "Samples and random numbers", says how
samples are numbered.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.memory import in_own_memory
from chimerac.interpreter.runtime.model import Values


class MicroBatches(Protocol):
    """The micro-batches of one batch of one replica. Their tensors may be on any device."""

    @property
    def divisors(self) -> Sequence[float]:
        """Return the numbers by which the losses of each micro-batch are divided: one for each loss, or one for all."""

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch."""

    def targets(self, micro_batch: int) -> Values:
        """Return the targets of a micro-batch."""

    def field(self, micro_batch: int, name: str) -> Tensor:
        """Return a field of a micro-batch."""

    def draws(self, micro_batch: int) -> Draws:
        """Return what a micro-batch's random numbers depend on."""


class Samples(ABC):
    """A source of numbered samples. The first dimension of a tensor counts the samples, in the order of `numbers`."""

    @abstractmethod
    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return the inputs of these samples."""

    @abstractmethod
    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the targets of these samples. A target that does not count in the loss is `IGNORED`."""

    def field(self, numbers: Sequence[int], name: str) -> Tensor:
        """Return a field of these samples. Raises KeyError if they have no field of this name."""
        raise KeyError(f"these samples have no field {name}")

    @abstractmethod
    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return for each loss how many targets of these samples count in it."""


@dataclass(frozen=True)
class Batch:
    """One batch of one replica, read from a source.

    Attributes:
        number: of the batch, from 0.
        replica: the number of this replica.
        width: the number of replicas.
        micro_batches: how many the batch has.
        size: samples of a micro-batch.
        accumulated: how many batches of a replica one iteration has. Iteration i has the batches i * accumulated to (i + 1) *
            accumulated - 1. Each of its losses is the mean over the valid targets of these batches of all replicas.
    """

    source: Samples
    seed: int
    number: int
    replica: int
    width: int
    micro_batches: int
    size: int
    accumulated: int = 1

    def numbers(self, micro_batch: int) -> range:
        """Return the numbers of a micro-batch's samples: ((t W + w) N + m) b + j for all j < b.

        t: number of the batch; W: replicas; w: this replica; N: micro-batches; m: this micro-batch; b: its samples.
        """
        index = (self.number * self.width + self.replica) * self.micro_batches + micro_batch
        return range(index * self.size, (index + 1) * self.size)

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch."""
        return _in_own_memory(self.source.inputs(self.numbers(micro_batch)))

    def targets(self, micro_batch: int) -> Values:
        """Return the targets of a micro-batch."""
        return _in_own_memory(self.source.targets(self.numbers(micro_batch)))

    def field(self, micro_batch: int, name: str) -> Tensor:
        """Return a field of a micro-batch."""
        return _in_own_memory((self.source.field(self.numbers(micro_batch), name),))[0]

    def draws(self, micro_batch: int) -> Draws:
        """Return what a micro-batch's random numbers depend on."""
        return Draws(self.seed, self.number // self.accumulated, tuple(self.numbers(micro_batch)))

    @cached_property
    def divisors(self) -> tuple[int, ...]:
        """Return for each loss the number of its valid targets in the iteration, in all batches of all replicas; at least 1."""
        samples = self.accumulated * self.width * self.micro_batches * self.size
        first = self.number // self.accumulated * samples
        return tuple(max(1, count) for count in self.source.valid_targets(range(first, first + samples)))


def _in_own_memory(tensors: Values) -> Values:
    return in_own_memory(tensors, [False] * len(tensors))


class TensorBatch:
    """The tensors of one replica, cut into micro-batches along their first dimension.

    Args:
        inputs, targets: None if they are not given, as on ranks that do not read them.
        fields: those that this rank reads, by name.
        micro_batches: how many.
        divisors: as in `MicroBatches`.
        draws: of each micro-batch.
    """

    def __init__(
        self,
        inputs: Values | None,
        targets: Values | None,
        fields: Mapping[str, Tensor],
        micro_batches: int,
        divisors: Sequence[float],
        draws: Sequence[Draws],
    ) -> None:
        self.divisors, self._draws = divisors, draws
        self._inputs = list(zip(*(t.chunk(micro_batches) for t in inputs or ()), strict=True))
        self._targets = list(zip(*(t.chunk(micro_batches) for t in targets or ()), strict=True))
        self._fields = {name: t.chunk(micro_batches) for name, t in fields.items()}

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch: views of the batch. A model that reads only fields has none."""
        return self._inputs[micro_batch] if self._inputs else ()

    def targets(self, micro_batch: int) -> Values:
        """Return the targets of a micro-batch: views of the batch."""
        return self._targets[micro_batch]

    def field(self, micro_batch: int, name: str) -> Tensor:
        """Return a field of a micro-batch: a view of the batch."""
        return self._fields[name][micro_batch]

    def draws(self, micro_batch: int) -> Draws:
        """Return what a micro-batch's random numbers depend on."""
        return self._draws[micro_batch]


@dataclass
class Reads:
    """What one rank reads of each batch.

    Attributes:
        inputs, targets: the micro-batches whose inputs or targets it reads.
        fields: the fields that it reads, each as micro-batch and name.
    """

    inputs: set[int] = field(default_factory=set)
    targets: set[int] = field(default_factory=set)
    fields: set[tuple[int, str]] = field(default_factory=set)


class Pinned:
    """What a rank reads of a batch, in pinned host memory, from which copies to a GPU do not block the process.

    All of it is copied there at once, before the stream runs. Tensors that are on a GPU already stay there.
    """

    def __init__(self, batch: MicroBatches, reads: Reads) -> None:
        self.divisors, self.draws = batch.divisors, batch.draws
        self._inputs = {m: _pinned(batch.inputs(m)) for m in sorted(reads.inputs)}
        self._targets = {m: _pinned(batch.targets(m)) for m in sorted(reads.targets)}
        self._fields = {(m, name): _pinned([batch.field(m, name)])[0] for m, name in sorted(reads.fields)}

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch."""
        return self._inputs[micro_batch]

    def targets(self, micro_batch: int) -> Values:
        """Return the targets of a micro-batch."""
        return self._targets[micro_batch]

    def field(self, micro_batch: int, name: str) -> Tensor:
        """Return a field of a micro-batch."""
        return self._fields[micro_batch, name]


def _pinned(tensors: Iterable[Tensor]) -> Values:
    """Return the tensors in pinned memory. Pinned ones are copied too: their owner may overwrite them during the step."""
    return tuple([t if t.is_cuda else torch.empty_like(t, pin_memory=True).copy_(t) for t in tensors])
