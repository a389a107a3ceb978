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
HELD_OUT = 20  # one byte in 20 is held out, at the end of the text
# Installed packages, tests, and files that are tables rather than text.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}


class Text:
    """A sequence of bytes in several parts, each an array of its own. note: what was read and skipped, for the user."""

    def __init__(self, parts: Iterable[Bytes], note: str = "") -> None:
        self.note = note
        self._parts = [part for part in parts if len(part)]
        self._ends = np.array(list(accumulate(len(part) for part in self._parts)), np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, begin: int, end: int) -> Bytes:
        """Return bytes `begin` to `end`."""
        found = list(self._cut(begin, end))
        return found[0] if len(found) == 1 else np.concatenate([np.zeros(0, np.uint8), *found])

    def part(self, begin: int, end: int) -> Text:
        """Return the text of bytes `begin` to `end`, without loading it."""
        return Text(self._cut(begin, end))

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how often each byte occurs."""
        return sum((np.bincount(part, minlength=256) for part in self._parts), np.zeros(256, np.int64))

    def _cut(self, begin: int, end: int) -> Iterator[Bytes]:
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
            files = (p for p in root.rglob("*.py") if not _SKIPPED & set(p.relative_to(root).parts))
            return Text(_parts(_in_order(root, files), DEFAULT_BYTES)).part(0, DEFAULT_BYTES)
        if path.is_dir():
            return _text_of_folder(path)
        if path.stat().st_size:
            return Text([_bytes_of(path)])
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        named = error.filename if isinstance(error, OSError) else None
        why = reason(error).lower()
        raise refuse(
            "E802", f"the data {short_path(named or path or 'of Python')} cannot be read: {why}", help=_DATA_HELP
        ) from None
    raise refuse("E802", f"the data {short_path(path)} is empty", help=_DATA_HELP)


_DATA_HELP = "give --data a text file or a folder of them, or leave it out to take Python's standard library"


def is_text(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is text: UTF-8 without a NUL. Its last character may be cut."""
    try:
        getincrementaldecoder("utf-8")().decode(head[:CHECKED_BYTES])
    except UnicodeDecodeError:
        return False
    return b"\0" not in head[:CHECKED_BYTES]


def _text_of_folder(root: Path) -> Text:
    files, hidden = _files(root)
    parts, other = [], 0
    for file in _in_order(root, files):
        part = _bytes_of(file)
        if is_text(part[:CHECKED_BYTES].tobytes()):
            parts.append(part)
        else:
            other += 1
    skipped = [f"{count} {what}" for count, what in ((hidden, "hidden"), (other, "not text")) if count]
    note = f"{len(parts)} {'file' if len(parts) == 1 else 'files'} read"
    note += f", {' and '.join(skipped)} skipped" if skipped else ""
    if not sum(map(len, parts)):
        raise refuse("E802", f"the data {short_path(root)} holds no text", notes=(note,), help=_DATA_HELP)
    return Text(parts, note)


def _files(root: Path) -> tuple[list[Path], int]:
    """Return the regular files of a folder, and how many hidden files and folders are left out.

    Links to files are followed, links to folders are not. Raises OSError for a folder that cannot be listed.
    """
    found, hidden = [], 0

    def refuse_folder(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=refuse_folder):
        hidden += sum(name.startswith(".") for name in (*folders, *names))
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        found += [path for path in paths if path.is_file()]
    return found, hidden


def _bytes_of(file: Path) -> Bytes:
    if file.stat().st_size < MAPPED_BYTES:
        return np.frombuffer(file.read_bytes(), np.uint8)
    return np.memmap(file, np.uint8, mode="r")


def _in_order(root: Path, files: Iterable[Path]) -> list[Path]:
    return sorted(files, key=lambda p: p.relative_to(root).parts)


def _parts(files: Iterable[Path], limit: int) -> Iterator[Bytes]:
    """Yield the files' bytes until there are `limit` of them."""
    size = 0
    for file in files:
        if size >= limit:
            return
        part = _bytes_of(file)
        size += len(part)
        yield part


def split_text(text: Text, length: int) -> tuple[Text, Text]:
    """Return the part to train on and the part held out, its last twentieth or at least one sample.

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
    border = len(text) - max(len(text) // HELD_OUT, length + 1)
    return text.part(0, border), text.part(border, len(text))


def unigram_entropy(text: Text) -> float:
    """Return the entropy of single bytes, in nats: the lowest loss of a model that sees no context."""
    counts = text.counts()
    shares = counts[counts > 0] / len(text)
    return float(-(shares * np.log(shares)).sum())


def windows(text: Text, starts: Sequence[int], length: int) -> Bytes:
    """Return `length` bytes from each of these starts, as an array (starts, length)."""
    return np.stack([text.read(start, start + length) for start in starts])
