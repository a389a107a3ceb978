"""BERT with both heads of its pre-training (Devlin et al. 2019): masked words, and whether two sentences belong together.

It computes what Hugging Face's BertForPreTraining computes, except that the decoder is not tied to the embedding. Of its
dropouts only that of the attention weights is missing here: the fused attention would draw it from torch's generator, so the
result would depend on the schedule (interpreter/runtime/draws.py).

Each block reads `attention_mask` directly from the data, and the embeddings read `token_types`.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter.adapters.losses import cross_entropies
from chimerac.interpreter.runtime.draws import Dropout
from chimerac.interpreter.runtime.model import Example, LayeredModel, Values
from chimerac.models.presets import Bert, sizes_in

EPSILON = 1e-12  # of all norms


class Embeddings(nn.Module):
    """The normalized sum of the embeddings of each token, of its position and of its sentence: (b, L) -> (b, L, width)."""

    def __init__(self, sizes: Bert, dropout: float) -> None:
        super().__init__()
        self.word = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.positions, sizes.width)
        self.token_type = nn.Embedding(2, sizes.width)  # the first sentence, the second
        self.norm, self.dropout = nn.LayerNorm(sizes.width, EPSILON), Dropout(dropout, layer=0, site=0)
        initialize(self)

    def forward(self, tokens: Tensor, token_types: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)  # (L,)
        x = self.word(tokens) + self.position(positions) + self.token_type(token_types)
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Self-attention of several heads to the tokens that are no padding: (b, L, width) -> (b, L, width)."""

    def __init__(self, sizes: Bert) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)  # queries, keys and values of all heads
        self.output = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        b, length, width = x.shape
        q, k, v = self.qkv(x).view(b, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mask = attention_mask[:, None, None, :]  # (b, 1, 1, L): the same for all heads and queries
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (b, heads, L, width / heads)
        return self.output(y.transpose(1, 2).reshape(b, length, width))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention, then two linear maps with a GELU in between. The output of each part is added to its input, then normalized.

    Input and output are (b, L, width).

    Args:
        layer: the number of this layer in the model, on which its random numbers depend.
    """

    def __init__(self, sizes: Bert, layer: int, dropout: float) -> None:
        super().__init__()
        width = sizes.width
        self.attention, self.norm_1 = SelfAttention(sizes), nn.LayerNorm(width, EPSILON)
        self.intermediate, self.output = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm_2 = nn.LayerNorm(width, EPSILON)
        self.dropout_1, self.dropout_2 = Dropout(dropout, layer, site=1), Dropout(dropout, layer, site=2)
        initialize(self)

    def forward(self, x: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.norm_1(x + self.dropout_1(self.attention(x, attention_mask)))
        y = self.output(F.gelu(self.intermediate(x)))
        return self.norm_2(x + self.dropout_2(y))  # type: ignore[no-any-return]


class Heads(nn.Module):
    """The logits of every word, and of whether the second sentence follows the first.

    (b, L, width) -> (b, L, vocabulary) and (b, 2).
    """

    def __init__(self, sizes: Bert) -> None:
        super().__init__()
        width = sizes.width
        self.transform, self.norm = nn.Linear(width, width), nn.LayerNorm(width, EPSILON)
        self.decoder = nn.Linear(width, sizes.vocabulary)
        self.pooler, self.next_sentence = nn.Linear(width, width), nn.Linear(width, 2)  # it follows, or it does not
        initialize(self)

    def forward(self, x: Tensor) -> Values:
        words = self.decoder(self.norm(F.gelu(self.transform(x))))  # (b, L, vocabulary)
        pair = self.next_sentence(torch.tanh(self.pooler(x[:, 0])))  # (b, 2), from the first token
        return words, pair


def initialize(module: nn.Module) -> None:
    """Draw the weights of linear maps and embeddings from a normal distribution, and set the biases of linear maps to zero."""
    for m in module.modules():
        if isinstance(m, nn.Linear | nn.Embedding):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear):
            nn.init.zeros_(m.bias)


def bert(name: str, sequence_length: int, dropout: float = 0.0, vocabulary: int | None = None) -> LayeredModel:
    """Return a BERT for sequences of `sequence_length` tokens.

    Args:
        name, vocabulary: as in `presets.sizes_of`.
        dropout: the probability of every dropout.

    Raises ChimeraError: E801 for a name that is not of a BERT, E861 for a vocabulary that is too large.
    """
    sizes = sizes_in(Bert, name, vocabulary)

    def example(samples: int) -> Example:
        tokens = torch.zeros(samples, sequence_length, dtype=torch.int64)
        targets = torch.zeros_like(tokens), torch.zeros(samples, dtype=torch.int64)
        fields = {"token_types": torch.zeros_like(tokens), "attention_mask": torch.ones_like(tokens, dtype=torch.bool)}
        return Example((tokens,), targets, fields)

    blocks = [(f"block {k}", partial(Block, sizes, k, dropout)) for k in range(1, sizes.blocks + 1)]
    return LayeredModel(
        name=name,
        layers=(("embeddings", partial(Embeddings, sizes, dropout)), *blocks, ("heads", partial(Heads, sizes))),
        loss=cross_entropies,
        example=example,
        fields=("token_types", "attention_mask"),
    )
