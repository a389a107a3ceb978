"""The public API: a user's layers, schedule and loss, in a loop of the user's own. Ranks run in loopback."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline, load_checkpoint, save_checkpoint
from chimerac.interpreter.errors import RankError
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.alone import Alone
from tests.helpers_classifier import SAMPLES, WIDTH, batch, close, net, on_all_ranks, pipeline

CASES: list[tuple[str, dict[str, int], int]] = [  # schedule, parameters, width
    ("1f1b", {"D": 2, "N": 4}, 1),
    ("chimera", {"D": 4, "N": 4}, 1),
    ("chimera", {"D": 2, "N": 2}, 2),
    ("zb_v", {"D": 2, "N": 4}, 1),
    ("interleaved", {"D": 2, "N": 4, "v": 2}, 2),
]


def part_of(pipe: Pipeline, tensor: Tensor) -> Tensor:
    """Return the part of a batch that belongs to the replica of this rank."""
    return tensor.chunk(pipe.program.header.width)[pipe.replica]


def check_gradients(pipe: Pipeline, expected: Mapping[str, Tensor | None]) -> None:
    """Check the gradients of this rank's parameters.

    Args:
        expected: those of one process, by name.
    """
    for name, p in pipe.named_parameters():
        gradient = expected[name]
        assert p.grad is not None and gradient is not None and close(p.grad, gradient), name


@pytest.mark.parametrize(("name", "parameters", "width"), CASES)
def test_a_step_leaves_the_gradients_of_one_process(name: str, parameters: dict[str, int], width: int) -> None:
    program = compile_schedule(name, parameters, width).program
    samples = SAMPLES * program.header.micro_batches * width
    x, y = batch(samples)
    whole = net()
    expected = F.cross_entropy(whole(x), y)
    expected.backward()
    gradients = {name: p.grad for name, p in whole.named_parameters()}

    def run(pipe: Pipeline) -> list[str]:
        loss = pipe.step(part_of(pipe, x), part_of(pipe, y))
        assert loss == pytest.approx(expected.item(), rel=1e-5)
        named = dict(pipe.named_parameters())
        check_gradients(pipe, gradients)
        assert list(named) == list(pipe.state_dict()), "this model has no buffers"
        assert pipe.grad_norm() == pytest.approx(float(nn.utils.get_total_norm(gradients.values())), rel=1e-4)
        return list(named)

    found = on_all_ranks(program, run, width=width)
    assert set().union(*found) == set(gradients)


def test_training_with_sgd_and_clipping_follows_one_process() -> None:
    program = compile_schedule("chimera", {"D": 2, "N": 4}).program
    batches = [batch(SAMPLES * 4, seed) for seed in range(5)]
    whole = net()
    optimizer_of_whole = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    expected = []
    for x, y in batches:
        loss = F.cross_entropy(whole(x), y)
        loss.backward()
        expected.append((loss.item(), float(nn.utils.clip_grad_norm_(whole.parameters(), 0.5))))
        optimizer_of_whole.step()
        optimizer_of_whole.zero_grad()

    def run(pipe: Pipeline) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1, momentum=0.9)
        for (x, y), (loss, norm) in zip(batches, expected, strict=True):
            assert pipe.step(x, y) == pytest.approx(loss, rel=1e-4)
            assert pipe.clip_grad_norm_(0.5) == pytest.approx(norm, rel=1e-4)
            optimizer.step()
            optimizer.zero_grad()
        pipe.check_copies()
        return pipe.full_state_dict()

    for state in on_all_ranks(program, run):
        assert list(state) == list(whole.state_dict())
        assert all(close(state[name], t) for name, t in whole.state_dict().items())


def test_a_rank_without_gradients_takes_part_in_clipping() -> None:
    frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
    layers = [nn.Linear(WIDTH, WIDTH), frozen, nn.ReLU()]
    program = compile_schedule("1f1b", {"D": 3, "N": 2}).program
    x, y = batch(SAMPLES * 2)

    def run(transport: Transport) -> float:
        pipe = Pipeline(layers, program, loss=F.cross_entropy, inputs=x[:SAMPLES], split=[1, 1, 1], transport=transport)
        pipe.step(x, y)
        assert pipe.clip_grad_norm_(1e-3) > 1e-3
        return pipe.grad_norm()

    assert run_in_loopback(program, run) == [pytest.approx(1e-3, rel=1e-2)] * 3


class WithExtraState(nn.Linear):
    """A layer with extra state, which is no tensor."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}


