"""Modules that are cut between the calls of their layers, and those that torch's tracer cuts, against the whole module."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.pipelining import SplitPoint, pipeline

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter import Pipeline
from chimerac.interpreter.adapters.model import CallModel, cut
from chimerac.interpreter.adapters.traced import traced
from chimerac.interpreter.runtime.describe import describe
from tests.helpers_adapters import MICRO_BATCHES, SAMPLES, Batch, train, train_plainly
from tests.helpers_pipeline import LENGTH, VOCABULARY, WIDTH, cross_entropy

TOKENS = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)


class Block(nn.Module):
    """Takes and returns several tensors in a dictionary, and a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.bias = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: Tensor, state: Mapping[str, Tensor], scale: int = 1) -> tuple[Tensor, dict[str, Tensor], int]:
        y = torch.tanh(self.inner(x)) * scale + state["first"]
        return y, {"first": state["first"], "sum": state.get("sum", 0) + y}, scale + 1


class Skips(nn.Module):
    """A U-shaped module: skip connections across cuts, parameters of its own, a shared module, a tied weight, a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.down, self.up = nn.ModuleList(Block() for _ in range(2)), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.scale = nn.Parameter(torch.randn(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Linear(2, 2)
        self.register_buffer("offset", torch.randn(WIDTH), persistent=False)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = first = self.embed(tokens) * mask.unsqueeze(-1) + self.offset
        skips, state, scale = [], {"first": first}, 1
        for block in self.down:
            x, state, scale = block(self.norm(x), state, scale)
            skips.append(x)
        x = state["sum"]
        for layer in self.up:
            x += skips.pop()  # in place, on the output of a call or on a sum of them
            x = F.relu(layer(x)) * self.scale
        return self.head(self.norm(x) + first * scale)


def module_loss(module: nn.Module, fields: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    return cross_entropy(module(**fields), targets)


def batches(iterations: int, mask: bool) -> list[Batch]:
    shape, found = (SAMPLES * MICRO_BATCHES, LENGTH), list[Batch]()
    for _ in range(iterations):
        fields = {"tokens": torch.randint(0, VOCABULARY, shape)} | ({"mask": torch.rand(shape)} if mask else {})
        found.append((fields, torch.randint(0, VOCABULARY, shape)))
    return found


def skips(**options: Any) -> CallModel:
    fields = {"tokens": TOKENS, "mask": torch.ones(SAMPLES, LENGTH)}
    return cut(Skips, fields, loss=cross_entropy, targets=TOKENS, **options)


def test_skip_connections_shared_modules_and_own_parameters_pass_cuts() -> None:
    torch.manual_seed(1)
    fed, model = batches(3, mask=True), skips()
    for schedule, (before, losses) in train(lambda: model, ["chimera", "chimera_zb", "1f1b"], fed).items():
        whole = Skips()
        assert set(before) == set(whole.state_dict())
        # The offset is random, and not persistent, so it is in no state dict.
        whole.get_buffer("offset").copy_(model.build_stage(range(1, 2), 0)._intercepted.module.offset)
        assert losses == pytest.approx(train_plainly(whole, before, fed, module_loss), rel=2e-5), schedule


class Marked(nn.Module):
    """Puts a parameter of its own before the sequence, between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.start = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = torch.cat([self.start.expand(len(tokens), -1, -1), self.embed(tokens)], 1)
        for block in self.blocks:
            x = x + torch.tanh(block(x)).cumsum(1)
        return self.head(x)[:, 1:]


def test_a_parameter_that_is_read_between_calls_is_on_the_stages_that_need_it() -> None:
    fed = batches(3, mask=False)
    model = cut(Marked, {"tokens": TOKENS}, loss=cross_entropy, targets=TOKENS)
    for before, losses in train(lambda: model, ["chimera", "chimera_zb"], fed).values():
        assert losses == pytest.approx(train_plainly(Marked(), before, fed, module_loss), rel=1e-5)


class Positions(nn.Module):
    """A table that the model reads without a call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(LENGTH, WIDTH))
        self.scale = nn.Parameter(torch.randn(WIDTH))


class Shifted(nn.Linear):
    """A layer with a buffer that the model reads too."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.inner = nn.BatchNorm1d(LENGTH)
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(super().forward(x)) + self.shift


