"""Measuring a model description: forwards and backwards with fake tensors, which have shapes and dtypes but no memory.

Fake tensors have the device of a run, and plain meta tensors have the device `meta`. So with fake tensors attention uses the
fused kernel, as in a run. With meta tensors it would use the unfused path and keep (L, L) matrices, which a run does not keep.

The layers run one after the other, as in one stage. This shows which storages several layers keep, and which a layer keeps
that an earlier one made. Such a storage is listed separately, with the layer that made it if one did: a stage that begins after
that layer receives the storage in its input. Then each layer also runs alone, which shows the most that it holds at one moment.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeCopyMode,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from chimerac.chimera_ir.boundary import Tensor
from chimerac.chimera_ir.model import Layer, ModelDescription, Shared, TiedLayers
from chimerac.chimera_ir.preset import COST_UNIT
from chimerac.interpreter.runtime.draws import Draws, drawing
from chimerac.interpreter.runtime.memory import storage_address
from chimerac.interpreter.runtime.model import Model, Stage, Values, combined
from chimerac.interpreter.runtime.peaks import HeldBytes, LayerRun
from chimerac.interpreter.runtime.split import Splitting

# torch counts the operations of the kernels of fused attention for CUDA, but not those of the one for the CPU.
_CPU_ATTENTION: Any = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

# By the operation of a norm, the index of the weight among its arguments.
_WEIGHT_OF_NORM: dict[Any, int] = {torch.ops.aten.native_layer_norm.default: 2, torch.ops.aten.native_group_norm.default: 1}


def describe(model: Model, samples: int, device: torch.device | None = None, cost_unit: int = COST_UNIT) -> ModelDescription:
    """Return the description of a model: the first result of `described`, which explains the arguments."""
    return described(model, samples, device, cost_unit)[0]


def first_boundary(model: Model, samples: int) -> tuple[Tensor, ...]:
    """Return the tensors that the first layer passes on for a micro-batch of `samples` samples. Their `kept` is always False.

    The forward of this layer runs on real tensors. `describe` would run the whole model with fake tensors. When these are first
    used, torch imports further modules, which takes 1.5 s.
    """
    example = model.example(samples)
    with drawing(Draws(0, 0, range(samples))), model.autocasting(torch.device("cpu")):
        stage = model.build_stage(range(1), seed=0)
        outputs = stage(*example.inputs, **{name: example.fields[name] for name in stage.reads})
    return tuple(Tensor(tuple(t.shape), _dtype(t), t.requires_grad) for t in outputs)


def described(
    model: Model, samples: int, device: torch.device | None = None, cost_unit: int = COST_UNIT
) -> tuple[ModelDescription, list[HeldBytes]]:
    """Return the description of a model for micro-batches of `samples` samples, and what each layer holds while it runs.

    Args:
        device: where the layers are; by default the CPU. It matters, for instance with autocast: torch autocasts other
            functions on GPUs than on CPUs.

    Of each layer the description has
    - kept_bytes: the storages that autograd saves in its forward, each once, without weights. The model's inputs count as
      made by the first layer. The last layer's storages include those of the loss.
    - split_kept_bytes: the same where the backward is split.
    - weight_kept_bytes: the storages that the split backward leaves for BWD_WEIGHT.
    - cost: the multiplications and additions of the forward in matrix products, convolutions and attention, and one operation
      for each number of the output; in units of `cost_unit`, rounded up. That of the last layer includes the loss.
    - peaks: the most that each kind of run of the layer holds at one moment, if the layer runs alone.
    Storages that several layers keep, or that a layer keeps and an earlier one made, are counted in `shared` instead. What
    autograd saves for an output counts, also if no later layer reads that output.

    Raises ValueError for a layer or a loss that reads the values of a tensor, and unless the layers read exactly the fields of
    the model's example.
    """
    device = device or torch.device("cpu")
    mode = FakeTensorMode(allow_non_fake_inputs=True)  # the example, the loss and layers may have real tensors
    norms = _MixedNorms()  # type: ignore[no-untyped-call]
    # Any draws will do: a dropout keeps a mask of the same size for all.
    with mode, norms, drawing(Draws(seed=0, iteration=0, samples=range(samples))):
        stages = _without_memory(mode, [model.build_stage(range(k, k + 1), seed=0) for k in range(len(model.layer_names))])
        _move(stages, device)
        _check_fields(stages, model.example(samples).fields)
        full = _Run(model, stages, samples, device, split=False)
        split = _Run(model, stages, samples, device, split=True)
        kept, shared_kept = _by_layer(full.saved, full)
        split_kept, shared_split_kept = _by_layer(split.saved, split)
        weight_kept, shared_weight_kept = _by_layer(split.deferred, split)
        held, layers = [], []
        for k, name in enumerate(model.layer_names):
            with _reading_no_values(f"the layer '{name}'"):
                held.append(full.layer_alone(model, stages, k, device).held())
        for k, (name, stage) in enumerate(zip(model.layer_names, stages, strict=True)):
            parameters = list(stage.parameters())
            layers.append(
                Layer(
                    name=name,
                    parameters=sum(p.numel() for p in parameters),
                    weight_bytes=sum(t.nbytes for t in (*parameters, *stage.buffers())),
                    kept_bytes=kept[k],
                    weight_kept_bytes=weight_kept[k],
                    boundary=tuple(_boundary(k, number, full, split) for number in range(len(full.outputs[k]))),
                    cost=-(-(full.operations[k] + sum(t.numel() for t in full.outputs[k])) // cost_unit),
                    gradient_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
                    split_kept_bytes=split_kept[k],
                    peaks=held[k].peaks(),
                )
            )
    shared = [Shared(size, maker, kept=keepers) for (maker, keepers), size in shared_kept.items()]
    shared += [Shared(size, maker, split_kept=keepers) for (maker, keepers), size in shared_split_kept.items()]
    shared += [Shared(size, maker, weight_kept=keepers) for (maker, keepers), size in shared_weight_kept.items()]
    return ModelDescription(model.name, samples, tuple(layers), _tied(stages), tuple(shared)), held


def _without_memory(mode: FakeTensorMode, stages: list[Stage]) -> list[Stage]:
    """Return the stages if all their parameters and buffers are fake, else copies with fake ones. Shared ones stay shared."""
    if all(isinstance(t, FakeTensor) for stage in stages for t in (*stage.parameters(), *stage.buffers())):
        return stages
    with FakeCopyMode(mode):
        return copy.deepcopy(stages)


def _check_fields(stages: Sequence[Stage], fields: Iterable[str]) -> None:
    """Raise ValueError unless the layers read exactly these fields."""
    known, read = set(fields), {name for stage in stages for name in stage.reads}
    if unread := sorted(known - read):
        raise ValueError(f"no layer reads the field {unread[0]}: a layer reads the fields that its forward names as parameters")
    if unknown := sorted(read - known):
        raise ValueError(f"a layer reads the field {unknown[0]}, and the fields are: {', '.join(sorted(known)) or 'none'}")


def _move(stages: Sequence[Stage], device: torch.device) -> None:
    """Move stages with fake tensors to a device. Parameters that stages share stay shared. Module.to fails for fake tensors."""
    moved: dict[int, torch.Tensor] = {}
    for module in (submodule for stage in stages for submodule in stage.modules()):
        tables: list[dict[str, Any]] = [module._parameters, module._buffers]
        for tensors in tables:
            for name, t in tensors.items():
                if t is not None and t.device.type != device.type:
                    moved_t = t.detach().to(device)
                    if isinstance(t, nn.Parameter):
                        moved_t = nn.Parameter(moved_t, t.requires_grad)
                    tensors[name] = moved.setdefault(id(t), moved_t)


class _MixedNorms(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives the statistics of layer and group norms on the CPU the dtype of the weight, as the real kernels do.

    The fake kernels give them the dtype of the input.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        index = _WEIGHT_OF_NORM.get(func)
        weight = None if index is None else args[index]
        if weight is None or args[0].device.type != "cpu" or weight.dtype == args[0].dtype:
            return result
        y, *statistics = result
        return (y, *(torch.empty_like(t, dtype=weight.dtype) for t in statistics))


class _NoTracker:
    """Replaces the tracker with which torch counts operations by module. With this class, torch counts them all together.

    torch's tracker fails for a forward that computes gradients with respect to its input (torch.autograd.grad).
    """

    parents = frozenset({"Global"})  # the name under which torch counts the operations of all modules

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


class _Run:
    """A forward through all layers, and with `split` the first half of a split backward; what was measured of each layer.

    Attributes:
        inputs, outputs: of each layer.
        fields, targets: of the samples.
        saved: the tensors that autograd saved in each layer.
        deferred: the tensors that each layer left for BWD_WEIGHT; none without `split`.
        operations: multiplications and additions in the forward of each layer.
        makers: by the storage of an output, the layer that has made it; the model's inputs count as made by the first layer.
        weights: the storages of parameters and buffers.
    """

    def __init__(self, model: Model, stages: Sequence[Stage], samples: int, device: torch.device, split: bool) -> None:
        self.inputs: list[Values] = []
        self.outputs: list[Values] = []
        self.saved: list[list[torch.Tensor]] = [[] for _ in stages]
        self.operations: list[int] = []
        self.makers: dict[int, int] = {}
        splittings = [Splitting() if split else None for _ in stages]
        weights = [t for stage in stages for t in (*stage.parameters(), *stage.buffers())]
        self.weights = {storage_address(t) for t in weights}
        inputs, targets, fields = model.example(samples)
        values, fields = _faked(inputs, device), {name: _faked([t], device)[0] for name, t in fields.items()}
        targets = None if targets is None else _faked(targets, device)
        self.fields, self.targets = fields, targets  # kept, so that no other tensor gets the address of their storage
        self._record_maker(values, 0)
        with model.autocasting(device):
            for k, stage in enumerate(stages):
                self.inputs.append(values)
                counter = FlopCounterMode(display=False, custom_mapping={_CPU_ATTENTION: _attention_flops})
                counter.mod_tracker = _NoTracker()  # type: ignore[assignment]
                with counter, saved_tensors_hooks(_recorder(self.saved[k]), lambda tensor: tensor):
                    with splittings[k] or nullcontext(), _reading_no_values(f"the layer '{model.layer_names[k]}'"):
                        values = stage(*values, **{name: fields[name] for name in stage.reads})
                    with _reading_no_values("the loss"):
                        loss = self._loss(model, values, targets) if k == len(stages) - 1 else None
                self.operations.append(counter.get_total_flops())
                self.outputs.append(values)
                self._record_maker(values, k)
        if split and loss is not None and loss.requires_grad:
            torch.autograd.backward(loss)
        self.deferred = [[t for gradients in s.deferred for t in gradients.reads] if s else [] for s in splittings]

    def layer_alone(self, model: Model, stages: Sequence[Stage], layer: int, device: torch.device) -> LayerRun:
        """Return a run of one layer, on the input that it had."""
        targets = self.targets if layer == len(stages) - 1 else None
        return LayerRun(model, stages[layer], self.inputs[layer], self.fields, targets, device)

    @staticmethod
    def _loss(model: Model, outputs: Values, targets: Values | None) -> torch.Tensor | None:
        """Return the loss. If the targets are not known, return a sum that has a gradient but saves no tensor.

        None: the targets are not known, and no output has a gradient.
        """
        if targets is not None:
            return combined(model.loss(outputs, targets), [1.0])
        sums = [t.sum() for t in outputs if t.requires_grad]
        return sum(sums[1:], start=sums[0]) if sums else None

    def _record_maker(self, tensors: Values, layer: int) -> None:
        for t in tensors:
            self.makers.setdefault(storage_address(t), layer)


def _faked(tensors: Iterable[torch.Tensor], device: torch.device) -> Values:
    """Return fake tensors of the same shapes and dtypes, with a gradient where `tensors` have one.

    Called inside the FakeTensorMode. `tensors` may be real ones.
    """
    return tuple(torch.empty_like(t, device=device, requires_grad=t.requires_grad) for t in tensors)


@contextmanager
def _reading_no_values(function: str) -> Iterator[None]:
    """Replace torch's errors for operations that need the values of a fake tensor by a ValueError.

    Args:
        function: what runs in the context, for the message, such as "the loss".
    """
    try:
        yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise ValueError(
            f"{function} reads the values of a tensor ({error.func}), but a model is measured with tensors that have a shape "
            "and no values: replace .item(), conditions on tensors and masked selection by operations such as torch.where"
        ) from error


def _recorder(saved: list[torch.Tensor]) -> Any:
    """Return a hook that autograd calls for each tensor that it saves. The hook also appends the tensor to `saved`."""

    def save(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    return save


def _by_layer(
    kept: Sequence[Sequence[torch.Tensor]], run: _Run
) -> tuple[list[int], dict[tuple[int | None, tuple[int, ...]], int]]:
    """Return the bytes of storages: by layer, those that it alone keeps and no other layer made; by (maker, keepers), the rest.

    Args:
        kept: for each layer, the tensors that it keeps.

    The maker is None for a storage that is neither in a layer's output nor in the model's inputs. Weights do not count.
    """
    sizes: dict[int, int] = {}
    keepers: dict[int, list[int]] = {}
    for k, tensors in enumerate(kept):
        for storage, size in {storage_address(t): t.untyped_storage().nbytes() for t in tensors}.items():
            if storage not in run.weights:
                sizes[storage] = size
                keepers.setdefault(storage, []).append(k)
    alone, shared = [0] * len(kept), dict[tuple[int | None, tuple[int, ...]], int]()
    for storage, layers in keepers.items():
        maker = run.makers.get(storage)
        if len(layers) == 1 and maker in (None, layers[0]):
            alone[layers[0]] += sizes[storage]
        else:
            shared[maker, tuple(layers)] = shared.get((maker, tuple(layers)), 0) + sizes[storage]
    return alone, shared


def _boundary(layer: int, number: int, full: _Run, split: _Run) -> Tensor:
    """Return the description of one tensor of a layer's output.

    Args:
        number: of the tensor in the output.

    The tensor is `kept` if this layer or an earlier one keeps its storage, for a full backward or for a split one.
    """
    tensor, end = full.outputs[layer][number], layer + 1
    kept = _is_kept(tensor, full.saved[:end]) or _is_kept(
        split.outputs[layer][number], [*split.saved[:end], *split.deferred[:end]]
    )
    return Tensor(tuple(tensor.shape), _dtype(tensor), tensor.requires_grad, kept)


def _is_kept(tensor: torch.Tensor, kept: Iterable[Sequence[torch.Tensor]]) -> bool:
    """Return whether one of the kept tensors has the storage of `tensor`."""
    storage = storage_address(tensor)
    return any(storage_address(t) == storage for tensors in kept for t in tensors)


def _tied(stages: Sequence[Stage]) -> tuple[TiedLayers, ...]:
    """Return the parameters that several layers share: by name in the `ties` of their stages, or as one object."""
    declared = {
        id(layer.get_parameter(path)): name
        for stage in stages
        for layer, ties in zip(stage.layers, stage.ties, strict=True)
        for name, path in ties.items()
    }
    # By the name of a set, or by id for a parameter without one: the layers that use it, its name in each, and the parameter.
    uses_by_set: dict[str | int, list[tuple[int, str, nn.Parameter]]] = {}
    for k, stage in enumerate(stages):
        for name, p in stage.parameters_by_name().items():
            uses_by_set.setdefault(declared.get(id(p), id(p)), []).append((k, name, p))
    tied = []
    for key, uses in uses_by_set.items():
        layers, (_, first_name, p) = tuple(dict.fromkeys(k for k, _, _ in uses)), uses[0]
        if len(layers) > 1:
            name = key if isinstance(key, str) else first_name
            tied.append(TiedLayers(name, layers, p.numel(), p.nbytes, p.nbytes if p.requires_grad else 0))
    return tuple(tied)


def _attention_flops(q: Any, k: Any, v: Any, *_: Any, **__: Any) -> int:
    flops: int = sdpa_flop_count(q, k, v)  # type: ignore[no-untyped-call]  # called with shapes
    return flops


def _dtype(tensor: torch.Tensor) -> Any:
    return str(tensor.dtype).removeprefix("torch.")
