"""The memory of a rank: outputs, gradients and sent buffers; what descriptions say of it; and the peak, as predicted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from chimerac.chimera_ir.machines import max_incomplete_sends
from chimerac.chimera_ir.partition import balanced
from chimerac.chimera_ir.program import Machine, Program
from chimerac.compiler import compile_schedule, evaluation_of
from chimerac.compiler.analyze.memory import memory
from chimerac.interpreter.data.pairs import Pairs
from chimerac.interpreter.data.text import Text
from chimerac.interpreter.runtime.batch import Batch
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.memory import in_own_memory
from chimerac.interpreter.runtime.model import Example, LayeredModel, Model, Values
from chimerac.interpreter.runtime.parameters import Gradients
from chimerac.interpreter.runtime.partitioned import PartitionedModel, partitioned
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.models.bert import bert
from chimerac.models.cnn import cnn
from chimerac.models.gpt import gpt
from chimerac.models.presets import Cnn, sizes_in
from tests.distributed.integers import IntegerSamples
from tests.distributed.programs import TWO_RANKS
from tests.helpers import program
from tests.helpers_layers import (
    BYTES,
    WIDTH,
    EndsInLinear,
    EndsInRelu,
    HalfView,
    Last,
    Narrowing,
    TiedFirst,
    TiedLast,
    Widening,
    model_of_layers,
)
from tests.helpers_loopback import stages_of
from tests.helpers_memory import Meter, measured, weights_and_gradients
from tools.shown_models import RandomImages


def storage_of(t: Tensor) -> int:
    """Return a number that is equal for tensors with the same storage."""
    return int(t.untyped_storage()._cdata)


def test_an_output_is_in_memory_of_its_own_and_of_its_size() -> None:
    whole, x = torch.arange(6.0).requires_grad_() * 1, torch.ones(2, 3)
    given = (whole, whole, whole[:2], x, x.t(), torch.ones(3).expand(2, 3), torch.zeros(0))
    found = in_own_memory(given, kept=[False] * 7, others=[x])
    assert all(f.equal(g) and f.is_contiguous() and not f.requires_grad for f, g in zip(found, given, strict=True))
    assert all(f.untyped_storage().nbytes() == f.nbytes for f in found)
    assert len({storage_of(t) for t in (*found, x)}) == 8
    assert storage_of(found[0]) == storage_of(whole), "the first tensor that fills its storage is not copied"
    assert storage_of(in_own_memory([whole], kept=[True])[0]) != storage_of(whole), "unless the graph keeps its storage"


def test_gradients_of_a_dtype_are_in_one_tensor() -> None:
    a, b, c = (nn.Parameter(torch.ones(2, 3, dtype=dtype)) for dtype in (torch.float32, torch.float64, torch.float32))
    frozen = nn.Parameter(torch.ones(7), requires_grad=False)
    gradients = Gradients([a, b, frozen, c], torch.device("cpu"))
    assert [(tensor.dtype, tensor.numel()) for tensor in gradients.flat] == [(torch.float32, 12), (torch.float64, 6)]
    places = []
    for _ in range(2):
        gradients.begin()
        torch.autograd.backward((a * 2).sum() + (b * 3).sum() + (c * 4).sum())
        assert gradients.flat[0].tolist() == [2] * 6 + [4] * 6 and gradients.flat[1].tolist() == [3] * 6
        places.append([p.grad.data_ptr() for p in (a, b, c) if p.grad is not None])
        a.grad = b.grad = c.grad = None
    assert places[0] == places[1] and frozen.grad is None
    assert [tensor.numel() for tensor in Gradients([frozen], torch.device("cpu")).flat] == [0]


def test_a_complete_gradient_stays_only_on_the_first_holder() -> None:
    parameters = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    first, second = (Gradients([p], torch.device("cpu"), is_first=k == 0) for k, p in enumerate(parameters))
    for gradients, p in zip((first, second), parameters, strict=True):
        p.grad = torch.full((2,), 7.0)
        gradients.begin()
    assert first.flat[0].tolist() == [7, 7] and second.flat[0].tolist() == [0, 0]
    for gradients, p in zip((first, second), parameters, strict=True):
        assert p.grad is not None
        p.grad.fill_(5.0)
        gradients.begin(are_complete=False)  # the gradient is that of this rank alone, and stays until the ALLREDUCE
        assert gradients.flat[0].tolist() == [5, 5]


@pytest.mark.parametrize(
    ("machine", "window", "held"),  # held: how many sent buffers are in memory after each of three sends
    [
        ("window", 0, [0, 0, 0]),
        ("window", 1, [1, 1, 1]),
        ("window", 2, [1, 2, 2]),
        ("paired", 2, [1, 2, 2]),
        ("rendezvous", 2, [0, 0, 0]),
        ("posted", 1, [1, 2, 3]),
    ],
)
def test_a_sent_buffer_is_held_until_its_send_is_known_to_be_complete(machine: Machine, window: int, held: list[int]) -> None:
    p = TWO_RANKS["1f1b"].with_header(window=window, machine=machine)
    assert max_incomplete_sends(machine, window) == {"rendezvous": 0, "posted": None}.get(machine, window)
    held_after, sent = [], list[StorageWeakRef]()

    def send(transport: Transport) -> None:
        for n in range(3):
            buffer = torch.ones(n + 1)
            sent.append(StorageWeakRef(buffer.untyped_storage()))
            transport.send(1, buffer)
            del buffer
            held_after.append(sum(not storage.expired() for storage in sent))
        transport.flush()
        held_after.append(sum(not storage.expired() for storage in sent))

    def run_rank(transport: Transport) -> None:
        if transport.rank == 0:
            send(transport)
        else:
            buffers = [torch.empty(n + 1) for n in range(3)]
            for buffer in buffers:
                transport.recv(0, buffer).wait()

    run_in_loopback(p, run_rank)
    assert held_after == [*held, 0]


def model(*layers: Callable[[], nn.Module]) -> Model:
    return model_of_layers("few", layers)


class ReadsMask(nn.Module):
    """Returns x times the mask, and the mask itself."""

    def forward(self, x: Tensor, mask: Tensor) -> Values:
        return x * mask, mask


def test_a_description_lists_separately_what_layers_share() -> None:
    found = describe(model(TiedFirst, EndsInRelu, ReadsMask, ReadsMask, HalfView, Widening, Narrowing, TiedLast), samples=2)
    mask_bytes = 2 * 2 * 8  # two samples of two positions, eight bytes for each position
    like_mask = [x for x in found.shared if x.made == 0 and x.bytes == mask_bytes]
    assert (2, 3, 7) in [x.kept for x in like_mask], "the first layer makes the mask, and three layers keep it"
    kept = [[t.kept for t in layer.boundary] for layer in found.layers]  # by layer, then by tensor of its output
    assert kept[0] == [False, False] and kept[1] == [True, False], "a ReLU keeps its own output"
    assert kept[2][1] and kept[5][2], "the mask that a ReadsMask keeps, and the output of an exponential"
    assert found.tied[0].layers == (0, 7) and found.tied[0].weight_bytes == BYTES * WIDTH * 4
    eight_stages, one_stage = (found.stage_sums(balanced(found, stages).layers) for stages in (8, 1))
    assert sum(s.kept_bytes for s in eight_stages) < one_stage[0].kept_bytes, "a stage counts nothing that an earlier one made"


class FailsWithoutAutograd(nn.Linear):
    """Fails without autograd: with the error text `message`; if that is empty, because it registers a hook."""

    message = ""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.message and not torch.is_grad_enabled():
            raise RuntimeError(self.message)
        y = super().forward(x)
        if not self.message:
            y.register_hook(lambda gradient: gradient)
        return y


def test_only_a_layer_that_needs_autograd_may_fail_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = tuple((f"layer {k}", FailsWithoutAutograd) for k in range(2))
    failing = LayeredModel(
        name="failing",
        layers=layers,
        loss=lambda outputs, _: (outputs[0].sum(),),
        example=lambda b: Example((torch.zeros(b, 8),), None),
    )
    described = describe(failing, samples=2)
    assert described.layers[0].peaks.no_graph == described.layers[0].peaks.forward, "measured with autograd instead"
    monkeypatch.setattr(FailsWithoutAutograd, "message", "not enough memory")
    with pytest.raises(RuntimeError, match="not enough memory"):
        describe(failing, samples=2)


def test_a_layer_gets_contiguous_tensors_from_the_layer_before_it() -> None:
    """Narrowing returns a transposed tensor. EndsInLinear gets a contiguous one, so EndsInLinear keeps no copy."""
    narrowed = describe(model(TiedFirst, Narrowing, EndsInLinear, Last), samples=2)
    other = describe(model(TiedFirst, EndsInLinear, EndsInLinear, Last), samples=2)
    assert narrowed.layers[2].kept_bytes == other.layers[2].kept_bytes


def executor_of(p: Program, model: Model, parts: PartitionedModel, transport: Transport) -> Executor:
    """Return the executor of a rank, with the stages that it holds."""
    transport.connect(p)
    return Executor(p, model, stages_of(p, parts, transport.rank, seed=0), parts.boundary_table, transport)


def peaks(name: str, depth: int, micro_batches: int) -> list[int]:
    """Return for each rank the most bytes that it holds after an instruction, without weights, gradients and losses."""
    p = compile_schedule(name, {"D": depth, "N": micro_batches}).program
    model, length, samples = gpt("gpt-nano", sequence_length=8), 8, 2
    description, seen = describe(model, samples), dict[int, StorageWeakRef]()
    parts = partitioned(p, model, description)

    def rank(transport: Transport) -> int:
        executor = executor_of(p, model, parts, transport)
        with Meter(seen) as meter:
            batch = Batch(IntegerSamples(length), 0, number=0, replica=0, width=1, micro_batches=micro_batches, size=samples)
            return max(measured(executor, batch, meter))

    return run_in_loopback(p, rank, seed=2)


class PeakMeter(Meter):
    """Records the most bytes that are held after an operation of torch.

    Args:
        without: tensors that do not count.
    """

    def __init__(self, seen: dict[int, StorageWeakRef], without: Sequence[Tensor]) -> None:
        super().__init__(seen)
        self.without, self.peak = without, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.peak = max(self.peak, self.bytes(self.without))
        return result


LENGTH, SAMPLES = 16, 2  # tokens of a sample; samples of a micro-batch
MODELS = {  # each with a function that makes its samples
    "gpt": (gpt("gpt-nano", LENGTH), lambda: IntegerSamples(LENGTH)),
    "bert": (bert("bert-nano", LENGTH), lambda: Pairs(Text([np.arange(4000, dtype=np.uint8)]), LENGTH, seed=1)),
    "cnn": (cnn("cnn-digits"), lambda: RandomImages(sizes_in(Cnn, "cnn-digits"))),
    "autocast": (replace(gpt("gpt-nano", LENGTH), autocast=torch.bfloat16), lambda: IntegerSamples(LENGTH)),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *(("gpt", x) for x in ("1f1b", "zb_h1", "recompute all", "evaluation")),
        *((name, x) for name in ("bert", "cnn") for x in ("1f1b", "zb_h1")),
        ("autocast", "1f1b"),
    ],
)
def test_the_peak_within_an_instruction_is_predicted(name: str, case: str) -> None:
    """case: a schedule; or "recompute all" or "evaluation", which are other programs of 1f1b."""
    model, samples = MODELS[name]
    if case == "recompute all":
        p = compile_schedule("1f1b", {"D": 2, "N": 3}, recompute=(0, 1)).program
    elif case == "evaluation":
        p = evaluation_of(program("1f1b", D=2, N=4))
    else:
        p = program(case, D=2, N=4)
    description, seen = describe(model, SAMPLES), dict[int, StorageWeakRef]()
    parts = partitioned(p, model, description)

    def rank(transport: Transport) -> int:
        executor = executor_of(p, model, parts, transport)
        batch = Batch(samples(), 0, number=0, replica=0, width=1, micro_batches=p.header.micro_batches, size=SAMPLES)
        executor.run(batch)  # so that the gradients are there
        weights, gradients = weights_and_gradients(executor)
        with PeakMeter(seen, [*weights, *gradients]) as meter:
            executor.run(batch)
            return meter.peak

    for found, predicted in zip(run_in_loopback(p, rank, seed=2), memory(p, description), strict=True):
        expected = predicted.peak - predicted.weights - predicted.gradients
        # Recorded: 0.95 of the prediction on the last rank of an evaluation, and 0.99 to 1.004 otherwise.
        assert 0.94 * expected <= found <= 1.01 * expected, (found, expected, predicted)


def test_1f1b_and_chimera_hold_no_more_if_there_are_more_micro_batches_unlike_gpipe() -> None:
    for name in ("1f1b", "chimera"):
        assert peaks(name, depth=4, micro_batches=8) == peaks(name, depth=4, micro_batches=32), name
    few, many = (max(peaks("gpipe", depth=4, micro_batches=n)) for n in (8, 32))
    assert many > 3 * few, "GPipe holds all of its micro-batches"
