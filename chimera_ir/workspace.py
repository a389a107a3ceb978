"""Workspace: what a task needs only while it runs, beyond what its rank holds by docs/semantics.md, "Buffers".

A description says for each layer the most that a forward or a backward of it makes and holds at one moment. A stage runs its
layers one after another. While a layer runs, the stage holds what this layer makes and what the other layers keep at that
moment. The workspace is the largest of these sums, less what the rule of buffers already counts for the whole task.

`workspace_bytes` takes arrays whose last axis is the layer. So it computes one stage, or all ranges of layers at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from pydantic import ConfigDict

from chimerac.chimera_ir.boundary import Amount, Tensor
from chimerac.chimera_ir.instructions import STRICT

Bytes = npt.NDArray[Any]  # Python integers, or floats


@dataclass(frozen=True, slots=True)
class Peaks:
    """The most bytes that a layer makes and holds at one moment, for one micro-batch, without its input.

    Attributes:
        forward: with autograd.
        no_graph: a forward without autograd.
        backward: beyond what it held when the backward began.
        input, weight: the same for the two halves of a split backward.

    The gradient of the layer's output is not counted.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    forward: Amount = 0
    no_graph: Amount = 0
    backward: Amount = 0
    input: Amount = 0
    weight: Amount = 0


class Run(IntEnum):
    """What a task runs.

    Attributes:
        NO_GRAPH: a forward without autograd: one that is run again later, or one of an evaluation.
        RECOMPUTE: the task RECOMPUTE, which runs a forward again.
        RECOMPUTED_BACKWARD, RECOMPUTED_INPUT: a backward that itself runs its forward again first.
        INPUT, WEIGHT: the two halves of a split backward.
        SPLIT_FORWARD, SPLIT_RECOMPUTE: a forward for a split backward.
    """

    FORWARD = 0
    SPLIT_FORWARD = 1
    NO_GRAPH = 2
    RECOMPUTE = 3
    SPLIT_RECOMPUTE = 4
    BACKWARD = 5
    RECOMPUTED_BACKWARD = 6
    INPUT = 7
    RECOMPUTED_INPUT = 8
    WEIGHT = 9


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of the layers of a stage, for one micro-batch.

    Arrays of two axes are for all ranges of layers: axis 0 is the first layer of the range, axis 1 the layer.

    Attributes:
        kept, split_kept, weight_kept: one number more than layers. Number k is what the stage's layers before layer k keep in
            all: for a full backward, for the input half of a split one, and after that for the weight half.
        inputs: the tensors of the layer's input that none of the layers before it keeps; 0 for the stage's first layer, whose
            input the rule of buffers counts.
        all_inputs: the whole input of the layer; 0 for the stage's first layer, too.
        gradients: of the layer's output.
        peaks: by the fields of Peaks.
        output: what a stage that ends with the layer passes on.
        input_gradient: the gradient that the stage passes back.
        outside: minus infinity for a layer before the stage, 0 for others.
    """

    kept: Bytes
    split_kept: Bytes
    weight_kept: Bytes
    inputs: Bytes
    all_inputs: Bytes
    gradients: Bytes
    peaks: dict[str, Bytes]
    output: Bytes | int
    input_gradient: Bytes | int
    outside: Bytes | int = 0


def workspace_bytes(s: Sizes) -> dict[Run, Bytes]:
    """Return the workspace of each run, with a number for each layer that may be the last one of the stage.

    If `s` is of one stage, only the number for its last layer has a meaning.
    """
    kept, split_kept, weight_kept = (x[..., 1:] for x in (s.kept, s.split_kept, s.weight_kept))
    forward = _most(s.kept[..., :-1] + s.inputs + s.peaks["forward"] + s.outside)
    split_forward = _most(s.split_kept[..., :-1] + s.inputs + s.peaks["forward"] + s.outside)
    no_graph = _most(s.all_inputs + s.peaks["no_graph"] + s.outside)
    backward = _backward(kept + s.peaks["backward"] + s.outside, s.gradients)
    # While a layer's BWD_INPUT runs, the layers after it have run theirs: they hold what BWD_WEIGHT needs.
    input = weight_kept + _backward(split_kept - weight_kept + s.peaks["input"] + s.outside, s.gradients)
    weight = _most(weight_kept + s.peaks["weight"] + s.outside)
    most_kept = np.maximum(split_kept, weight_kept)
    # The rule of buffers counts the gradient of the stage's input for all of a backward, also while the forward runs again.
    found = {
        Run.FORWARD: forward - kept - s.output,
        Run.SPLIT_FORWARD: split_forward - split_kept - s.output,
        Run.NO_GRAPH: no_graph - s.output,
        Run.RECOMPUTE: forward - kept,
        Run.SPLIT_RECOMPUTE: split_forward - split_kept,
        Run.BACKWARD: backward - kept - s.input_gradient,
        Run.RECOMPUTED_BACKWARD: np.maximum(forward, backward) - kept - s.input_gradient,
        Run.INPUT: input - most_kept - s.input_gradient,
        Run.RECOMPUTED_INPUT: np.maximum(split_forward, input) - most_kept - s.input_gradient,
        Run.WEIGHT: weight - weight_kept,
    }
    return {run: np.maximum(needed, 0) for run, needed in found.items()}


def _most(of_layers: Bytes) -> Bytes:
    """Return for each layer the largest number among the layers up to it."""
    return np.asarray(np.maximum.accumulate(of_layers, axis=-1))


def _backward(of_layers: Bytes, gradients: Bytes) -> Bytes:
    """Return the most that the backwards of a stage's layers hold, by the last layer of the stage.

    Args:
        of_layers: while each layer's backward runs, without the gradient of its output, which is added here. That of the
            stage's last layer is not added: the rule of buffers counts it.
    """
    found = of_layers.copy()
    found[..., 1:] = np.maximum(found[..., 1:], _most(of_layers + gradients)[..., :-1])
    return found


def peaks_by_field(peaks: Sequence[Peaks | None], dtype: Any) -> dict[str, Bytes]:
    """Return the peaks of layers as arrays. A layer without peaks counts as 0."""
    return {f.name: np.array([0 if p is None else getattr(p, f.name) for p in peaks], dtype) for f in fields(Peaks)}


def not_kept(boundary: Sequence[Tensor]) -> int:
    """Return the bytes of the tensors that no layer up to this boundary keeps."""
    return sum(t.bytes for t in boundary if not t.kept)


def all_bytes(boundary: Sequence[Tensor]) -> int:
    """Return the bytes of all tensors."""
    return sum(t.bytes for t in boundary)


def gradients_of(boundary: Sequence[Tensor]) -> int:
    """Return the bytes of the gradients of these tensors."""
    return sum(t.bytes for t in boundary if t.gradient)
