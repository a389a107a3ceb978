"""The models that the compiler knows: the presets' descriptions, which come with the project, and description files.

A model has one name everywhere: a preset, or NAME/BLOCKS for a preset with another number of blocks. A user's own model has a
description file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import resources

from chimerac.chimera_ir.diagnostics import did_you_mean, refuse
from chimerac.chimera_ir.files import read, short_path
from chimerac.chimera_ir.model import ModelDescription, model_from_json
from chimerac.chimera_ir.preset import Preset, describe_command, preset_from_json

_FOLDER = resources.files("chimerac").joinpath("models", "descriptions")  # data: the package models is not imported
_WITH_BLOCKS = re.compile(r"(?P<name>[^/]+)/(?P<blocks>-?[0-9]{1,18})")


def preset_names() -> list[str]:
    """Return the names of the presets that have a description."""
    return sorted(f.name.removesuffix(".json") for f in _FOLDER.iterdir() if f.name.endswith(".json"))


def preset(name: str) -> Preset:
    """Return the preset of a name that `preset_names` returns."""
    return preset_from_json(_FOLDER.joinpath(f"{name}.json").read_text(encoding="utf-8"))


def find_model(
    name_or_path: str,
    samples: Callable[[int], int],
    micro_batch: int | None = None,
    seq_len: int | None = None,
    default_seq_len: int | None = None,
) -> ModelDescription:
    """Return the description of a preset by name, or of a file.

    A text that begins with `hf:` or contains `.py:` names a model that only torch can describe. Otherwise a file that exists is
    read. Another text is a path if it has a separator or a suffix, otherwise a name; NAME/BLOCKS is a name.

    Args:
        micro_batch, seq_len: the sizes to describe a preset for. Without `micro_batch` it is the preset's own; without
            `seq_len` it is `default_seq_len` if that is given, else the preset's own.
        samples: computes the samples of the program's micro-batches from the size that the run is given; in a schedule with
            `size 1/2`, they are half as many.

    Raises ChimeraError: E001 for a file that cannot be read, E002 for a file if `seq_len` is given or another micro-batch than
    its own, E701 to E704 for a wrong file, E801 for an unknown name, for a model that only torch can describe, or for a
    number of blocks that the preset cannot have, E821 for a sequence that is too long for a preset, and what `samples` raises.
    """
    name, blocks = name_or_path, None
    if found := _WITH_BLOCKS.fullmatch(name_or_path):
        name, blocks = found["name"], int(found["blocks"])
    if name in preset_names() and not os.path.isfile(name_or_path):
        known = preset(name)
        size = samples(known.samples if micro_batch is None else micro_batch)
        lengths = (seq_len, default_seq_len, known.seq_len)
        return known.description(size, next((x for x in lengths if x is not None), None), blocks)
    if name_or_path.startswith("hf:") or ".py:" in name_or_path:
        message = f"the model '{short_path(name_or_path)}' is known here only by a description, since it needs torch"
        raise refuse("E801", message, help=f"describe it: {describe_command(name_or_path)}")
    if not os.path.lexists(name_or_path) and os.sep not in name and not os.path.splitext(name)[1]:
        near = did_you_mean(name, preset_names())
        names = f"the presets are {', '.join(preset_names())}; or give the path of a description (*.json)"
        help = f"{near} {names}" if near.startswith("did you mean") else names
        raise refuse("E801", f"unknown model '{short_path(name_or_path)}'", help=help)
    model = model_from_json(read(name_or_path), name_or_path)
    for option, value, measured in (
        ("--micro-batch", micro_batch, f"micro-batches of {model.samples} samples"),
        ("--seq-len", seq_len, "one sequence length"),
    ):
        if value is not None and not (option == "--micro-batch" and samples(value) == model.samples):
            fact = f"{short_path(name_or_path)} was measured for {measured}"
            raise refuse("E002", f"{option} {value}: {fact}", help=f"leave out {option}, or measure the model again with it")
    return model
