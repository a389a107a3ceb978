"""Measuring a model description: one forward with fake tensors, which have shapes and dtypes but no memory.

Fake tensors are meta tensors that remember the device they stand for: plain meta tensors would take the unfused path
through attention and count its (L, L) matrices, which the fused kernel never keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from chimera_ir.model import Layer, ModelDescription, Tensor
from models.draws import Draws, drawing
from models.model import Model, Values, build_layer

# torch counts every kernel of fused attention but the one for the CPU.
_CPU_ATTENTION: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def describe(model: Model, samples: int) -> ModelDescription:
    """Return the description of a model for micro-batches of `samples` samples.

    parameters, weight_bytes: of the layer's own parameters. kept_bytes: the storages that autograd saves in the layer's
    forward, each counted once, parameters left out; the input is among them where the layer's first operation saves it,
    the output where its last one does. The last layer's include the loss's. weight_kept_bytes: inputs and output
    gradients of the modules that own parameters, which is what their parameter products read (a normalization's
    row-wise statistics are left out). cost: the forward's multiplications and additions in matrix products and
    attention, and one operation for every number of the output, in thousands, rounded up.
    """
    layers: list[Layer] = []
    # Masks of dropout are kept too; which numbers they hold makes no difference.
    with FakeTensorMode(), drawing(Draws(0, 0, tuple(range(samples)))):
        values, targets = model.example(samples)
        for k, (name, _) in enumerate(model.layers):
            layer = build_layer(model, k, seed=0)
            # As in a stage of its own: the layer before it is not part of its graph.
            inputs = tuple(v.detach().requires_grad_(v.requires_grad) for v in values)
            last = k == len(model.layers) - 1
            description, values = _describe_layer(name, layer, inputs, model, targets if last else None)
            layers.append(description)
    return ModelDescription(model.name, samples, tuple(layers))


def _describe_layer(
    name: str, layer: nn.Module, inputs: Values, model: Model, targets: torch.Tensor | None
) -> tuple[Layer, Values]:
    saved: list[torch.Tensor] = []
    products: list[torch.Tensor] = []
    gradients: list[torch.Tensor] = []

    def save(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    def watch(_: nn.Module, arguments: tuple[Any, ...], output: Any) -> None:
        products.extend(t for t in arguments if isinstance(t, torch.Tensor))
        gradients.extend(output if isinstance(output, tuple) else (output,))

    for module in layer.modules():
        if any(True for _ in module.parameters(recurse=False)):
            module.register_forward_hook(watch)
    counter = FlopCounterMode(display=False, custom_mapping={_CPU_ATTENTION: _attention_flops})
    with counter, saved_tensors_hooks(save, lambda tensor: tensor):
        result = layer(*inputs)
        outputs: Values = result if isinstance(result, tuple) else (result,)
        if targets is not None:
            model.loss(outputs, targets)
    parameters = list(layer.parameters())
    operations = counter.get_total_flops() + sum(t.numel() for t in outputs)
    description = Layer(
        name=name,
        parameters=sum(p.numel() for p in parameters),
        weight_bytes=sum(p.numel() * p.element_size() for p in parameters),
        kept_bytes=_storage_bytes(saved, parameters),
        weight_kept_bytes=_storage_bytes(products, parameters) + sum(t.numel() * t.element_size() for t in gradients),
        boundary=tuple(Tensor(tuple(t.shape), _dtype(t), t.requires_grad) for t in outputs),
        cost=-(-operations // 1000),
    )
    return description, outputs


def _attention_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    flops: int = sdpa_flop_count(q, k, v)  # type: ignore[no-untyped-call]  # called with shapes
    return flops


def _storage_bytes(tensors: Iterable[torch.Tensor], without: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages behind these tensors."""
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}
    for t in without:
        storages.pop(t.untyped_storage()._cdata, None)
    return sum(storages.values())


def _dtype(tensor: torch.Tensor) -> Any:
    return str(tensor.dtype).removeprefix("torch.")
