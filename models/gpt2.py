"""GPT-2 (Radford et al. 2019): a pre-norm decoder with biases, learned positions, and a head that is not tied.

With the same weights and without dropout it computes what Hugging Face's GPT2LMHeadModel computes. The modules with weights
have the same names inside a layer. Hugging Face has the weights of the linear maps of a block transposed. Of its dropouts only
that of the attention weights is missing here: the fused attention would draw it from torch's generator, so the result would
depend on the schedule (interpreter/runtime/draws.py).
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter.adapters.losses import cross_entropies
from chimerac.interpreter.runtime.draws import Dropout
from chimerac.interpreter.runtime.model import Example, LayeredModel
from chimerac.models.presets import Gpt2, sizes_in


class Embedding(nn.Module):
    """The sum of the embeddings of each token and of its position: (b, L) -> (b, L, width)."""

    def __init__(self, sizes: Gpt2, dropout: float) -> None:
        super().__init__()
        self.wte = nn.Embedding(sizes.vocabulary, sizes.width)
        self.wpe = nn.Embedding(sizes.positions, sizes.width)
        self.drop = Dropout(dropout, layer=0, site=0)
        for table in (self.wte, self.wpe):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)  # (L,)
        return self.drop(self.wte(tokens) + self.wpe(positions))  # type: ignore[no-any-return]


class Attention(nn.Module):
    """Causal self-attention of several heads: (b, L, width) -> (b, L, width)."""

    def __init__(self, sizes: Gpt2) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.c_attn = nn.Linear(sizes.width, 3 * sizes.width)  # queries, keys and values of all heads
        self.c_proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        b, length, width = x.shape
        q, k, v = self.c_attn(x).view(b, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (b, heads, L, width / heads)
        return self.c_proj(y.transpose(1, 2).reshape(b, length, width))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two linear maps, with a GELU in between on four times the width: (b, L, width) -> (b, L, width)."""

    def __init__(self, sizes: Gpt2) -> None:
        super().__init__()
        self.c_fc = nn.Linear(sizes.width, 4 * sizes.width)
        self.c_proj = nn.Linear(4 * sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then an MLP, each added to the residual stream: (b, L, width) -> (b, L, width).

    Args:
        layer: the number of this layer in the model, on which its random numbers depend.
    """

    def __init__(self, sizes: Gpt2, layer: int, dropout: float) -> None:
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(sizes.width), Attention(sizes)
        self.ln_2, self.mlp = nn.LayerNorm(sizes.width), MLP(sizes)
        self.drop_1, self.drop_2 = Dropout(dropout, layer, site=1), Dropout(dropout, layer, site=2)
        # The 2 x blocks maps that add to the residual stream start with smaller weights (section 2.3 of the paper).
        residual_std = 0.02 / (2 * sizes.blocks) ** 0.5
        for linear, std in (
            (self.attn.c_attn, 0.02),
            (self.attn.c_proj, residual_std),
            (self.mlp.c_fc, 0.02),
            (self.mlp.c_proj, residual_std),
        ):
            nn.init.normal_(linear.weight, std=std)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_1(self.attn(self.ln_1(x)))
        return x + self.drop_2(self.mlp(self.ln_2(x)))  # type: ignore[no-any-return]


class Head(nn.Module):
    """The logits of the next token: (b, L, width) -> (b, L, vocabulary)."""

    def __init__(self, sizes: Gpt2) -> None:
        super().__init__()
        self.ln_f = nn.LayerNorm(sizes.width)
        self.lm_head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        nn.init.normal_(self.lm_head.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.ln_f(x))  # type: ignore[no-any-return]


def gpt2(name: str, sequence_length: int, dropout: float = 0.0, vocabulary: int | None = None) -> LayeredModel:
    """Return a GPT-2 for sequences of `sequence_length` tokens.

    Args:
        name, vocabulary: as in `presets.sizes_of`.
        dropout: the probability of dropout after the embedding, the attention and the MLP.

    Raises ChimeraError: E801 for a name that is not of a GPT-2, E861 for a vocabulary that is too large.
    """
    sizes = sizes_in(Gpt2, name, vocabulary)

    def example(samples: int) -> Example:
        tokens = torch.zeros(samples, sequence_length, dtype=torch.int64)
        return Example((tokens,), (torch.zeros_like(tokens),))

    blocks = [(f"block {k}", partial(Block, sizes, k, dropout)) for k in range(1, sizes.blocks + 1)]
    return LayeredModel(
        name=name,
        layers=(("embedding", partial(Embedding, sizes, dropout)), *blocks, ("head", partial(Head, sizes))),
        loss=cross_entropies,
        example=example,
    )
