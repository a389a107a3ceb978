"""Parameters that layers of different stages share: derived from the model, for any schedule."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from tests.helpers_pipeline import Decoder, batch, gradients, in_loopback, one_process

STEPS, RATE = 3, 0.5


class TiedTwice(Decoder):
    """Two more parameters that distant blocks share, one of them on the stages of the embedding and the head."""

    def __init__(self) -> None:
        super().__init__(blocks=4, tied=True)
        self.blocks[3].norm.weight = self.blocks[0].norm.weight
        self.blocks[2].up.bias = self.blocks[1].up.bias


def tied() -> Decoder:
    return Decoder(blocks=4, tied=True)


def weights_of_one_process(model: nn.Module, micro_batches: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradients of the first batch, and the weights after some steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    found = {}
    for number in range(STEPS):
        one_process(model, number, micro_batches)
        found = found or gradients(model)
        optimizer.step()
        optimizer.zero_grad()
    return found, model.state_dict()


@pytest.mark.parametrize("make", [tied, TiedTwice])
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
    make: type[Decoder], schedule: str, parameters: dict[str, int], width: int
) -> None:
    count = parameters["N"]

    def run(pipe: Pipeline) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        optimizer = pipe.sharded_optimizer(torch.optim.SGD, lr=RATE)
        found: dict[str, Tensor] = {}
        for number in range(STEPS):
            inputs, targets = batch(number, count * width)
            mine = slice(pipe.replica * len(inputs) // width, (pipe.replica + 1) * len(inputs) // width)
            pipe.step(inputs[mine], targets[mine])
            found = found or gradients(pipe)
            optimizer.step()
            optimizer.zero_grad()
        pipe.check_copies()
        return found, pipe.full_state_dict()

    expected, weights = weights_of_one_process(make(), count * width)
    ranks = in_loopback(schedule, parameters, make, run, width)
    assert {name for found, _ in ranks for name in found} == set(expected), "each parameter under its first name"
    for found, state in ranks:
        assert list(state) == list(weights) and "head.weight" in state
        assert state["head.weight"].equal(state["embed.weight"])
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-6)
        for name, t in state.items():
            torch.testing.assert_close(t, weights[name], rtol=1e-5, atol=1e-6)


def test_a_state_with_both_names_is_loaded() -> None:
    other = Decoder(4, tied=True)
    with torch.no_grad():
        other.head.weight.add_(1)

    def run(pipe: Pipeline) -> bool:
        pipe.load_state_dict(other.state_dict())
        pipe.check_copies()
        return all(t.equal(pipe.full_state_dict()[name]) for name, t in other.state_dict().items())

    assert in_loopback("1f1b", {"D": 2, "N": 2}, tied, run) == [True, True]


def test_a_norm_counts_a_shared_parameter_once() -> None:
    model = tied()
    one_process(model, 0, 2)
    expected = float(nn.utils.get_total_norm(p.grad for p in model.parameters() if p.grad is not None))

    def run(pipe: Pipeline) -> float:
        pipe.step(*batch(0, 2))
        return pipe.grad_norm()

    for schedule in ("1f1b", "chimera"):
        assert in_loopback(schedule, {"D": 2, "N": 2}, tied, run) == [pytest.approx(expected, rel=1e-5)] * 2


def test_a_schedule_that_ties_these_stages_itself_keeps_its_name() -> None:
    from chimerac.compiler.library import find

    text = find("1f1b").text.replace("\norder", "\ntied mine on stages 0, D - 1\norder")

    def run(pipe: Pipeline) -> list[str]:
        return [tied.name for tied in pipe.program.header.tied]

    assert in_loopback("1f1b", {"D": 2, "N": 2}, tied, run, given=text) == [["mine"]] * 2
    assert in_loopback("1f1b", {"D": 2, "N": 2}, tied, run) == [["embed_weight"]] * 2


def test_a_compiled_program_that_ties_nothing_is_refused() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    with pytest.raises(
        ChimeraError, match=r"E805.*the program ties embed.weight on no stage, but Decoder on stages 0, 1"
    ) as error:
        in_loopback("1f1b", {"D": 2, "N": 2}, tied, lambda pipe: None, given=program)
    assert "give the schedule instead of its compiled program" in str(error.value.diagnostics[0].help)


def test_a_module_that_is_there_twice_is_two_layers() -> None:
    def layers() -> nn.Sequential:
        torch.manual_seed(0)
        shared = nn.Linear(4, 4)
        return nn.Sequential(shared, nn.Tanh(), shared)

    inputs, targets = torch.ones(2, 4), torch.zeros(2, 4)

    def run(pipe: Pipeline) -> tuple[float, Tensor]:
        loss = pipe.step(inputs.repeat(2, 1), targets.repeat(2, 1))
        return loss, next(iter(gradients(pipe).values()))

    model = layers()
    expected = nn.functional.mse_loss(model(inputs), targets)
    expected.backward()  # type: ignore[no-untyped-call]
    for loss, gradient in in_loopback(
        "1f1b", {"D": 2, "N": 2}, layers, run, loss=nn.functional.mse_loss, inputs=inputs, split=(2, 1)
    ):
        assert loss == pytest.approx(expected.item(), rel=1e-6)
        torch.testing.assert_close(gradient, model[0].weight.grad)
