"""Split backward: both halves give the gradients of a full backward, each computes its own products, and memory is freed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from chimerac.interpreter.runtime.split import Splitting


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        result: Tensor = self.out(mixed)
        return result


class MultiHead(nn.Module):
    """No function of this module can defer weight gradients, so the fallback is used."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return result


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.linear = nn.Embedding(11, 8), nn.Linear(8, 8)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = F.linear(self.linear(self.embedding(ids)), self.embedding.weight)
        return result


class Raw(nn.Module):
    """Parameters of two operators: one can defer its weight gradient, the other cannot."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.position = nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(3, 8))

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.position) @ self.weight


def norms(norm: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(8, 8), norm(), nn.GELU(), nn.Linear(8, 3))


def images() -> nn.Module:
    tail = [nn.ReLU(), nn.Conv2d(6, 4, 3, groups=2), nn.GroupNorm(2, 4)]
    return nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, stride=2), nn.BatchNorm2d(6), *tail)


def sequence() -> Tensor:
    return torch.randn(4, 3, 8, dtype=torch.float64)


def ids() -> Tensor:
    return torch.randint(0, 11, (4, 3))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(8, 6), sequence),
    "no bias": (lambda: nn.Linear(8, 6, bias=False), sequence),
    "layer norm": (norms(lambda: nn.LayerNorm(8)), sequence),
    "layer norm without bias": (norms(lambda: nn.LayerNorm(8, bias=False)), sequence),
    "layer norm without parameters": (norms(lambda: nn.LayerNorm(8, elementwise_affine=False)), sequence),
    "rms norm": (norms(lambda: nn.RMSNorm(8)), sequence),
    "convolution": (images, lambda: torch.randn(2, 3, 9, 9, dtype=torch.float64)),
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
    """Return the gradients of a split backward beside those of autograd: of the input, and of each parameter.

    Both forwards have the same output, bit by bit. precision: what they run in.
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
    assert (x.grad is None) == (expected[0] is None), "the first half computes the gradient of the input"
    split.weights()
    return list(zip([x.grad, *(p.grad for p in module.parameters())], expected, strict=True))


@pytest.mark.parametrize("first", [False, True], ids=["later stage", "first stage"])
@pytest.mark.parametrize("name", CASES)
def test_both_halves_are_one_backward(name: str, first: bool) -> None:
    torch.manual_seed(0)
    make, draw = CASES[name]
    module, x = make().double(), draw()
    if name == "frozen" and first:
        return  # it has no gradients
    x.requires_grad_(x.is_floating_point() and not first)
    for found, expected in gradients_of_both(module, x):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        # The gradient has no graph, which would keep its inputs alive.
        assert found is None or not found.requires_grad


def flops(work: Callable[[], object]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("first", [False, True], ids=["later stage", "first stage"])
def test_each_half_computes_its_own_products_and_nothing_twice(first: bool) -> None:
    module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), Attention(64), nn.Linear(64, 16))
    x = torch.randn(8, 4, 16, requires_grad=not first)
    products = 2 * 8 * 4 * (16 * 64 + 64 * 192 + 64 * 64 + 64 * 16)  # multiply and add, per row and weight
    assert flops(lambda: module(x)) == products  # the counter does not count fused attention
    full = flops(module(x).sum().backward)
    split = Splitting()
    with split:
        y = module(x)
    of_inputs, of_weights = flops(y.sum().backward), flops(split.weights)
    assert of_inputs + of_weights == full
    assert of_weights == products
    # The input of a first stage has no gradient, so its first linear has no product for it.
    assert of_inputs == products - (2 * 8 * 4 * 16 * 64 if first else 0)


def first_half(module: nn.Module, x: Tensor) -> tuple[Splitting, int]:
    """Run the forward and the first half of a backward; return what is left, and the bytes of all tensors before."""
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    before = bytes_of_all_tensors()
    split = Splitting()
    with split:
        y = module(x)
    y.backward(torch.ones_like(y))
    return split, before


def test_between_the_halves_only_the_operands_of_the_products_are_kept() -> None:
    width, rows = 64, 8 * 4
    module = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 16))
    x = torch.randn(8, 4, 16, requires_grad=True)
    split, before = first_half(module, x)
    # Two linears read their inputs, 16 and `width` wide, and the gradients of their outputs, `width` and 16 wide.
    kept = rows * (16 + width + width + 16) * 4
    assert kept_bytes(split) == kept
    # The input of the first linear is that of the stage, which is alive anyway. It now has a gradient of the same size.
    assert bytes_of_all_tensors() - before == kept - rows * 16 * 4 + rows * 16 * 4
    split.weights()
    assert kept_bytes(split) == 0 and bytes_of_all_tensors() - before == rows * 16 * 4


def test_a_norm_keeps_its_input_and_two_numbers_a_row() -> None:
    width, rows = 16, 8 * 4
    module, x = nn.LayerNorm(width), torch.randn(8, 4, width, requires_grad=True)
    split, before = first_half(module, x)
    mean_and_deviation, gradient = 2 * rows * 4, rows * width * 4
    # The input is that of the stage, which is alive anyway. It now has a gradient.
    assert kept_bytes(split) == rows * width * 4 + mean_and_deviation + gradient
    assert bytes_of_all_tensors() - before == mean_and_deviation + gradient + rows * width * 4
    split.weights()
    assert bytes_of_all_tensors() - before == rows * width * 4


def kept_bytes(split: Splitting) -> int:
    """Return the bytes that are kept for the weight gradients. Memory that several products share is counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for p in split.products for t in p.reads}
    return sum(storages.values())


def bytes_of_all_tensors() -> int:
    """Return the bytes of all existing tensors."""
    gc.collect()
    found = [o for o in gc.get_objects() if type(o) in (Tensor, nn.Parameter)]
    found += [o.grad for o in found if o.is_leaf and o.grad is not None]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}.values())
