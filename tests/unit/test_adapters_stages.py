"""The stages of a module that is cut between the calls of its layers: their parameters and fields."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from chimerac.interpreter.adapters.model import cut
from chimerac.interpreter.runtime.describe import describe
from tests.helpers_adapters import SAMPLES, TOKENS, skips
from tests.helpers_pipeline import VOCABULARY, WIDTH, cross_entropy


class Gates(nn.Module):
    """Has modules that nothing calls. Before each block, the forward reads the weights of half of these modules."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        for name in "abcdefgh":
            self.add_module(name, nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            for name in "abcd":
                x = x * self.get_parameter(f"{name}.weight")
            x = block(x)
        return self.head(x)


def test_the_order_of_the_parameters_of_a_stage_is_fixed() -> None:
    """Ranks sum gradients in this order: first the modules that the stage calls, then the others in the order of the module.

    The order of a set of names would differ from process to process.
    """
    model = cut(Gates, {"tokens": TOKENS}, loss=cross_entropy, targets=TOKENS)
    gates = [f"{name}.{kind}" for name in "abcdefgh" for kind in ("weight", "bias")]
    stages = [model.build_stage(range(k, k + 1), seed=0) for k in range(len(model.layer_names))]
    expected = [
        ["embed.weight"],
        ["blocks.0.weight", "blocks.0.bias", *gates[:8]],  # a stage that reads the weight of a module has its bias too
        ["blocks.1.weight", "blocks.1.bias", *gates[:8]],
        ["head.weight", "head.bias", *gates],  # the last stage has all modules that nothing calls
    ]
    assert [[*stage.parameters_by_name()] for stage in stages] == expected
    assert [tied.name for tied in describe(model, SAMPLES).tied] == gates[:8]


def test_which_fields_stages_read_and_which_parameters_a_stage_has() -> None:
    model = skips()
    names = model.layer_names
    assert names == ("embed", "norm", "down.0", "norm (2)", "down.1", "up.0", "up.1", "norm (3)", "head")
    stages = [model.build_stage(range(k, k + 1), seed=0) for k in range(len(names))]
    # Each stage computes itself what is between calls: stages 1 and 2 multiply the embedding by the mask.
    assert [stage.reads for stage in stages[:5]] == [("tokens",), ("mask",), ("mask",), (), ()]
    # Skips has a buffer of its own. So every stage has all tensors of Skips itself, also `scale`, which only later stages use.
    assert set(stages[2].parameters_by_name()) == {"down.0.bias", "down.0.inner.weight", "down.0.inner.bias", "scale"}


def sequence() -> nn.Sequential:
    linears = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *linears, nn.ReLU(inplace=True), nn.Linear(WIDTH, VOCABULARY))


def test_a_stage_of_a_module_that_exists_has_the_parameters_of_this_module() -> None:
    module = sequence()
    stage = cut(module, {"input": TOKENS}, loss=cross_entropy).build_stage(range(2, 4), seed=0)
    assert [p is q for p, q in zip(stage.parameters(), module[2:4].parameters(), strict=True)] == [True] * 4


def test_a_function_that_returns_a_parameter_a_second_time_is_refused() -> None:
    module = sequence()
    for build in (lambda: module, lambda: nn.Sequential(*sequence()[:2], module[2], *sequence()[3:])):
        model = cut(build, {"input": TOKENS}, loss=cross_entropy)
        with pytest.raises(TypeError, match=r"returned the parameter 2\.weight a second time: let it build new modules"):
            model.build_stage(range(2, 4), seed=0)


class ReadsValues(nn.Module):
    """Reads the values of a tensor unless it is fake, as models of the library transformers do before a warning."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(x, FakeTensor) or x.sum() > -1
        return self.layers[1](self.layers[0](x))


def test_a_model_that_reads_the_values_of_real_tensors_can_be_described() -> None:
    model = cut(ReadsValues, {"x": torch.zeros(1, 2)}, loss=cross_entropy)
    assert describe(model, 1).layers[0].parameters == 6
