"""GPTs: pre-norm decoders on bytes or tokens, as lists of layers (embedding, blocks, head).

No layer has a bias. The gradient of the bias of the attention's keys is zero in exact arithmetic. What is computed for it is
only rounding, so its relative error would say nothing about a pipeline.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter.adapters.losses import cross_entropies
from chimerac.interpreter.runtime.draws import Dropout
from chimerac.interpreter.runtime.model import Example, LayeredModel
from chimerac.models.presets import Gpt, sizes_in


class Embedding(nn.Module):
    """The sum of an embedding of each byte or token and one of its position: (b, L) -> (b, L, width)."""

    def __init__(self, sizes: Gpt, sequence_length: int, dropout: Dropout) -> None:
        super().__init__()
        self.byte = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sequence_length, sizes.width)
        self.dropout = dropout
        for table in (self.byte, self.position):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)  # (L,)
        x = self.byte(tokens) + self.position(positions)  # (b, L, width)
        return self.dropout(x)  # type: ignore[no-any-return]


class Block(nn.Module):
    """Causal attention, then an MLP, each added to the residual stream: (b, L, width) -> (b, L, width).

    Args:
        layer: the number of this layer in the model, on which its dropout depends.
    """

    def __init__(self, sizes: Gpt, layer: int, dropout: float) -> None:
        super().__init__()
        width, self.heads = sizes.width, sizes.heads
        self.norm_1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.merge = nn.Linear(width, width, bias=False)
        self.norm_2 = nn.LayerNorm(width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.dropout_1, self.dropout_2 = Dropout(dropout, layer, site=1), Dropout(dropout, layer, site=2)
        # The 2 x blocks linear maps that add to the residual stream start with smaller weights (Radford et al. 2019, 2.3).
        residual_std = 0.02 / (2 * sizes.blocks) ** 0.5
        for linear, std in ((self.qkv, 0.02), (self.up, 0.02), (self.merge, residual_std), (self.down, residual_std)):
            nn.init.normal_(linear.weight, std=std)

    def forward(self, x: Tensor) -> Tensor:
        b, length, width = x.shape
        qkv = self.qkv(self.norm_1(x)).view(b, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # (b, heads, L, width / heads) each
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (b, heads, L, width / heads)
        x = x + self.dropout_1(self.merge(y.transpose(1, 2).reshape(b, length, width)))  # (b, L, width)
        return x + self.dropout_2(self.down(F.gelu(self.up(self.norm_2(x)))))  # type: ignore[no-any-return]


class Head(nn.Module):
    """The logits of the next byte or token: (b, L, width) -> (b, L, vocabulary)."""

    def __init__(self, sizes: Gpt) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sizes.width, bias=False)
        self.logits = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        nn.init.normal_(self.logits.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(self.norm(x))  # type: ignore[no-any-return]


def gpt(name: str, sequence_length: int, dropout: float = 0.0, vocabulary: int | None = None) -> LayeredModel:
    """Return a GPT preset (models/presets.py) for sequences of at most `sequence_length` tokens.

    Args:
        dropout: the probability of dropout after the embedding, the attention and the MLP.
        vocabulary: as in `presets.sizes_of`, to which `presets.sizes_in` passes it.

    Raises ChimeraError as `presets.sizes_in`, for instance E801 for a name that is not of the family gpt.
    """
    sizes = sizes_in(Gpt, name, vocabulary)
    blocks = [(f"block {k}", partial(Block, sizes, k, dropout)) for k in range(1, sizes.blocks + 1)]

    def embedding() -> nn.Module:
        return Embedding(sizes, sequence_length, Dropout(dropout, layer=0, site=0))

    def example(samples: int) -> Example:
        tokens = torch.zeros(samples, sequence_length, dtype=torch.int64)  # (b, L)
        return Example((tokens,), (torch.zeros_like(tokens),))

    layers: tuple[tuple[str, Callable[[], nn.Module]], ...]
    layers = (("embedding", embedding), *blocks, ("head", partial(Head, sizes)))
    return LayeredModel(name=name, layers=layers, loss=cross_entropies, example=example)
