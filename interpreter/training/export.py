"""The weights of the whole model in one file: .safetensors, or .pt for torch.load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from chimerac.interpreter.pipeline.background import BackgroundThread, RanksFailedError
from chimerac.interpreter.pipeline.bound import BoundPipeline
from chimerac.interpreter.training.export_file import SAFETENSORS, export_error


def export_weights(path: Path, pipeline: BoundPipeline, about: Mapping[str, str]) -> None:
    """Write the parameters and the persistent buffers of the whole model to a file, by name; called by all ranks together.

    Args:
        about: texts for the header of a .safetensors file, by name; a .pt file has no header.

    An existing file at this path is replaced when the new one is complete.

    Raises ChimeraError E835 on all ranks if the file cannot be written.
    """
    weights = pipeline.full_state_dict()

    def write() -> str:
        if pipeline.rank == 0:
            _write(path, weights, about)
        return ""

    try:
        BackgroundThread(write).results(pipeline.transport)
    except RanksFailedError as error:
        raise export_error(path, error.reason, "give another path") from None


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
