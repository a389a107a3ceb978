"""Weights of the whole model in one file: .safetensors, or .pt for torch.load."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.pipeline.background import Background, RanksFailedError
from chimerac.interpreter.pipeline.pipeline import Pipeline

SAFETENSORS, TORCH = ".safetensors", ".pt"


def check_export(path: Path) -> None:
    """Raise ChimeraError E835 if `export_weights` could not write this file: checked before a run starts."""
    if path.suffix not in (SAFETENSORS, TORCH):
        raise _refused(path, "its name says no format", f"give a name that ends in {SAFETENSORS} or {TORCH}")
    if path.suffix == SAFETENSORS and importlib.util.find_spec("safetensors") is None:
        help = f"pip install safetensors, or give a name that ends in {TORCH}"
        raise _refused(path, "safetensors is not installed", help)
    if path.is_dir():
        raise _refused(path, "it is a folder", "give the name of a file")
    if not path.absolute().parent.is_dir():
        raise _refused(
            path, f"there is no folder {short_path(path.absolute().parent)}", "make the folder, or give another path"
        )
    if not os.access(path.absolute().parent, os.W_OK):
        raise _refused(path, "its folder may not be written to", "give another path")


def export_weights(path: Path, pipeline: Pipeline, about: Mapping[str, str]) -> None:
    """Write parameters and buffers of the whole model, under their names in it; called by all ranks together.

    about: what the header of a .safetensors says about the training. A .pt has no header.
    A file that is there already is replaced when the new one is complete. Raises ChimeraError E835 on all ranks if it cannot be
    written.
    """
    weights = pipeline.full_state_dict()

    def write() -> str:
        if pipeline.rank == 0:
            _write(path, weights, about)
        return ""

    try:
        Background(write).results(pipeline.transport)
    except RanksFailedError as error:
        raise _refused(path, error.reason, "give another path") from None


def _write(path: Path, weights: dict[str, Tensor], about: Mapping[str, str]) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    try:
        if path.suffix == SAFETENSORS:
            from safetensors.torch import save_file  # optional: an extra of this project

            save_file(weights, temporary, metadata={"format": "pt", **about})
        else:
            torch.save(weights, temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _refused(path: Path, reason: str, help: str) -> ChimeraError:
    return refuse("E835", f"the weights cannot be written to {short_path(path)}: {reason}", help=help)
