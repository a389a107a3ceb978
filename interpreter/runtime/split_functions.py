"""The functions with parameters whose weight gradients a split backward defers (split.py).

For each of them there is an autograd function. Its backward computes the input gradient, if there is one, and leaves
DeferredGradients for the weight gradients. Under torch.autocast each half computes in the dtypes that torch itself would use.
Autograd casts the input gradient to the dtype of the input, and `_add` casts weight gradients to the dtype of their parameter.

DEFERRING has, for each function of torch, the function here that is called instead, such as `_linear`. It returns
NotImplemented where torch's own function has to run. In the autograd functions, g is the gradient of the output and gx that of
the input x.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

aten = torch.ops.aten


class DeferredGradients(NamedTuple):
    """Weight gradients that are still to be computed.

    Attributes:
        compute: a function of the tensors `reads`. It computes the gradients and adds them to those of the parameters.
        reads: what it needs, such as an input and the gradient of an output.
    """

    compute: Callable[..., None]
    reads: tuple[Tensor, ...]


def _can_defer(t: Any) -> bool:
    """Return whether this is a trained parameter whose gradient can be computed later.

    Being a leaf that requires a gradient is not enough: a stage's input is one too. A parameter with hooks is left to autograd,
    which calls the hooks. So is one of complex numbers.
    """
    if not isinstance(t, nn.Parameter) or not t.requires_grad or t.is_complex():
        return False
    return not t._backward_hooks and not t._post_accumulate_grad_hooks


def _is_constant(t: Tensor | None) -> bool:
    """Return whether an operand is absent or needs no gradient."""
    return t is None or not t.requires_grad


def _add(parameter: Tensor, gradient: Tensor) -> None:
    """Add to a parameter's gradient, as autograd does."""
    if parameter.grad is None:
        parameter.grad = gradient.to(parameter.dtype)
    else:
        parameter.grad += gradient


def _rows(t: Tensor) -> Tensor:
    """Return a tensor as a matrix: all dimensions but the last become one."""
    return t.reshape(-1, t.shape[-1])


def _no_view(t: Tensor) -> Tensor:
    """Return a tensor in a form that a layer may change in place. Autograd refuses this for views from custom functions."""
    result: Tensor = aten._unsafe_view(t, t.shape) if t._is_view() else t
    return result


def _product_operands(*operands: Tensor | None) -> tuple[Any, ...]:
    """Return the operands of a matrix product or a convolution as autocast casts them; without autocast as they are."""
    device = next(t.device.type for t in operands if t is not None)
    if not torch.is_autocast_enabled(device):
        return operands
    dtype = torch.get_autocast_dtype(device)
    is_cast = [t is not None and t.is_floating_point() and t.dtype != torch.float64 for t in operands]
    return tuple(t.to(dtype) if t is not None and cast else t for t, cast in zip(operands, is_cast, strict=True))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, deferred: list[DeferredGradients]) -> Tensor:
        ctx.weight, ctx.bias, ctx.deferred = weight, bias, deferred
        x, weight, bias = _product_operands(x, weight, bias)
        ctx.save_for_backward(x, weight)
        return _no_view(F.linear(x, weight, bias))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None]:
        x, weight = ctx.saved_tensors
        ctx.deferred.append(DeferredGradients(partial(_linear_weights, ctx.weight, ctx.bias), (x.detach(), g)))
        return (g.matmul(weight) if ctx.needs_input_grad[0] else None), None, None, None


def _linear_weights(weight: Tensor, bias: Tensor | None, x: Tensor, g: Tensor) -> None:
    rows = _rows(g)  # (n, out), where n is the product of the other dimensions
    if weight.requires_grad:
        _add(weight, rows.t().mm(_rows(x)))
    if bias is not None and bias.requires_grad:
        _add(bias, rows.sum(0))


def _linear(deferred: list[DeferredGradients], input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    if not _can_defer(weight) or weight.dim() != 2 or input.dim() < 2:
        return NotImplemented
    # A bias of another shape is left to torch, which broadcasts it.
    if bias is not None and not (bias.shape == weight.shape[:1] and (_is_constant(bias) or _can_defer(bias))):
        return NotImplemented
    return _Linear.apply(input, weight, bias, deferred)  # type: ignore[no-untyped-call]


class _Matmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, deferred: list[DeferredGradients]) -> Tensor:
        ctx.weight, ctx.deferred = weight, deferred
        x, weight = _product_operands(x, weight)
        ctx.save_for_backward(x, weight)
        return _no_view(x.matmul(weight))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        parameter = ctx.weight
        ctx.deferred.append(DeferredGradients(lambda x, g: _add(parameter, _rows(x).t().mm(_rows(g))), (x.detach(), g)))
        return (g.matmul(weight.t()) if ctx.needs_input_grad[0] else None), None, None