class Tables(nn.Module):
    """Reads buffers of a module that nothing calls, and of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.positions = nn.Embedding(VOCABULARY, WIDTH), Positions()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH), Shifted(), nn.Linear(WIDTH, WIDTH)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = (self.embed(tokens) + self.positions.table) * self.positions.scale
        for block in self.blocks:
            x = x + torch.tanh(block(x + self.get_buffer("blocks.1.shift")))
        return self.head(x)


def test_a_buffer_that_is_read_between_calls_is_on_every_stage() -> None:
    torch.manual_seed(4)
    fed = batches(3, mask=False)
    model = cut(Tables, {"tokens": TOKENS}, loss=cross_entropy, targets=TOKENS)
    for before, losses in train(lambda: model, ["chimera", "1f1b"], fed).values():
        assert set(before) == set(Tables().state_dict())
        assert losses == pytest.approx(train_plainly(Tables(), before, fed, module_loss), rel=1e-5)


class Writes(nn.Module):
    """Changes fields in place: before the first call, between calls, and in a call. A buffer has the name of a field."""

    class Unit(nn.Linear):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x * scale.mul_(2))

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList([Writes.Unit(WIDTH, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(2))])
        self.register_buffer("mask", torch.full((LENGTH,), 3.0))

    def forward(self, tokens: Tensor, mask: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
        x = self.embed(tokens) * (self.mask * mask.mul_(2)).unsqueeze(-1)  # later stages do not need the mask
        x = self.blocks[0](x, scale)
        for block in self.blocks[1:]:
            x = block(x + bias.add_(1).unsqueeze(-1))
        return self.head(x)


def test_a_model_may_change_fields_in_place() -> None:
    """Neither another stage nor a recomputation nor the caller sees the change."""
    torch.manual_seed(5)
    shape = SAMPLES * MICRO_BATCHES, LENGTH
    fed = [(fields | {"bias": torch.rand(shape), "scale": torch.rand(*shape, 1)}, t) for fields, t in batches(2, mask=True)]
    before_all, examples = copy.deepcopy(fed), {name: t[:SAMPLES] for name, t in fed[0][0].items()}
    model = cut(Writes, examples, loss=cross_entropy, targets=TOKENS)
    for before, losses in train(lambda: model, ["chimera", "chimera_recompute"], fed).values():
        assert all(a[name].equal(b[name]) for (a, _), (b, _) in zip(fed, before_all, strict=True) for name in a)
        assert losses == pytest.approx(train_plainly(Writes(), before, copy.deepcopy(fed), module_loss), rel=1e-5)


class Gates(nn.Module):
    """Has modules that nothing calls. The calls of both blocks need the parameters of half of them."""

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


def test_the_order_of_parameters_is_that_of_the_module_in_every_process() -> None:
    """Ranks sum gradients in this order. The order of a set of names would differ from process to process."""
    model = cut(Gates, {"tokens": TOKENS}, loss=cross_entropy, targets=TOKENS)
    gates = [f"{name}.{of}" for name in "abcdefgh" for of in ("weight", "bias")]
    stages = [model.build_stage(range(k, k + 1), 0) for k in range(len(model.layer_names))]
    assert [[*stage.parameters_by_name()] for stage in stages] == [
        ["embed.weight"],
        ["blocks.0.weight", "blocks.0.bias", *gates[:8]],
        ["blocks.1.weight", "blocks.1.bias", *gates[:8]],
        ["head.weight", "head.bias", *gates],
    ]
    assert [tied.name for tied in describe(model, SAMPLES).tied] == gates[:8]


def test_a_stage_has_the_tensors_that_it_needs_and_no_others() -> None:
    model = skips()
    names = model.layer_names
    assert names == ("embed", "norm", "down.0", "norm (2)", "down.1", "up.0", "up.1", "norm (3)", "head")
    stages = [model.build_stage(range(k, k + 1), 0) for k in range(len(names))]
    assert [stage.reads for stage in stages[:5]] == [("tokens",), ("mask",), ("mask",), (), ()]
    assert set(stages[2].parameters_by_name()) == {"down.0.bias", "down.0.inner.weight", "down.0.inner.bias", "scale"}


def sequence() -> nn.Sequential:
    linears = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *linears, nn.ReLU(inplace=True), nn.Linear(WIDTH, VOCABULARY))


def test_a_module_that_exists_is_trained_itself() -> None:
    module = sequence()
    stage = cut(module, {"input": TOKENS}, loss=cross_entropy).build_stage(range(2, 4), 0)
    assert [p is q for p, q in zip(stage.parameters(), module[2:4].parameters(), strict=True)] == [True] * 4


def test_a_function_that_returns_a_module_that_exists_is_refused() -> None:
    module = sequence()
    for build in (lambda: module, lambda: nn.Sequential(*sequence()[:2], module[2], *sequence()[3:])):
        model = cut(build, {"input": TOKENS}, loss=cross_entropy)
        with pytest.raises(TypeError, match=r"returned the parameter 2\.weight a second time: let it build new modules"):
            model.build_stage(range(2, 4), 0)


def test_torchs_tracer_cuts_where_the_module_has_no_list_of_layers() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.e, self.a, self.b = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.h, self.scale = nn.Linear(WIDTH, VOCABULARY), nn.Parameter(torch.randn(WIDTH))
            self.h.weight = self.e.weight

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.e(tokens) * self.scale
            return self.h(torch.relu(self.b(torch.tanh(self.a(x)))) + x) * self.scale.sum()

    torch.manual_seed(3)
    module = Flat()
    pipe = pipeline(module, (TOKENS,), split_spec=dict.fromkeys("abh", SplitPoint.BEGINNING))
    fed = batches(2, mask=False)

    def make() -> CallModel:
        return traced(copy.deepcopy(module), pipe, {"tokens": TOKENS}, loss=cross_entropy)

    for before, losses in train(make, ["chimera_zb", "1f1b"], fed).values():
        assert set(before) == set(module.state_dict())
        assert losses == pytest.approx(train_plainly(copy.deepcopy(module), before, fed, module_loss), rel=2e-5)


def test_layers_that_the_module_does_not_have_are_refused() -> None:
    with pytest.raises(ChimeraError, match=r"(?s)E851: Skips has no module 'dawn'.*down, up.*down"):
        skips(layers=["dawn"])
    with pytest.raises(ChimeraError, match=r"E851: the layer down.0.inner is inside another layer"):
        skips(layers=["down", "down.*.inner"])
    with pytest.raises(ChimeraError, match=r"E851: Linear has no list of layers"):
        cut(lambda: nn.Linear(2, 2), {"input": torch.zeros(1, 2)}, loss=cross_entropy)


class Warns(nn.Module):
    """Reads the values of a tensor unless it is fake, as models of transformers do to warn."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(x, FakeTensor) or x.sum() > -1
        return self.layers[1](self.layers[0](x))


