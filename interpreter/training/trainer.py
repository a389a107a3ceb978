"""The trainer of one rank: it runs the iterations of a pipeline, and updates the weights after each.

An update clips the gradient by the norm of the whole model, makes a step of the optimizer and clears the gradients
(docs/semantics.md, "Epilogue").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.optim import Optimizer

from chimerac.chimera_ir.program import Program
from chimerac.interpreter.errors import InterpreterError, RankError
from chimerac.interpreter.pipeline.bound import BoundPipeline
from chimerac.interpreter.runtime.batch import Batch, Samples
from chimerac.interpreter.runtime.partitioned import PartitionedModel
from chimerac.interpreter.training.optimizer import build_optimizer, build_sharded_optimizer, learning_rate
from chimerac.interpreter.training.settings import Settings, samples_per_micro_batch
from chimerac.interpreter.transport import Transport


@dataclass(frozen=True, slots=True)
class Result:
    """One iteration's loss, gradient norm before clipping, and learning rate.

    Attributes:
        loss: the mean over all valid targets; of a model with several losses, the sum of their means.
        figures: the measurements of each rank, by rank.
        is_skipped: whether the update was skipped, because the loss or the norm is not finite.
    """

    loss: float
    norm: float
    rate: float
    figures: tuple[tuple[float, ...], ...] = ()
    is_skipped: bool = False


class Trainer:
    """One rank's pipeline and optimizer.

    Args:
        source: the samples to train on.
        evaluation: the program of evaluations; None: the compiler derives it.
        profile_ranges: as in `Pipeline`.
        updates: False for a run whose weights do not change; it gets no optimizer, because torch would import modules for 1.5
            s.

    Attributes:
        size: samples of one micro-batch of the program.
        skipped: how many updates were skipped.
        skipped_in_a_row: how many of them since the last update that was made.
    """

    def __init__(
        self,
        program: Program,
        model: PartitionedModel,
        source: Samples,
        transport: Transport,
        settings: Settings,
        evaluation: Program | None = None,
        profile_ranges: bool = False,
        updates: bool = True,
    ) -> None:
        self.program, self.model, self.source, self.settings, self.transport = program, model, source, settings, transport
        self.size = samples_per_micro_batch(program, settings.micro_batch)
        self.pipeline = BoundPipeline(
            program,
            model,
            transport,
            settings.seed,
            evaluation=evaluation,
            compile_stages=settings.compile_stages,
            profile_ranges=profile_ranges,
        )
        self.skipped = self.skipped_in_a_row = 0
        self.optimizer: Optimizer | None = None
        if updates and settings.zero:
            self.optimizer = build_sharded_optimizer(self.pipeline, settings)
        elif updates:
            self.optimizer = build_optimizer(self.pipeline.parameters(), settings)

    @property
    def samples_per_iteration(self) -> int:
        """Return how many samples all replicas together train on in one iteration."""
        header = self.program.header
        return header.width * header.micro_batches * self.size * self.settings.accumulate

    def batches(self, iteration: int, replica: int) -> list[Batch]:
        """Return the batches on which one replica trains in one iteration, as many as are accumulated."""
        header, seed, accumulated = self.program.header, self.settings.seed, self.settings.accumulate
        return [
            Batch(self.source, seed, number, replica, header.width, header.micro_batches, self.size, accumulated)
            for number in range(iteration * accumulated, (iteration + 1) * accumulated)
        ]

    def gradients(self, iteration: int) -> float:
        """Run the pipeline on every batch of an iteration, and return this rank's share of the loss.

        Afterwards the gradient of each parameter is summed over all ranks that hold the parameter, in all replicas.
        """
        *unsynced, last = self.batches(iteration, self.pipeline.replica)
        return sum([self.pipeline.run(batch, sync=False) for batch in unsynced]) + self.pipeline.run(last)

    def update(self, iteration: int, loss: float, figures: Sequence[float] = ()) -> Result:
        """Clip the gradient, update the weights, clear the gradients and return the result; called by all ranks together.

        Without an optimizer, no weight changes and no gradient is cleared.

        Args:
            loss: this rank's share of the loss.
            figures: this rank's measurements, equally many on every rank.

        Raises ChimeraError E812 on all ranks for a loss or a gradient that is not finite. With `skip_nonfinite` such an update
        is skipped, and E812 is raised only if `max_skipped` updates before it were skipped in a row. Raises RankError if the
        sum over all ranks fails.
        """
        rank, world, count = self.transport.rank, self.transport.world, len(figures)
        totals = torch.zeros(2 + world * count, dtype=torch.float64)
        totals[0], totals[1] = loss, self.pipeline.gradient.squared_norm()
        totals[2 + rank * count : 2 + (rank + 1) * count] = torch.tensor(figures, dtype=torch.float64)
        try:
            self.transport.all_reduce(totals)
        except InterpreterError as cause:
            raise RankError(rank, None, "epilogue", cause) from cause
        total_loss, norm, rate = float(totals[0]), math.sqrt(float(totals[1])), learning_rate(self.settings, iteration)
        measured = tuple(tuple(row) for row in totals[2:].view(world, count).tolist())
        if not math.isfinite(total_loss + norm):
            # Every rank has the same totals, so all ranks take this branch.
            if not self.settings.skip_nonfinite or self.skipped_in_a_row == self.settings.max_skipped:
                skipped = self.skipped_in_a_row
                updates = "the update before it was" if skipped == 1 else f"the {skipped} updates before it were"
                before = f", and {updates} skipped" if skipped else ""
                message = f"iteration {iteration + 1} has the loss {total_loss} and the gradient norm {norm}{before}"
                more = ", or a larger --max-skipped" if skipped else ""
                raise self.pipeline.nonfinite_error(message, help=f"give a smaller --lr or a longer --warm-up{more}")
            self.skipped, self.skipped_in_a_row = self.skipped + 1, self.skipped_in_a_row + 1
            if self.optimizer is not None:
                self.optimizer.zero_grad(set_to_none=True)
            return Result(total_loss, norm, rate, measured, is_skipped=True)
        self.skipped_in_a_row = 0
        self.pipeline.gradient.clip(norm, self.settings.clip)
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return Result(total_loss, norm, rate, measured)
