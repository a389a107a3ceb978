"""Layers for random models. They differ in what autograd keeps of them and in how their outputs share memory.

The layers of MIDDLE read x (b, LENGTH, WIDTH), a mask (b, LENGTH, 1) and any number of other tensors. They return x and a mask
of the same shapes. Most of them also return other tensors.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter.runtime.draws import Dropout
from chimerac.interpreter.runtime.model import Example, LayeredModel, Values

WIDTH, LENGTH, BYTES = 6, 2, 8  # features of a vector; bytes of a sample; how many different bytes there are


class WithLinear(nn.Module):
    """Has a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)


class EndsInSum(WithLinear):
    """Ends with a sum, like a block of a GPT: its backward does not keep the output."""

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        return x + torch.relu(self.linear(x)) * mask, mask, *others


class EndsInRelu(WithLinear):
    """Ends with a ReLU: its backward keeps the output."""

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        return torch.relu(self.linear(x)), mask, *others


class EndsInLinear(WithLinear):
    """Ends with a linear map: its backward does not keep the output, but the backward of the next layer may."""

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        return self.linear(x), mask, *others


class NormAndDropout(nn.Module):
    """A norm, whose backward keeps the statistics of each row, then dropout."""

    def __init__(self, layer: int) -> None:
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), Dropout(probability=0.5, layer=layer, site=0)

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        return self.dropout(self.norm(x)), mask, *others


class HalfView(nn.Module):
    """Returns a view of half of a larger tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        return self.linear(x).chunk(2, dim=-1)[1], mask, *others


class PassThrough(nn.Module):
    """Returns its input itself and the inverted mask. It has no parameters."""

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        return x, 1 - mask, *others


class AddedParameter(nn.Module):
    """Adds a parameter by an operator whose weight gradient a split backward cannot defer.

    If further tensors have the shape of its output, it returns the output in place of them too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        y = (x + self.position) * self.scale
        return y, mask, *[y if other.shape == y.shape else other for other in others]


class Widening(WithLinear):
    """Returns three tensors after x and the mask: one that its backward keeps, one without a gradient, and its input."""

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        y = torch.tanh(self.linear(x) + _sum(others))
        return y * x, mask, torch.exp(y[:, :, :2]), y.detach().sum(-1, keepdim=True), x


class Narrowing(WithLinear):
    """Returns only x and the mask, however many tensors it reads."""

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        return self.linear(x.transpose(0, 1)).transpose(0, 1) + _sum(others), mask


class Frozen(WithLinear):
    """A layer whose parameters are not trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear.requires_grad_(False)

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Values:
        return torch.sigmoid(self.linear(x)), mask, *others


class First(nn.Module):
    """Maps bytes to vectors, and makes the mask: 1 where the byte is not 0."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(BYTES, WIDTH)

    def forward(self, tokens: Tensor) -> Values:
        return self.table(tokens), (tokens > 0).long().unsqueeze(-1)


class OneHot(nn.Module):
    """Maps bytes to one-hot vectors, cut to WIDTH, and makes the mask. It also returns the bytes.

    It has no parameters, so its outputs have no gradients.
    """

    def forward(self, tokens: Tensor) -> Values:
        return F.one_hot(tokens, BYTES)[..., :WIDTH].float(), (tokens > 0).long().unsqueeze(-1), tokens.unsqueeze(-1).float()


class Last(nn.Module):
    """Maps vectors to logits."""

    def __init__(self) -> None:
        super().__init__()
        self.logits = nn.Linear(WIDTH, BYTES)

    def forward(self, x: Tensor, mask: Tensor, *others: Tensor) -> Tensor:
        return self.logits(x * mask) + _sum(others)


class TiedFirst(First):
    """A first layer that shares its parameter with TiedLast, in the tied set `shared`."""

    tied = {"shared": "table.weight"}  # noqa: RUF012


class TiedLast(Last):
    tied = {"shared": "logits.weight"}  # noqa: RUF012


def _sum(tensors: Iterable[Tensor]) -> Tensor:
    """Return the sum of the means over the last dimension: (b, LENGTH, 1), or 0 without tensors."""
    return sum((t.mean(-1, keepdim=True) for t in tensors), torch.zeros(()))


def loss(outputs: Values, targets: Values) -> Values:
    """Return the sum of the cross-entropies."""
    return (F.cross_entropy(outputs[0].flatten(0, 1), targets[0].flatten(), reduction="sum"),)


def example(samples: int) -> Example:
    """Return inputs and targets of a micro-batch."""
    tokens = torch.zeros(samples, LENGTH, dtype=torch.int64)
    return Example((tokens,), (tokens.clone(),))


def model_of_layers(name: str, makers: Iterable[Callable[[], nn.Module]]) -> LayeredModel:
    """Return the model of these layers."""
    layers = tuple((f"layer {k}", make) for k, make in enumerate(makers))
    return LayeredModel(name=name, layers=layers, loss=loss, example=example)


def _constant(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a module whose parameters are 0.5 everywhere: copies of a tied parameter must start with equal values."""
    module = make()
    for p in module.parameters():
        nn.init.constant_(p, 0.5)
    return module


MIDDLE: list[Callable[[], nn.Module]] = [  # the kinds of layers between the first and the last
    EndsInSum,
    EndsInRelu,
    EndsInLinear,
    partial(NormAndDropout, layer=7),  # 7: any number, since only the random numbers depend on it
    HalfView,
    PassThrough,
    AddedParameter,
    Widening,
    Narrowing,
    Frozen,
]


def random_model(r: random.Random, layers: int, tied: bool) -> LayeredModel:
    """Return a random model of at least `layers` layers; of exactly one if `layers` is 1.

    Args:
        tied: the first and the last layer share a parameter, if there are several layers.
    """
    middle = [r.choice(MIDDLE) for _ in range(layers - 2 + r.randint(0, 2))]
    first: Callable[[], nn.Module] = r.choice([First, First, OneHot])
    last: Callable[[], nn.Module] = Last
    if tied:
        first, last = partial(_constant, TiedFirst), partial(_constant, TiedLast)
    makers = [first, *middle, last] if layers > 1 else [SingleLayer]
    return model_of_layers("drawn", makers)


class SingleLayer(First):
    """The layer of a model that has only one: First and Last together."""

    def __init__(self) -> None:
        super().__init__()
        self.last = Last()

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(*super().forward(tokens))
