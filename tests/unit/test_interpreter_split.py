"""Split backward: both halves give the gradients of a full backward, each computes its own products, and memory is freed."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from chimerac.interpreter.runtime import work
from chimerac.interpreter.runtime.split import Splitting
from tests.helpers_split import CASES, Attention, gradients_of_both, ids, sequence

Function = Callable[..., Tensor]


class Calls(nn.Module):
    """A module that calls a function with its input and its parameters.

    Args:
        shapes, dtype: of the parameters.
    """

    def __init__(self, function: Function, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.function = function
        self.own = nn.ParameterList(torch.randn(shape, dtype=dtype) for shape in shapes)

    def double(self) -> Calls:
        """Leave the parameters as they are: the constructor chose their dtype."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self.own)


def checkpointed(x: Tensor, *own: Tensor, use_reentrant: bool) -> Tensor:
    def part(x: Tensor) -> Tensor:
        y = F.layer_norm(F.linear(torch.tanh(x), own[0], own[1]), (8,), own[1], own[2])
        return torch.tanh(y) @ own[0]

    result: Tensor = checkpoint(part, x, use_reentrant=use_reentrant)
    return result


def with_hook(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Use the weight once and the bias twice, beside detached uses. The hooks of both change their gradients."""
    if not weight._backward_hooks:
        weight.register_hook(lambda g: 2 * g)
        bias.register_hook(lambda g: 3 * g)
    return F.linear(x, weight.detach(), bias) + F.linear(x, weight, bias.detach()) + F.layer_norm(x, (8,), None, bias)


def complex_product(x: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    return torch.view_as_real(F.linear(torch.complex(x, 2 * x), weight) @ other)


def constant(*shape: int) -> Tensor:
    """Return a matrix of fixed numbers."""
    return torch.linspace(-1, 1, shape[0] * shape[1], dtype=torch.float64).sin().view(shape)


PIXELS = torch.linspace(-1, 1, 2 * 3 * 9, dtype=torch.float64).view(2, 3, 9)
COMPLEX = torch.complex128

# Operations with their arguments by keyword, and unusual uses of operations. For some of these, torch itself has to compute the
# weight gradients. In "linear of bias", "layer norm of weight" and the like, the input of the module is the bias or the weight
# of the operation.
CALLS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear by keyword": (partial(Calls, lambda x, w, b: F.linear(input=x, weight=w, bias=b), (6, 8), (6,)), sequence),
    "linear with one output": (partial(Calls, lambda x, w: F.linear(x, w), (8,)), sequence),
    "linear with one bias": (partial(Calls, lambda x, w, b: F.linear(x, w, b), (6, 8), (1,)), sequence),
    "linear with a bias of rows": (partial(Calls, lambda x, w, b: F.linear(x, w, b), (6, 8), (3, 6)), sequence),
    "linear of bias": (partial(Calls, lambda x, w: F.linear(constant(4, 6), w, x), (8, 6)), lambda: sequence()[0, 0]),
    "matmul by keyword": (partial(Calls, lambda x, w: torch.matmul(input=x, other=w), (8, 5)), sequence),
    "method matmul by keyword": (partial(Calls, lambda x, w: x.matmul(other=w), (8, 5)), sequence),
    "mm by keyword": (partial(Calls, lambda x, w: torch.mm(input=x, mat2=w), (8, 5)), lambda: sequence()[0]),
    "mm with one keyword": (partial(Calls, lambda x, w: torch.mm(x, mat2=w), (8, 5)), lambda: sequence()[0]),
    "method mm by keyword": (partial(Calls, lambda x, w: x.mm(mat2=w), (8, 5)), lambda: sequence()[0]),
    "product of parameters": (partial(Calls, lambda x, v, w: x @ (v @ w) + x @ torch.mm(v, mat2=v), (8, 8), (8, 8)), sequence),
    "embedding by keyword": (
        partial(
            Calls,
            lambda x, w: F.embedding(
                input=x, weight=w, padding_idx=-1, max_norm=None, norm_type=1.0, scale_grad_by_freq=True, sparse=False
            ),
            (11, 8),
        ),
        ids,
    ),
    "layer norm by keyword": (
        partial(Calls, lambda x, w, b: F.layer_norm(input=x, normalized_shape=(8,), weight=w, bias=b, eps=0.1), (8,), (8,)),
        sequence,
    ),
    "layer norm of bias": (
        partial(Calls, lambda x, w: F.layer_norm(constant(4, 8), (8,), w, x), (8,)),
        lambda: sequence()[0, 0],
    ),
    "layer norm of weight": (
        partial(Calls, lambda x, b: F.layer_norm(constant(4, 8), (8,), x, b), (8,)),
        lambda: sequence()[0, 0],
    ),
    "rms norm by keyword": (
        partial(Calls, lambda x, w: F.rms_norm(input=x, normalized_shape=(3, 8), weight=w, eps=0.1), (3, 8)),
        sequence,
    ),
    "rms norm of one sample": (partial(Calls, lambda x, w: F.rms_norm(x, (3, 8), w), (3, 8)), lambda: sequence()[0]),
    "convolution by keyword": (
        partial(
            Calls,
            lambda x, w, b: F.conv1d(input=x, weight=w, bias=b, stride=2, padding=(1,), dilation=[2], groups=1),
            (4, 3, 3),
            (4,),
        ),
        lambda: torch.randn(2, 3, 9, dtype=torch.float64),
    ),
    "convolution of bias": (partial(Calls, lambda x, w: F.conv1d(PIXELS, w, x), (8, 3, 3)), lambda: sequence()[0, 0]),
    "checkpoint": (partial(Calls, partial(checkpointed, use_reentrant=False), (8, 8), (8,), (8,)), sequence),
    "reentrant checkpoint": (partial(Calls, partial(checkpointed, use_reentrant=True), (8, 8), (8,), (8,)), sequence),
    "hooks": (partial(Calls, with_hook, (8, 8), (8,)), sequence),
    "complex numbers": (partial(Calls, complex_product, (6, 8), (6, 5), dtype=COMPLEX), sequence),
    "vmap": (
        partial(Calls, lambda x, w, b: torch.func.vmap(lambda row: F.layer_norm(row @ w, (8,), b))(x), (8, 8), (8,)),
        sequence,
    ),
}


FLOAT_BYTES = 4  # of a float32
# If their input needs no gradient, torch computes no gradient in these modules at all.
WITHOUT_GRADIENTS_ON_A_FIRST_STAGE = {"frozen", "reentrant checkpoint"}


@pytest.mark.parametrize(
    ("name", "first"),
    [(name, first) for name in CASES | CALLS for first in (False, True)
     if not first or name not in WITHOUT_GRADIENTS_ON_A_FIRST_STAGE],
)  # fmt: skip
def test_the_halves_of_a_backward_give_the_gradients_of_autograd(name: str, first: bool) -> None:
    """first: the input needs no gradient, as on the first stage."""
    torch.manual_seed(0)
    make, draw = (CASES | CALLS)[name]
    module, x = make().double(), draw()
    x.requires_grad_(x.is_floating_point() and not first)
    for of_halves, expected in gradients_of_both(module, x):
        torch.testing.assert_close(of_halves, expected, rtol=1e-12, atol=1e-12)
        # The gradient has no graph: a graph would keep the tensors alive that it needs.
        assert of_halves is None or not of_halves.requires_grad


def flops(work: Callable[[], object]) -> int:
    """Return the floating-point operations in the matrix products of a call."""
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("first", [False, True], ids=["later stage", "first stage"])
def test_each_half_computes_its_own_matrix_products_and_nothing_twice(first: bool) -> None:
    module = nn.Sequential(nn.Linear(16, 64), nn.GELU(), Attention(64), nn.Linear(64, 16))
    x = torch.randn(8, 4, 16, requires_grad=not first)
    products = 2 * 8 * 4 * (16 * 64 + 64 * 192 + 64 * 64 + 64 * 16)  # multiply and add, per row and weight
    assert flops(lambda: module(x)) == products  # the counter does not count the fused attention of CPUs
    full = flops(module(x).sum().backward)
    split = Splitting()
    with split:
        y = module(x)
    of_inputs, of_weights = flops(y.sum().backward), flops(split.add_weight_gradients)
    assert of_inputs + of_weights == full
    assert of_weights == products
    # The input of a first stage has no gradient, so its first linear has no matrix product for it.
    assert of_inputs == products - (2 * 8 * 4 * 16 * 64 if first else 0)


def first_half(module: nn.Module, x: Tensor) -> tuple[Splitting, int]:
    """Run the forward and the first half of a backward.

    Return the Splitting, which has the deferred gradients, and the bytes of all tensors before the forward.
    """
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    before = bytes_of_all_tensors()
    split = Splitting()
    with split:
        y = module(x)
    y.backward(torch.ones_like(y))
    return split, before


def test_between_the_halves_only_the_operands_of_the_products_are_kept() -> None:
    width, rows = 64, 8 * 4
    module = nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 16))
    x = torch.randn(8, 4, 16, requires_grad=True)
    split, before = first_half(module, x)
    # Two linears read their inputs, 16 and `width` wide, and the gradients of their outputs, `width` and 16 wide.
    kept = rows * (16 + width + width + 16) * FLOAT_BYTES
    assert kept_bytes(split) == kept
    input_bytes = gradient_bytes = rows * 16 * FLOAT_BYTES
    # The input of the first linear is that of the stage, which is alive anyway. It now has a gradient of the same size.
    assert bytes_of_all_tensors() - before == kept - input_bytes + gradient_bytes
    split.add_weight_gradients()
    assert kept_bytes(split) == 0 and bytes_of_all_tensors() - before == gradient_bytes


def test_a_layer_norm_keeps_its_input_two_numbers_a_row_and_the_gradient_of_its_output() -> None:
    width, rows = 16, 8 * 4
    module, x = nn.LayerNorm(width), torch.randn(8, 4, width, requires_grad=True)
    split, before = first_half(module, x)
    mean_and_rstd = 2 * rows * FLOAT_BYTES
    input_bytes = input_gradient = output_gradient = rows * width * FLOAT_BYTES
    assert kept_bytes(split) == input_bytes + mean_and_rstd + output_gradient
    # The input is that of the stage, which is alive anyway. It now has a gradient.
    assert bytes_of_all_tensors() - before == mean_and_rstd + output_gradient + input_gradient
    split.add_weight_gradients()
    assert bytes_of_all_tensors() - before == input_gradient


def kept_bytes(split: Splitting) -> int:
    """Return the bytes that are kept for the weight gradients. Memory that several DeferredGradients read is counted once."""
    reads = [t for deferred in split.deferred for t in deferred.reads]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in reads}.values())


def bytes_of_all_tensors() -> int:
    """Return the bytes of all tensors that exist in Python, and of the gradients of those that are leaves.

    Tensors that only a graph of autograd keeps are not seen. Memory that several tensors share is counted once.
    """
    gc.collect()
    tensors = [o for o in gc.get_objects() if type(o) in (Tensor, nn.Parameter)]
    tensors += [t.grad for t in tensors if t.is_leaf and t.grad is not None]
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


@pytest.mark.parametrize("keeps_graph", [work._PYTHON_NODES_KEEP_GRAPH, False])
def test_the_graph_of_a_stage_that_ends_in_a_deferring_function_stays_when_its_output_is_freed(
    keeps_graph: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_PYTHON_NODES_KEEP_GRAPH", keeps_graph)  # False: as before torch 2.13
    layer, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    with Splitting() as splitting:
        y = layer(x)
    edge = work._edge(y)
    del y
    assert (edge.ownership_token is None) == keeps_graph, "before torch 2.13 nothing else keeps the graph"
    work._backward((edge,), (torch.ones(2, 4),))
    splitting.add_weight_gradients()
    assert x.grad is not None and x.grad.allclose(layer.weight.sum(dim=0).expand(2, 4))
    assert layer.weight.grad is not None and layer.weight.grad.allclose(x.sum(dim=0).expand(4, 4))
