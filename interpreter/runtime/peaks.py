"""What the layers of a model hold while they run: the bytes after each operation of a forward and a backward.

Each layer runs alone, with fake tensors. A storage counts from the operation that makes it until it is freed. These do not
count: the layer's input, the fields, the targets, the parameters and their gradients, the buffers, and the gradient of the
layer's output. What a kernel allocates and frees by itself is not seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chimerac.chimera_ir.workspace import Peaks
from chimerac.interpreter.runtime.memory import storage_address
from chimerac.interpreter.runtime.model import Fields, Model, Stage, Values, combined
from chimerac.interpreter.runtime.split import Splitting

# What torch's errors say where a function needs autograd, such as torch.autograd.grad or Tensor.register_hook.
_NEEDS_AUTOGRAD = re.compile(r"(does not|doesn't) require grad|requires_grad=False")


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """The bytes that a layer holds in a run, less those at the beginning of the run.

    The first number of each list is that at the beginning of the run, 0. The others are those after each operation.

    Attributes:
        forward: a forward with a graph.
        no_graph: a forward without one.
        backward: a full backward.
        input, weight: the halves of a split backward.
    """

    forward: Sequence[int]
    no_graph: Sequence[int]
    backward: Sequence[int]
    input: Sequence[int]
    weight: Sequence[int]

    def peaks(self) -> Peaks:
        """Return the maximum of each field."""
        return Peaks(**{f.name: max(getattr(self, f.name)) for f in fields(Peaks)})


class _Meter(TorchDispatchMode):
    """Records how many bytes are held after each operation.

    Args:
        excluded: tensors that do not count.
    """

    def __init__(self, excluded: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._excluded = {storage_address(t) for t in excluded}
        self._held: dict[int, tuple[StorageWeakRef, int]] = {}  # by the address of a storage: a reference to it, and its bytes
        self._bytes_after = [0]  # at the last call of `since_last_call`, and after each operation from then on

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if isinstance(t, Tensor) and (address := storage_address(t)) not in self._excluded:
                storage = t.untyped_storage()
                self._held[address] = StorageWeakRef(storage), storage.nbytes()  # type: ignore[no-untyped-call]
        self._bytes_after.append(self._bytes())
        return result

    def since_last_call(self) -> list[int]:
        """Return the bytes at the last call and after each operation since then, less those at the last call."""
        bytes_beyond_first = [held - self._bytes_after[0] for held in self._bytes_after]
        self._bytes_after = [self._bytes()]
        return bytes_beyond_first

    def _bytes(self) -> int:
        self._held = {k: (ref, size) for k, (ref, size) in self._held.items() if not ref.expired()}  # type: ignore[no-untyped-call]
        return sum(size for _, size in self._held.values())


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A layer alone.

    Attributes:
        inputs, fields, targets: fake tensors on `device`.
        targets: those of the loss, for the last layer; None for the other layers, and if they are not known.
    """

    model: Model
    stage: Stage
    inputs: Values
    fields: Fields
    targets: Values | None
    device: torch.device

    def held(self) -> HeldBytes:
        """Run the layer in each way that `HeldBytes` names, and return what it holds."""
        parameters = [p for p in self.stage.parameters() if p.requires_grad]
        for p in parameters:
            p.grad = torch.zeros_like(p)  # as in a run, where the gradients are allocated before the first backward
        try:
            forward, backward, _ = self._run(None)
            _, input, weight = self._run(Splitting())
            return HeldBytes(forward, self._without_graph(forward), backward, input, weight)
        finally:
            for p in parameters:
                p.grad = None

    def _meter(self, *excluded: Tensor) -> _Meter:
        weights = [t for x in (*self.stage.parameters(), *self.stage.buffers()) for t in (x, x.grad) if t is not None]
        return _Meter([*weights, *self.fields.values(), *(self.targets or ()), *excluded])

    def _without_graph(self, forward: list[int]) -> list[int]:
        """Return the bytes of a forward without autograd.

        Args:
            forward: those of a forward with autograd; returned for a layer whose forward needs autograd.
        """
        meter = self._meter(*self.inputs)
        try:
            with torch.no_grad(), meter:
                self._outputs(self.inputs)
        except RuntimeError as error:
            if not _NEEDS_AUTOGRAD.search(str(error)):
                raise
            return forward
        return meter.since_last_call()

    def _run(self, splitting: Splitting | None) -> tuple[list[int], list[int], list[int]]:
        """Return the bytes of a forward, of its full backward, and a list that is not used.

        Args:
            splitting: splits the backward: then the second and the third list are of its input half and of its weight half.
        """
        inputs = tuple([t.detach().requires_grad_(t.requires_grad) for t in self.inputs])
        meter = self._meter(*inputs)
        with meter:
            with splitting or nullcontext():
                outputs = [t for t in self._outputs(inputs) if t.requires_grad]
            edges, sizes = [get_gradient_edge(t) for t in outputs], [(t.shape, t.dtype) for t in outputs]
            del outputs
            forward = meter.since_last_call()
            gradients = [torch.ones(shape, dtype=dtype, device=self.device) for shape, dtype in sizes]
            meter.since_last_call()  # the bytes of the backward are counted from here, so without the output gradients
            if edges:
                torch.autograd.backward(edges, gradients)
            backward = meter.since_last_call()
            if splitting is not None:
                splitting.add_weight_gradients()
        return forward, backward, meter.since_last_call()

    def _outputs(self, inputs: Values) -> Values:
        """Return the output of the layer, or the loss if there are targets."""
        with self.model.autocasting(self.device):
            outputs: Values = self.stage(*inputs, **{name: self.fields[name] for name in self.stage.reads})
            return outputs if self.targets is None else (combined(self.model.loss(outputs, self.targets), [1.0]),)
