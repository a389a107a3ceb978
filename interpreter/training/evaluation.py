"""Evaluations: the held-out loss, and the accuracy of a classifier, computed by the pipeline that is being trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from chimerac.interpreter.runtime.batch import Batch, Samples
from chimerac.interpreter.runtime.model import IGNORED, Values
from chimerac.interpreter.training.trainer import Trainer


@dataclass(frozen=True)
class FirstSamples(Samples):
    """The first `count` samples of a source. Later numbers repeat them, with ignored targets, to fill the last batch."""

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
        """Return for each loss how many targets of these samples count in it.

        Every batch of an evaluation asks this for all samples, and counting may take long. So their counts are kept.
        """
        if isinstance(numbers, range) and (numbers.start, numbers.step) == (0, 1) and numbers.stop >= self.count:
            return self._valid_targets
        return self.source.valid_targets([n for n in numbers if n < self.count])

    @cached_property
    def _valid_targets(self) -> tuple[int, ...]:
        return self.source.valid_targets(range(self.count))

    def _repeated(self, numbers: Sequence[int]) -> list[int]:
        return [n % self.count for n in numbers]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
        loss: of the held-out samples, a mean over the valid targets, in nats for a cross-entropy; of a model with several
            losses, the sum of their means.
        targets: how many valid targets the first loss has.
        accuracy: the share of these targets that were predicted correctly; None if the model does not count correct
            predictions.
    """

    loss: float
    targets: int
    accuracy: float | None


class Evaluator:
    """One rank's part in evaluations by the pipeline of a trainer.

    Args:
        samples: how many samples of `held_out` are evaluated, from the first one on.
    """

    def __init__(self, trainer: Trainer, held_out: Samples, samples: int) -> None:
        self.trainer, self.source, self.samples = trainer, FirstSamples(held_out, samples), samples
        self.targets = self.source.valid_targets(range(samples))[0]

    def evaluate(self) -> Evaluation:
        """Evaluate the held-out samples; called by all ranks together."""
        trainer, header = self.trainer, self.trainer.program.header
        pipeline, seed, size = trainer.pipeline, trainer.settings.seed, trainer.size
        replica = pipeline.replica
        batches = -(-self.samples // (header.width * header.micro_batches * size))
        totals = torch.zeros(2, dtype=torch.float64)
        for number in range(batches):
            # Like the accumulated batches of one weight update, all batches have the same divisors: the numbers of all valid
            # targets. So their losses add up to the mean.
            batch = Batch(self.source, seed, number, replica, header.width, header.micro_batches, size, accumulated=batches)
            totals[0] += pipeline.evaluate_batch(batch)
            totals[1] += pipeline.correct
        trainer.transport.all_reduce(totals)
        loss, correct = totals.tolist()
        counts_correct = pipeline.objective.correct is not None
        return Evaluation(loss, self.targets, correct / max(1, self.targets) if counts_correct else None)