def test_a_model_that_reads_the_values_of_real_tensors_is_measured() -> None:
    model = cut(Warns, {"x": torch.zeros(1, 2)}, loss=cross_entropy)
    assert describe(model, 1).layers[0].parameters == 6


class Keeping(nn.Linear):
    """Keeps a tensor that it does not return."""

    def __init__(self) -> None:
        super().__init__(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.kept = x * 3
        return super().forward(x)


class Odd(nn.Module):
    """Breaks one rule.

    rule: values, it decides by the values of a tensor; keeps, it uses a tensor that a layer kept; calls, its second forward
    leaves out a call. Any other rule: it can be cut.
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
    ("rule", "message"),
    [
        (
            "values",
            r"E852: Odd decides by the values of a tensor after the call of layers\.0\n = note: .*py:\d+: if self\.rule",
        ),
        ("keeps", r"E852: the call of layers\.2 uses a tensor that the call of layers\.3 made or changed and did not return"),
        ("wrong", r"E852: the forward of Odd fails before the first call of a layer: TypeError.*(?s:.)*its arguments were y"),
    ],
)
def test_a_module_that_cannot_be_cut_is_refused_with_the_call(rule: str, message: str) -> None:
    with pytest.raises(ChimeraError, match=message):
        cut(lambda: Odd(rule), {"y" if rule == "wrong" else "x": torch.zeros(1, 2)}, loss=cross_entropy)


def test_other_calls_than_the_traced_ones_are_refused() -> None:
    stage = cut(Odd("calls"), {"x": torch.zeros(1, 2)}, loss=cross_entropy).build_stage(range(4), 0)
    stage(x=torch.zeros(1, 2))
    with pytest.raises(ChimeraError, match=r"E853: after layers\.1 the model ends; when it was traced, it calls layers\.3"):
        stage(x=torch.zeros(1, 2))


class Changing(nn.Linear):
    """Returns a tensor when it is traced, and a pair later."""

    def forward(self, x: Tensor) -> Any:
        y = super().forward(x)
        return y if isinstance(x, FakeTensor) else (y, y)


def test_another_structure_than_the_traced_one_is_refused_with_both() -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(2, 2), Changing(2, 2), nn.Linear(2, 2))

    stage = cut(build, {"input": torch.zeros(1, 2)}, loss=cross_entropy).build_stage(range(3), 0)
    with pytest.raises(ChimeraError, match=r"E853: 1 returns .*tuple.*; when it was traced, it returned .*\*"):
        stage(input=torch.zeros(1, 2))


def test_a_model_has_its_own_loss() -> None:
    with pytest.raises(TypeError, match="loss: a Model has its own"):
        Pipeline(skips(), "chimera", loss=cross_entropy, transport=object())