def _matmul(deferred: list[DeferredGradients], input: Any, other: Any, **options: Any) -> Any:
    if options or not isinstance(input, Tensor) or not _can_defer(other) or other.dim() != 2 or input.dim() < 2:
        return NotImplemented
    return _Matmul.apply(input, other, deferred)  # type: ignore[no-untyped-call]


def _mm(deferred: list[DeferredGradients], input: Tensor, mat2: Tensor, *arguments: Any, **options: Any) -> Any:
    if arguments or input.dim() != 2:
        return NotImplemented
    return _matmul(deferred, input, mat2, **options)


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, weight: Tensor, padding_idx: int, by_frequency: bool, deferred: list[DeferredGradients]
    ) -> Tensor:
        ctx.save_for_backward(ids, weight)
        ctx.options, ctx.deferred = (padding_idx, by_frequency), deferred
        return _no_view(torch.embedding(weight, ids, padding_idx, by_frequency))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, None, None, None, None]:
        ids, weight = ctx.saved_tensors
        ctx.deferred.append(DeferredGradients(partial(_embedding_weight, weight, ctx.options), (ids, g)))
        return None, None, None, None, None


def _embedding_weight(weight: Tensor, options: tuple[int, bool], ids: Tensor, g: Tensor) -> None:
    _add(weight, aten.embedding_dense_backward(g, ids, weight.shape[0], *options))


def _embedding(
    deferred: list[DeferredGradients],
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    rows = len(weight)
    if not _can_defer(weight) or max_norm is not None or sparse or not -rows <= (padding_idx or 0) < rows:
        return NotImplemented
    padding = -1 if padding_idx is None else padding_idx % rows
    return _Embedding.apply(input, weight, padding, scale_grad_by_freq, deferred)  # type: ignore[no-untyped-call]


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shape: list[int],
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        deferred: list[DeferredGradients],
    ) -> Tensor:
        y, mean, rstd = torch.native_layer_norm(x, shape, weight, bias, eps)
        # On GPUs autocast computes the norm of a 16-bit input in float32. So x is saved in the dtype of y.
        ctx.save_for_backward(x.to(y.dtype), mean, rstd)
        ctx.shape, ctx.weight, ctx.bias, ctx.deferred = shape, weight, bias, deferred
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        x, mean, rstd = (t.detach() for t in ctx.saved_tensors)
        weight, bias, gx = ctx.weight, ctx.bias, None
        ctx.deferred.append(DeferredGradients(partial(_layer_norm_weights, ctx.shape, weight, bias), (g, x, mean, rstd)))
        if ctx.needs_input_grad[0]:
            output_mask = [True, False, False]  # of x, weight and bias: only the gradient of x
            gx = aten.native_layer_norm_backward(g, x, ctx.shape, mean, rstd, weight, bias, output_mask)[0]
        return gx, None, None, None, None, None


def _layer_norm_weights(
    shape: list[int], weight: Tensor | None, bias: Tensor | None, g: Tensor, x: Tensor, mean: Tensor, rstd: Tensor
) -> None:
    is_trained = [t is not None and t.requires_grad for t in (weight, bias)]
    gradients = aten.native_layer_norm_backward(g, x, shape, mean, rstd, weight, bias, [False, *is_trained])
    for parameter, gradient, trained in zip((weight, bias), gradients[1:], is_trained, strict=True):
        if trained and parameter is not None:
            _add(parameter, gradient)


