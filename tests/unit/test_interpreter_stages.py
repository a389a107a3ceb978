"""Stages that each rank builds alone: a rank needs only the stages that it holds. Ranks run in loopback."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline, held_stages, load_checkpoint, save_checkpoint
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers_pipeline import VOCABULARY, WIDTH, Decoder, batch, cross_entropy, gradients, one_process

Stages = dict[int, Any]  # number of the stage -> module
Build = Callable[[int, int], Any]  # (number of the stage, count of stages) -> module, or (prefix, module)


class Part(nn.Module):
    """Layers first .. end - 1 of a Decoder (embedding, blocks, head), under their names in the Decoder."""

    def __init__(self, first: int, end: int, blocks: int, tied: bool = False) -> None:
        super().__init__()
        whole = Decoder(blocks, tied)
        self.blocks = nn.ModuleDict(
            {str(k - 1): layer for k, layer in enumerate(whole.layers) if 0 < k <= blocks and first <= k < end}
        )
        if first == 0:
            self.embed = whole.embed
        if end == blocks + 2:
            self.head = whole.head

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) if hasattr(self, "embed") else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) if hasattr(self, "head") else x


def part(stage: int, count: int) -> Part:
    """Return a stage of a Decoder with one block per stage. The first also has the embedding, the last the head."""
    first = 0 if stage == 0 else stage + 1
    end = count + 2 if stage == count - 1 else stage + 2
    return Part(first, end, blocks=count)


def on_ranks(
    schedule: str, sizes: dict[str, int], build: Build, run: Callable[[Pipeline], Any], width: int = 1, **more: Any
) -> list[Any]:
    """Call `run` with the pipeline of each rank, and return the results by rank.

    Args:
        more: further arguments of Pipeline.
    """
    program = compile_schedule(schedule, sizes, width).program
    header = program.header

    def rank(transport: Transport) -> Any:
        own = {s: build(s, header.stages) for s in range(header.stages) if transport.rank in header.holders([s])}
        inputs = batch(0, micro_batches=1)[0]
        return run(Pipeline(own, schedule, sizes, width=width, loss=cross_entropy, inputs=inputs, transport=transport, **more))

    return run_in_loopback(program, rank, seed=2)


def close(own: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Return whether each tensor of a rank is close to the expected one of its name. `expected` may have more names."""
    return all(torch.allclose(t, expected[name], rtol=1e-4, atol=1e-6) for name, t in own.items())


@pytest.mark.parametrize(("schedule", "width"), [("chimera", 1), ("zb_v", 1), ("1f1b", 2)])
def test_own_stages_get_the_gradients_of_one_process(schedule: str, width: int) -> None:
    sizes = {"D": 2, "N": 4}
    count = compile_schedule(schedule, sizes).program.header.stages
    model = Decoder(count)
    losses = [one_process(model, number, 4) / width for number in range(width)]
    expected = {name: g / width for name, g in gradients(model).items()}

    def run(pipe: Pipeline) -> set[str]:
        assert pipe.step(*batch(pipe.replica, 4)) == pytest.approx(sum(losses), rel=1e-5)
        assert close(gradients(pipe), expected)
        assert pipe.full_state_dict().keys() == model.state_dict().keys()
        assert pipe.evaluate(*batch(pipe.replica, 4)) == pytest.approx(sum(losses), rel=1e-5)
        return set(gradients(pipe))

    assert set().union(*on_ranks(schedule, sizes, part, run, width)) == set(expected)


def test_a_stage_without_parameters_passes_gradients_on() -> None:
    """The embedding and the head are trained through it."""
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), nn.GELU(), nn.Linear(WIDTH, VOCABULARY))
    losses = one_process(model, 0, 4)
    expected = gradients(model)

    def run(pipe: Pipeline) -> set[str]:
        assert pipe.step(*batch(0, 4)) == pytest.approx(losses, rel=1e-5)
        assert close(gradients(pipe), expected)
        return set(gradients(pipe))

    by_rank = on_ranks("1f1b", {"D": 3, "N": 4}, lambda stage, _: (f"{stage}", copy.deepcopy(model[stage])), run)
    assert set().union(*by_rank) == {"0.weight", "2.weight", "2.bias"}


def test_parameters_that_stages_share_are_tied_by_their_paths() -> None:
    model = Decoder(2, tied=True)
    one_process(model, 0, micro_batches=4)

    def build(stage: int, count: int) -> Part:
        first, end = (0, 2) if stage == 0 else (2, 4)
        return Part(first, end, blocks=2, tied=True)

    def run(pipe: Pipeline) -> None:
        pipe.step(*batch(0, micro_batches=4))
        assert close(gradients(pipe), gradients(model))
        assert "embed.weight" in gradients(pipe)

    tied = {"embedding": {0: "embed.weight", 1: "head.weight"}}
    for schedule in ("gpipe", "chimera"):
        on_ranks(schedule, {"D": 2, "N": 4}, build, run, tied=tied)


