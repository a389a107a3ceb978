"""The gradient of the whole model. Each rank has the part of its own parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.transport import Transport

PART_ELEMENTS = 2**20  # the most elements of a gradient that are converted to float64 at one time


class ModelGradient:
    """One rank's part of the gradient.

    Args:
        holders: the ranks that hold each group of parameters, ascending.
    """

    def __init__(self, executor: Executor, holders: Mapping[str, tuple[int, ...]], transport: Transport) -> None:
        self._executor, self._holders, self._transport = executor, holders, transport

    def norm(self) -> float:
        """Return the L2 norm of the gradient of the whole model. Each parameter counts once. Called by all ranks together.

        Raises RuntimeError as `check_summed`.
        """
        self.check_summed()
        total = torch.tensor([self.squared_norm()], dtype=torch.float64)
        self._transport.all_reduce(total)
        return math.sqrt(float(total[0]))

    def squared_norm(self) -> float:
        """Return this rank's share of the squared norm. The shares of all ranks add up to the squared norm."""
        gradients = [p.grad for p in self.counted_parameters() if p.grad is not None]
        parts = [part for g in gradients for part in torch.split(g.reshape(-1), PART_ELEMENTS)]
        norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in parts]
        return float(torch.stack(norms).square().sum()) if norms else 0.0

    def counted_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that this rank counts. Of the ranks that hold a parameter, the first one counts it."""
        rank = self._transport.rank
        return [p for name, ps in self._executor.groups.items() if self._holders[name][0] == rank for p in ps]

    def clip(self, norm: float, max_norm: float) -> None:
        """Scale this rank's part in place, so that the whole gradient gets the norm `max_norm` if its norm is larger.

        Args:
            norm: of the whole gradient, as the method `norm` returns it.
        """
        factor, parts = min(1.0, max_norm / (norm + 1e-6)), self._parts()  # 1e-6 as in torch.nn.utils.clip_grad_norm_
        if factor != 1.0 and parts:  # a rank may have no stage, or only parameters that are not trained
            torch._foreach_mul_(parts, factor)

    def is_finite(self) -> bool:
        """Return whether this rank's part is finite."""
        return all(bool(torch.isfinite(g).all()) for g in self._parts())

    def check_summed(self) -> None:
        """Raise RuntimeError if the last step was without sync: its gradients are not summed over the ranks yet."""
        if not self._executor.is_summed:
            raise RuntimeError("the last step was without sync: run one with sync before the gradients are used")

    def _parts(self) -> list[Tensor]:
        return [p.grad for parameters in self._executor.groups.values() for p in parameters if p.grad is not None]
