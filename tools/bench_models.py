"""The two models of the benchmarks of the runtime, a GPT and a tiny one, and their pipelines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.pipeline.bound import BoundPipeline
from chimerac.interpreter.runtime.batch import TensorBatch
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.model import Example, LayeredModel, Values
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.transport import Transport

SAMPLES, SEED = 2, 0  # SAMPLES: of a micro-batch


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model.

    Attributes:
        length: tokens of a sample.
    """

    blocks: int
    hidden: int
    heads: int
    length: int
    vocabulary: int


GPT = Sizes(blocks=8, hidden=256, heads=4, length=128, vocabulary=1000)
TINY = Sizes(blocks=6, hidden=8, heads=1, length=1, vocabulary=8)


class Embedding(nn.Module):
    """Tokens to vectors."""

    def __init__(self, z: Sizes) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(z.vocabulary, z.hidden), nn.Parameter(torch.zeros(z.length, z.hidden))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position  # type: ignore[no-any-return]  # (b, L, hidden)


class Block(nn.Module):
    """Causal attention and an MLP."""

    def __init__(self, z: Sizes) -> None:
        super().__init__()
        self.heads = z.heads
        self.norm_1, self.norm_2 = nn.LayerNorm(z.hidden), nn.LayerNorm(z.hidden)
        self.qkv, self.merge = nn.Linear(z.hidden, 3 * z.hidden), nn.Linear(z.hidden, z.hidden)
        self.up, self.down = nn.Linear(z.hidden, 4 * z.hidden), nn.Linear(4 * z.hidden, z.hidden)

    def forward(self, x: Tensor) -> Tensor:
        b, length, hidden = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, length, 3, self.heads, hidden // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, length, hidden)
        x = x + self.merge(y)
        return x + self.down(F.gelu(self.up(self.norm_2(x))))  # type: ignore[no-any-return]


class TinyLayer(nn.Module):
    """A layer that computes very little: one product with a small matrix."""

    def __init__(self, z: Sizes) -> None:
        super().__init__()
        self.linear = nn.Linear(z.hidden, z.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)  # type: ignore[no-any-return]


class Head(nn.Module):
    """Vectors to logits."""

    def __init__(self, z: Sizes) -> None:
        super().__init__()
        self.norm, self.logits = nn.LayerNorm(z.hidden), nn.Linear(z.hidden, z.vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))  # type: ignore[no-any-return]


def mean_loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of a micro-batch."""
    return F.cross_entropy(output.flatten(0, 1), targets.flatten())


def sum_loss(outputs: Values, targets: Values) -> Values:
    """Return the summed cross-entropy of a micro-batch."""
    return (F.cross_entropy(outputs[0].flatten(0, 1), targets[0].flatten(), reduction="sum"),)


def model_of(z: Sizes) -> LayeredModel:
    """Return the model as a list of layers."""
    block = TinyLayer if z is TINY else Block
    makers: list[Any] = [partial(Embedding, z), *[partial(block, z)] * z.blocks, partial(Head, z)]

    def example(samples: int) -> Example:
        tokens = torch.zeros(samples, z.length, dtype=torch.int64)
        return Example((tokens,), (tokens,))

    layers = tuple((f"layer {k}", make) for k, make in enumerate(makers))
    return LayeredModel(name="bench", layers=layers, loss=sum_loss, example=example)


def tokens_of(z: Sizes, micro_batches: int) -> Tensor:
    """Return random tokens. They are both the inputs and the targets of an iteration."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(0, z.vocabulary, (micro_batches * SAMPLES, z.length), generator=generator)


def pipeline_of(program: Program, z: Sizes, transport: Transport) -> BoundPipeline:
    """Return this rank's pipeline of a program, for the model of these sizes."""
    model = model_of(z)
    return BoundPipeline(program, partitioned(program, model, description_of(z)), transport, SEED)


@cache
def description_of(z: Sizes) -> ModelDescription:
    """Return the description of the model, measured once."""
    return describe(model_of(z), SAMPLES)


def iteration_of(pipe: BoundPipeline, z: Sizes) -> Callable[[], None]:
    """Return a function that runs one iteration of a pipeline and clears the gradients."""
    count = pipe.program.header.micro_batches
    tokens, draws = tokens_of(z, count), [Draws(SEED, iteration=0, samples=())] * count

    def iterate() -> None:
        pipe.run(TensorBatch((tokens,), (tokens,), {}, count, divisors=(tokens.numel(),), draws=draws))
        for stage in pipe.stages.values():
            stage.zero_grad()

    return iterate
