"""The held-out loss, computed by the pipeline that is being trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from chimerac.interpreter.runtime.batch import Batch, Samples
from chimerac.interpreter.runtime.model import IGNORED, Values
from chimerac.interpreter.training.trainer import Trainer


@dataclass(frozen=True)
class FirstSamples(Samples):
    """The first `count` samples of a source. The targets of all later samples are ignored."""

    source: Samples
    count: int

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return the inputs of these samples."""
        return self.source.inputs(self._repeated(numbers))

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the targets of these samples."""
        beyond = torch.tensor([n >= self.count for n in numbers])
        targets = self.source.targets(self._repeated(numbers))
        return tuple(t.masked_fill(beyond.view(-1, *[1] * (t.dim() - 1)), IGNORED) for t in targets)

    def field(self, numbers: Sequence[int], name: str) -> Tensor:
        """Return a field of these samples."""
        return self.source.field(self._repeated(numbers), name)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many targets of these samples count."""
        return self.source.valid_targets([n for n in numbers if n < self.count])

    def _repeated(self, numbers: Sequence[int]) -> list[int]:
        return [n % self.count for n in numbers]


class Evaluator:
    """One rank's part in evaluations. samples: how many samples of `held_out` are evaluated."""

    def __init__(self, trainer: Trainer, held_out: Samples, samples: int) -> None:
        self.trainer, self.source, self.samples = trainer, FirstSamples(held_out, samples), samples

    def loss(self) -> float:
        """Return the mean loss of the held-out samples, nats per valid target; called by all ranks together."""
        trainer, header = self.trainer, self.trainer.program.header
        pipeline, seed, size = trainer.pipeline, trainer.settings.seed, trainer.size
        batches = -(-self.samples // (header.width * header.micro_batches * size))
        total = torch.zeros(1, dtype=torch.float64)
        for number in range(batches):
            # Like the batches of one weight update, these have the same divisors, so their losses add up to the mean.
            batch = Batch(self.source, seed, number, pipeline.replica, header.width, header.micro_batches, size, batches)
            total += pipeline.evaluate_batch(batch)
        trainer.transport.all_reduce(total)
        return float(total[0])
