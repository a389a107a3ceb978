"""bfloat16: stages compute under autocast as one process does, and gradients add up in the dtype of the parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from chimerac.interpreter import Pipeline
from tests.helpers_pipeline import Decoder, batch, gradients, in_loopback, one_process
from tests.helpers_split import CASES, gradients_of_both

BF16 = torch.bfloat16


@pytest.mark.parametrize("input_type", [torch.float32, BF16], ids=["float32 input", "bfloat16 input"])
@pytest.mark.parametrize("first", [False, True], ids=["later stage", "first stage"])
# In "frozen", torch computes no gradient at all if the input needs none.
@pytest.mark.parametrize("name", [name for name in CASES if name != "frozen"])
def test_the_halves_of_a_backward_give_the_gradients_of_autograd_under_autocast(
    name: str, first: bool, input_type: torch.dtype
) -> None:
    """All modules but the RMS norm call the same kernels as autograd. The RMS norm has a backward of our own, in float32."""
    torch.manual_seed(0)
    make, draw = CASES[name]
    module, x = make(), draw()
    if x.is_floating_point():
        x = x.to(input_type).requires_grad_(not first)
    tolerance = 2**-8 if name == "rms norm" else 0.0  # one rounding to bfloat16
    for of_halves, expected in gradients_of_both(module, x, torch.autocast("cpu", BF16)):
        assert (of_halves is None) == (expected is None)
        if of_halves is not None and expected is not None:
            assert of_halves.dtype == expected.dtype
            assert float((of_halves - expected).double().norm()) <= tolerance * float(expected.double().norm())


# is_same_order: gradients are added in the same order as in one process. In another order, the float32 sums differ a little.
@pytest.mark.parametrize(
    ("schedule", "parameters", "is_same_order"),
    [
        ("1f1b", {"D": 2, "N": 4}, True),
        ("zb_v", {"D": 2, "N": 4}, True),
        ("chimera", {"D": 2, "N": 4}, False),
        ("chimera_zb", {"D": 2, "N": 2}, False),
    ],
)
def test_losses_and_gradients_are_those_of_one_process_under_autocast(
    schedule: str, parameters: dict[str, int], is_same_order: bool
) -> None:
    count = parameters["N"]

    def run(pipe: Pipeline) -> tuple[float, dict[str, Tensor]]:
        loss = pipe.step(*batch(1, count))
        assert all(p.dtype == torch.float32 for p in pipe.parameters())
        return loss, gradients(pipe)

    ranks = in_loopback(schedule, parameters, lambda: Decoder(blocks=4), run, autocast=BF16)
    model = Decoder(blocks=4)
    loss = one_process(model, 1, count, BF16)
    expected = gradients(model)
    assert {name for _, rank_gradients in ranks for name in rank_gradients} == set(expected)
    for rank_loss, rank_gradients in ranks:
        assert rank_loss == pytest.approx(loss, rel=1e-12 if is_same_order else 1e-6)
        for name, gradient in rank_gradients.items():
            if is_same_order:
                assert gradient.equal(expected[name]), name
            else:
                torch.testing.assert_close(gradient, expected[name], rtol=1e-5, atol=1e-7)
    in_float32 = Decoder(blocks=4)
    one_process(in_float32, 1, count)
    assert not expected["head.weight"].equal(gradients(in_float32)["head.weight"]), "autocast changes the gradients"


def test_the_boundary_table_has_for_each_stage_the_dtype_that_autocast_gives_its_output() -> None:
    class NormsAndLinear(Decoder):
        @property
        def layers(self) -> list[nn.Module]:
            return [self.embed, *(block.norm for block in self.blocks), self.blocks[0].up]

    def run(pipe: Pipeline) -> list[str]:
        return [spec.dtype for specs in pipe.boundary_table for spec in specs]

    dtypes_of_ranks = in_loopback("1f1b", {"D": 2, "N": 2}, lambda: NormsAndLinear(blocks=2), run, autocast=BF16, split=(2, 2))
    # Stage 0 ends with a norm, which autocast on CPUs leaves in the dtype of its input, here float32. Stage 1 ends with a
    # linear. Both ranks have the same table.
    assert dtypes_of_ranks == [["float32", "bfloat16"]] * 2


def test_autocast_in_float16_is_refused() -> None:
    with pytest.raises(ValueError, match=r"autocast=torch.float16: give torch.bfloat16"):
        in_loopback("1f1b", {"D": 2, "N": 2}, lambda: Decoder(2), lambda pipe: None, autocast=torch.float16)


def test_a_step_inside_autocast_is_refused() -> None:
    def run(pipe: Pipeline) -> None:
        with torch.autocast("cpu", BF16), pytest.raises(RuntimeError, match=r"call this outside torch\.autocast"):
            pipe.step(*batch(0, micro_batches=2))

    in_loopback("1f1b", {"D": 2, "N": 2}, lambda: Decoder(2), run)
