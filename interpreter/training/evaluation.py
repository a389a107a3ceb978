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
class FirstSamples:
    """The first `count` samples of a source. The targets of all later samples are ignored."""

    source: Samples
    count: int

    def read(self, numbers: Sequence[int]) -> tuple[Values, Tensor]:
        """Return the inputs and the targets of these samples."""
        inputs, targets = self.source.read([n % self.count for n in numbers])
        beyond = torch.tensor([n >= self.count for n in numbers]).view(-1, *[1] * (targets.dim() - 1))
        return inputs, targets.masked_fill(beyond, IGNORED)

    def valid_targets(self, numbers: Sequence[int]) -> int:
        """Return how many targets of these samples count."""
        return self.source.valid_targets([n for n in numbers if n < self.count])


class Evaluator:
    """One rank's part in evaluations. samples: how many samples of `held_out` are evaluated."""

    def __init__(self, trainer: Trainer, held_out: Samples, samples: int) -> None:
        self.trainer, self.source, self.samples = trainer, FirstSamples(held_out, samples), samples

    def loss(self) -> float:
        """Return the mean loss of the held-out samples, nats per valid target; called by all ranks together."""
        trainer, header = self.trainer, self.trainer.program.header
        pipeline, seed, size = trainer.pipeline, trainer.settings.seed, trainer.size
        samples_per_batch = header.width * header.micro_batches * size
        total = torch.zeros(1, dtype=torch.float64)
        for number in range(-(-self.samples // samples_per_batch)):
            batch = Batch(self.source, seed, number, pipeline.replica, header.width, header.micro_batches, size)
            total += pipeline.evaluate_batch(batch) * batch.valid_targets
        trainer.transport.all_reduce(total)
        return float(total[0]) / self.source.valid_targets(range(self.samples))
