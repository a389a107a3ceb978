"""The user's layers as a LayeredModel: their names, their shared parameters, their loss and the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from chimerac.interpreter.runtime.model import Example, LayeredModel, Values

Builder = Callable[[], nn.Module]
Layer = nn.Module | Builder
Layers = nn.Sequential | Sequence[Layer | tuple[str, Layer]]


Loss = Callable[..., Tensor | tuple[Tensor, ...]]


def model_of(layers: Layers, loss: Loss, example: Example, model: nn.Module | None, name: str) -> LayeredModel:
    """Return the model of these layers.

    layers: modules, or functions that build them, alone or as (name, layer); model: the module that contains them and gives
    them their names; example: one micro-batch, with the shapes and dtypes of real ones.
    """
    named = list(_named(layers, model))
    if not named:
        raise ValueError("the model has no layer: give the layers as a list of modules, or an nn.Sequential")
    seen: dict[str, int] = {}
    for k, (layer_name, layer) in enumerate(named):
        if not callable(layer):
            raise TypeError(f"layer {k} is a {type(layer).__name__}, neither a module nor a function that builds one")
        if layer_name in seen:
            raise ValueError(f"layers {seen[layer_name]} and {k} have the same name, {layer_name}")
        seen[layer_name] = k
    makers = tuple((layer_name, _builder(layer)) for layer_name, layer in named)
    return LayeredModel(
        name=name,
        layers=makers,
        loss=_loss_of(loss),
        example=_example_of(example),
        fields=tuple(example.fields),
        ties=_ties(named),
    )


def _named(layers: Layers, model: nn.Module | None) -> Iterator[tuple[str, Layer]]:
    """Yield the layers with the names under which the full model has them."""
    if isinstance(layers, nn.Sequential) and model is None:
        yield from layers._modules.items()  # named_children leaves out a module that is there twice
        return
    names = {id(module): name for name, module in model.named_modules()} if model is not None else {}
    for k, layer in enumerate(layers):
        if isinstance(layer, tuple):
            yield layer
        elif model is not None and id(layer) not in names:
            raise ValueError(
                f"layer {k}, a {type(layer).__name__}, is no submodule of the model {type(model).__name__}: "
                "list submodules of the model, or give layers as (name, layer) and leave out the model"
            )
        else:
            yield names.get(id(layer), str(k)), layer


def _builder(layer: Layer) -> Builder:
    return (lambda: layer) if isinstance(layer, nn.Module) else layer


def _loss_of(loss: Loss) -> Callable[[Values, Values], Values]:
    """Return the loss as a Model has it. The user's takes and returns a tensor where there is only one."""

    def losses(outputs: Values, targets: Values) -> Values:
        found = loss(outputs[0] if len(outputs) == 1 else outputs, targets[0] if len(targets) == 1 else targets)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    return losses


def _example_of(given: Example) -> Callable[[int], Example]:
    """Return the function that makes tensors with these shapes."""

    def zeros(tensors: Values) -> Values:
        return tuple(torch.zeros_like(t) for t in tensors)

    def example(samples: int) -> Example:
        fields = dict(zip(given.fields, zeros(tuple(given.fields.values())), strict=True))
        return Example(zeros(given.inputs), None if given.targets is None else zeros(given.targets), fields)

    return example


def _ties(layers: Sequence[tuple[str, Layer]]) -> dict[int, dict[str, str]]:
    """Return, by layer, the parameters that it shares with another one: by the name of the set, the path in the layer.

    A set has the full name of its first parameter.
    """
    found: dict[int, list[tuple[int, str]]] = {}
    for k, (_, layer) in enumerate(layers):
        if isinstance(layer, nn.Module):
            for path, parameter in layer.named_parameters():
                found.setdefault(id(parameter), []).append((k, path))
    ties: dict[int, dict[str, str]] = {}
    for uses in found.values():
        if len({k for k, _ in uses}) > 1:
            first, path = uses[0]
            name = f"{layers[first][0]}.{path}"
            for k, own_path in uses:
                ties.setdefault(k, {})[name] = own_path
    return ties
