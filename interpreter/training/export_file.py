"""The file of exported weights: whether it can be written. It does not import torch, so that this is checked first."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import short_path

SAFETENSORS, TORCH = ".safetensors", ".pt"


def check_export(path: Path) -> None:
    """Raise ChimeraError E835 if `export_weights` could not write this file: checked before a run starts."""
    if path.suffix not in (SAFETENSORS, TORCH):
        raise refused(path, "its name says no format", f"give a name that ends in {SAFETENSORS} or {TORCH}")
    if path.suffix == SAFETENSORS and importlib.util.find_spec("safetensors") is None:
        help = f"pip install safetensors, or give a name that ends in {TORCH}"
        raise refused(path, "safetensors is not installed", help)
    if path.is_dir():
        raise refused(path, "it is a folder", "give the name of a file")
    if not path.absolute().parent.is_dir():
        raise refused(path, f"there is no folder {short_path(path.absolute().parent)}", "make the folder, or give another path")
    if not os.access(path.absolute().parent, os.W_OK):
        raise refused(path, "its folder may not be written to", "give another path")


def refused(path: Path, reason: str, help: str) -> ChimeraError:
    """Return the finding E835 with its reason."""
    return refuse("E835", f"the weights cannot be written to {short_path(path)}: {reason}", help=help)
