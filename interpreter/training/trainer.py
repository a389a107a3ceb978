"""Training: iterations of one rank's executor, and the epilogue that is the same for every program.

Epilogue (docs/semantics.md): wait for sends and collectives, clip by the global norm, AdamW, clear the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import stage_group
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.errors import InterpreterError, RankError
from chimerac.interpreter.runtime.batch import Batch, Samples
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.messages import table_digest
from chimerac.interpreter.runtime.partitioned import PartitionedModel
from chimerac.interpreter.training.optimizer import build_optimizer, learning_rate
from chimerac.interpreter.training.settings import Settings, samples_per_micro_batch
from chimerac.interpreter.transport import Transport


@dataclass(frozen=True, slots=True)
class Result:
    """One iteration's loss (mean over all valid targets, nats), gradient norm before clipping, and learning rate.

    figures: the measurements of each rank, by rank.
    """

    loss: float
    norm: float
    rate: float
    figures: tuple[tuple[float, ...], ...] = ()


class Trainer:
    """One rank's stages, executor and optimizer."""

    def __init__(
        self, program: Program, model: PartitionedModel, source: Samples, transport: Transport, settings: Settings
    ) -> None:
        self.program, self.source = program, source
        self.model, self.partition = model.model, model.partition
        self.settings, self.transport = settings, transport
        self.size = samples_per_micro_batch(program, settings.micro_batch)
        table = model.table
        check_equal(transport, "program", "E806", program.digest)
        check_equal(transport, "table of boundary values", "E807", table_digest(table))
        transport.connect(program)
        header = program.header
        held = sorted(s for s in range(header.stages) if transport.rank in header.holders([s]))
        self.stages = {s: model.build(s, settings.seed).to(transport.device) for s in held}
        self.executor = Executor(program, self.model, self.stages, table, transport)
        named = {f"{name}.{k}": p for name, group in self.executor.groups.items() for k, p in enumerate(group)}
        self.optimizer = build_optimizer(named, settings)

    def batch(self, iteration: int, replica: int) -> Batch:
        """Return the samples on which one replica trains in one iteration."""
        header = self.program.header
        seed = self.settings.seed
        return Batch(self.source, seed, iteration, replica, header.width, header.micro_batches, self.size)

    def gradients(self, iteration: int) -> float:
        """Run the stream; compute every parameter's complete gradient, and return this rank's share of the loss."""
        return self.executor.run(self.batch(iteration, self.transport.rank // self.program.header.ranks))

    def update(self, iteration: int, loss: float, figures: Sequence[float] = ()) -> Result:
        """Clip, update the weights and clear the gradients.

        loss: this rank's share; figures: this rank's measurements, the same number on every rank.
        """
        rank, world, count = self.transport.rank, self.transport.world, len(figures)
        totals = torch.zeros(2 + world * count, dtype=torch.float64)
        totals[0] = loss
        totals[1] = sum(float(p.grad.double().square().sum()) for p in self._counted() if p.grad is not None)
        totals[2 + rank * count : 2 + (rank + 1) * count] = torch.tensor(figures, dtype=torch.float64)
        try:
            self.transport.all_reduce(totals)
        except InterpreterError as cause:
            raise RankError(rank, None, "epilogue", cause) from cause
        total_loss, norm, rate = float(totals[0]), math.sqrt(float(totals[1])), learning_rate(self.settings, iteration)
        if not math.isfinite(total_loss + norm):
            # Every rank has the same totals, so all ranks exit here.
            raise refuse(
                "E812",
                f"iteration {iteration + 1} has the loss {total_loss} and the gradient norm {norm}",
                help="give a smaller --lr or a longer --warm-up",
            )
        if self.optimizer is not None:
            scale = min(1.0, self.settings.clip / (norm + 1e-6))
            for group in self.optimizer.param_groups:
                group["lr"] = rate
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(scale)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        measured = totals[2:].view(world, count).tolist()
        return Result(total_loss, norm, rate, tuple(tuple(row) for row in measured))

    def _counted(self) -> list[torch.nn.Parameter]:
        """Return the parameters that this rank counts in the gradient norm. The first rank that holds a group counts it."""
        header = self.program.header
        stages = {stage_group(s): (s,) for s in range(header.stages)} | {t.name: t.stages for t in header.tied}
        here = [ps for name, ps in self.executor.groups.items() if header.holders(stages[name])[0] == self.transport.rank]
        return [p for parameters in here for p in parameters]


def check_equal(transport: Transport, what: str, code: str, digest: str) -> None:
    """Compare a digest with every rank's. Raises ChimeraError on all ranks if two differ."""
    digests = transport.all_gather(digest)
    other = next((r for r, its in enumerate(digests) if its != digests[0]), None)
    if other is not None:
        raise refuse(
            code,
            f"rank 0 and rank {other} have a different {what}: {digests[0][:12]} and {digests[other][:12]}",
            help="start every rank with the same files, options and versions",
        )
