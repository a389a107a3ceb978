"""The folder of a checkpoint: written under a hidden name, and renamed when it is complete.

    .metadata, __*.distcp   the tensors, in the format of torch.distributed.checkpoint (checkpoint_tensors.py)
    state.pt                what the caller saved besides, written by torch.save
    checkpoint.json         what kind of run this is from, and the sizes and checksums of the other files

A folder that has its final name is complete. A process that is killed leaves a hidden folder, which the next save removes.
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

FORMAT = 1  # number of this layout
INFO, STATE = "checkpoint.json", "state.pt"


class UnreadableError(Exception):
    """A checkpoint is incomplete or damaged. The message says what is wrong with it."""


def partial(path: Path) -> Path:
    """Return the folder in which a checkpoint is written."""
    return path.parent / f".{path.name}.partial"


def _replaced(path: Path) -> Path:
    """Return the name that a complete checkpoint has while another one takes its place."""
    return path.parent / f".{path.name}.replaced"


def prepare(path: Path) -> None:
    """Create the empty folder in which a checkpoint is written. Raises OSError where that is not possible.

    A folder at `path` that is not empty and is no checkpoint is not replaced.
    """
    if path.exists() and not (path.is_dir() and _may_be_replaced({file.name for file in path.iterdir()})):
        raise FileExistsError("it exists and is no checkpoint")
    remove(partial(path))
    partial(path).mkdir(parents=True)


def _may_be_replaced(names: Set[str]) -> bool:
    """Return whether a folder with these files is empty, or a checkpoint, perhaps a damaged one."""
    return not names or not names.isdisjoint({INFO, STATE, ".metadata"})


def commit(path: Path, info: Mapping[str, Any], checksums: Mapping[str, int]) -> None:
    """Write checkpoint.json, and give the folder its final name. A checkpoint that has this name is replaced.

    checksums: of the files that are known already.
    """
    folder = partial(path)
    found = {f.name: [f.stat().st_size, checksums[f.name] if f.name in checksums else checksum(f)] for f in folder.iterdir()}
    write(folder / INFO, json.dumps({"format": FORMAT, **info, "files": found}, indent=1).encode())
    _sync_folder(folder)
    if path.exists():
        remove(_replaced(path))
        path.rename(_replaced(path))
    folder.rename(path)
    _sync_folder(path.parent)
    remove(_replaced(path))


def remove(folder: Path) -> None:
    """Remove a folder, if it is there. It is renamed first, so that no part of it is taken for a complete checkpoint."""
    if folder.exists():
        if not folder.name.endswith(".partial"):
            remove(partial(folder))
            folder = folder.rename(partial(folder))
        shutil.rmtree(folder)


def remove_leftovers(parent: Path) -> None:
    """Remove the folders of saves that were not completed."""
    for folder in parent.glob(".*.partial"):
        remove(folder)
    for folder in parent.glob(".*.replaced"):
        if final_name(folder).exists():
            remove(folder)


def final_name(replaced: Path) -> Path:
    """Return the name that a folder had before it was replaced."""
    return replaced.parent / replaced.name.removeprefix(".").removesuffix(".replaced")


def complete(path: Path) -> Path:
    """Return the folder of the checkpoint `path`: after a kill between two renames, the one that was to be replaced."""
    return _replaced(path) if not path.exists() and _replaced(path).exists() else path


def read_info(folder: Path) -> dict[str, Any]:
    """Return checkpoint.json. Raises UnreadableError unless all files are there with the sizes that they had."""
    if not folder.is_dir():
        raise UnreadableError("there is no such folder")
    if not (folder / INFO).exists():
        raise UnreadableError(f"it has no {INFO}, so it is no checkpoint of this project or a damaged one")
    try:
        info: dict[str, Any] = json.loads((folder / INFO).read_text(encoding="utf-8"))
        if info["format"] > FORMAT:
            raise UnreadableError(f"its format has the number {info['format']}, and this version reads up to {FORMAT}")
        for name, (size, _) in info["files"].items():
            if not (folder / name).exists():
                raise UnreadableError(f"the file {name} is missing")
            if (found := (folder / name).stat().st_size) != size:
                raise UnreadableError(f"the file {name} has {found} bytes, and {size} were written")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UnreadableError(f"{INFO} is damaged") from None
    return info


def verify(folder: Path, info: Mapping[str, Any], part: int, parts: int) -> None:
    """Raise UnreadableError if a file has other bytes than were written. Each of `parts` callers reads some of the files."""
    for name, (_, expected) in sorted(info["files"].items())[part::parts]:
        if checksum(folder / name) != expected:
            raise UnreadableError(f"the file {name} is damaged: its checksum is not the one that it had")


def checksum(file: Path) -> int:
    """Return the CRC-32 of a file."""
    found = 0
    with open(file, "rb") as stream:
        while data := stream.read(2**20):
            found = zlib.crc32(data, found)
    return found


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
