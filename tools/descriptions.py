"""Write the shipped descriptions of the presets (models/descriptions/), or check that they are up to date.

    python -m tools.descriptions            check: print the files that differ, exit status 1 if there are any
    python -m tools.descriptions --write    write

Each preset is measured for several micro-batch sizes and several sequence lengths. A number that differs between these
measurements is written as a sum of terms in both sizes, and a peak as the largest of several such sums (chimera_ir/preset.py).
Then the description is compared with two further measurements.
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
SAMPLES, SEQ_LEN = 4, 128  # samples of a micro-batch and tokens of a sample: the defaults of run.py
# The sequence lengths and micro-batch sizes that are measured. Not 1 sample, because some tensors then need no copy.
LENGTHS, SAMPLE_COUNTS = (8, 16, 24), (2, 3)
MEASURED_BLOCKS = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """How a preset is measured.

    Attributes:
        model: returns the model for a name and a sequence length.
        seq_len: the sequence length by default; None for images.
        positions: as in `Preset`.
        blocks: the preset's number of blocks if its blocks are equal, otherwise None.

    With equal blocks, NAME/BLOCKS is the same model with another number of blocks. The preset is then measured with
    MEASURED_BLOCKS blocks, and one of the two further measurements has one block more. A preset whose blocks differ is measured
    as it is, and its description is for its own number of blocks only.
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
    """Measure a preset, and return its description for every size.

    Raises ValueError if a number is no sum of terms, or if a further measurement differs from the description.
    """
    how = PRESETS_MEASURED[name]
    few, more = (None, None) if how.blocks is None else (MEASURED_BLOCKS, MEASURED_BLOCKS + 1)  # numbers of blocks
    measurements = [
        described(how.model(_with(name, few), length), samples, cost_unit=1) for length in LENGTHS for samples in SAMPLE_COUNTS
    ]
    fitted = _fit([_tree(description) for description, _ in measurements])
    # Of each layer, the `HeldBytes` (interpreter/runtime/peaks.py) of all measurements.
    held_by_layers = zip(*(held for _, held in measurements), strict=True)
    for layer, held_of_layer in zip(fitted["layers"], held_by_layers, strict=True):
        layer["peaks"] = {f.name: _largest_of_sums([getattr(held, f.name) for held in held_of_layer]) for f in fields(Peaks)}
    layers = fitted["layers"] if how.blocks is None else _compressed(fitted)
    found = Preset(name, SAMPLES, how.seq_len, how.positions, layers, fitted["tied"])
    # The sizes of the further measurements. For images, which have no sequence length, only the first one is new.
    for samples, seq_len, blocks in ((SAMPLES, how.seq_len or SEQ_LEN, few), (3, 40, more)):
        measured = describe(how.model(_with(name, blocks), seq_len), samples)
        if in_order(found.description(samples, seq_len, blocks)) != in_order(measured):
            raise ValueError(f"{name}: the sizes for {samples} samples of {seq_len} tokens do not follow from smaller ones")
    return found if how.blocks is None else replace(found, layers=found.with_blocks(how.blocks))


def _with(name: str, blocks: int | None) -> str:
    return name if blocks is None else f"{name}/{blocks}"


def in_order(description: ModelDescription) -> tuple[object, ...]:
    """Return a description as a tuple to compare. Its `shared` is sorted, because the order of these entries has no meaning."""
    return (description.name, description.samples, description.layers, description.tied, sorted(map(repr, description.shared)))


def _tree(description: ModelDescription) -> dict[str, Any]:
    """Return a description as JSON values, in the form of the file but without peaks.

    Shared memory is an entry of the layer that makes it or, if each stage makes its own, of the first layer that keeps it. The
    entry gives the layers that keep it as offsets from this layer.
    """
    tree: dict[str, Any] = json.loads(json.dumps(asdict(description)))
    for layer in tree["layers"]:
        del layer["peaks"]  # a peak is no sum of terms: `preset_of` adds it
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
    """Return what the file has for a part of the description.

    Args:
        values: this part in each measurement.

    Equal values stay as they are. Numbers that differ become terms.
    """
    first = values[0]
    if isinstance(first, dict):
        return {k: _fit([v[k] for v in values]) for k in first}
    if isinstance(first, list):
        return [_fit(list(items)) for items in zip(*values, strict=True)]
    if all(v == first for v in values):
        return first
    return _terms(values)


