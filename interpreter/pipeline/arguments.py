"""Checks of the arguments of a pipeline and of its `step`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from chimerac.interpreter.runtime.model import Example, Fields, Values

Tensors = Tensor | Sequence[Tensor]
Divisor = float | Sequence[float]

STEP_ARGUMENTS = ("self", "inputs", "targets", "divisor", "sync")  # of `Pipeline.step` (pipeline.py), besides the fields


def tensors_of(given: Tensors) -> Values:
    """Return one or several tensors as a tuple.

    Raises TypeError for anything else and for a tensor without dimensions, ValueError if there is no tensor.
    """
    tensors = tuple(given) if isinstance(given, Iterable) and not isinstance(given, Tensor) else (given,)
    for t in tensors:
        if not isinstance(t, Tensor) or not t.dim():
            found = "a tensor without dimensions" if isinstance(t, Tensor) else type(t).__name__
            raise TypeError(f"inputs, targets and fields are tensors whose first dimension counts the samples, not {found}")
    if not tensors:
        raise ValueError("there is no tensor in the inputs, in the targets or in a field")
    return tensors


def example_of(inputs: Tensors, targets: Tensors | None, fields: Mapping[str, Tensor] | None) -> Example:
    """Return the example of a micro-batch. Raises TypeError and ValueError as `tensors_of` and `fields_of`."""
    return Example(tensors_of(inputs), None if targets is None else tensors_of(targets), fields_of(fields))


def refuse_arguments_of_model(loss: Any, inputs: Any, targets: Any, fields: Any, model: Any) -> None:
    """Raise TypeError if one of these arguments of a pipeline is given although its layers are a Model, which has its own."""
    given = {"loss": loss is not None, "inputs": bool(len(inputs)), "targets": targets is not None}
    given |= {"fields": fields is not None, "model": model is not None}
    if wrong := [name for name, is_given in given.items() if is_given]:
        raise TypeError(f"{', '.join(wrong)}: a Model has its own; give it to the function that makes the model")


def fields_of(given: Mapping[str, Tensor] | None) -> Fields:
    """Return the example of each field, by name.

    Raises TypeError and ValueError as `tensors_of`. Raises ValueError also for a field that has the name of another argument of
    `Pipeline.step`, or a name that is no identifier.
    """
    fields = dict(given or {})
    for name, t in fields.items():
        if name in STEP_ARGUMENTS or not name.isidentifier():
            raise ValueError(f"a field cannot have the name {name!r}: step takes fields as keyword arguments")
        tensors_of(t)
    return fields


def check_inputs(inputs: Values, example: Values, micro_batches: int) -> None:
    """Raise ValueError unless the inputs have the shapes and dtypes of `micro_batches` micro-batches like the example."""
    if len(inputs) != len(example):
        raise ValueError(f"{len(inputs)} input tensors were given, and {len(example)} when the pipeline was created")
    for k, (t, e) in enumerate(zip(inputs, example, strict=True)):
        _check_tensor(f"input {k}", t, e, micro_batches)


def read_fields(given: Fields, example: Fields, needed: Sequence[str], micro_batches: int, rank: str) -> Fields:
    """Return the fields that a rank reads.

    Args:
        given: of a batch.
        example: of a micro-batch, all fields of the pipeline.
        needed: the names of those that this rank reads.
        rank: how messages name it.

    Raises ValueError for a field that is missing, unknown, or of another shape or dtype.
    """
    if unknown := next((name for name in given if name not in example), None):
        raise ValueError(f"{unknown} is none of the fields of this pipeline: {', '.join(example) or 'it has none'}")
    if missing := next((name for name in needed if given.get(name) is None), None):
        raise ValueError(f"{rank} has a stage that reads the field {missing}: give it that of its replica")
    for name in needed:
        _check_tensor(f"the field {name}", given[name], example[name], micro_batches)
    return {name: given[name] for name in needed}


def _check_tensor(what: str, t: Tensor, example: Tensor, micro_batches: int) -> None:
    """Raise ValueError unless a tensor has the shape and the dtype of `micro_batches` micro-batches like the example."""
    expected = (micro_batches * len(example), *example.shape[1:])
    if tuple(t.shape) != expected or t.dtype != example.dtype:
        raise ValueError(
            f"{what} is {t.dtype} of shape {list(t.shape)}, and {micro_batches} micro-batches of {len(example)} samples "
            f"are {example.dtype} of shape {list(expected)}"
        )


def check_own_stages_arguments(**arguments: object) -> None:
    """Raise ValueError if one of these arguments of a whole model is given although the layers are the stages of this rank."""
    for name, value in arguments.items():
        if value is not None:
            raise ValueError(f"{name} is for the layers of a whole model: leave it out if layers are the stages of this rank")


def checked_autocast(dtype: torch.dtype | None) -> torch.dtype | None:
    """Return `dtype`; None: no autocast. Raises ValueError for all types but bfloat16: float16 would need scaled gradients."""
    if dtype not in (None, torch.bfloat16):
        raise ValueError(f"autocast={dtype}: give torch.bfloat16, whose gradients need no scaling, or None for no autocast")
    return dtype
