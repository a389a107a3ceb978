"""Split backward: the input gradient of a stage now, its weight gradients later, nothing computed twice.

A stage that runs under `Splitting` builds a graph whose backward computes input gradients only. Each function with
parameters leaves a Product: the weight gradients to compute, and the two or three tensors that this reads. `weights`
computes them:

                 kept from F to I                  I computes        kept from I to W    W computes
    linear       x, weight                         g weight          x, g                g' x, sum of g
    convolution  x, weight                         input product     x, g                weight product, sum of g
    embedding    ids                               nothing           ids, g              rows of g added up
    layer norm   x, mean, 1/deviation, weight      the norm's        x, mean, 1/dev, g   sum of g x^, sum of g
    RMS norm     x, 1/root, weight                 the norm's        x, 1/root, g        sum of g x^

I frees everything else. A parameter of any other function gets its gradient in I, together with the input gradient. That
is also right, because nothing reads a weight gradient before W.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from chimerac.interpreter.runtime.split_functions import DEFERRING, Product


class Splitting(TorchFunctionMode):
    """While entered, functions with parameters defer their weight gradients; `weights` computes these."""

    def __init__(self) -> None:
        super().__init__()
        self.products: list[Product] = []

    @torch.no_grad()
    def weights(self) -> None:
        """Add the deferred gradients to their parameters. Each product is freed as soon as it is computed."""
        while self.products:
            product = self.products.pop(0)
            product.compute(*product.reads)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        deferring = DEFERRING.get(func)
        if deferring is not None and torch.is_grad_enabled():
            result = deferring(self.products, *args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))


def register(func: Callable[..., Any], deferring: Callable[..., Any]) -> None:
    """Under `Splitting`, call `deferring(products, *arguments)` instead of `func`.

    Its backward adds to `products`. It may return NotImplemented; then `func` is called.
    """
    DEFERRING[func] = deferring
