"""Modules that cannot be cut between the calls of their layers, and calls that differ from the trace, are refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter import Pipeline
from chimerac.interpreter.adapters.model import cut
from tests.helpers_adapters import skips
from tests.helpers_pipeline import cross_entropy


def test_layers_that_the_module_does_not_have_are_refused() -> None:
    with pytest.raises(ChimeraError, match=r"(?s)E851: Skips has no module 'dawn'.*down, up.*down"):
        skips(layers=["dawn"])
    with pytest.raises(ChimeraError, match=r"E851: the layer down.0.inner is inside another layer"):
        skips(layers=["down", "down.*.inner"])
    with pytest.raises(ChimeraError, match=r"E851: Linear has no list of layers"):
        cut(lambda: nn.Linear(2, 2), {"input": torch.zeros(1, 2)}, loss=cross_entropy)


class Keeping(nn.Linear):
    """Keeps a tensor that it does not return."""

    def __init__(self) -> None:
        super().__init__(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x * 3
        return super().forward(x)


class Odd(nn.Module):
    """Breaks one rule, or none.

    Args:
        rule: "values": it decides by the values of a tensor; "keeps": it uses a tensor that a layer kept; "calls": its second
            forward leaves out the last two calls; each copy of the module counts its own forwards; "none": it can be cut.
    """

    def __init__(self, rule: str) -> None:
        super().__init__()
        self.rule, self.count = rule, 0
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
        self.layers.append(Keeping())

    def forward(self, x: Tensor) -> Tensor:
        y = self.layers[0](x)
        if self.rule == "values" and y.sum() > 0:
            return y
        y = self.layers[1](y)
        self.count += 1
        if self.rule == "calls" and self.count > 1:
            return y
        y = self.layers[3](y)
        return self.layers[2](y + self.layers[3].kept if self.rule == "keeps" else y)


@pytest.mark.parametrize(
    ("rule", "field", "message"),
    [
        (
            "values",
            "x",
            r"E852: Odd decides by the values of a tensor after the call of layers\.0\n = note: .*py:\d+: if self\.rule",
        ),
        (
            "keeps",
            "x",
            r"E852: the call of layers\.2 uses a tensor that the call of layers\.3 made or changed and did not return",
        ),
        (
            "none",
            "y",
            r"(?s)E852: the forward of Odd fails before the first call of a layer: TypeError.*its arguments were y",
        ),
    ],
)
def test_a_module_that_cannot_be_cut_is_refused_with_the_call(rule: str, field: str, message: str) -> None:
    """The message says at, before or after which call.

    Args:
        field: the keyword of the input; the forward has only x.
    """
    with pytest.raises(ChimeraError, match=message):
        cut(lambda: Odd(rule), {field: torch.zeros(1, 2)}, loss=cross_entropy)


def test_other_calls_than_the_traced_ones_are_refused() -> None:
    # The trace and the stage use copies of the module, so the forward of the trace does not count for the stage.
    stage = cut(Odd("calls"), {"x": torch.zeros(1, 2)}, loss=cross_entropy).build_stage(range(4), seed=0)
    stage(x=torch.zeros(1, 2))
    with pytest.raises(ChimeraError, match=r"E853: after layers\.1 the model ends; when it was traced, it called layers\.3"):
        stage(x=torch.zeros(1, 2))


class Changing(nn.Linear):
    """Returns a tensor when it is traced, and a pair later."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return y if isinstance(x, FakeTensor) else (y, y)


def test_another_structure_than_the_traced_one_is_refused_with_both_structures() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), Changing(2, 2), nn.Linear(2, 2))

    stage = cut(build, {"input": torch.zeros(1, 2)}, loss=cross_entropy).build_stage(range(3), seed=0)
    with pytest.raises(ChimeraError, match=r"E853: 1 returns .*tuple.*; when it was traced, it returned .*\*"):
        stage(input=torch.zeros(1, 2))


def test_a_pipeline_of_a_model_with_a_loss_refuses_another_loss() -> None:
    with pytest.raises(TypeError, match="loss: a Model has its own"):
        Pipeline(skips(), "chimera", loss=cross_entropy, transport=object())