def _layer_norm(
    deferred: list[DeferredGradients],
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    trained = [t for t in (weight, bias) if not _is_constant(t)]
    if not trained or not all(map(_can_defer, trained)):
        return NotImplemented
    return _LayerNorm.apply(input, list(normalized_shape), weight, bias, eps, deferred)  # type: ignore[no-untyped-call]


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: list[int], weight: Tensor, eps: float | None, deferred: list[DeferredGradients]
    ) -> Tensor:
        dims = tuple(range(-len(shape), 0))
        square = _at_least_float32(x).square().mean(dims, keepdim=True)
        rrms = (square + (torch.finfo(square.dtype).eps if eps is None else eps)).rsqrt()  # 1 / (root mean square)
        ctx.save_for_backward(x, rrms, weight)
        ctx.dims, ctx.deferred = dims, deferred
        return _no_view(F.rms_norm(x, shape, weight, eps))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, rrms, weight = ctx.saved_tensors
        x, rrms, dims = x.detach(), rrms.detach(), ctx.dims
        sample_dims = tuple(range(g.dim() - len(dims)))  # all but those of the norm
        ctx.deferred.append(DeferredGradients(partial(_rms_norm_weight, weight, sample_dims), (x, rrms, g)))
        gx = None
        if ctx.needs_input_grad[0]:
            scaled, x = _at_least_float32(g) * weight, _at_least_float32(x)
            gx = rrms * (scaled - x * rrms.square() * (scaled * x).mean(dims, keepdim=True))
        return gx, None, None, None, None


def _at_least_float32(t: Tensor) -> Tensor:
    return t.float() if t.dtype.itemsize < 4 else t


def _rms_norm_weight(weight: Tensor, sample_dims: tuple[int, ...], x: Tensor, rrms: Tensor, g: Tensor) -> None:
    gradients = _at_least_float32(g) * _at_least_float32(x) * rrms  # before they are summed over sample_dims
    _add(weight, gradients.sum(sample_dims) if sample_dims else gradients)


def _rms_norm(
    deferred: list[DeferredGradients],
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    if not _can_defer(weight):
        return NotImplemented
    return _RMSNorm.apply(input, list(normalized_shape), weight, eps, deferred)  # type: ignore[no-untyped-call]


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, options: tuple[Any, ...], deferred: list[DeferredGradients]
    ) -> Tensor:
        ctx.weight, ctx.bias, ctx.options, ctx.deferred = weight, bias, options, deferred
        x, weight, bias = _product_operands(x, weight, bias)
        ctx.save_for_backward(x, weight)
        return _no_view(aten.convolution(x, weight, bias, *options))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        x, weight = ctx.saved_tensors
        x, gx = x.detach(), None
        options = (None if ctx.bias is None else list(ctx.bias.shape), *ctx.options)
        ctx.deferred.append(
            DeferredGradients(partial(_convolution_weights, ctx.weight, ctx.bias, weight.dtype, options), (g, x))
        )
        if ctx.needs_input_grad[0]:
            output_mask = [True, False, False]  # of x, weight and bias: only the gradient of x
            gx = aten.convolution_backward(g, x, weight, *options, output_mask)[0]
        return gx, None, None, None, None


def _convolution_weights(
    weight: Tensor, bias: Tensor | None, dtype: torch.dtype, options: tuple[Any, ...], g: Tensor, x: Tensor
) -> None:
    trains_bias = bias is not None and bias.requires_grad
    # convolution_backward needs the shape and the dtype of the weight, but does not read its values.
    shaped = weight if weight.dtype == dtype else torch.empty_like(weight, dtype=dtype)
    output_mask = [False, weight.requires_grad, trains_bias]  # of x, weight and bias
    _, weight_gradient, bias_gradient = aten.convolution_backward(g, x, shaped, *options, output_mask)
    if weight.requires_grad:
        _add(weight, weight_gradient)
    if bias is not None and trains_bias:
        _add(bias, bias_gradient)


def _convolution(dims: int) -> Callable[..., Any]:
    """Return the function for F.conv1d, F.conv2d or F.conv3d.

    Args:
        dims: 1, 2 or 3.
    """

    def convolution(
        deferred: list[DeferredGradients],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        if not _can_defer(weight) or not (_is_constant(bias) or _can_defer(bias)):
            return NotImplemented
        if isinstance(padding, str) or input.dim() != dims + 2:
            return NotImplemented
        # The arguments of aten.convolution after the bias: stride, padding, dilation, transposed, output padding, groups.
        lists = [list(x) if isinstance(x, Sequence) else [x] * dims for x in (stride, padding, dilation)]
        options = (*lists, False, [0] * dims, groups)
        return _Convolution.apply(input, weight, bias, options, deferred)  # type: ignore[no-untyped-call]

    return convolution


# By function of torch: what `Splitting` calls in its place.
DEFERRING: dict[Callable[..., Any], Callable[..., Any]] = {
    F.linear: _linear,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.conv1d: _convolution(1),
    F.conv2d: _convolution(2),
    F.conv3d: _convolution(3),
    torch.matmul: _matmul,
    Tensor.matmul: _matmul,
    Tensor.__matmul__: _matmul,
    torch.mm: _mm,
    Tensor.mm: _mm,
}
