"""Split backward: BWD_INPUT (I) computes the input gradient of a stage, BWD_WEIGHT (W) its weight gradients.

No gradient is computed twice. A stage that runs under `Splitting` builds a graph whose backward computes the input gradient. In
this backward each function of the table below leaves DeferredGradients: a call that computes the weight gradients, and the
tensors that it reads. `add_weight_gradients` makes these calls. g is the gradient of the output. matmul and mm with a weight
are like linear without a bias, with the weight transposed:

                 kept from F to I                  I computes        kept from I to W    W computes
    linear       x, weight                         g weight          x, g                g^T x, sum of g
    convolution  x, weight                         input gradient    x, g                weight gradient, sum of g
    embedding    ids, weight                       nothing           ids, g              rows of g added up
    layer norm   x, mean, rstd, weight             input gradient    x, mean, rstd, g    sum of g n, sum of g
    RMS norm     x, rrms, weight                   input gradient    x, rrms, g          sum of g n

rstd is 1 / (standard deviation of x), rrms is 1 / (root mean square of x), and n is the normalized x. I frees what was kept
from F and is not kept for W. A parameter of any other function, or of one of these with arguments that split_functions.py does
not support, gets its gradient in I, together with the input gradient. That is also correct, because nothing reads a weight
gradient before W. The same holds for a parameter that has hooks, and for functions that torch.utils.checkpoint, torch.func or
torch.compile run: all of these need the graph that torch itself builds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.utils.checkpoint
from torch.overrides import TorchFunctionMode

from chimerac.interpreter.runtime.split_functions import DEFERRING, DeferredGradients


class Splitting(TorchFunctionMode):
    """A context in which functions with parameters defer their weight gradients.

    Attributes:
        deferred: the weight gradients that are still to be computed, in the order in which the backward left them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.deferred: list[DeferredGradients] = []

    def __enter__(self) -> Self:
        self.deferred.clear()  # an iteration that has failed may have left some
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    @torch.no_grad()
    def add_weight_gradients(self) -> None:
        """Compute the deferred gradients and add them to the parameters. After each, the tensors that it read are freed."""
        while self.deferred:
            gradients = self.deferred.pop(0)
            gradients.compute(*gradients.reads)

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        deferring = DEFERRING.get(func)
        if deferring is not None and torch.is_grad_enabled() and not _needs_graph_of_torch():
            result = deferring(self.deferred, *args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))


def _needs_graph_of_torch() -> bool:
    """Return whether torch.compile or torch.func transforms the running code, or torch.utils.checkpoint will run it again."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and hooks[0].__module__ == torch.utils.checkpoint.__name__


def register(func: Callable[..., Any], deferring: Callable[..., Any]) -> None:
    """Register the function `deferring(deferred, *arguments)`, which `Splitting` calls instead of `func`.

    The backward of its result adds to `deferred`. `deferring` may return NotImplemented; then `func` is called.
    """
    DEFERRING[func] = deferring
