"""Training: iterations of one rank's executor, and the epilogue that is the same for every program.

Epilogue (docs/semantics.md): wait for sends and sums, clip by the global norm, AdamW, clear the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chimera_ir.diagnostics import refuse
from chimera_ir.model import ModelDescription
from chimera_ir.program import Program
from interpreter.data import Batch, Samples
from interpreter.executor import Executor, RankError
from interpreter.messages import boundary_table, digest
from interpreter.transport import Transport
from models.model import Model, build_stage


@dataclass(frozen=True, slots=True)
class Settings:
    """How to train. micro_batch: samples of a micro-batch that N counts; rate: the highest learning rate."""

    iterations: int
    seed: int
    micro_batch: int
    rate: float
    clip: float = 1.0


@dataclass(frozen=True, slots=True)
class Result:
    """One iteration's loss (mean over all valid targets, nats) and gradient norm before clipping."""

    loss: float
    norm: float


def samples_per_micro_batch(program: Program, micro_batch: int) -> int:
    """Return how many samples one micro-batch of the program has. Raises ChimeraError E804 where they do not divide."""
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
    """One rank's stages, executor and optimizer."""

    def __init__(
        self,
        program: Program,
        model: Model,
        description: ModelDescription,
        source: Samples,
        transport: Transport,
        settings: Settings,
    ) -> None:
        if program.header.tied:
            names = ", ".join(t.name for t in program.header.tied)
            raise refuse("E805", f"the program ties the parameters of {names}, but {model.name} ties none")
        self.program, self.model, self.source = program, model, source
        self.settings, self.transport = settings, transport
        self.size = samples_per_micro_batch(program, settings.micro_batch)
        self.cut = description.cut(program.header.stages)
        table = boundary_table(description, program.header.stages)
        agree(transport, "program", "E806", program.digest)
        agree(transport, "table of boundary values", "E807", digest(table))
        transport.connect(program)
        header = program.header
        held = sorted(s for s in range(header.stages) if transport.rank in header.holders([s]))
        self.stages = {s: build_stage(model, self.cut[s], settings.seed) for s in held}
        # The gradient norm counts every stage once, at the first rank that holds it.
        self.counted = [s for s in held if header.holders([s])[0] == transport.rank]
        self.executor = Executor(program, model, self.stages, table, transport)
        parameters = [p for stage in self.stages.values() for p in stage.parameters()]
        # A rank of a listing may hold no stage at all; AdamW refuses an empty list.
        self.optimizer = torch.optim.AdamW(parameters, lr=settings.rate) if parameters else None

    def batch(self, iteration: int, replica: int) -> Batch:
        """Return what one replica trains on in one iteration."""
        header = self.program.header
        seed = self.settings.seed
        return Batch(self.source, seed, iteration, replica, header.width, header.micro_batches, self.size)

    def gradients(self, iteration: int) -> float:
        """Run the stream: leave every parameter its whole gradient and return this rank's share of the loss."""
        return self.executor.run(self.batch(iteration, self.transport.rank // self.program.header.ranks))

    def update(self, iteration: int, loss: float) -> Result:
        """Clip, update the weights and clear the gradients. loss: this rank's share."""
        try:
            squares = sum(float(p.grad.double().square().sum()) for p in self._counted_parameters() if p.grad is not None)
            totals = torch.tensor([loss, squares], dtype=torch.float64)
            self.transport.sum_all(totals)
        except ConnectionError as cause:
            raise RankError(self.transport.rank, "epilogue", cause) from cause
        total_loss, norm = float(totals[0]), math.sqrt(float(totals[1]))
        if self.optimizer is not None:
            scale = min(1.0, self.settings.clip / (norm + 1e-6))
            for group in self.optimizer.param_groups:
                group["lr"] = learning_rate(self.settings, iteration)
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.mul_(scale)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        return Result(total_loss, norm)

    def _counted_parameters(self) -> list[torch.nn.Parameter]:
        return [p for s in self.counted for p in self.stages[s].parameters()]


def learning_rate(settings: Settings, iteration: int) -> float:
    """Return the rate of one iteration: a linear warm-up over a tenth of them, then a cosine down to a tenth."""
    warm_up = max(1, settings.iterations // 10)
    if iteration < warm_up:
        return settings.rate * (iteration + 1) / warm_up
    progress = (iteration - warm_up) / max(1, settings.iterations - warm_up)
    return settings.rate * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def agree(transport: Transport, what: str, code: str, digest: str) -> None:
    """Compare a digest with every rank's. Raises ChimeraError on all ranks where two differ."""
    heard: Sequence[str] = transport.tell_all(digest)
    other = next((r for r, word in enumerate(heard) if word != heard[0]), None)
    if other is not None:
        raise refuse(
            code,
            f"rank 0 and rank {other} have a different {what}: {heard[0][:12]} and {heard[other][:12]}",
            help="start every rank with the same files, options and versions",
        )
