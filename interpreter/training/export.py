"""The weights of the whole model in one file: .safetensors, or .pt for torch.load."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.pipeline.background import BackgroundThread, RanksFailedError
from chimerac.interpreter.pipeline.pipeline import Pipeline

SAFETENSORS, TORCH = ".safetensors", ".pt"


def check_export(path: Path) -> None:
    """Raise ChimeraError E835 if `export_weights` could not write this file; called before a run starts."""
    if path.suffix not in (SAFETENSORS, TORCH):
        raise _error(path, "its name has no known ending", f"give a name that ends in {SAFETENSORS} or {TORCH}")
    if path.suffix == SAFETENSORS and importlib.util.find_spec("safetensors") is None:
        help = f"pip install safetensors, or give a name that ends in {TORCH}"
        raise _error(path, "safetensors is not installed", help)
    if path.is_dir():
        raise _error(path, "it is a folder", "give the name of a file")
    if not path.absolute().parent.is_dir():
        reason = f"there is no folder {short_path(path.absolute().parent)}"
        raise _error(path, reason, "create the folder, or give another path")
    if not os.access(path.absolute().parent, os.W_OK):
        raise _error(path, "its folder may not be written to", "give another path")


def export_weights(path: Path, pipeline: Pipeline) -> None:
    """Write the parameters and buffers of the whole model to a file, by name; called by all ranks together.

    A file of this name is replaced when the new one is complete. Raises ChimeraError E835 on all ranks if the file cannot be
    written.
    """
    weights = pipeline.full_state_dict()

    def write() -> str:
        if pipeline.rank == 0:
            _write(path, weights)
        return ""

    try:
        BackgroundThread(write).results(pipeline.transport)
    except RanksFailedError as error:
        raise _error(path, error.reason, "give another path") from None


def _write(path: Path, weights: dict[str, Tensor]) -> None:
    temporary = path.with_name(f".{path.name}.partial")
    try:
        if path.suffix == SAFETENSORS:
            from safetensors.torch import save_file  # optional: an extra of this project

            save_file(weights, temporary, metadata={"format": "pt"})
        else:
            torch.save(weights, temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _error(path: Path, reason: str, help: str) -> ChimeraError:
    return refuse("E835", f"the weights cannot be written to {short_path(path)}: {reason}", help=help)
