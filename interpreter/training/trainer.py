"""Training: iterations of one rank's executor, and the epilogue that is the same for every program.

Epilogue (docs/semantics.md): wait for sends and collectives, clip by the global norm, AdamW, clear the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.errors import InterpreterError, RankError
from chimerac.interpreter.pipeline.pipeline import Pipeline
from chimerac.interpreter.runtime.batch import Batch, Samples
from chimerac.interpreter.runtime.partitioned import PartitionedModel
from chimerac.interpreter.transport import Transport


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train. micro_batch: samples of a micro-batch of the user's size; rate: the highest learning rate.

    warm_up: iterations in which the rate rises; None: a tenth of all. clip: the largest norm of the gradient. accumulate:
    batches whose gradients are summed before each weight update. zero: share the optimizer's state out over the copies of a
    stage. skip_nonfinite: leave out an update whose loss or gradient is not finite. compile_stages: with torch.compile.
    """

    iterations: int
    seed: int
    micro_batch: int
    rate: float
    clip: float = 1.0
    warm_up: int | None = None
    accumulate: int = 1
    zero: bool = False
    skip_nonfinite: bool = False
    compile_stages: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """One iteration's loss (mean over all valid targets, nats), gradient norm before clipping, and learning rate.

    figures: the measurements of each rank, by rank. is_skipped: the loss or the norm is not finite, and nothing was updated.
    """

    loss: float
    norm: float
    rate: float
    figures: tuple[tuple[float, ...], ...] = ()
    is_skipped: bool = False


def samples_per_micro_batch(program: Program, micro_batch: int) -> int:
    """Return how many samples one micro-batch of the program has. Raises ChimeraError E804 if that is not an integer."""
    part, whole = program.header.micro_batch_size
    if micro_batch * part % whole:
        raise refuse(
            "E804",
            f"micro-batches of {micro_batch} samples cannot be cut to {part}/{whole} of their size",
            notes=(f"{program.header.schedule} runs micro-batches of size {part}/{whole}",),
            help=f"give --micro-batch a multiple of {whole}",
        )
    return micro_batch * part // whole


class Trainer:
    """One rank's pipeline and optimizer. evaluation: the program of evaluations; None: the compiler derives it."""

    def __init__(
        self,
        program: Program,
        model: PartitionedModel,
        source: Samples,
        transport: Transport,
        settings: Settings,
        evaluation: Program | None = None,
    ) -> None:
        self.program, self.source, self.settings, self.transport = program, source, settings, transport
        self.size = samples_per_micro_batch(program, settings.micro_batch)
        self.pipeline = Pipeline.of(program, model, transport, settings.seed, evaluation, settings.compile_stages)
        self.skipped = 0  # updates that were left out
        self.optimizer = self._make_optimizer()

    def _make_optimizer(self) -> torch.optim.Optimizer | None:
        if self.settings.zero:
            return self.pipeline.sharded_optimizer(torch.optim.AdamW, lr=self.settings.rate)
        parameters = list(self.pipeline.parameters())
        # A rank may have no stage, and AdamW does not accept an empty list.
        return torch.optim.AdamW(parameters, lr=self.settings.rate) if parameters else None

    def batches(self, iteration: int, replica: int) -> list[Batch]:
        """Return the samples on which one replica trains in one iteration: as many batches as are accumulated."""
        header, seed, count = self.program.header, self.settings.seed, self.settings.accumulate
        return [
            Batch(self.source, seed, number, replica, header.width, header.micro_batches, self.size, accumulated=count)
            for number in range(iteration * count, (iteration + 1) * count)
        ]

    def gradients(self, iteration: int) -> float:
        """Run the stream on every batch and return this rank's share of the loss; all gradients are complete then."""
        *others, last = self.batches(iteration, self.pipeline.replica)
        return sum([self.pipeline.run(batch, sync=False) for batch in others]) + self.pipeline.run(last)

    def update(self, iteration: int, loss: float, figures: Sequence[float] = ()) -> Result:
        """Clip, update the weights and clear the gradients.

        loss: this rank's share; figures: this rank's measurements, the same number on every rank.
        """
        rank, world, count = self.transport.rank, self.transport.world, len(figures)
        totals = torch.zeros(2 + world * count, dtype=torch.float64)
        totals[0], totals[1] = loss, self.pipeline.squared_norm()
        totals[2 + rank * count : 2 + (rank + 1) * count] = torch.tensor(figures, dtype=torch.float64)
        try:
            self.transport.all_reduce(totals)
        except InterpreterError as cause:
            raise RankError(rank, None, "epilogue", cause) from cause
        total_loss, norm, rate = float(totals[0]), math.sqrt(float(totals[1])), learning_rate(self.settings, iteration)
        measured = tuple(tuple(row) for row in totals[2:].view(world, count).tolist())
        if not math.isfinite(total_loss + norm):
            # Every rank has the same totals, so all ranks come here.
            if not self.settings.skip_nonfinite:
                message = f"iteration {iteration + 1} has the loss {total_loss} and the gradient norm {norm}"
                raise self.pipeline.nonfinite(message, help="give a smaller --lr or a longer --warm-up")
            self.skipped += 1
            if self.optimizer is not None:
                self.optimizer.zero_grad(set_to_none=True)
            return Result(total_loss, norm, rate, measured, is_skipped=True)
        self.pipeline.scale_gradients(min(1.0, self.settings.clip / (norm + 1e-6)))
        if self.optimizer is not None:
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return Result(total_loss, norm, rate, measured)


def learning_rate(settings: Settings, iteration: int) -> float:
    """Return the rate of one iteration: a linear warm-up, then a cosine from `settings.rate` down to a tenth of it."""
    warm_up = max(1, settings.iterations // 10) if settings.warm_up is None else settings.warm_up
    if iteration < warm_up:
        return settings.rate * (iteration + 1) / warm_up
    progress = (iteration - warm_up) / max(1, settings.iterations - warm_up)
    return settings.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
