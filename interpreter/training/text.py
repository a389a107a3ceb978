"""Text to train on: the bytes of a file, or of all text files of a folder one after the other, mapped into memory.

Only the bytes that samples read are loaded. Small files are read whole. In a folder, hidden files, hidden folders and files
that are not text are skipped and counted.
"""

from __future__ import annotations

import os
import sysconfig
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import reason, short_path

Bytes = npt.NDArray[np.uint8]

DEFAULT_BYTES = 4_000_000  # of the standard library; enough that a short run reads no sample twice
CHECKED_BYTES = 2**16  # at the beginning of a file, which decide whether it is text
MAPPED_BYTES = 2**20  # files of at least this size are mapped into memory
HELD_OUT = 20  # the last twentieth of the text is held out
# Folders of the standard library without program text to train on: installed packages, tests, and files that are tables.
_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}

_DATA_HELP = "give --data a text file or a folder of them, or leave it out to take Python's standard library"


class Text:
    """A sequence of bytes, stored as several arrays. note: for the user, how many files were read and skipped."""

    def __init__(self, parts: Iterable[Bytes], note: str = "") -> None:
        self.note = note
        self._parts = [part for part in parts if len(part)]
        self._ends = np.array(list(accumulate(len(part) for part in self._parts)), np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, begin: int, end: int) -> Bytes:
        """Return bytes `begin` to `end`."""
        pieces = list(self._cut(begin, end))
        return pieces[0] if len(pieces) == 1 else np.concatenate([np.zeros(0, np.uint8), *pieces])

    def part(self, begin: int, end: int) -> Text:
        """Return the text of bytes `begin` to `end`. They are neither copied nor loaded."""
        return Text(self._cut(begin, end))

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how often each byte occurs."""
        return sum((np.bincount(part, minlength=256) for part in self._parts), np.zeros(256, np.int64))

    def _cut(self, begin: int, end: int) -> Iterator[Bytes]:
        """Yield bytes `begin` to `end` as views of the parts."""
        for k in range(int(np.searchsorted(self._ends, begin, "right")), len(self._parts)):
            start = int(self._ends[k]) - len(self._parts[k])
            if start >= end:
                break
            yield self._parts[k][max(0, begin - start) : end - start]


def load_text(path: Path | None) -> Text:
    """Return the text of a file, of all text files of a folder, or by default of Python's own standard library.

    The files of a folder are in the order of their paths. Raises ChimeraError E802 if there is nothing to read, and for a
    file or a folder that cannot be read.
    """
    try:
        if path is None:
            root = Path(sysconfig.get_path("stdlib"))
            files = (p for p in root.rglob("*.py") if not _SKIPPED_FOLDERS & set(p.relative_to(root).parts))
            return Text(_first_bytes(_in_order(root, files), DEFAULT_BYTES)).part(0, DEFAULT_BYTES)
        if path.is_dir():
            return _text_of_folder(path)
        if path.stat().st_size:
            return Text([_bytes_of_file(path)])
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        name = (error.filename if isinstance(error, OSError) else None) or path or "of Python"
        raise refuse("E802", f"the data {short_path(name)} cannot be read: {reason(error).lower()}", help=_DATA_HELP) from None
    raise refuse("E802", f"the data {short_path(path)} is empty", help=_DATA_HELP)


def is_text(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is text: UTF-8 without a NUL.

    The last of the bytes may be an incomplete character.
    """
    try:
        getincrementaldecoder("utf-8")().decode(head[:CHECKED_BYTES])
    except UnicodeDecodeError:
        return False
    return b"\0" not in head[:CHECKED_BYTES]


def _text_of_folder(root: Path) -> Text:
    files, hidden = _visible_files(root)
    parts, not_text = [], 0
    for file in _in_order(root, files):
        part = _bytes_of_file(file)
        if is_text(part[:CHECKED_BYTES].tobytes()):
            parts.append(part)
        else:
            not_text += 1
    skipped = [f"{count} {kind}" for count, kind in ((hidden, "hidden"), (not_text, "not text")) if count]
    note = f"{len(parts)} {'file' if len(parts) == 1 else 'files'} read"
    if skipped:
        note += f", {' and '.join(skipped)} skipped"
    if not any(map(len, parts)):
        raise refuse("E802", f"the data {short_path(root)} holds no text", notes=(note,), help=_DATA_HELP)
    return Text(parts, note)


def _visible_files(root: Path) -> tuple[list[Path], int]:
    """Return the regular files of a folder that are not hidden, and how many hidden files and folders it has.

    Links to files are followed, links to folders are not. Raises OSError for a folder that cannot be listed.
    """
    found, hidden = [], 0

    def raise_error(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=raise_error):
        hidden += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        found += [path for path in paths if path.is_file()]
    return found, hidden


def _bytes_of_file(file: Path) -> Bytes:
    """Return the bytes of a file, those of a large one mapped into memory."""
    if file.stat().st_size < MAPPED_BYTES:
        return np.frombuffer(file.read_bytes(), np.uint8)
    return np.memmap(file, np.uint8, mode="r")


def _in_order(root: Path, files: Iterable[Path]) -> list[Path]:
    """Return the files of a folder in the order of their paths, compared folder by folder."""
    return sorted(files, key=lambda p: p.relative_to(root).parts)


def _first_bytes(files: Iterable[Path], limit: int) -> Iterator[Bytes]:
    """Yield the bytes of each file, until at least `limit` bytes were yielded."""
    size = 0
    for file in files:
        if size >= limit:
            return
        part = _bytes_of_file(file)
        size += len(part)
        yield part


def split_text(text: Text, length: int) -> tuple[Text, Text]:
    """Return the part of a text to train on, and the part held out: the last twentieth, and at least one sample.

    length: bytes of a sample.

    Raises ChimeraError E803 if the text is too short for one sample in each part.
    """
    needed = 2 * (length + 1)
    if len(text) < needed:
        raise refuse(
            "E803",
            f"the data has {len(text)} bytes, one sample to train on and one held out take {needed}",
            notes=(f"a sample is --seq-len {length} bytes and the byte after them",),
            help="give longer data or a smaller --seq-len",
        )
    split = len(text) - max(len(text) // HELD_OUT, length + 1)
    return text.part(0, split), text.part(split, len(text))


def unigram_entropy(text: Text) -> float:
    """Return the entropy of single bytes, in nats per byte: the lowest loss of a model that sees no context."""
    counts = text.counts()
    shares = counts[counts > 0] / len(text)
    return float(-(shares * np.log(shares)).sum())


def windows(text: Text, starts: Sequence[int], length: int) -> Bytes:
    """Return `length` bytes from each of these starts: an array of shape (starts, length)."""
    return np.stack([text.read(start, start + length) for start in starts])
