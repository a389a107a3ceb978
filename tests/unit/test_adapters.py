"""Modules that are cut between the calls of their layers, or by torch's tracer, have the losses of the whole module."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import SplitPoint, pipeline

from chimerac.interpreter.adapters.model import CallModel, cut
from chimerac.interpreter.adapters.traced import traced
from tests.helpers_adapters import MICRO_BATCHES, SAMPLES, TOKENS, Batch, Skips, skips, train, train_plainly
from tests.helpers_pipeline import LENGTH, VOCABULARY, WIDTH, cross_entropy


def module_loss(module: nn.Module, fields: Mapping[str, Tensor], targets: Tensor) -> Tensor:
    return cross_entropy(module(**fields), targets)


def random_batches(count: int, mask: bool) -> list[Batch]:
    """Return random batches.

    Args:
        mask: whether they have the field `mask` besides the tokens.
    """
    shape, batches = (SAMPLES * MICRO_BATCHES, LENGTH), list[Batch]()
    for _ in range(count):
        fields = {"tokens": torch.randint(0, VOCABULARY, shape)} | ({"mask": torch.rand(shape)} if mask else {})
        batches.append((fields, torch.randint(0, VOCABULARY, shape)))
    return batches


def test_skip_connections_shared_modules_and_own_parameters_work_across_cuts() -> None:
    torch.manual_seed(1)
    batches, model = random_batches(3, mask=True), skips()
    for schedule, (before, losses) in train(lambda: model, ["chimera", "chimera_zb", "1f1b"], batches).items():
        whole = Skips()
        assert set(before) == set(whole.state_dict())
        # The offset is random, and not persistent, so it is in no state dict and is copied here.
        whole.get_buffer("offset").copy_(model.build_stage(range(1, 2), seed=0)._intercepted.module.offset)
        assert losses == pytest.approx(train_plainly(whole, before, batches, module_loss), rel=2e-5), schedule


class Marked(nn.Module):
    """Puts a parameter of its own before the sequence, outside of the calls of its layers."""

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


def test_a_parameter_that_is_read_outside_of_calls_is_trained_like_the_others() -> None:
    batches = random_batches(3, mask=False)
    model = cut(Marked, {"tokens": TOKENS}, loss=cross_entropy, targets=TOKENS)
    for before, losses in train(lambda: model, ["chimera", "chimera_zb"], batches).values():
        assert losses == pytest.approx(train_plainly(Marked(), before, batches, module_loss), rel=1e-5)


class Positions(nn.Module):
    """A buffer and a parameter that the model reads without a call of this module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.randn(LENGTH, WIDTH))
        self.scale = nn.Parameter(torch.randn(WIDTH))


class Shifted(nn.Linear):
    """A layer with a buffer that the model also reads between calls."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH)
        self.inner = nn.BatchNorm1d(LENGTH)
        self.register_buffer("shift", torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(super().forward(x)) + self.shift


class Tables(nn.Module):
    """Reads a buffer and a parameter of a module that nothing calls, and a buffer of a layer."""

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


def test_every_stage_can_read_a_buffer_between_calls() -> None:
    torch.manual_seed(4)
    batches = random_batches(3, mask=False)
    model = cut(Tables, {"tokens": TOKENS}, loss=cross_entropy, targets=TOKENS)
    for before, losses in train(lambda: model, ["chimera", "1f1b"], batches).values():
        assert set(before) == set(Tables().state_dict())
        assert losses == pytest.approx(train_plainly(Tables(), before, batches, module_loss), rel=1e-5)


class Writes(nn.Module):
    """Changes fields in place, between calls and in a call. A buffer has the name of a field."""

    class Unit(nn.Linear):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x * scale.mul_(2))

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.ModuleList([Writes.Unit(WIDTH, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(2))])
        self.register_buffer("mask", torch.full((LENGTH,), 3.0))

    def forward(self, tokens: Tensor, mask: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
        x = self.embed(tokens) * (self.mask * mask.mul_(2)).unsqueeze(-1)  # no later line reads the mask
        x = self.blocks[0](x, scale)
        for block in self.blocks[1:]:
            x = block(x + bias.add_(1).unsqueeze(-1))
        return self.head(x)


def test_a_model_may_change_fields_in_place() -> None:
    """Neither another stage nor a recomputation nor the caller sees the change."""
    torch.manual_seed(5)
    shape = SAMPLES * MICRO_BATCHES, LENGTH
    batches = [
        (fields | {"bias": torch.rand(shape), "scale": torch.rand(*shape, 1)}, targets)
        for fields, targets in random_batches(2, mask=True)
    ]
    original, examples = copy.deepcopy(batches), {name: t[:SAMPLES] for name, t in batches[0][0].items()}
    model = cut(Writes, examples, loss=cross_entropy, targets=TOKENS)
    for before, losses in train(lambda: model, ["chimera", "chimera_recompute"], batches).values():
        assert all(a[name].equal(b[name]) for (a, _), (b, _) in zip(batches, original, strict=True) for name in a)
        assert losses == pytest.approx(train_plainly(Writes(), before, copy.deepcopy(batches), module_loss), rel=1e-5)


def test_torchs_tracer_cuts_where_the_module_has_no_list_of_layers() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
            self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
            self.scale = nn.Parameter(torch.randn(WIDTH))
            self.head.weight = self.embed.weight

        def forward(self, tokens: Tensor) -> Tensor:
            x = self.embed(tokens) * self.scale
            return self.head(torch.relu(self.second(torch.tanh(self.first(x)))) + x) * self.scale.sum()

    torch.manual_seed(3)
    module = Flat()
    pipe = pipeline(module, (TOKENS,), split_spec=dict.fromkeys(("first", "second", "head"), SplitPoint.BEGINNING))
    batches = random_batches(2, mask=False)

    def make() -> CallModel:
        return traced(copy.deepcopy(module), pipe, {"tokens": TOKENS}, loss=cross_entropy)

    for before, losses in train(make, ["chimera_zb", "1f1b"], batches).values():
        assert set(before) == set(module.state_dict())
        assert losses == pytest.approx(train_plainly(copy.deepcopy(module), before, batches, module_loss), rel=2e-5)
