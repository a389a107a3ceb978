"""The folder of a checkpoint: written under a hidden name, and renamed when it is complete.

    .metadata, __*.distcp   the tensors, in the format of torch.distributed.checkpoint (checkpoint_tensors.py)
    state.pt                what the caller saved besides, written by torch.save
    checkpoint.json         the run that wrote it, and the sizes and checksums of the other files

A folder that has its final name is complete. A process that is killed while it saves leaves a hidden folder. The next save of
the same name removes it, and so does `remove_leftovers`. While a checkpoint replaces another one of the same name, the old one
has a hidden name too. It remains valid until the new one has its final name.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import short_path

FORMAT = 1  # version of this layout
INFO, STATE = "checkpoint.json", "state.pt"


class UnreadableError(Exception):
    """A checkpoint is missing, incomplete, damaged, or of a newer version. The message says what is wrong with it."""


def mismatch(path: Path, reason: str, code: str = "E831", notes: tuple[str, ...] = (), help: str = "") -> ChimeraError:
    """Return the finding that the checkpoint `path` belongs to another run.

    Args:
        reason: what differs.
        help: empty for the default, which suits most differences.
    """
    help = help or "start with the options with which the checkpoint was written, or give another checkpoint"
    return refuse(code, f"the checkpoint {short_path(path)} does not fit this run: {reason}", notes=notes, help=help)


def partial_folder(path: Path) -> Path:
    """Return the folder in which the checkpoint `path` is written until it is complete."""
    return path.parent / f".{path.name}.partial"


def _replaced_folder(path: Path) -> Path:
    """Return the folder in which the old checkpoint `path` is while a new one replaces it."""
    return path.parent / f".{path.name}.replaced"


def prepare(path: Path) -> None:
    """Create the empty folder in which the checkpoint `path` is written.

    Raises OSError if that is not possible: FileExistsError if `path` exists and is neither an empty folder nor a checkpoint.
    """
    if path.exists() and not (path.is_dir() and _may_be_replaced({file.name for file in path.iterdir()})):
        raise FileExistsError("it exists and is no checkpoint")
    remove(partial_folder(path))
    partial_folder(path).mkdir(parents=True)


def _may_be_replaced(names: Set[str]) -> bool:
    """Return whether a folder with these files is empty, or a checkpoint, perhaps a damaged one."""
    return not names or not names.isdisjoint({INFO, STATE, ".metadata"})


def commit(path: Path, info: Mapping[str, Any], checksums: Mapping[str, int]) -> None:
    """Write checkpoint.json, and give the folder its final name. A checkpoint that has this name is replaced.

    Args:
        info: what checkpoint.json says of the run.
        checksums: by name of the file, those that are known already.
    """
    folder = partial_folder(path)
    sizes_and_checksums = {
        f.name: [f.stat().st_size, checksums[f.name] if f.name in checksums else checksum(f)] for f in folder.iterdir()
    }
    write(folder / INFO, json.dumps({"format": FORMAT, **info, "files": sizes_and_checksums}, indent=1).encode())
    _sync_folder(folder)
    if path.exists():
        remove(_replaced_folder(path))
        path.rename(_replaced_folder(path))
    folder.rename(path)
    _sync_folder(path.parent)
    remove(_replaced_folder(path))


def remove(folder: Path) -> None:
    """Remove a folder if it exists.

    It first gets the name of an incomplete save, so that no part of it is taken for a complete checkpoint.
    """
    if folder.exists():
        if not folder.name.endswith(".partial"):
            remove(partial_folder(folder))
            folder = folder.rename(partial_folder(folder))
        shutil.rmtree(folder)


def remove_leftovers(parent: Path, prefix: str) -> None:
    """Remove the folders of incomplete saves, and replaced checkpoints whose replacement is complete.

    Args:
        prefix: with which the names of the checkpoints in `parent` begin. Hidden files and folders whose names do not contain
            it remain, such as the file of an export that was killed.
    """
    # Incomplete saves are `.NAME.partial`. A replaced checkpoint that `remove` has renamed is `..NAME.replaced.partial`.
    for folder in parent.glob(f".*{prefix}*.partial"):
        if folder.is_dir():  # a file may be that of an export that was killed
            remove(folder)
    for folder in parent.glob(f".{prefix}*.replaced"):
        if final_name(folder).exists():
            remove(folder)


def final_name(replaced: Path) -> Path:
    """Return the path that a replaced checkpoint had before."""
    return replaced.parent / replaced.name.removeprefix(".").removesuffix(".replaced")


def existing_folder(path: Path) -> Path:
    """Return the folder of the checkpoint `path`: the replaced one, if a process was killed between the renames of `commit`."""
    return _replaced_folder(path) if not path.exists() and _replaced_folder(path).exists() else path


def read_info(folder: Path) -> dict[str, Any]:
    """Return the content of checkpoint.json.

    Raises UnreadableError if it is missing, damaged or of a newer version, or if another file is missing or does not have the
    size with which it was written.
    """
    if not folder.is_dir():
        raise UnreadableError("there is no such folder")
    if not (folder / INFO).exists():
        raise UnreadableError(f"it has no {INFO}, so it is no checkpoint of this project or a damaged one")
    try:
        info: dict[str, Any] = json.loads((folder / INFO).read_text(encoding="utf-8"))
        if info["format"] > FORMAT:
            raise UnreadableError(f"its format is version {info['format']}, and this version of chimerac reads up to {FORMAT}")
        for name, (size, _) in info["files"].items():
            if not (folder / name).exists():
                raise UnreadableError(f"the file {name} is missing")
            if (current := (folder / name).stat().st_size) != size:
                raise UnreadableError(f"the file {name} has {current} bytes, and {size} were written")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadableError(f"{INFO} is damaged") from None
    return info


def verify(folder: Path, info: Mapping[str, Any], part: int, parts: int) -> None:
    """Raise UnreadableError if the bytes of a file have changed.

    `parts` callers share the work, numbered from 0. Of the files, sorted by name, the caller `part` checks those whose index is
    `part` modulo `parts`.
    """
    for name, (_, expected) in sorted(info["files"].items())[part::parts]:
        if checksum(folder / name) != expected:
            raise UnreadableError(f"the file {name} is damaged: its checksum has changed")


def checksum(file: Path) -> int:
    """Return the CRC-32 of a file."""
    crc = 0
    with open(file, "rb") as stream:
        while data := stream.read(2**20):
            crc = zlib.crc32(data, crc)
    return crc


def write(file: Path, data: bytes) -> None:
    """Write a file, and wait until it is on the disk."""
    with open(file, "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