def test_extra_state_that_is_no_tensor_is_not_in_the_state() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    model = net()
    model.first = WithExtraState(WIDTH, WIDTH)
    names = [name for name, _ in model.named_parameters()]
    for state in on_all_ranks(program, lambda pipe: pipe.full_state_dict(), model=model):
        assert list(state) == names


class Counting(nn.Linear):
    """A layer whose extra state is a tensor of `calls` + 1 elements, which is made anew each time it is read."""

    calls = 0

    def get_extra_state(self) -> Tensor:
        return torch.full((self.calls + 1,), self.calls)

    def set_extra_state(self, state: Tensor) -> None:
        assert len(state) == int(state[0]) + 1
        self.calls = int(state[0])


def test_extra_state_that_is_a_tensor_is_saved_and_loaded(tmp_path: Path) -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program

    def model(calls: int, kind: type[nn.Linear] = Counting) -> Any:
        whole = net()
        whole.first, whole.first.calls = kind(WIDTH, WIDTH), calls
        return whole

    def save(pipe: Pipeline) -> dict[str, Tensor]:
        save_checkpoint(tmp_path / "saved", pipe)
        return pipe.full_state_dict()

    state = on_all_ranks(program, save, model=model(3))[0]
    assert state["first._extra_state"].tolist() == [3] * 4
    for load in (lambda pipe: pipe.load_state_dict(state), lambda pipe: load_checkpoint(tmp_path / "saved", pipe)):
        loaded = model(0)
        on_all_ranks(program, load, model=loaded)
        assert loaded.first.calls == 3 and loaded.first.weight.equal(state["first.weight"])

    class OnlyRead(nn.Linear):
        def get_extra_state(self) -> Tensor:
            return torch.ones(1)

    for state in on_all_ranks(program, lambda pipe: pipe.full_state_dict(), model=model(0, OnlyRead)):
        assert "first._extra_state" not in state, "torch would refuse to load it"


def test_gradients_add_up_over_two_calls_of_step_with_and_without_sync() -> None:
    program = compile_schedule("chimera", {"D": 2, "N": 2}).program
    first, second = batch(SAMPLES * 2, 1), batch(SAMPLES * 2, 2)
    whole = net()
    for x, y in (first, second):
        F.cross_entropy(whole(x), y).backward()
    expected = {name: p.grad for name, p in whole.named_parameters()}

    def run(pipe: Pipeline, sync: bool) -> None:
        pipe.step(*first, sync=sync)
        pipe.step(*second)
        check_gradients(pipe, expected)

    for sync in (True, False):
        on_all_ranks(program, lambda pipe, sync=sync: run(pipe, sync))


def test_an_evaluation_leaves_no_gradients_and_draws_no_dropout() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    x, y = batch(SAMPLES * 2)
    expected = float(F.cross_entropy(net(drop=0.5).eval()(x), y))

    def run(pipe: Pipeline) -> None:
        for _ in range(2):
            assert pipe.evaluate(x, y) == pytest.approx(expected, rel=1e-5)
        assert all(p.grad is None for p in pipe.parameters())
        assert all(m.training for stage in pipe.stages.values() for m in stage.modules())

    run_in_loopback(program, lambda transport: run(pipeline(program, transport, net(drop=0.5))))


