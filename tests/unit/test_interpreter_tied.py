"""Parameters that several stages share: found in the layers of a user's model, or tied by the model and by the program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import AllReduce
from chimerac.chimera_ir.program import Program, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.runtime.batch import Batch
from chimerac.interpreter.runtime.model import Model, Stage, combined
from chimerac.interpreter.runtime.parameters import parameter_groups
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.integers import DIVISOR, First, IntegerSamples, Whole, loss
from tests.distributed.programs import TWO_RANKS, program
from tests.helpers_loopback import SAMPLES, SEED, deep_model, description_of, rank_of, small_model
from tests.helpers_pipeline import Decoder, batch, gradients, in_loopback, one_process
from tests.helpers_text import tied_1f1b

ITERATIONS, RATE = 3, 0.5


class TiedBlocks(Decoder):
    """A tied decoder with two more shared parameters: of the first and the last block, and of the two blocks between."""

    def __init__(self) -> None:
        super().__init__(blocks=4, tied=True)
        self.blocks[3].norm.weight = self.blocks[0].norm.weight
        self.blocks[2].up.bias = self.blocks[1].up.bias


def tied() -> Decoder:
    return Decoder(blocks=4, tied=True)


def trained_in_one_process(model: nn.Module, micro_batches: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradients of the first batch, and the weights after ITERATIONS iterations."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    first_gradients = {}
    for number in range(ITERATIONS):
        one_process(model, number, micro_batches)
        first_gradients = first_gradients or gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    return first_gradients, model.state_dict()


@pytest.mark.parametrize("make", [tied, TiedBlocks])
@pytest.mark.parametrize(
    ("schedule", "parameters", "width"),
    [
        ("1f1b", {"D": 2, "N": 2}, 1),
        ("1f1b", {"D": 2, "N": 2}, 2),
        ("chimera", {"D": 2, "N": 2}, 1),
        ("zb_v", {"D": 2, "N": 3}, 1),
        ("interleaved", {"D": 2, "N": 2}, 1),
    ],
)
def test_shared_parameters_train_as_in_one_process(
    make: Callable[[], Decoder], schedule: str, parameters: dict[str, int], width: int
) -> None:
    count = parameters["N"]

    def run(pipe: Pipeline) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        optimizer = pipe.sharded_optimizer(torch.optim.SGD, lr=RATE)
        first_gradients: dict[str, Tensor] = {}
        for number in range(ITERATIONS):
            inputs, targets = batch(number, count * width)
            of_replica = slice(pipe.replica * len(inputs) // width, (pipe.replica + 1) * len(inputs) // width)
            pipe.step(inputs[of_replica], targets[of_replica])
            first_gradients = first_gradients or gradients(pipe)
            optimizer.step()
            optimizer.zero_grad()
        pipe.check_copies()
        return first_gradients, pipe.full_state_dict()

    expected_gradients, expected_weights = trained_in_one_process(make(), count * width)
    ranks = in_loopback(schedule, parameters, make, run, width)
    names = {name for first_gradients, _ in ranks for name in first_gradients}
    assert names == set(expected_gradients), "each parameter under its first name"
    for first_gradients, weights in ranks:
        assert list(weights) == list(expected_weights) and "head.weight" in weights
        assert weights["head.weight"].equal(weights["embed.weight"])
        for name, gradient in first_gradients.items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-5, atol=1e-6)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected_weights[name], rtol=1e-5, atol=1e-6)


def test_a_state_with_both_names_of_a_shared_parameter_is_loaded() -> None:
    saved = Decoder(4, tied=True)
    with torch.no_grad():
        saved.head.weight.add_(1)

    def run(pipe: Pipeline) -> bool:
        pipe.load_state_dict(saved.state_dict())
        pipe.check_copies()
        return all(t.equal(pipe.full_state_dict()[name]) for name, t in saved.state_dict().items())

    assert in_loopback("1f1b", {"D": 2, "N": 2}, tied, run) == [True, True]


def test_the_gradient_norm_counts_a_shared_parameter_once() -> None:
    model = tied()
    one_process(model, 0, micro_batches=2)
    expected = float(nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None))

    def run(pipe: Pipeline) -> float:
        pipe.step(*batch(0, micro_batches=2))
        return pipe.grad_norm()

    for schedule in ("1f1b", "chimera"):
        assert in_loopback(schedule, {"D": 2, "N": 2}, tied, run) == [pytest.approx(expected, rel=1e-5)] * 2


def test_a_tied_set_has_the_name_that_the_schedule_gives_it_or_one_from_the_model() -> None:
    text = tied_1f1b("mine")

    def run(pipe: Pipeline) -> list[str]:
        return [tied_set.name for tied_set in pipe.program.header.tied]

    assert in_loopback("1f1b", {"D": 2, "N": 2}, tied, run, given=text) == [["mine"]] * 2
    assert in_loopback("1f1b", {"D": 2, "N": 2}, tied, run) == [["embed_weight"]] * 2


def test_a_compiled_program_without_the_ties_of_the_model_is_refused() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    with pytest.raises(
        ChimeraError, match=r"E805.*the program ties embed.weight on no stage, but Decoder on stages 0, 1"
    ) as error:
        in_loopback("1f1b", {"D": 2, "N": 2}, tied, lambda pipe: None, given=program)
    assert "give the schedule instead of its compiled program" in str(error.value.diagnostics[0].help)


def test_a_module_that_is_two_layers_gets_the_loss_and_the_gradient_of_one_process() -> None:
    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        shared = nn.Linear(4, 4)
        return nn.Sequential(shared, nn.Tanh(), shared)

    inputs, targets = torch.ones(2, 4), torch.zeros(2, 4)

    def run(pipe: Pipeline) -> tuple[float, Tensor]:
        loss = pipe.step(inputs.repeat(2, 1), targets.repeat(2, 1))  # two equal micro-batches
        return loss, next(iter(gradients(pipe).values()))

    model = layers()
    expected = nn.functional.mse_loss(model(inputs), targets)
    expected.backward()
    for rank_loss, gradient in in_loopback(
        "1f1b", {"D": 2, "N": 2}, layers, run, loss=nn.functional.mse_loss, inputs=inputs, split=(2, 1)
    ):
        assert rank_loss == pytest.approx(expected.item(), rel=1e-6)
        torch.testing.assert_close(gradient, model[0].weight.grad)


class TiedFirst(First):
    """A first layer whose table is tied. It starts with the same numbers as the weight of TiedLast."""

    tied = {"embedding": "table"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.table.data = torch.arange(64).view(8, 8).double() % 5 - 2


class TiedLast(nn.Module):
    """Uses the table of the first layer under another name."""

    tied = {"embedding": "inner.weight"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False, dtype=torch.float64)
        self.inner.weight.data = torch.arange(64).view(8, 8).double() % 5 - 2

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.inner(x) * mask


TIED = small_model(TiedFirst, Whole, TiedLast)
TIED_PIPE = """pipe main on 0 1 micro_batches 0

