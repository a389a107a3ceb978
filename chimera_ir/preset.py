"""The description of a preset for every size of a micro-batch and every sequence length, as JSON.

Each number of a description is a sum over the terms `1`, `b`, `l`, `b l` and `b l l`, for b samples of l tokens. The file gives
the factor of each term, or the number itself if it is the same for all sizes. The factors reproduce measurements exactly
(tools/descriptions.py). A peak is the largest of several sums, {"most": [...]}. Equal layers that follow each other and are not
tied are one entry, with `times`; `{}` in its name stands for the number of the layer among those with this name, from 1. Memory
that several layers share is listed under `shares`, with the layer that makes it or, if each stage makes its own, with the first
that keeps it; the layers that keep it are given as offsets from this layer. `tied` gives layers by the numbers of their
entries, from 0. An example, with some parts left out:

    {"format": "chimera-preset", "version": 1, "name": "gpt-nano", "samples": 4, "seq_len": 128, "positions": null,
    "layers": [{"name": "embedding", "times": 1, "parameters": {"1": 8192, "l": 32}, ...},
      {"name": "block {}", "times": 2, ...},
      ...],
    "tied": []}
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chimerac.chimera_ir.boundary import Tensor
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.model import MAX_LAYERS, Layer, ModelDescription, Shared, TiedLayers
from chimerac.chimera_ir.sequences import check_positions
from chimerac.chimera_ir.workspace import Peaks

FORMAT = "chimera-preset"
TERMS = ("1", "b", "l", "b l", "b l l")
COST_UNIT = 1000  # operations in one unit of a description's costs, which are rounded up
KEEPS = ("kept", "split_kept", "weight_kept")  # the fields of `Shared` that list layers


@dataclass(frozen=True, slots=True)
class Preset:
    """The description of a preset for every size.

    Attributes:
        layers, tied: as in the file.
        samples, seq_len: the sizes that are used by default; seq_len is None for images.
        positions: the length of the longest sequence; None where every length is possible.
    """

    name: str
    samples: int
    seq_len: int | None
    positions: int | None
    layers: Sequence[Mapping[str, Any]]
    tied: Sequence[Mapping[str, Any]]

    def description(self, samples: int, seq_len: int | None = None, blocks: int | None = None) -> ModelDescription:
        """Return the description for micro-batches of `samples` samples.

        Args:
            seq_len: None for that of the preset.
            blocks: the number of layers whose names have a number; None for that of the preset.

        Raises ChimeraError: E801 where this description cannot be changed to this number of blocks, E821 for a sequence that
        is too long.
        """
        if seq_len is not None:
            check_positions(self.name, seq_len, self.positions)
        name = self.name if blocks is None else f"{self.name}/{blocks}"
        entries = self.layers if blocks is None else self.with_blocks(blocks)
        b, l = samples, self.seq_len if seq_len is None else seq_len  # noqa: E741
        sizes = {"1": 1, "b": b, "l": l or 0, "b l": b * (l or 0), "b l l": b * (l or 0) ** 2}
        layers: list[Layer] = []
        shared: list[Shared] = []
        first: list[int] = []  # the layer with which each entry begins
        numbers: Counter[str] = Counter()  # of the layers so far, by the name of their entry
        for entry in entries:
            first.append(len(layers))
            values = _evaluated({k: v for k, v in entry.items() if k not in ("name", "times", "shares")}, sizes)
            values["cost"] = -(-values.pop("operations") // COST_UNIT)
            values["peaks"] = Peaks(**values["peaks"])
            values["boundary"] = tuple(Tensor(**{**t, "shape": tuple(t["shape"])}) for t in values["boundary"])
            for _ in range(entry.get("times", 1)):
                numbers[entry["name"]] += 1
                for share in entry.get("shares", ()):
                    kept = {k: tuple(len(layers) + n for n in share[k]) for k in KEEPS}
                    made = len(layers) if share["is_made"] else None
                    shared.append(Shared(_evaluated(share["bytes"], sizes), made, **kept))
                layers.append(Layer(name=entry["name"].format(numbers[entry["name"]]), **values))
        tied = [TiedLayers(**_evaluated({**t, "layers": tuple(first[n] for n in t["layers"])}, sizes)) for t in self.tied]
        return ModelDescription(name, samples, tuple(layers), tuple(tied), tuple(shared))

    def with_blocks(self, blocks: int) -> list[Mapping[str, Any]]:
        """Return the entries of a model with `blocks` numbered layers. Only the entry with the most `times` changes.

        Raises ChimeraError E801 where that is not possible.
        """
        numbered = [n for n, entry in enumerate(self.layers) if "{}" in entry["name"]]
        if not numbered:
            raise refuse(
                "E801",
                f"model '{self.name}/{blocks}': its blocks differ from each other, so the description of {self.name} "
                "does not say how large another number of them is",
                help=f"describe it: {describe_command(f'{self.name}/{blocks}')}",
            )
        repeated = max(numbered, key=lambda n: self.layers[n].get("times", 1))
        others = sum(self.layers[n].get("times", 1) for n in numbered if n != repeated)
        largest = MAX_LAYERS - (len(self.layers) - len(numbered))
        if not others < blocks <= largest:
            raise refuse("E801", f"model '{self.name}/{blocks}': a description has {others + 1} to {largest} blocks")
        return [{**e, "times": blocks - others} if n == repeated else e for n, e in enumerate(self.layers)]


def describe_command(model: str) -> str:
    """Return, as text, the command that measures a model, and the option that then uses its description."""
    return f"python -m chimerac.models describe --model {model} -o m.json; then give --model m.json"


def _evaluated(value: Any, sizes: Mapping[str, int]) -> Any:
    """Return a value of a file, with a number in the place of each sum of terms and of each {"most": sums}."""
    match value:
        case dict() if value and all(k in TERMS for k in value):
            return sum(factor * sizes[term] for term, factor in value.items())
        case {"most": sums}:
            return max(_evaluated(s, sizes) for s in sums)
        case dict():
            return {k: _evaluated(v, sizes) for k, v in value.items()}
        case list():
            return [_evaluated(v, sizes) for v in value]
        case _:
            return value


def preset_to_json(preset: Preset) -> str:
    """Return the JSON text of a preset: one entry of `layers` a line."""
    head = {"format": FORMAT, "version": 1, **{k: getattr(preset, k) for k in ("name", "samples", "seq_len", "positions")}}
    lines = ",\n  ".join(map(json.dumps, preset.layers))
    return f'{json.dumps(head)[:-1]},\n"layers": [{lines}],\n"tied": {json.dumps(list(preset.tied))}}}\n'


def preset_from_json(text: str) -> Preset:
    """Return the preset of a shipped file."""
    file = json.loads(text)
    return Preset(file["name"], file["samples"], file["seq_len"], file["positions"], file["layers"], file["tied"])
