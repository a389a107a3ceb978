"""A model whose sums are all exact if it has few layers: its weights are small integers in float64.

Gradients are then equal bit by bit for any order of summation, so comparisons need no tolerance. Each layer but the last passes
on two tensors, one of which is an integer mask without a gradient.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.model import Example, LayeredModel, Values

WIDTH, LENGTH = 8, 2  # features of a vector; integers of a sample
VALUES = 8  # the integers of a sample are 0 to VALUES - 1
DIVISOR = 64  # of the loss: a power of two, so that the division is exact


class Whole(nn.Module):
    """A linear layer with small integer weights, plus the ReLU of its result. Where the mask is 0, the sum is 0."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randint(-1, 2, (WIDTH, WIDTH)).double())

    def forward(self, x: Tensor, mask: Tensor) -> Values:
        y = x @ self.weight * mask
        return y + torch.relu(y), mask  # (b, LENGTH, WIDTH), (b, LENGTH, 1)


class First(nn.Module):
    """Maps integers to vectors and a mask, which is 0 for the integer 0 and 1 for all others."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randint(-2, 3, (VALUES, WIDTH)).double())

    def forward(self, tokens: Tensor) -> Values:
        return self.table[tokens], (tokens > 0).long().unsqueeze(-1)  # (b, LENGTH, WIDTH), (b, LENGTH, 1)


class Last(nn.Module):
    """Returns the masked vectors only."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x * mask


def loss(outputs: Values, targets: Values) -> Values:
    """Return the sum of the outputs, each multiplied by its target minus 3: an integer."""
    return ((outputs[0] * (targets[0].unsqueeze(-1) - 3)).sum(),)


def integer_model(middle: int) -> LayeredModel:
    """Return a model of middle + 2 layers."""
    layers = [("first", First), *((f"whole {k}", Whole) for k in range(middle)), ("last", Last)]
    return LayeredModel(name="integers", layers=tuple(layers), loss=loss, example=example)


def example(samples: int) -> Example:
    """Return zeros as inputs and targets."""
    tokens = torch.zeros(samples, LENGTH, dtype=torch.int64)
    return Example((tokens,), (tokens.clone(),))


class IntegerSamples(Samples):
    """Samples computed from their numbers."""

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return the inputs of these samples."""
        return (torch.tensor([[(7 * n + 3 * j + n * n // 5) % VALUES for j in range(self.length)] for n in numbers]),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the targets of these samples."""
        return ((self.inputs(numbers)[0] * 5 + 1) % VALUES,)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return the divisor of the loss, whatever the samples are."""
        return (DIVISOR,)
