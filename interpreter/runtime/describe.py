"""Measuring a model description: forwards and a backward with fake tensors, which have shapes and dtypes but no memory.

Fake tensors have a device, unlike plain meta tensors. So attention takes the fused kernel, as in a run. With meta tensors
it would take the unfused path and keep (L, L) matrices, which a run does not.

The layers run one after the other, as in one stage. So memory that several layers keep is found to be the same memory. It
is listed separately, with the layer that makes it, because a stage that begins after that layer receives it as its input.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeCopyMode, FakeTensor, FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from chimerac.chimera_ir.boundary import Tensor
from chimerac.chimera_ir.model import Layer, ModelDescription, Shared, TiedLayers
from chimerac.interpreter.runtime.draws import Draws, drawing
from chimerac.interpreter.runtime.model import Model, Stage, Values, combined
from chimerac.interpreter.runtime.split import Splitting

# torch counts every kernel of fused attention but the one for the CPU.
_CPU_ATTENTION: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

# The position of the weight among the arguments.
_WEIGHT_OF_NORM: dict[Any, int] = {torch.ops.aten.native_layer_norm.default: 2, torch.ops.aten.native_group_norm.default: 1}


def describe(model: Model, samples: int, device: torch.device | None = None) -> ModelDescription:
    """Return the description of a model for micro-batches of `samples` samples.

    device: where the layers are, by default the CPU. It matters with autocast: torch autocasts other functions on a GPU.
    kept_bytes: the storages that autograd saves in the layer's forward, each once, without weights and the layer's input.
    The last layer's include those of the loss. split_kept_bytes: the same where the backward is split; weight_kept_bytes:
    the storages that the split backward leaves for BWD_WEIGHT. Storages that several layers keep, or a layer that did not
    make them, are counted in `shared` instead. An output that no later layer reads is counted as if one did. cost: the
    forward's multiplications and additions in matrix products and attention, and one operation for every number of the
    output, in thousands, rounded up.
    """
    device = device or torch.device("cpu")
    # Dropout keeps its masks too, whatever their values. A layer may contain a module that was built before with real tensors.
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    norms = _MixedNorms()  # type: ignore[no-untyped-call]
    with mode, norms, drawing(Draws(0, 0, tuple(range(samples)))):
        stages = [model.build_stage(range(k, k + 1), seed=0) for k in range(len(model.layer_names))]
        stages = _without_memory(mode, stages)
        _move(stages, device)
        _check_fields(stages, model.example(samples).fields)
        whole = _Run(model, stages, samples, device, split=False)
        halves = _Run(model, stages, samples, device, split=True)
        kept, shared_kept = _by_layer(whole.saved, whole)
        split_kept, shared_split_kept = _by_layer(halves.saved, halves)
        weight_kept, shared_weight_kept = _by_layer([_reads(s) for s in halves.splittings], halves)
        layers = []
        for k, (name, stage) in enumerate(zip(model.layer_names, stages, strict=True)):
            parameters = list(stage.parameters())
            layers.append(
                Layer(
                    name=name,
                    parameters=sum(p.numel() for p in parameters),
                    weight_bytes=sum(t.nbytes for t in (*parameters, *stage.buffers())),
                    kept_bytes=kept[k],
                    weight_kept_bytes=weight_kept[k],
                    boundary=tuple(_boundary(t, k, whole, halves) for t in whole.outputs[k]),
                    cost=-(-(whole.operations[k] + sum(t.numel() for t in whole.outputs[k])) // 1000),
                    gradient_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
                    split_kept_bytes=split_kept[k],
                )
            )
    shared = [Shared(size, made, kept=by) for (made, by), size in shared_kept.items()]
    shared += [Shared(size, made, split_kept=by) for (made, by), size in shared_split_kept.items()]
    shared += [Shared(size, made, weight_kept=by) for (made, by), size in shared_weight_kept.items()]
    return ModelDescription(model.name, samples, tuple(layers), _tied(stages), tuple(shared))


def _without_memory(mode: FakeTensorMode, stages: list[Stage]) -> list[Stage]:
    """Return the stages, copied with fake tensors where they have real ones. Parameters that stages share stay shared."""
    if all(isinstance(t, FakeTensor) for stage in stages for t in (*stage.parameters(), *stage.buffers())):
        return stages
    with FakeCopyMode(mode):
        return copy.deepcopy(stages)


def _check_fields(stages: Sequence[Stage], fields: Iterable[str]) -> None:
    """Raise ValueError unless the layers read exactly the fields that there are."""
    known, read = set(fields), {name for stage in stages for name in stage.reads}
    if unread := sorted(known - read):
        raise ValueError(f"no layer reads the field {unread[0]}: a layer reads the fields that its forward names as parameters")
    if unknown := sorted(read - known):
        raise ValueError(f"a layer reads the field {unknown[0]}, and the fields are: {', '.join(sorted(known)) or 'none'}")


def _move(stages: Sequence[Stage], device: torch.device) -> None:
    """Move fake modules to a device. Parameters that modules share stay shared. (Module.to does not take fake tensors.)"""
    moved: dict[int, torch.Tensor] = {}
    for module in (m for stage in stages for m in stage.modules()):
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for tensors in tables:
            for name, t in tensors.items():
                if t is not None and t.device.type != device.type:
                    like = t.detach().to(device)
                    like = nn.Parameter(like, t.requires_grad) if isinstance(t, nn.Parameter) else like
                    tensors[name] = moved.setdefault(id(t), like)


class _MixedNorms(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives the statistics of norms on the CPU the type of the weight, as the kernels do. Fake ones have the input's type."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        place = _WEIGHT_OF_NORM.get(func)
        if place is None or args[0].device.type != "cpu" or args[place] is None or args[place].dtype == args[0].dtype:
            return result
        y, *statistics = result
        return (y, *(torch.empty_like(t, dtype=args[place].dtype) for t in statistics))


class _Run:
    """A forward through all layers, and with `split` a split backward; what was measured of each layer.

    outputs: of each layer; saved: what autograd saved; operations: multiplications and additions; made: the layer that made
    each storage that is in the output of a layer. The samples count as made by the first layer.
    """

    def __init__(self, model: Model, stages: Sequence[Stage], samples: int, device: torch.device, split: bool) -> None:
        self.outputs: list[Values] = []
        self.saved: list[list[torch.Tensor]] = [[] for _ in stages]
        self.operations: list[int] = []
        self.made: dict[int, int] = {}
        self.splittings = [Splitting() for _ in stages] if split else []
        weights = [t for stage in stages for t in (*stage.parameters(), *stage.buffers())]
        self.weights = {_storage(t) for t in weights}
        inputs, targets, fields = model.example(samples)
        values, fields = tuple(t.to(device) for t in inputs), {name: t.to(device) for name, t in fields.items()}
        targets = None if targets is None else tuple(t.to(device) for t in targets)
        self._samples = values, fields
        self._note(values, 0)
        with model.autocasting(device):
            for k, stage in enumerate(stages):
                counter = FlopCounterMode(display=False, custom_mapping={_CPU_ATTENTION: _attention_flops})
                with counter, saved_tensors_hooks(_noting(self.saved[k]), lambda tensor: tensor):
                    with self.splittings[k] if split else nullcontext():
                        values = stage(*values, **{name: fields[name] for name in stage.reads})
                    loss = self._loss(model, values, targets) if k == len(stages) - 1 else None
                self.operations.append(counter.get_total_flops())
                self.outputs.append(values)
                self._note(values, k)
        if split and loss is not None and loss.requires_grad:
            torch.autograd.backward(loss)

    @staticmethod
    def _loss(model: Model, outputs: Values, targets: Values | None) -> torch.Tensor | None:
        """Return the loss; where the targets are not known, a sum that has a gradient but keeps nothing."""
        if targets is not None:
            return combined(model.loss(outputs, targets), [1.0])
        sums = [t.sum() for t in outputs if t.requires_grad]
        return sum(sums[1:], start=sums[0]) if sums else None

    def _note(self, tensors: Values, layer: int) -> None:
        for t in tensors:
            self.made.setdefault(_storage(t), layer)


def _noting(saved: list[torch.Tensor]) -> Any:
    def save(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    return save


def _reads(splitting: Splitting) -> list[torch.Tensor]:
    return [t for product in splitting.products for t in product.reads]


def _by_layer(
    kept: Sequence[Sequence[torch.Tensor]], run: _Run
) -> tuple[list[int], dict[tuple[int | None, tuple[int, ...]], int]]:
    """Return the bytes of the storages that only the layer that makes them keeps, and of the others by (maker, keepers).

    kept: tensors by the layer that keeps them. Only outputs and gradients can be kept by several layers.
    """
    sizes: dict[int, int] = {}
    keepers: dict[int, list[int]] = {}
    for k, tensors in enumerate(kept):
        for storage, size in {_storage(t): t.untyped_storage().nbytes() for t in tensors}.items():
            if storage not in run.weights:
                sizes[storage] = size
                keepers.setdefault(storage, []).append(k)
    alone, shared = [0] * len(kept), dict[tuple[int | None, tuple[int, ...]], int]()
    for storage, layers in keepers.items():
        made = run.made.get(storage)
        if layers in ([made], [layers[0]]) and made in (None, layers[0]):
            alone[layers[0]] += sizes[storage]
        else:
            shared[made, tuple(layers)] = shared.get((made, tuple(layers)), 0) + sizes[storage]
    return alone, shared


def _boundary(tensor: torch.Tensor, layer: int, whole: _Run, halves: _Run) -> Tensor:
    number = [t is tensor for t in whole.outputs[layer]].index(True)
    other = _storage(halves.outputs[layer][number])
    reads = [_reads(s) for s in halves.splittings]
    kept = _storage(tensor) in map(_storage, _flat(whole.saved[: layer + 1])) or other in map(
        _storage, _flat([*halves.saved[: layer + 1], *reads[: layer + 1]])
    )
    return Tensor(tuple(tensor.shape), _dtype(tensor), tensor.requires_grad, kept)


def _flat(of: Iterable[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    return [t for tensors in of for t in tensors]


def _tied(stages: Sequence[Stage]) -> tuple[TiedLayers, ...]:
    """Return the parameters that several layers share: named in their stage's `ties`, or one object."""
    declared = {
        id(layer.get_parameter(path)): name
        for stage in stages
        for layer, ties in zip(stage.layers, stage.ties, strict=True)
        for name, path in ties.items()
    }
    found: dict[str | int, list[tuple[int, str, nn.Parameter]]] = {}
    for k, stage in enumerate(stages):
        for name, p in stage.parameters_by_name().items():
            found.setdefault(declared.get(id(p), id(p)), []).append((k, name, p))
    tied = []
    for key, uses in found.items():
        layers, (_, first_name, p) = tuple(dict.fromkeys(k for k, _, _ in uses)), uses[0]
        if len(layers) > 1:
            name = key if isinstance(key, str) else first_name
            tied.append(TiedLayers(name, layers, p.numel(), p.nbytes, p.nbytes if p.requires_grad else 0))
    return tuple(tied)


def _attention_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    flops: int = sdpa_flop_count(q, k, v)  # type: ignore[no-untyped-call]  # called with shapes
    return flops


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _dtype(tensor: torch.Tensor) -> Any:
    return str(tensor.dtype).removeprefix("torch.")
