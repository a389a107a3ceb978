"""Modules to test split backward with, and their gradients beside those of autograd."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter.runtime.split import Splitting


class Attention(nn.Module):
    """Causal self-attention with two heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        result: Tensor = self.out(mixed)
        return result


class MultiHead(nn.Module):
    """No function of this module can defer weight gradients. They are computed together with the input gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


class Tied(nn.Module):
    """The weight of the embedding is also that of the last linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = F.linear(self.linear(self.embedding(ids)), self.embedding.weight)
        return result


class Raw(nn.Module):
    """Adds and multiplies by parameters. The product can defer its weight gradient, the sum cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.position = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.position) @ self.weight


def with_norm(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """Return a function that makes a module with this norm between linear maps."""
    return lambda: nn.Sequential(nn.Linear(8, 8), norm(), nn.GELU(), nn.Linear(8, 3))


def convolutions() -> nn.Module:
    tail = [nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.GroupNorm(2, 4)]
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, stride=2), nn.BatchNorm2d(6), *tail)


def sequence() -> Tensor:
    """Return a random input (samples, positions, features)."""
    return torch.randn(4, 3, 8, dtype=torch.float64)


def ids() -> Tensor:
    """Return random tokens (samples, positions)."""
    return torch.randint(0, 11, (4, 3))


# By name: a function that makes the module, and one that makes its input.
CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(8, 6), sequence),
    "no bias": (lambda: nn.Linear(8, 6, bias=False), sequence),
    "layer norm": (with_norm(lambda: nn.LayerNorm(8)), sequence),
    "layer norm without bias": (with_norm(lambda: nn.LayerNorm(8, bias=False)), sequence),
    "layer norm without parameters": (with_norm(lambda: nn.LayerNorm(8, elementwise_affine=False)), sequence),
    "rms norm": (with_norm(lambda: nn.RMSNorm(8)), sequence),
    "convolution": (convolutions, lambda: torch.randn(2, 3, 9, 9, dtype=torch.float64)),
    "same padding": (lambda: nn.Conv1d(3, 4, 3, padding="same"), lambda: torch.randn(2, 3, 9, dtype=torch.float64)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(11, 8, padding_idx=0), nn.Linear(8, 8)), ids),
    "in place": (lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), sequence),
    "embedding in place": (lambda: nn.Sequential(nn.Embedding(11, 8), nn.ELU(inplace=True), nn.Linear(8, 8)), ids),
    "operator in place": (lambda: nn.Sequential(Raw(), nn.ReLU(inplace=True), nn.Linear(5, 2)), sequence),
    "attention": (lambda: Attention(8), sequence),
    "multi-head attention": (MultiHead, sequence),
    "tied": (Tied, ids),
    "operators": (Raw, sequence),
    "frozen": (lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False), sequence),
}


def gradients_of_both(
    module: nn.Module, x: Tensor, precision: AbstractContextManager[object] | None = None
) -> list[tuple[Tensor | None, Tensor | None]]:
    """Return pairs of gradients, for the input and then for each parameter: that of split backward, and that of autograd.

    It also checks that both forwards have the same output, bit by bit.

    Args:
        x: the input, a leaf.
        precision: a context in which both forwards run, such as autocast; None for no context.
    """
    precision = precision or nullcontext()
    with precision:
        expected_y = module(x)
    g = torch.randn_like(expected_y)
    expected_y.backward(g)
    expected = [x.grad, *(p.grad for p in module.parameters())]
    module.zero_grad()
    x = x.detach().clone().requires_grad_(x.requires_grad)
    split = Splitting()
    with precision, split:
        y = module(x)
    assert torch.equal(y, expected_y)
    y.backward(g)
    assert (x.grad is None) == (expected[0] is None), "backward alone must compute the gradient of the input"
    of_input = None if x.grad is None else x.grad.clone()
    split.add_weight_gradients()
    return list(zip([of_input, *(p.grad for p in module.parameters())], expected, strict=True))
