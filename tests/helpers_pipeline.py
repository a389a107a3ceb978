"""A user's model: run through Pipeline in the loopback, and in one process with plain torch, on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback

T = TypeVar("T")
VOCABULARY, WIDTH = 11, 8  # tokens that exist; features of a vector
LENGTH, SAMPLES = 3, 2  # tokens of a sample; samples of a micro-batch


class Block(nn.Module):
    """A norm, two linear maps and a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Decoder(nn.Module):
    """An embedding, blocks and a head.

    Args:
        tied: the head's weight is the embedding's.
    """

    def __init__(self, blocks: int, tied: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    @property
    def layers(self) -> list[nn.Module]:
        """Return the layers, in order."""
        return [self.embed, *self.blocks, self.head]

    def forward(self, tokens: Tensor) -> Tensor:
        x: Tensor = tokens
        for layer in self.layers:
            x = layer(x)
        return x


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of all positions.

    Args:
        logits: (samples, LENGTH, VOCABULARY).
        targets: (samples, LENGTH).
    """
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(number: int, micro_batches: int) -> tuple[Tensor, Tensor]:
    """Return random inputs and targets, each (micro_batches * SAMPLES, LENGTH).

    Args:
        number: seeds the tokens.
    """
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(0, VOCABULARY, (micro_batches * SAMPLES, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def in_loopback(
    schedule: str,
    parameters: Mapping[str, int],
    make: Callable[[], Decoder | nn.Sequential],
    run: Callable[[Pipeline], T],
    width: int = 1,
    given: Any = None,
    **options: Any,
) -> list[T]:
    """Create the pipeline of every rank, call `run` with it, and return the results by rank.

    Args:
        make: returns the model, on every rank.
        given: what the pipeline gets as its schedule, if that is not `schedule`.
        options: further arguments of Pipeline.
    """
    program = compile_schedule(schedule, parameters, width).program

    def run_rank(transport: Transport) -> T:
        model = make()
        layers = {"layers": model.layers, "model": model} if isinstance(model, Decoder) else {"layers": model}
        sizes = {} if isinstance(given, Program) else parameters
        common = {"loss": cross_entropy, "inputs": batch(0, 1)[0], "width": width, "transport": transport}
        return run(Pipeline(schedule=given or schedule, parameters=sizes, **{**layers, **common, **options}))

    return run_in_loopback(program, run_rank, seed=1)


def one_process(model: nn.Module, number: int, micro_batches: int, autocast: torch.dtype | None = None) -> float:
    """Add the gradients of batch `number` to those of the model, micro-batch after micro-batch; return the mean loss."""
    total = 0.0
    for inputs, targets in zip(*(t.chunk(micro_batches) for t in batch(number, micro_batches)), strict=True):
        with torch.autocast("cpu", autocast) if autocast else nullcontext():
            loss = cross_entropy(model(inputs), targets) / micro_batches
        loss.backward()
        total += loss.item()
    return total


def gradients(module: nn.Module | Pipeline) -> dict[str, Tensor]:
    """Return copies of the gradients by the names of their parameters, without parameters that have none."""
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}
