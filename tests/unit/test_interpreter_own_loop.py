"""A user's own training loop: its checkpoints, with several optimizers and a scheduler, and exports of its weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler.library import find
from chimerac.interpreter import Pipeline, load_checkpoint, save_checkpoint
from chimerac.interpreter.pipeline.programs import program_for
from chimerac.interpreter.training.export import export_weights
from chimerac.interpreter.training.export_file import check_export
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers_checkpoints import TOLERANCE, refused
from tests.helpers_text import tied_1f1b


class Tied(nn.Module):
    """A model whose first and last layers share a parameter, with buffers and a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.last.weight = self.first.weight
        self.middle = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh())
        self.scale = nn.Linear(6, 6)
        self.scale.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.scale(self.middle(self.first(x))))


class CountingSGD(torch.optim.Optimizer):
    """SGD with a falling rate. The state of a parameter is a number that is no tensor."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.01})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    state["steps"] = state.get("steps", 0) + 1
                    p.sub_(p.grad, alpha=group["lr"] / state["steps"])


TIED = tied_1f1b()
SCHEDULES = {1: find("gpipe").text, 2: TIED, 3: TIED}  # by the number of ranks
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "CountingSGD": CountingSGD,
}


def own_pipeline(transport: Transport, ranks: int) -> Pipeline:
    whole = Tied()
    layers = [whole.first, whole.middle, whole.scale, whole.last]
    examples = torch.zeros(4, 6), torch.zeros(4, 6)
    return Pipeline(
        layers,
        SCHEDULES[ranks],
        {"D": ranks, "N": 2},
        loss=nn.functional.mse_loss,
        inputs=examples[0],
        targets=examples[1],
        model=whole,
        transport=transport,
    )


def train(pipe: Pipeline, optimizer: Any, scheduler: Any, numbers: range) -> list[float]:
    """Train on these batches, which are random, and return the losses.

    Args:
        numbers: the seeds of the batches.
    """
    losses = []
    for number in numbers:
        batch = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(number))
        losses.append(pipe.step(batch[0], batch[1]))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    return losses


def on_ranks(ranks: int, loop: Callable[[Pipeline, Any, Any], Any], kind: str = "AdamW") -> Any:
    """Run a training loop in loopback and return what rank 0 returns.

    Args:
        kind: of the optimizer, one of OPTIMIZERS.
    """

    def rank(transport: Transport) -> Any:
        pipe = own_pipeline(transport, ranks)
        optimizer = OPTIMIZERS[kind](pipe.parameters())
        return loop(pipe, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5))

    program = program_for(SCHEDULES[ranks], {"D": ranks, "N": 2}, width=1, world=ranks)
    return run_in_loopback(program, rank)[0]


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize(("ranks_before", "ranks_after"), [(2, 1), (1, 3), (3, 3)])
def test_a_users_loop_goes_on_from_a_checkpoint_also_with_another_number_of_ranks(
    kind: str, ranks_before: int, ranks_after: int, tmp_path: Path
) -> None:
    def save(pipe: Pipeline, optimizer: Any, scheduler: Any) -> list[float]:
        losses = train(pipe, optimizer, scheduler, range(3))
        save_checkpoint(tmp_path / "own", pipe, optimizer, iteration=3, scheduler=scheduler, note={"a": [1, None], "e": {}})
        return losses + train(pipe, optimizer, scheduler, range(3, 6))

    def load(pipe: Pipeline, optimizer: Any, scheduler: Any) -> list[float]:
        state = load_checkpoint(tmp_path / "own", pipe, optimizer, scheduler=scheduler)
        assert state == {"iteration": 3, "note": {"a": [1, None], "e": {}}} and pipe.iteration == 3
        assert optimizer.param_groups[0]["lr"] == 0.005, "the scheduler had halved it"
        return train(pipe, optimizer, scheduler, range(3, 6))

    expected = on_ranks(ranks_before, save, kind)
    assert on_ranks(ranks_after, load, kind) == pytest.approx(expected[3:], rel=TOLERANCE)


def test_a_checkpoint_of_another_optimizer_or_of_none_is_refused_and_nothing_is_loaded(tmp_path: Path) -> None:
    def save(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
        train(pipe, optimizer, scheduler, range(1))
        save_checkpoint(tmp_path / "own", pipe, optimizer)
        save_checkpoint(tmp_path / "bare", pipe)

    def load(checkpoint: str) -> Callable[[Pipeline, Any, Any], None]:
        def rank(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
            before = {name: t.clone() for name, t in pipe.state_dict().items()}
            try:
                load_checkpoint(tmp_path / checkpoint, pipe, optimizer)
            finally:
                assert all(t.equal(before[name]) for name, t in pipe.state_dict().items()) and not optimizer.state

        return rank

    on_ranks(2, save)
    with refused("E831", "the optimizer AdamW, which has amsgrad, .*this run has SGD, which has dampening"):
        on_ranks(2, load("own"), kind="SGD")
    with refused("E831", "it has no state of an optimizer for first.weight, and this run has AdamW"):
        on_ranks(1, load("bare"))


def test_a_state_that_cannot_be_saved_and_one_that_was_not_saved_are_refused(tmp_path: Path) -> None:
    def save(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
        save_checkpoint(tmp_path / "own", pipe, optimizer, folder=object())

    with pytest.raises(TypeError, match="the state folder, of type object, cannot be saved"):
        on_ranks(1, save)

    def load(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
        save_checkpoint(tmp_path / "own", pipe, optimizer, epoch=1)
        load_checkpoint(tmp_path / "own", pipe, optimizer, scheduler=scheduler)

    with pytest.raises(KeyError, match="has no state scheduler; it has epoch"):
        on_ranks(1, load)


def test_an_optimizer_of_other_parameters_is_refused(tmp_path: Path) -> None:
    def loop(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
        save_checkpoint(tmp_path / "own", pipe, optimizer)
        load_checkpoint(tmp_path / "own", pipe, torch.optim.AdamW([torch.nn.Parameter(torch.zeros(7))]))

    with pytest.raises(ValueError, match=r"the optimizer has a parameter of shape \[7\] that the pipeline does not have"):
        on_ranks(1, loop)


def test_no_rank_waits_for_one_whose_optimizer_cannot_be_restored(tmp_path: Path) -> None:
    errors: dict[int, str] = {}

    def loop(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
        train(pipe, optimizer, scheduler, range(1))
        save_checkpoint(tmp_path / "own", pipe, optimizer)
        if pipe.rank == 1:
            optimizer.param_groups[0]["lr"] = object()
        with pytest.raises((TypeError, ChimeraError)) as caught:
            load_checkpoint(tmp_path / "own", pipe, optimizer)
        errors[pipe.rank] = f"{type(caught.value).__name__}: {caught.value}"

    on_ranks(2, loop)
    reason = "the setting lr of the optimizer has the type object, which cannot be saved"
    assert errors[1].startswith(f"TypeError: {reason}")
    assert errors[0].startswith("ChimeraError: ") and reason in errors[0]


def test_nothing_is_loaded_if_a_state_is_missing(tmp_path: Path) -> None:
    def loop(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
        save_checkpoint(tmp_path / "own", pipe, optimizer)
        train(pipe, optimizer, scheduler, range(1))
        before = {name: t.clone() for name, t in pipe.state_dict().items()}
        with pytest.raises(KeyError, match="has no state scheduler; it has none"):
            load_checkpoint(tmp_path / "own", pipe, optimizer, scheduler=scheduler)
        assert all(t.equal(before[name]) for name, t in pipe.state_dict().items())

    on_ranks(2, loop)


def test_generators_of_torch_go_on_only_with_the_same_program(tmp_path: Path) -> None:
    def save(pipe: Pipeline, optimizer: Any, scheduler: Any) -> Tensor:
        torch.manual_seed(11)
        save_checkpoint(tmp_path / "own", pipe, optimizer)
        return torch.rand(3)

    def load(pipe: Pipeline, optimizer: Any, scheduler: Any) -> Tensor:
        torch.manual_seed(12)
        load_checkpoint(tmp_path / "own", pipe, optimizer)
        return torch.rand(3)

    with torch.random.fork_rng():
        expected = on_ranks(1, save)
        assert on_ranks(1, load).equal(expected)
        assert not on_ranks(2, load).equal(expected)


def test_an_export_has_the_weights_of_the_whole_model(tmp_path: Path) -> None:
    paths = [tmp_path / "w.safetensors", tmp_path / "w.pt"]

    def export(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
        train(pipe, optimizer, scheduler, range(1))
        for path in paths:
            check_export(path)
            export_weights(path, pipe, {"model": "tied"})

    on_ranks(3, export)
    state, state_of_pt = load_file(paths[0]), torch.load(paths[1])
    whole = Tied()
    whole.load_state_dict(state)
    assert state.keys() == state_of_pt.keys() and all(t.equal(state_of_pt[name]) for name, t in state.items())
    assert state["first.weight"].equal(state["last.weight"])
    assert not state["first.weight"].equal(Tied().first.weight), "it was trained"
    assert sorted(os.listdir(tmp_path)) == ["w.pt", "w.safetensors"]


def test_an_export_that_is_not_possible_is_refused_before_the_run(tmp_path: Path) -> None:
    for path, reason in (
        (tmp_path / "weights", "its name has no known ending"),
        (tmp_path / "no" / "w.pt", "there is no folder"),
        (tmp_path / ("w" * 300 + ".pt"), "file name too long"),
    ):
        with refused("E835", reason):
            check_export(path)


def test_an_export_that_fails_after_the_check_is_refused(tmp_path: Path) -> None:
    check_export(tmp_path / "folder.pt")
    (tmp_path / "folder.pt").mkdir()

    def export(pipe: Pipeline, optimizer: Any, scheduler: Any) -> None:
        export_weights(tmp_path / "folder.pt", pipe, {})

    with refused("E835", "is a directory"):
        on_ranks(2, export)