def _terms(values: Sequence[int]) -> dict[str, int]:
    """Return the terms of a number.

    Args:
        values: for each of the LENGTHS, the numbers that were measured for the SAMPLE_COUNTS.

    For every length l the number is offset + slope * b, where b is the number of samples. Offset and slope are polynomials of
    degree 2 in l, through their values at the three LENGTHS. A description has no term l l without b. Raises ValueError for
    numbers that are no sum of its terms with integer factors.
    """
    slopes = [more - few for few, more in zip(values[::2], values[1::2], strict=True)]
    offsets = [few - SAMPLE_COUNTS[0] * slope for few, slope in zip(values[::2], slopes, strict=True)]
    step = LENGTHS[1] - LENGTHS[0]
    factors: dict[str, Fraction] = {}
    for names, (first, second, third) in ((("1", "l", "l l"), offsets), (("b", "b l", "b l l"), slopes)):
        square = Fraction(third - 2 * second + first, 2 * step**2)
        linear = Fraction(second - first, step) - square * (LENGTHS[0] + LENGTHS[1])
        constant = first - linear * LENGTHS[0] - square * LENGTHS[0] ** 2
        factors |= dict(zip(names, (constant, linear, square), strict=True))
    if factors.pop("l l") or any(factor.denominator != 1 for factor in factors.values()):
        raise ValueError(f"{list(values)} for {LENGTHS} tokens and {SAMPLE_COUNTS} samples is no sum of terms")
    return {name: int(factor) for name, factor in factors.items() if factor}


def _largest_of_sums(traces: Sequence[Sequence[int]]) -> Any:
    """Return a peak as the largest of several sums.

    Args:
        traces: a field of `HeldBytes` in each measurement.

    The bytes after each operation are a sum of terms. A sum is left out if no factor of it is larger than that of another sum.
    """
    sums: list[dict[str, int]] = []
    for values in set(zip(*traces, strict=True)):  # the bytes after one operation, in each measurement
        new = _terms(values) or {"1": 0}
        if not any(_is_at_most(new, known) for known in sums):
            sums = [known for known in sums if not _is_at_most(known, new)] + [new]
    return {"most": sorted(sums, key=json.dumps)}


def _is_at_most(a: Mapping[str, int], b: Mapping[str, int]) -> bool:
    """Return whether each factor of the sum `a` is at most that of the sum `b`. Then `a` is at most `b` for all sizes."""
    return all(a.get(name, 0) <= b.get(name, 0) for name in {*a, *b})


def _compressed(tree: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the layers as entries: neighbours that differ only in the number at the end of their names become one entry.

    Tied layers are not put together. In `tree["tied"]` the numbers of layers are replaced by those of their entries.
    """
    tied_layers = {k for tied in tree["tied"] for k in tied["layers"]}
    found: list[dict[str, Any]] = []
    entry_of = []  # by layer, the number of its entry
    for k, layer in enumerate(tree["layers"]):
        word, _, number = layer["name"].rpartition(" ")
        entry = {"name": f"{word} {{}}" if word and number.isdigit() else layer["name"], "times": 1}
        entry |= {key: v for key, v in layer.items() if key != "name"}
        if found and not tied_layers & {k - 1, k} and entry == {**found[-1], "times": 1}:
            found[-1]["times"] += 1
        else:
            found.append(entry)
        entry_of.append(len(found) - 1)
    for tied in tree["tied"]:
        tied["layers"] = [entry_of[k] for k in tied["layers"]]
    return found


def main(arguments: Sequence[str]) -> int:
    """Write the descriptions, or print which ones are not up to date; return the exit status."""
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
