"""The public API: layers, losses, arguments and batches that are refused with their reason."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import compile_schedule
from chimerac.interpreter import Pipeline
from chimerac.interpreter.errors import RankError
from tests.distributed.alone import Alone
from tests.helpers_classifier import CLASSES, SAMPLES, WIDTH, batch, net, on_all_ranks, pipeline

ROW, LINEAR = torch.zeros(1, 1), nn.Linear(1, 1)  # one sample with one feature; a layer that is in no model


class Branching(nn.Linear):
    """A layer whose forward depends on the values of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.max() > 0 else x


def test_a_layer_or_a_loss_that_reads_values_is_named() -> None:
    program = compile_schedule("gpipe", {"D": 1, "N": 2}).program
    model = net()
    model.first = Branching(WIDTH, WIDTH)
    with pytest.raises(ValueError, match=r"the layer 'first' reads the values of a tensor \(aten\..*torch.where"):
        on_all_ranks(program, lambda pipe: None, model=model)
    with pytest.raises(ValueError, match="the loss reads the values of a tensor"):
        on_all_ranks(
            program,
            lambda pipe: None,
            loss=lambda y, t: F.cross_entropy(y[t > 0], t[t > 0]),
            targets=torch.zeros(SAMPLES, dtype=torch.int64),
        )


class Returns(nn.Module):
    """Returns what `convert` makes of the output of a linear layer."""

    def __init__(self, convert: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear, self.convert = nn.Linear(WIDTH, WIDTH), convert

    def forward(self, x: Tensor) -> Any:
        return self.convert(self.linear(x))


@pytest.mark.parametrize(
    ("convert", "found"),
    [
        (lambda y: [y, y], "a value of type list"),
        (lambda y: None, "a value of type NoneType"),
        (lambda y: {"y": y}, "a value of type dict"),
        (lambda y: (y, None), "a tuple with a value of type NoneType"),
    ],
)
def test_a_layer_that_returns_neither_a_tensor_nor_a_tuple_of_tensors_is_named(
    convert: Callable[[Tensor], Any], found: str
) -> None:
    layers = [Returns(convert), nn.Linear(WIDTH, CLASSES)]
    with pytest.raises(TypeError, match=f"the layer Returns returns {found}: a layer returns a tensor or a tuple of tensors"):
        Pipeline(layers, "gpipe", {"D": 1}, loss=F.cross_entropy, inputs=torch.zeros(SAMPLES, WIDTH), transport=Alone())


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda y, t: F.cross_entropy(y, t, reduction="none"), r"the loss returns a tensor of shape \[3\]: it has to"),
        (lambda y, t: 1.0, "the loss returns a value of type float: it has to return a tensor"),
        (lambda y, t: None, "the loss returns a value of type NoneType: it has to return a tensor"),
        (lambda y, t: [F.cross_entropy(y, t), 0.0], "the loss returns a value of type float: it has to return a tensor"),
    ],
)
def test_a_loss_that_returns_no_tensor_with_one_number_is_named(loss: Callable[..., Any], message: str) -> None:
    pipe = pipeline("gpipe", Alone(), parameters={"D": 1, "N": 2}, loss=loss)
    with pytest.raises(RankError, match=f"FWD main s0 m0: {message}"):
        pipe.step(*batch(SAMPLES * 2))
    # With targets, the loss is called when the pipeline is created.
    with pytest.raises((TypeError, ValueError), match=message):
        pipeline("gpipe", Alone(), parameters={"D": 1, "N": 2}, loss=loss, targets=batch(SAMPLES)[1])


def test_a_loss_of_one_element_is_a_number() -> None:
    (x, y), parameters = batch(SAMPLES * 2), {"D": 1, "N": 2}
    pipe = pipeline("gpipe", Alone(), parameters=parameters, loss=lambda y, t: F.cross_entropy(y, t).view(1))
    assert pipe.step(x, y) == pytest.approx(float(F.cross_entropy(net()(x), y).detach()), rel=1e-5)


def split_into(counts: Sequence[int]) -> Callable[[], object]:
    """Return a function that creates a pipeline whose stages have these numbers of layers."""
    return lambda: pipeline("1f1b", Alone(), parameters={"D": 1, "N": 2}, split=counts)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pipeline("1f1", Alone()), ChimeraError, "did you mean '1f1b'"),
        (lambda: pipeline("1f1b", Alone(), parameters={"D": 2, "N": 2}), ChimeraError, "E800: 2 ranks are needed, and"),
        (lambda: pipeline("1f1b", Alone(), parameters={"N": 2, "X": 1}), ChimeraError, "has no parameter 'X'"),
        (split_into([3, 5]), ChimeraError, "E708: split 3,5 is for 2 stages, and the program has 1"),
        (split_into([7]), ChimeraError, "E708: split 7 has 7 layers, and Net has 8"),
        (lambda: pipeline("1f1b", Alone(), inputs=[]), ValueError, "no tensor in the inputs"),
        (lambda: pipeline("1f1b", Alone(), inputs=3), TypeError, "first dimension counts the samples, not int"),
        (lambda: pipeline("1f1b", Alone(), inputs=torch.tensor(3)), TypeError, "not a tensor without dimensions"),
        (lambda: Pipeline([], "1f1b", loss=F.mse_loss, inputs=ROW, transport=Alone()), ValueError, "no layer"),
        (lambda: Pipeline([3], "1f1b", loss=F.mse_loss, inputs=ROW, transport=Alone()), TypeError, "layer 0 has the type int"),
        (lambda: pipeline("1f1b", Alone(), net_layers=[LINEAR]), ValueError, "not a submodule of the model Net"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (None, torch.zeros(6).long(), "rank 0 has the first stage: give it the inputs"),
        (torch.zeros(6, WIDTH), None, "rank 0 has the last stage: give it the targets"),
        (torch.zeros(5, WIDTH), torch.zeros(6).long(), r"of shape \[5, 12\], and 2 micro-batches of 3 samples are .*\[6, 12\]"),
        (torch.zeros(6, WIDTH).double(), torch.zeros(6).long(), "float64"),
        (torch.zeros(6, WIDTH), torch.zeros(5).long(), "5 targets cannot be cut into 2 micro-batches"),
        ([torch.zeros(6, WIDTH)] * 2, torch.zeros(6).long(), "2 input tensors were given, and 1 when"),
    ],
)
def test_wrong_batches_are_named(inputs: Any, targets: Any, message: str) -> None:
    pipe = pipeline("1f1b", Alone(), parameters={"D": 1, "N": 2})
    with pytest.raises(ValueError, match=message):
        pipe.step(inputs, targets)
    with pytest.raises(ValueError, match="divisor is 0"):
        pipe.step(torch.zeros(6, WIDTH), torch.zeros(6).long(), divisor=0)
    assert pipe.step(torch.zeros(6, WIDTH), torch.zeros(6).long()) > 0, "a pipeline can be used after an error"