def test_a_checkpoint_of_layers_is_loaded_into_own_stages(tmp_path: Path) -> None:
    def save(transport: Transport) -> None:
        model = Decoder(4)
        with torch.no_grad():
            model.head.weight.add_(1)
        arguments = {"loss": cross_entropy, "inputs": batch(0, micro_batches=1)[0], "model": model, "transport": transport}
        save_checkpoint(tmp_path / "saved", Pipeline(model.layers, "1f1b", {"D": 3, "N": 3}, **arguments))

    run_in_loopback(compile_schedule("1f1b", {"D": 3, "N": 3}).program, save)

    def load(pipe: Pipeline) -> bool:
        load_checkpoint(tmp_path / "saved", pipe)
        return pipe.full_state_dict()["head.weight"].equal(Decoder(4).head.weight + 1)

    assert all(on_ranks("chimera", {"D": 4, "N": 4}, part, load))


def test_a_prefix_begins_the_names_of_the_parameters_of_its_stage() -> None:
    def build(stage: int, count: int) -> tuple[str, nn.Module]:
        return f"stage{stage}", nn.Linear(VOCABULARY, VOCABULARY, bias=False) if stage else nn.Embedding(VOCABULARY, VOCABULARY)

    names = on_ranks("1f1b", {"D": 2, "N": 1}, build, lambda pipe: list(pipe.full_state_dict()))
    assert names == [["stage0.weight", "stage1.weight"]] * 2


def test_held_stages_need_no_other_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    by_rank = []
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        by_rank.append(held_stages("chimera", {"N": 4}))
    assert by_rank == [((0, 3), 4), ((1, 2), 4), ((1, 2), 4), ((0, 3), 4)]


@pytest.mark.parametrize("width", [0, -1])
def test_held_stages_with_a_width_below_1_are_refused(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ChimeraError, match=f"E211: a program has at least one replica, and the width is {width}"):
        held_stages("chimera", {"N": 4}, width=width)


def test_held_stages_without_a_rank_say_how_to_start_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ValueError, match="RANK and WORLD_SIZE are not in the environment: start this script with torchrun"):
        held_stages("chimera", {"N": 4})


def other_shape(stage: int, count: int) -> nn.Module:
    """Return the stage as `part` does, but the first stage returns vectors with one feature more."""
    return nn.Sequential(part(stage, count), nn.Linear(WIDTH, WIDTH + 1)) if stage == 0 else part(stage, count)


@pytest.mark.parametrize(
    ("build", "more", "message"),
    [
        (lambda s, count: 3, {}, "stage 0 has the type int: give a module"),
        (lambda s, count: nn.Linear(WIDTH, WIDTH), {}, "stages 0 and 1 both have a parameter or buffer named 'weight': give"),
        (other_shape, {}, "stage 1 cannot run on float32[2, 3, 9] (rank 1): "),
        (part, {"split": [1, 1]}, "split is for the layers of a whole model"),
        (part, {"tied": {"e": {0: "embed.weight"}}}, "tied: leave out e, which is on one stage only"),
        (part, {"tied": {"e": {}}}, "tied: leave out e, which is on no stage"),
        (part, {"tied": {"e": {0: "embed.weight", 1: "tail.weight"}}}, "tied: stage 1 has no parameter tail.weight"),
    ],
)
def test_wrong_stages_and_arguments_are_reported_on_every_rank(build: Build, more: dict[str, Any], message: str) -> None:
    """more: further arguments of Pipeline."""
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program

    def rank(transport: Transport) -> str:
        own, inputs = {transport.rank: build(transport.rank, 2)}, batch(0, micro_batches=1)[0]
        with pytest.raises((ValueError, ChimeraError)) as error:
            Pipeline(own, "1f1b", {"N": 2}, loss=cross_entropy, inputs=inputs, transport=transport, **more)
        return str(error.value)

    for reported in run_in_loopback(program, rank):
        assert message in reported


def test_a_missing_stage_and_copies_that_differ_are_reported_on_every_rank() -> None:
    program = compile_schedule("chimera", {"D": 2, "N": 2}).program

    def rank(transport: Transport, own: Callable[[int], Stages]) -> str:
        with pytest.raises((ValueError, ChimeraError)) as error:
            arguments: dict[str, Any] = {"loss": cross_entropy, "inputs": batch(0, micro_batches=1)[0], "transport": transport}
            Pipeline(own(transport.rank), "chimera", {"N": 2}, **arguments)
        return str(error.value)

    def other_weights(rank: int) -> Stages:
        stages = {s: part(s, 2) for s in range(2)}
        with torch.no_grad():
            stages[1].head.weight.add_(rank)
        return stages

    def other_shapes(rank: int) -> Stages:
        return {0: part(0, 2), 1: nn.Sequential(part(1, 2), nn.Linear(VOCABULARY, 5 + rank))}

    for own, message in (
        (
            lambda r: {s: part(s, 2) for s in range(2 - r)},
            "rank 1 was given stage 0, and it holds stages 0, 1: call held_stages",
        ),
        (other_weights, "E810: the copies of stage 1 on rank 0 and rank 1 have different weights"),
        (other_shapes, "E807: the copies of stage 1 on rank 0 and rank 1 return different tensors"),
    ):
        for reported in run_in_loopback(program, lambda transport, own=own: rank(transport, own)):
            assert re.search(message, reported)
