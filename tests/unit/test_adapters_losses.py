"""The losses that run.py knows by name."""

import torch

from chimerac.interpreter.adapters.losses import squared_error
from chimerac.interpreter.runtime.model import IGNORED


def test_an_ignored_target_does_not_count_in_the_squared_error() -> None:
    outputs = torch.tensor([[1.0], [2.0], [5.0]], requires_grad=True)
    loss = squared_error(outputs, torch.tensor([[3.0], [IGNORED], [4.0]]))
    torch.autograd.backward(loss)
    assert loss.item() == 4 + 1
    assert outputs.grad is not None and outputs.grad.tolist() == [[-4.0], [0.0], [2.0]]
