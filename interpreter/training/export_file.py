"""Checks of the file for exported weights. They are made before a run starts, so this module does not import torch."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason, short_path

SAFETENSORS, TORCH = ".safetensors", ".pt"


def check_export(path: Path) -> None:
    """Raise ChimeraError E835 if it is clear before the run starts that `export_weights` could not write this file."""
    if path.suffix not in (SAFETENSORS, TORCH):
        raise export_error(path, "its name has no known ending", f"give a name that ends in {SAFETENSORS} or {TORCH}")
    if path.suffix == SAFETENSORS and importlib.util.find_spec("safetensors") is None:
        help = f"pip install safetensors, or give a name that ends in {TORCH}"
        raise export_error(path, "safetensors is not installed", help)
    folder = path.absolute().parent
    try:
        if path.is_dir():
            raise export_error(path, "it is a folder", "give the name of a file")
        if not folder.is_dir():
            raise export_error(path, f"there is no folder {short_path(folder)}", "create the folder, or give another path")
    except OSError as error:  # the path is too long, or this process may not look into one of its folders
        raise export_error(path, reason(error), "give another path") from None
    if not os.access(folder, os.W_OK):
        raise export_error(path, "its folder may not be written to", "give another path")


def export_error(path: Path, why: str, help: str) -> ChimeraError:
    """Return the error E835 of a file that cannot be written."""
    return refuse("E835", f"the weights cannot be written to {short_path(path)}: {why}", help=help)
