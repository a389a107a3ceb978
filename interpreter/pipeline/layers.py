"""The user's layers as a LayeredModel, with their names, their shared parameters, the loss and an example."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from chimerac.interpreter.runtime.model import Example, LayeredModel, Objective, Values, loss_of_tuples

Builder = Callable[[], nn.Module]
Layer = nn.Module | Builder
Layers = nn.Sequential | Sequence[Layer | tuple[str, Layer]]
Loss = Callable[..., Tensor | tuple[Tensor, ...]]


def model_of(layers: Layers, loss: Loss, example: Example, model: nn.Module | None, name: str) -> LayeredModel:
    """Return the model of these layers.

    Args:
        layers: modules, or functions that build them, alone or as (name, layer).
        model: the module that contains the layers and gives them their names; None: names as `_named` says.
        example: of one micro-batch, with the shapes and dtypes of real ones.
        name: of the model.

    Raises TypeError for a layer that is neither a module nor a function, and ValueError if there is no layer, if two layers
    have the same name, or if a layer without a given name is not in `model`.
    """
    named = list(_named(layers, model))
    if not named:
        raise ValueError("the model has no layer: give the layers as a list of modules, or an nn.Sequential")
    seen: dict[str, int] = {}
    for k, (layer_name, layer) in enumerate(named):
        if not callable(layer):
            raise TypeError(f"layer {k} has the type {type(layer).__name__}: give a module, or a function that builds one")
        if layer_name in seen:
            raise ValueError(f"layers {seen[layer_name]} and {k} have the same name, {layer_name}")
        seen[layer_name] = k
    return LayeredModel(
        name=name,
        layers=tuple((layer_name, _builder(layer)) for layer_name, layer in named),
        loss=loss_of_tuples(loss),
        example=_example_of(example),
        fields=tuple(example.fields),
        ties=_ties(named),
    )


def objective_of(loss: Loss, autocast: torch.dtype | None) -> Objective:
    """Return an objective with this loss and this precision: a model without layers."""
    return LayeredModel(
        name="", layers=(), loss=loss_of_tuples(loss), example=_example_of(Example((), None)), autocast=autocast
    )


def _named(layers: Layers, model: nn.Module | None) -> Iterator[tuple[str, Layer]]:
    """Yield each layer with its name in the full model.

    The name is the one given with the layer, or that of the module in `model` or in an nn.Sequential; otherwise the index.
    Raises ValueError for a layer without a given name that is not in `model`.
    """
    if isinstance(layers, nn.Sequential) and model is None:
        yield from layers._modules.items()  # named_children leaves out the second occurrence of a module
        return
    names = {id(module): name for name, module in model.named_modules()} if model is not None else {}
    for k, layer in enumerate(layers):
        if isinstance(layer, tuple):
            yield layer
        elif model is not None and id(layer) not in names:
            raise ValueError(
                f"layer {k}, of type {type(layer).__name__}, is not a submodule of the model {type(model).__name__}: "
                "list submodules of the model, or give layers as (name, layer) and leave out the model"
            )
        else:
            yield names.get(id(layer), str(k)), layer


def _builder(layer: Layer) -> Builder:
    return (lambda: layer) if isinstance(layer, nn.Module) else layer


def _example_of(given: Example) -> Callable[[int], Example]:
    """Return a function that returns zeros with the shapes and dtypes of `given`. It ignores the number of samples."""

    def zeros(tensors: Values) -> Values:
        return tuple(torch.zeros_like(t) for t in tensors)

    def example(samples: int) -> Example:
        fields = dict(zip(given.fields, zeros(tuple(given.fields.values())), strict=True))
        return Example(zeros(given.inputs), None if given.targets is None else zeros(given.targets), fields)

    return example


def _ties(layers: Sequence[tuple[str, Layer]]) -> dict[int, dict[str, str]]:
    """Return the paths of shared parameters in their layers, by number of the layer and by name of the set of tied parameters.

    A set has the full name of its parameter in the first layer that has it. Only layers that are modules are compared.
    """
    uses_by_parameter: dict[int, list[tuple[int, str]]] = {}  # by id: the layers that have the parameter, and its paths there
    for k, (_, layer) in enumerate(layers):
        if isinstance(layer, nn.Module):
            for path, parameter in layer.named_parameters():
                uses_by_parameter.setdefault(id(parameter), []).append((k, path))
    ties: dict[int, dict[str, str]] = {}
    for uses in uses_by_parameter.values():
        if len({k for k, _ in uses}) > 1:
            first, path = uses[0]
            name = f"{layers[first][0]}.{path}"
            for k, own_path in uses:
                ties.setdefault(k, {})[name] = own_path
    return ties
