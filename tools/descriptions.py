"""Write the shipped descriptions of the models' presets (models/descriptions/), or check that they are up to date.

    python -m tools.descriptions            check: print the files that differ, exit status 1 if there are any
    python -m tools.descriptions --write    write

A description is measured for several sizes of the micro-batch and several sequence lengths. From the measurements, every number
of it is written as a sum of terms in both, and a peak as the largest of several sums (chimera_ir/preset.py). Two further
measurements have to confirm it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from fractions import Fraction
from typing import Any

from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.preset import KEEPS, Preset, preset_to_json
from chimerac.chimera_ir.workspace import Peaks
from chimerac.interpreter.runtime.describe import describe, described
from chimerac.interpreter.runtime.model import Model
from chimerac.models.families import preset
from chimerac.models.presets import PRESETS
from tools import ROOT

FOLDER = ROOT / "models" / "descriptions"
SAMPLES = 4  # the defaults of run.py
SEQ_LEN = 128
LENGTHS, SAMPLE_COUNTS = (8, 16, 24), (2, 3)  # of the measurements; with 1 sample, some tensors need no copy
MEASURED_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """How a preset is measured. model: returns the model of a name and a sequence length.

    seq_len: the length that is taken by default; None for other data than text. positions: as of `Preset`. blocks: the
    preset's number of blocks if they are equal, otherwise None. With equal blocks, NAME/BLOCKS is the same model with another
    number of them. The preset is then measured with MEASURED_BLOCKS, and a measurement with one more confirms it. Otherwise it
    is measured as it is, and described with no other number of blocks.
    """

    model: Callable[[str, int], Model]
    seq_len: int | None
    blocks: int | None = None
    positions: int | None = None


PRESETS_MEASURED: Mapping[str, Measured] = {
    name: Measured(preset, None) if sizes.data == "images" else Measured(preset, SEQ_LEN, sizes.blocks, sizes.positions)
    for name, sizes in PRESETS.items()
}


def preset_of(name: str) -> Preset:
    """Return the preset of a name, measured. Raises ValueError if a number is no sum of terms, or if a measurement differs."""
    how = PRESETS_MEASURED[name]
    few, more = (None, None) if how.blocks is None else (MEASURED_BLOCKS, MEASURED_BLOCKS + 1)
    points = [described(how.model(_with(name, few), n), b, cost_unit=1) for n in LENGTHS for b in SAMPLE_COUNTS]
    fitted = _fit([_tree(description) for description, _ in points])
    held_by_layers = zip(*(held for _, held in points), strict=True)  # of each layer, the `HeldBytes` of all measurements
    for layer, measured in zip(fitted["layers"], held_by_layers, strict=True):
        layer["peaks"] = {f.name: _most([getattr(held, f.name) for held in measured]) for f in fields(Peaks)}
    layers = fitted["layers"] if how.blocks is None else _compressed(fitted)
    found = Preset(name, SAMPLES, how.seq_len, how.positions, layers, fitted["tied"])
    for samples, seq_len, blocks in ((SAMPLES, how.seq_len or SEQ_LEN, few), (3, 40, more)):  # none of them was measured above
        if in_order(found.description(samples, seq_len, blocks)) != in_order(
            describe(how.model(_with(name, blocks), seq_len), samples)
        ):
            raise ValueError(f"{name}: the sizes for {samples} samples of {seq_len} tokens do not follow from smaller ones")
    return found if how.blocks is None else replace(found, layers=found.with_blocks(how.blocks))


def _with(name: str, blocks: int | None) -> str:
    return name if blocks is None else f"{name}/{blocks}"


def in_order(description: ModelDescription) -> tuple[object, ...]:
    """Return the parts of a description to compare: its shared memory is sorted, because its order has no meaning."""
    return (description.name, description.samples, description.layers, description.tied, sorted(map(repr, description.shared)))


def _tree(description: ModelDescription) -> dict[str, Any]:
    """Return a description as JSON values.

    Shared memory is an entry of the first layer that has it. The entry names the other layers by their offsets from this one.
    """
    tree: dict[str, Any] = json.loads(json.dumps(asdict(description)))
    for layer in tree["layers"]:
        del layer["peaks"]  # no sums of terms
        layer["operations"], layer["shares"] = layer.pop("cost"), []
    for shared in tree.pop("shared"):
        keepers = [k for name in KEEPS for k in shared[name]]
        first = min(keepers) if shared["made"] is None else shared["made"]
        offsets = {name: [k - first for k in shared[name]] for name in KEEPS}
        share = {"bytes": shared["bytes"], "is_made": shared["made"] is not None, **offsets}
        tree["layers"][first]["shares"].append(share)
    del tree["samples"]
    return tree


def _fit(values: Sequence[Any]) -> Any:
    """Return what the file has in the place of these values, one of each measurement: numbers that differ become terms."""
    first = values[0]
    if isinstance(first, dict):
        return {k: _fit([v[k] for v in values]) for k in first}
    if isinstance(first, list):
        return [_fit(list(items)) for items in zip(*values, strict=True)]
    if all(v == first for v in values):
        return first
    return _terms(values)


def _terms(values: Sequence[int]) -> dict[str, int]:
    """Return the terms of a number. values: for SAMPLE_COUNTS of each of the LENGTHS.

    For every length l the number is a constant and a slope times the samples b. Each of the two is a polynomial of degree 2 in
    l, through its values at the three LENGTHS. No number has a term l l without b. Raises ValueError for other numbers.
    """
    slopes = [more - few for few, more in zip(values[::2], values[1::2], strict=True)]
    constants = [few - SAMPLE_COUNTS[0] * slope for few, slope in zip(values[::2], slopes, strict=True)]
    found: dict[str, Fraction] = {}
    for names, three in ((("1", "l", ""), constants), (("b", "b l", "b l l"), slopes)):
        (x, y, z), step = three, LENGTHS[1] - LENGTHS[0]
        square = Fraction(z - 2 * y + x, 2 * step**2)
        linear = Fraction(y - x, step) - square * (LENGTHS[0] + LENGTHS[1])
        constant = x - linear * LENGTHS[0] - square * LENGTHS[0] ** 2
        found |= dict(zip(names, (constant, linear, square), strict=True))
    if found.pop("") or any(f.denominator != 1 for f in found.values()):
        raise ValueError(f"{list(values)} for {LENGTHS} tokens and {SAMPLE_COUNTS} samples is no sum of terms")
    return {name: int(factor) for name, factor in found.items() if factor}


def _most(traces: Sequence[Sequence[int]]) -> Any:
    """Return a peak as the largest of several sums. traces: a field of `HeldBytes`, from each of the measurements."""
    sums: list[dict[str, int]] = []
    for values in {tuple(values) for values in zip(*traces, strict=True)}:
        found = _terms(values) or {"1": 0}
        if not any(_is_at_most(found, other) for other in sums):
            sums = [other for other in sums if not _is_at_most(other, found)] + [found]
    return {"most": sorted(sums, key=json.dumps)}


def _is_at_most(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    """Return whether each factor of a sum is at most that of another sum. Then the sum is, for all sizes."""
    return all(a.get(name, 0) <= b.get(name, 0) for name in {*a, *b})


def _compressed(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the layers. Neighbours that differ only in the number at the end of their names become one, but not tied ones."""
    tied = {k for t in tree["tied"] for k in t["layers"]}
    found: list[dict[str, Any]] = []
    entry_of = []
    for k, layer in enumerate(tree["layers"]):
        word, _, number = layer["name"].rpartition(" ")
        entry = {"name": f"{word} {{}}" if word and number.isdigit() else layer["name"], "times": 1}
        entry |= {key: v for key, v in layer.items() if key != "name"}
        if found and k not in tied and k - 1 not in tied and entry == {**found[-1], "times": 1}:
            found[-1]["times"] += 1
        else:
            found.append(entry)
        entry_of.append(len(found) - 1)
    for t in tree["tied"]:
        t["layers"] = [entry_of[k] for k in t["layers"]]
    return found


def main(arguments: Sequence[str]) -> int:
    """Write or check; return the exit status."""
    status = 0
    for name in PRESETS_MEASURED:
        path, text = FOLDER / f"{name}.json", preset_to_json(preset_of(name))
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if "--write" in arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
        else:
            print(f"{path.relative_to(ROOT)} is not up to date: python -m tools.descriptions --write")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
