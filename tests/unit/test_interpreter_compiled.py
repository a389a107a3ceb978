"""Stages compiled with torch.compile: their losses and gradients are those of one process without it."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor

from chimerac.interpreter import Pipeline
from tests.helpers_pipeline import Decoder, batch, gradients, in_loopback, one_process

NEEDS_COMPILER = pytest.mark.skipif(not (shutil.which("c++") or shutil.which("g++")), reason="inductor needs a C++ compiler")


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        pytest.param("1f1b", True, marks=NEEDS_COMPILER),  # inductor, the default
        ("chimera", {"backend": "aot_eager"}),  # without generated C++, which takes long to compile
    ],
)
def test_compiled_stages_train_and_evaluate(schedule: str, options: bool | dict[str, str]) -> None:
    def run(pipe: Pipeline) -> tuple[list[float], dict[str, Tensor]]:
        losses = [pipe.step(*batch(number, micro_batches=2)) for number in range(2)]
        if options is not True:  # an evaluation compiles other graphs, for which inductor takes long
            losses.append(pipe.evaluate(*batch(2, micro_batches=2)))
        return losses, gradients(pipe)

    torch._dynamo.utils.counters.clear()
    model = Decoder(blocks=0)
    expected = [one_process(model, number, micro_batches=2) for number in range(2)]
    expected_gradients = gradients(model)
    expected.append(one_process(model, 2, micro_batches=2))
    for losses, found in in_loopback(schedule, {"D": 2, "N": 2}, lambda: Decoder(blocks=0), run, compile_stages=options):
        assert losses == pytest.approx(expected[: len(losses)], rel=1e-5)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0


def test_split_backwards_are_refused() -> None:
    with pytest.raises(ValueError, match="zb_v has split backwards, for which stages cannot be compiled"):
        in_loopback("zb_v", {"D": 2, "N": 3}, lambda: Decoder(blocks=2), lambda pipe: None, compile_stages=True)
