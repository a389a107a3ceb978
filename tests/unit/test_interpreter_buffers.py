"""Buffers in a pipeline: the statistics of batch normalization, and buffers that a module replaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.alone import Alone

SAMPLES, WIDTH, CLASSES = 4, 6, 3  # samples of a whole micro-batch; features of a sample; classes
SCHEDULES = [  # name, parameters, number of replicas
    ("1f1b", {"D": 2, "N": 4}, 1),
    ("chimera", {"D": 4, "N": 4}, 1),
    ("chimera_zb", {"D": 2, "N": 4}, 2),
    ("chimera_doubling", {"D": 2, "N": 4, "again": 1}, 1),
    ("chimera_recompute", {"D": 2, "N": 4}, 1),
]


def layers() -> list[nn.Module]:
    torch.manual_seed(0)
    middle = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Tanh()) for _ in range(3)]
    return [*middle, nn.Linear(WIDTH, CLASSES)]


def batch(number: int, samples: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(samples, WIDTH, generator=generator), torch.randint(0, CLASSES, (samples,), generator=generator)


def run(name: str, parameters: Mapping[str, int], width: int, use: Any) -> list[Any]:
    """Train two iterations on each rank. Return by rank the losses, and what `use` returns.

    Args:
        use: a function of the pipeline and of the number of samples of a batch, over all replicas.
    """
    program = compile_schedule(name, parameters, width).program
    size = program.header.samples(SAMPLES)  # samples of a micro-batch
    samples = size * program.header.micro_batches * width

    def rank(transport: Transport) -> Any:
        pipe = Pipeline(layers(), program, loss=F.cross_entropy, inputs=torch.zeros(size, WIDTH), transport=transport)
        optimizer = torch.optim.SGD(pipe.parameters(), lr=0.1)
        losses = []
        for number in range(2):
            losses.append(pipe.step(*(t.chunk(width)[pipe.replica] for t in batch(number, samples))))
            optimizer.step()
            optimizer.zero_grad()
        return losses, use(pipe, samples)

    return run_in_loopback(program, rank)


def one_process(micro_batches: int, samples: int) -> tuple[list[float], nn.Sequential]:
    """Train two iterations on the same micro-batches in one process, and return the losses and the model."""
    model = nn.Sequential(*layers())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for number in range(2):
        total = 0.0
        for x, y in zip(*(t.chunk(micro_batches) for t in batch(number, samples)), strict=True):
            loss = F.cross_entropy(model(x), y) / micro_batches
            loss.backward()
            total += loss.item()
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    return losses, model


class Evaluated(NamedTuple):
    """An evaluation on one rank.

    Attributes:
        samples: their number in a batch, over all replicas.
        loss: of the evaluation.
        before, after: the state of the rank before and after the evaluation.
        whole: the state of the whole model after it.
    """

    samples: int
    before: dict[str, Tensor]
    after: dict[str, Tensor]
    whole: dict[str, Tensor]
    loss: float


@pytest.mark.parametrize(("name", "parameters", "width"), SCHEDULES)
def test_losses_are_those_of_one_process_and_running_statistics_are_the_mean_over_the_copies(
    name: str, parameters: Mapping[str, int], width: int
) -> None:
    """Each copy has running statistics of its own micro-batches until an evaluation makes the copies equal."""

    def evaluated(pipe: Pipeline, samples: int) -> Evaluated:
        before = {key: t.clone() for key, t in pipe.state_dict().items()}
        x, y = batch(9, samples)
        loss = pipe.evaluate(x.chunk(width)[pipe.replica], y.chunk(width)[pipe.replica])
        after = {key: t.clone() for key, t in pipe.state_dict().items()}
        return Evaluated(samples, before, after, pipe.full_state_dict(), loss)

    found = run(name, parameters, width, evaluated)
    micro_batches = compile_schedule(name, parameters, width).program.header.micro_batches * width
    first_rank: Evaluated = found[0][1]
    expected, model = one_process(micro_batches, first_rank.samples)
    for losses, _ in found:
        assert losses == pytest.approx(expected, rel=1e-5)
    copies: dict[str, list[tuple[Tensor, Tensor]]] = {}  # by name: of each copy, before and after the evaluation
    for _, rank in found:
        for key, t in rank.after.items():
            copies.setdefault(key, []).append((rank.before[key], t))
    for key, states in copies.items():
        before, after = zip(*states, strict=True)
        assert all(t.equal(after[0]) for t in after), f"copies of {key} differ after an evaluation"
        if "running" in key:
            torch.testing.assert_close(after[0], torch.stack(before).mean(0))
            assert len(states) == 1 or not before[0].equal(before[-1]), "copies see different micro-batches"
        if "tracked" in key:
            assert sum(map(int, before)) == 2 * micro_batches, "a forward that is run again does not count"
    model.load_state_dict(first_rank.whole)
    x, y = batch(9, first_rank.samples)
    with torch.no_grad():
        loss = F.cross_entropy(model.eval()(x), y)
    assert [rank.loss for _, rank in found] == pytest.approx([loss.item()] * len(found), rel=1e-5)


def test_with_one_copy_the_running_statistics_are_those_of_one_process() -> None:
    (_, state), *_ = run("1f1b", {"D": 2, "N": 4}, width=1, use=lambda pipe, samples: pipe.full_state_dict())
    _, model = one_process(micro_batches=4, samples=4 * SAMPLES)
    for key, t in model.state_dict().items():
        torch.testing.assert_close(state[key], t, rtol=1e-4, atol=1e-6)


class Counting(nn.Module):
    """Replaces its buffers by other tensors, instead of changing them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("average", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.count, self.average = self.count + 1, 0.5 * self.average + 0.5 * x.detach().mean(0)
        return self.linear(x)


@pytest.mark.parametrize("recompute", ["none", "all"])
def test_a_forward_that_runs_again_leaves_replaced_buffers_as_they_are(recompute: str) -> None:
    (x, y), expected = batch(3, 2 * SAMPLES), Counting()
    for part in x.chunk(2):
        expected(part)
    layer, sizes = Counting(), {"D": 1, "N": 2}
    pipe = Pipeline([layer], "gpipe", sizes, loss=F.cross_entropy, inputs=x[:SAMPLES], transport=Alone(), recompute=recompute)
    pipe.step(x, y)
    assert layer.count == 2 and layer.average.equal(expected.average)
    pipe.nonfinite_error("a message")  # it runs the batch again, to find the cause of a loss that is not finite
    assert layer.count == 2 and layer.average.equal(expected.average)