class Slope(nn.Module):
    """Returns its input plus the gradient of a function of the input. So its forward computes a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.requires_grad else x.detach().requires_grad_()
        return x + torch.autograd.grad(torch.tanh(self.linear(x)).sum(), x, create_graph=True)[0]


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(lambda x: torch.tanh(self.linear(x)), x, use_reentrant=False)


@pytest.mark.parametrize(
    ("layer", "schedule", "supported"),
    [(Slope, "1f1b", True), (Slope, "zb_h1", False), (Checkpointed, "1f1b", True), (Checkpointed, "zb_h1", True)],
)
def test_layers_may_use_autograd_themselves_if_the_schedule_supports_it(
    layer: type[nn.Module], schedule: str, supported: bool
) -> None:
    def layers() -> list[nn.Module]:
        torch.manual_seed(2)
        return [layer() for _ in range(3)]

    (x, y), whole = batch(SAMPLES * 4), nn.Sequential(*layers())
    F.cross_entropy(whole(x), y).backward()
    expected = {name: p.grad for name, p in whole.named_parameters()}

    def run(pipe: Pipeline) -> None:
        pipe.step(x, y)
        check_gradients(pipe, expected)

    program = compile_schedule(schedule, {"D": 3, "N": 4}).program
    message = (
        r"rank 0, instruction \d+: FWD main s0 m0: a layer or the loss computes gradients in its forward .*without BWD_INPUT"
    )
    with nullcontext() if supported else pytest.raises(RankError, match=message):
        run_in_loopback(
            program,
            lambda transport: run(
                Pipeline(layers(), program, loss=F.cross_entropy, inputs=torch.zeros(SAMPLES, WIDTH), transport=transport)
            ),
        )


def test_state_is_loaded_by_full_names() -> None:
    program = compile_schedule("gpipe", {"D": 2, "N": 2}).program
    other = net(seed=7).state_dict()

    def run(pipe: Pipeline) -> None:
        before = {name: t.clone() for name, t in pipe.state_dict().items()}
        name = next(iter(before))
        with pytest.raises(KeyError, match=f"1 of {len(before)} names are missing: {name}"):
            pipe.load_state_dict({k: t for k, t in other.items() if k != name})
        with pytest.raises(ValueError, match=rf"{name} has the shape \[7\], and in this model"):
            pipe.load_state_dict({**other, name: torch.zeros(7)})
        assert all(t.equal(before[k]) for k, t in pipe.state_dict().items())
        pipe.load_state_dict(other)
        assert all(t.equal(other[k]) for k, t in pipe.full_state_dict().items())

    on_all_ranks(program, run)


def test_layers_are_named_by_the_model_the_sequential_or_the_user() -> None:
    linear = nn.Linear(WIDTH, WIDTH)
    example = torch.zeros(SAMPLES, WIDTH)

    def names(layers: Any, **options: Any) -> list[str]:
        pipe = Pipeline(layers, "1f1b", {"D": 1, "N": 1}, loss=F.mse_loss, inputs=example, transport=Alone(), **options)
        return list(pipe.state_dict())

    assert names([linear, nn.ReLU()]) == ["0.weight", "0.bias"]
    assert names(nn.Sequential(linear)) == ["0.weight", "0.bias"]
    assert names([("mlp", linear)]) == ["mlp.weight", "mlp.bias"]
    assert names([("built", lambda: nn.Linear(WIDTH, 2, bias=False))]) == ["built.weight"]
    holder = nn.ModuleDict({"inner": nn.ModuleList([linear])})
    assert names([linear], model=holder) == ["inner.0.weight", "inner.0.bias"]


def test_the_split_gives_each_stage_its_layers() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 1}).program

    def run(pipe: Pipeline) -> list[str]:
        return sorted({name.rsplit(".", 1)[0] for name in pipe.state_dict()})

    found = on_all_ranks(program, run, split=[1, 7])
    assert found[0] == ["first"] and "last" in found[1]


def test_times_are_measured_and_predicted() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 4}).program

    def run(pipe: Pipeline) -> float:
        pipe.step(*batch(SAMPLES * 4))
        measured, predicted = pipe.measured(), pipe.predicted()
        assert len(measured.bubbles) == len(predicted.bubbles) == 2 and len(pipe.times.start) == len(program.stream(pipe.rank))
        # Each rank runs four forwards of 1 and four backwards of 2, and is idle for one forward and one backward.
        assert predicted.last_task_end == 15 and predicted.bubble_ratio == pytest.approx(3 / 15)
        return measured.last_task_end

    first, second = on_all_ranks(program, run)
    assert first == second > 0