rank 0:
  FWD main s0 m0; SEND act main s1 m0 -> 1; RECV grad main s0 m0 <- 1
  BWD main s0 m0
rank 1:
  RECV act main s1 m0 <- 0
  FWD main s1 m0
  BWD main s1 m0; SEND grad main s0 m0 -> 0
"""


def tied_program() -> Program:
    """Return the program of TIED_PIPE with an all-reduce of the tied set at the end of each stream."""
    untied = program(TIED_PIPE, "tied", ranks=2, stages=2, micro_batches=1)
    streams = [[*untied.stream(g), AllReduce("embedding", stage=0, ranks=(0, 1))] for g in range(2)]
    return program_of(replace(untied.header, tied=(Tied("embedding", (0, 1)),)), streams)


def whole_gradients() -> list[Tensor]:
    """Return the gradients of the tied model in one process: of the table, which both ends use, and of the middle layer."""
    whole = TIED.build_stage(range(3), SEED)
    first, middle, last = whole.layers
    last.inner.weight = first.table
    batch = Batch(IntegerSamples(), SEED, number=0, replica=0, width=1, micro_batches=1, size=SAMPLES)
    torch.autograd.backward(combined(loss(whole(*batch.inputs(0)), batch.targets(0)), [DIVISOR]))
    return [p.grad for p in (first.table, middle.weight) if p.grad is not None]


def test_tied_parameters_have_one_gradient_on_all_their_stages() -> None:
    p = tied_program()
    of_table, of_middle = whole_gradients()
    groups_by_rank = [result.executor.groups for result in run_in_loopback(p, rank_of(p, TIED))]
    for groups in groups_by_rank:
        (tied_parameter,) = groups["embedding"]
        assert tied_parameter.grad is not None and tied_parameter.grad.equal(of_table) and tied_parameter.grad.any()
    untied = [parameters for groups in groups_by_rank for name, parameters in groups.items() if name != "embedding"]
    (middle,) = (parameter for parameters in untied for parameter in parameters)
    assert middle.grad is not None and middle.grad.equal(of_middle)


def test_tied_parameters_on_one_rank_are_one_parameter() -> None:
    first, last = Stage([TiedFirst()]), Stage([TiedLast()])
    header = tied_program().header
    groups = parameter_groups(header, {0: first, 1: last})
    assert groups["embedding"] == [first.layers[0].table] == [last.layers[0].inner.weight]
    assert groups["stage 0"] == groups["stage 1"] == []


@pytest.mark.parametrize(
    ("p", "model", "message"),
    [
        (TWO_RANKS["1f1b"], TIED, "the program ties embedding on no stage, but small on stages 0, 1"),
        (tied_program(), deep_model(1), "the program ties embedding on stages 0, 1, but signed integers on no stage"),
    ],
)
def test_ties_of_only_the_model_or_only_the_program_are_refused(p: Program, model: Model, message: str) -> None:
    """They are refused before the ranks connect, and also if no rank has two of the tied layers."""
    with pytest.raises(ChimeraError, match=f"E805: {message}"):
        partitioned(p, model, description_of(model))
