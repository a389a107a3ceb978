"""Runs programs in loopback with a model whose sums are all exact, and compares them with one process, without a tolerance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.runtime.batch import Batch
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.model import LayeredModel, Model, Stage, Values, combined
from chimerac.interpreter.runtime.partitioned import PartitionedModel, partitioned
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import Loopback, run_in_loopback
from chimerac.interpreter.transport.nccl import Arrived
from tests.distributed.integers import DIVISOR, WIDTH, First, IntegerSamples, Last, example, loss

SEED = 3  # of the weights and the batches
SAMPLES = 2  # of a micro-batch
MAX_EXACT = 2**50  # float64 holds every integer up to 2^53, so partial sums may be 8 times as large as their result


class Signed(nn.Module):
    """A signed permutation plus its ReLU, where the mask is set. Values at most double, so deep models stay exact too."""

    def __init__(self) -> None:
        super().__init__()
        signs = torch.randint(0, 2, (WIDTH,)).double() * 2 - 1
        self.weight = nn.Parameter(torch.eye(WIDTH, dtype=torch.float64)[torch.randperm(WIDTH)] * signs)

    def forward(self, x: Tensor, mask: Tensor) -> Values:
        y = x @ self.weight * mask
        return y + torch.relu(y), mask  # (b, LENGTH, WIDTH), (b, LENGTH, 1)


@cache
def deep_model(middle: int) -> Model:
    """Return a model of middle + 2 layers."""
    layers = [("first", First), *((f"signed {k}", Signed) for k in range(middle)), ("last", Last)]
    return LayeredModel(name="signed integers", layers=tuple(layers), loss=loss, example=example)


def small_model(*makers: Callable[[], nn.Module]) -> Model:
    """Return a model of these layers, with the loss and the example of tests/distributed/integers.py."""
    layers = tuple((f"layer {k}", make) for k, make in enumerate(makers))
    return LayeredModel(name="small", layers=layers, loss=loss, example=example)


@cache
def description_of(model: Model) -> ModelDescription:
    """Return the description of a model, for micro-batches of SAMPLES samples."""
    return describe(model, SAMPLES)


def batch_of(program: Program, replica: int, iteration: int = 0) -> Batch:
    """Return the batch of one replica in an iteration."""
    h = program.header
    return Batch(IntegerSamples(), SEED, iteration, replica, h.width, h.micro_batches, size=SAMPLES)


@dataclass(frozen=True)
class RankResult:
    """The loss and the gradients of one rank in its last iteration, and its executor.

    Attributes:
        grads: by stage.
    """

    loss: float
    grads: dict[int, list[Tensor]]
    executor: Executor


def stages_of(program: Program, parts: PartitionedModel, rank: int, seed: int) -> dict[int, Stage]:
    """Build the stages that a rank holds.

    Args:
        parts: the model, cut into the stages of the program.
        seed: of the weights.
    """
    return {s: parts.build(s, seed) for s in range(program.header.stages) if rank in program.header.holders([s])}


def rank_of(program: Program, model: Model, iterations: int = 1) -> Callable[[Transport], RankResult]:
    """Return the function of each rank: it builds its stages and runs `iterations` iterations with the same weights."""
    h, parts = program.header, partitioned(program, model, description_of(model))

    def run_rank(transport: Transport) -> RankResult:
        transport.connect(program)
        stages = {s: m.to(transport.device) for s, m in stages_of(program, parts, transport.rank, SEED).items()}
        executor = Executor(program, model, stages, parts.boundary_table, transport)
        loss_of_last = 0.0
        for iteration in range(iterations):
            for stage in stages.values():
                stage.zero_grad()
            loss_of_last = executor.run(batch_of(program, transport.rank // h.ranks, iteration))
        grads = {
            s: [(torch.zeros_like(p) if p.grad is None else p.grad).cpu() for p in m.parameters()] for s, m in stages.items()
        }
        return RankResult(loss_of_last, grads, executor)

    return run_rank


@cache
def one_process(model: Model, micro_batches: int, iteration: int = 0) -> tuple[float, list[list[Tensor]]]:
    """Return the loss of an iteration and the gradients of every layer, computed without a pipeline.

    The model must have no dropout.

    Args:
        micro_batches: of all replicas together.
    """
    whole = model.build_stage(range(len(model.layer_names)), SEED)
    source, total = IntegerSamples(), 0.0
    for m in range(micro_batches * iteration, micro_batches * (iteration + 1)):
        numbers = range(m * SAMPLES, (m + 1) * SAMPLES)
        value = combined(model.loss(whole(*source.inputs(numbers)), source.targets(numbers)), [DIVISOR])
        torch.autograd.backward(value)
        total += float(value.detach())
    grads = [[p.grad for p in layer.parameters() if p.grad is not None] for layer in whole.layers]
    largest = MAX_EXACT / DIVISOR
    assert all(g.any() and float(g.abs().max()) < largest for layer in grads for g in layer), "inexact or zero gradient"
    return total, grads


def differences(program: Program, model: Model, results: list[RankResult], iteration: int = 0) -> Iterator[str]:
    """Yield a text for a loss that is not exactly that of one process, and one for each stage of `differences_of_rank`.

    Args:
        iteration: the one of the results.
    """
    total, _ = one_process(model, program.header.micro_batches * program.header.width, iteration)
    loss_of_ranks = sum(result.loss for result in results)
    if loss_of_ranks != total:
        yield f"loss {loss_of_ranks} instead of {total}"
    for rank, result in enumerate(results):
        for stage in differences_of_rank(program, model, result, iteration):
            yield f"rank {rank}, stage {stage}"


def differences_of_rank(program: Program, model: Model, result: RankResult, iteration: int = 0) -> Iterator[int]:
    """Yield the stages of a rank whose gradients in an iteration are not exactly those of one process.

    After an evaluation, which must compute no gradients, the stages that have some are yielded.
    """
    h = program.header
    if h.kind == "evaluation":
        yield from (s for s, grads in result.grads.items() if any(g.any() for g in grads))
        return
    _, layer_grads = one_process(model, h.micro_batches * h.width, iteration)
    for s, grads in result.grads.items():
        expected = [g for k in partitioned(program, model, description_of(model)).partition.layers[s] for g in layer_grads[k]]
        if len(grads) != len(expected) or not all(a.equal(b) for a, b in zip(grads, expected, strict=True)):
            yield s


def run_and_compare(
    program: Program,
    model: Model,
    seed: int,
    machine: Machine | None = None,
    every_post: bool = False,
    iterations: int = 1,
    device: torch.device | None = None,
) -> list[RankResult]:
    """Run a program, and check that the loss and the gradients of its last iteration are those of one process.

    Args:
        seed, machine, every_post, device: as in `run_in_loopback`; the seed is that of the order in which ranks run.

    Raises StuckError if the program deadlocks.
    """
    results = run_in_loopback(program, rank_of(program, model, iterations), seed, machine, every_post, device)
    wrong = list(differences(program, model, results, iterations - 1))
    assert not wrong, f"{program.header.schedule}, seed {seed}, machine {machine}: {wrong}"
    return results


class Rehearsing(Loopback):
    """A rank that must rehearse. In the rehearsal nothing is sent or received.

    Attributes:
        rehearsals: how many messages the rank had sent before each of them.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.rehearsals: list[int] = []
        self.rehearses, self.sent = False, 0
        self.rehearsal = self.begin

    @contextmanager
    def begin(self) -> Iterator[None]:
        self.rehearsals.append(self.sent)
        self.rehearses = True
        yield
        self.rehearses = False

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send."""
        if not self.rehearses:
            self.sent += 1
            super().send(peer, buffer)

    def recv(self, peer: int, buffer: Tensor) -> Any:
        """Post a receive."""
        if not self.rehearses:
            return super().recv(peer, buffer)
        buffer.zero_()
        return Arrived()

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Any:
        """Launch an all-reduce."""
        return Arrived() if self.rehearses else super().launch_all_reduce(ranks, buffer)
