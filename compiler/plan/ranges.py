"""What a stage would need, for every range of consecutive layers that it could have: tables of (layers + 1) x (layers + 1).

The sums are those of `ModelDescription.stage_sums`, for all ranges at once. They are floats, which are exact below 2^53.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.boundary import Tensor
from chimerac.chimera_ir.lifetimes import Kind, activation_bytes
from chimerac.chimera_ir.model import ModelDescription, gradient_bytes, split_kept_bytes
from chimerac.chimera_ir.workspace import Run, Sizes, all_bytes, gradients_of, not_kept, peaks_by_field, workspace_bytes

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Bytes by [first layer, layer after the last].

    Attributes:
        activations: by `lifetimes.ACTIVATIONS`.
        workspace: by Run. It leaves out what is counted as a value: the output of the range, and the gradient of its input.
        workspace_with_values: by Run, with these values. Its sum with the activations is never less in a longer range.
        weights, gradients: with each tied parameter of the range once.
        untied_weights, untied_gradients: without tied parameters.
    """

    weights: Floats
    gradients: Floats
    untied_weights: Floats
    untied_gradients: Floats
    activations: dict[Kind, Floats]
    workspace: dict[Run, Floats]
    workspace_with_values: dict[Run, Floats]


def ranges_of(model: ModelDescription) -> Ranges:
    """Return the tables of a model."""
    layers = model.layers
    weights, gradients = [layer.weight_bytes for layer in layers], [gradient_bytes(layer) for layer in layers]
    for tied in model.tied:
        for k in tied.layers:
            weights[k] -= tied.weight_bytes
            gradients[k] -= gradient_bytes(tied)
    untied_weights, untied_gradients = sums_of(weights), sums_of(gradients)
    last_layer = len(layers) - 1
    tied_weights = ((t.layers, t.weight_bytes, last_layer) for t in model.tied)
    tied_gradients = ((t.layers, gradient_bytes(t), last_layer) for t in model.tied)
    kept_tables = []
    for name, own in (
        ("kept", [layer.kept_bytes for layer in layers]),
        ("split_kept", [split_kept_bytes(layer) for layer in layers]),
        ("weight_kept", [layer.weight_kept_bytes for layer in layers]),
    ):
        # A range that begins after the layer `made` has this memory in its input, and does not count it.
        shared = ((getattr(s, name), s.bytes, last_layer if s.made is None else s.made) for s in model.shared)
        kept_tables.append(sums_of(own) + _once(shared, len(layers)))
    kept, split_kept, weight_kept = kept_tables
    return Ranges(
        untied_weights + _once(tied_weights, len(layers)),
        untied_gradients + _once(tied_gradients, len(layers)),
        untied_weights,
        untied_gradients,
        activation_bytes(kept, split_kept, weight_kept, np.minimum),
        *_workspaces(model, kept, split_kept, weight_kept),
    )


def _workspaces(
    model: ModelDescription, kept: Floats, split_kept: Floats, weight_kept: Floats
) -> tuple[dict[Run, Floats], dict[Run, Floats]]:
    """Return the tables `workspace` and `workspace_with_values` of Ranges.

    Args:
        kept, split_kept, weight_kept: tables of what each range keeps, as in `Layer`.
    """
    n, boundaries = len(model.layers), [x.boundary for x in model.layers]
    if not model.has_peaks:
        none = {run: np.zeros((n + 1, n + 1)) for run in Run}
        return none, none
    inside = np.triu(np.ones((n, n), bool))  # by first layer of a range, and layer: whether the range can have the layer

    def of_inputs(size: Callable[[Sequence[Tensor]], int]) -> Floats:
        """Return the size of the boundary before each layer, by first layer and layer; 0 for the first layer of the range."""
        return np.asarray(np.triu(np.broadcast_to([0.0, *map(size, boundaries[:-1])], (n, n)), 1))

    sizes = Sizes(
        kept[:-1],
        split_kept[:-1],
        weight_kept[:-1],
        inputs=of_inputs(not_kept),
        all_inputs=of_inputs(all_bytes),
        gradients=np.array([*map(gradients_of, boundaries)], np.float64),
        peaks=peaks_by_field([x.peaks for x in model.layers], np.float64),
        output=np.array([*map(all_bytes, boundaries[:-1]), 0], np.float64),
        input_gradient=np.array([0, *map(gradients_of, boundaries[:-1])], np.float64)[:, None],
        outside=np.where(inside, 0, -np.inf),
    )
    with_values = replace(sizes, output=0, input_gradient=0)  # so workspace_bytes subtracts no values
    # The padding turns [first layer, last layer] into [first layer, layer after the last].
    workspace, workspace_with_values = (
        {run: np.pad(x, ((0, 1), (1, 0))) for run, x in workspace_bytes(s).items()} for s in (sizes, with_values)
    )
    return workspace, workspace_with_values


def sums_of(amounts: Sequence[float]) -> Floats:
    """Return the sum over every range, by [first layer, layer after the last]. Only its upper triangle has a meaning."""
    sums = np.concatenate([[0], np.cumsum(np.array(amounts, np.float64))])
    return np.asarray(sums[None, :] - sums[:, None])


def _once(entries: Iterable[tuple[Iterable[int], int, int]], layers: int) -> Floats:
    """Return, for every range, the sum of the amounts of the entries that it has. An entry counts once.

    Args:
        entries: (members, amount, last): a range has the entry if it has one of the layers `members` and begins at or before
            the layer `last`.
    """
    change = np.zeros((layers + 1, layers + 1))  # by how much the sum grows at each [first layer, layer after the last]
    for members, amount, last in entries:
        ordered = np.array(sorted(members), np.int64)
        first = np.searchsorted(ordered, np.arange(last + 1))  # by first layer of a range: the index of its first member
        begins = np.flatnonzero(first < len(ordered))
        change[begins, ordered[first[begins]] + 1] += amount
    return np.asarray(np.cumsum(change, axis=1))
