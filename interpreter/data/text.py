"""Text to train on: bytes or tokens, one sequence in several parts, each an array that may be mapped into memory.

Of an array that is mapped, only what is read is loaded. `load_text` returns the bytes of a file, or of all text files of a
folder one after the other. In a folder, hidden files, hidden folders and files that are not text are skipped and counted.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from codecs import getincrementaldecoder
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import reason, short_path

Array = npt.NDArray[Any]  # of unsigned integers

DEFAULT_BYTES = 4_000_000  # of the standard library; enough that a short run reads no sample twice
CHECKED_BYTES = 2**16  # at the beginning of a file, which decide whether it is text
HASHED_TOKENS = 2**16  # at the beginning and at the end of the tokens to train on; their digest may stand for that of the text
MAPPED_BYTES = 2**20  # files of at least this size are mapped into memory
COUNTED = 2**22  # tokens that are counted at a time
HELD_OUT = 20  # one token in 20 is held out, at the end of the text; `split_text` has the exceptions
# Folders of the standard library that are not read: installed packages, tests, and files that are tables rather than text.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}


class SpecialTokens(NamedTuple):
    """The special tokens of pairs of sentences, as BERT has them."""

    pad: int
    start: int
    separator: int
    mask: int


SPECIAL_NAMES = "[PAD]", "[CLS]", "[SEP]", "[MASK]"  # the names of SpecialTokens in a tokenizer, in the same order


@dataclass(frozen=True)
class Encoding:
    """What the numbers of a text are.

    Attributes:
        vocabulary: the numbers of a text are below it.
        unit: what one of them is, such as `byte`.
        name: equal for equal encodings.
        special: its special tokens, None if it does not have all of them.
        words: the numbers that are no special tokens.
    """

    vocabulary: int
    unit: str
    name: str
    special: SpecialTokens | None
    words: tuple[int, ...]

    @property
    def all_tokens(self) -> int:
        """Return the size of a vocabulary that has the special tokens too."""
        return max([self.vocabulary, *(token + 1 for token in self.special or ())])


BYTES = Encoding(256, "byte", "bytes", SpecialTokens(256, 257, 258, 259), tuple(range(256)))


def special_tokens_of(encoding: Encoding) -> SpecialTokens:
    """Return the special tokens of an encoding. Raises ChimeraError E861 for one that does not have all of them."""
    if encoding.special is None:
        message = f"{encoding.name} has not all of the tokens {', '.join(SPECIAL_NAMES)}"
        raise refuse("E861", message, help="give --tokenizer one that was trained with --kind wordpiece, or that of a BERT")
    return encoding.special


class Text:
    """A sequence of tokens in several parts, each an array of its own.

    Args:
        note: what was read and skipped, for the user.
        encoding: what the tokens are.
        border: how many tokens are to train on; the others are held out. None: the data does not say.
        digest: of the contents, if it is known.
    """

    def __init__(
        self,
        parts: Iterable[Array],
        note: str = "",
        encoding: Encoding = BYTES,
        border: int | None = None,
        digest: str | None = None,
    ) -> None:
        self.note, self.encoding, self.border, self._digest = note, encoding, border, digest
        self._parts = [part for part in parts if len(part)]
        self._ends = np.array(list(accumulate(len(part) for part in self._parts)), np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, begin: int, end: int) -> Array:
        """Return tokens `begin` to `end - 1`."""
        cuts = list(self._cut(begin, end))
        # concatenate needs at least one array, and there may be no cut: hence the empty one.
        return cuts[0] if len(cuts) == 1 else np.concatenate([np.zeros(0, np.uint8), *cuts])

    def part(self, begin: int, end: int) -> Text:
        """Return the text of tokens `begin` to `end - 1`, without loading it."""
        return Text(self._cut(begin, end), encoding=self.encoding)

    def counts(self) -> npt.NDArray[np.int64]:
        """Return how often each token occurs."""
        size = self.encoding.vocabulary
        pieces = (part[k : k + COUNTED] for part in self._parts for k in range(0, len(part), COUNTED))
        return sum((np.bincount(piece, minlength=size) for piece in pieces), np.zeros(size, np.int64))

    def identity(self, trained: int) -> str:
        """Return a string that is equal for equal texts, of which the first `trained` tokens are trained on.

        If the digest of the contents is not known, a digest of the beginning and the end of these tokens takes its place,
        because reading all of them would take long.
        """
        digest = self._digest
        if digest is None:
            read = (self.read(0, min(trained, HASHED_TOKENS)), self.read(max(0, trained - HASHED_TOKENS), trained))
            digest = hashlib.sha256(b"".join(tokens.tobytes() for tokens in read)).hexdigest()
        encoding = "" if self.encoding == BYTES else f", {self.encoding.name}"
        return f"{digest[:12]}, of {trained} {self.encoding.unit}s{encoding}"

    def _cut(self, begin: int, end: int) -> Iterator[Array]:
        """Yield tokens `begin` to `end - 1`, as one array for each part that has some of them."""
        for k in range(int(np.searchsorted(self._ends, begin, "right")), len(self._parts)):
            start = int(self._ends[k]) - len(self._parts[k])
            if start >= end:
                break
            yield self._parts[k][max(0, begin - start) : end - start]


def load_text(path: Path | None) -> Text:
    """Return the bytes of a file, or of all text files of a folder.

    Args:
        path: None for DEFAULT_BYTES of Python's standard library.

    The files of a folder are in the order of their paths. Raises ChimeraError E802 if there is nothing to read, and for a
    file or a folder that cannot be read.
    """
    files, note = text_files(path)
    with reading(path):
        text = Text(map(_bytes_of, files), note)
    return text.part(0, DEFAULT_BYTES) if path is None else text


def standard_library() -> Path:
    """Return the folder of Python's own standard library."""
    return Path(sysconfig.get_path("stdlib"))


def text_files(path: Path | None) -> tuple[list[Path], str]:
    """Return the files of `load_text` in their order, and a note on what was read and skipped: empty unless `path` is a folder.

    Raises ChimeraError E802 as `load_text` does.
    """
    with reading(path):
        if path is None:
            root = standard_library()
            files = (p for p in root.rglob("*.py") if not _SKIPPED & set(p.relative_to(root).parts))
            return _first_files(_in_order(root, files), DEFAULT_BYTES), ""
        if path.is_dir():
            return _text_files_of_folder(path)
        if path.stat().st_size:
            return [path], ""
    raise refuse("E802", f"the data {short_path(path)} is empty", help=_DATA_HELP)


@contextmanager
def reading(path: Path | None) -> Iterator[None]:
    """Turn errors of the file system into ChimeraError E802.

    Args:
        path: of the data, for the message; None: of Python's library.
    """
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        named = error.filename if isinstance(error, OSError) else None
        why = reason(error)
        raise refuse(
            "E802", f"the data {short_path(named or path or 'of Python')} cannot be read: {why}", help=_DATA_HELP
        ) from None


_DATA_HELP = "give a text file, a folder of them, or the name text, which is Python's standard library"


def is_text(head: bytes) -> bool:
    """Return whether a file that begins with these bytes is text: UTF-8 without a NUL. The last character may be cut.

    At most CHECKED_BYTES are checked.
    """
    try:
        getincrementaldecoder("utf-8")().decode(head[:CHECKED_BYTES])
    except UnicodeDecodeError:
        return False
    return b"\0" not in head[:CHECKED_BYTES]


def _text_files_of_folder(root: Path) -> tuple[list[Path], str]:
    files, hidden_count = _files(root)
    found, other_count, head_bytes = [], 0, 0
    for file in _in_order(root, files):
        with file.open("rb") as opened:
            head = opened.read(CHECKED_BYTES)
        if is_text(head):
            found.append(file)
            head_bytes += len(head)
        else:
            other_count += 1
    skipped = [f"{count} {what}" for count, what in ((hidden_count, "hidden"), (other_count, "not text")) if count]
    note = f"{len(found)} {'file' if len(found) == 1 else 'files'} read"
    note += f", {' and '.join(skipped)} skipped" if skipped else ""
    if not head_bytes:
        raise refuse("E802", f"the data {short_path(root)} holds no text", notes=(note,), help=_DATA_HELP)
    return found, note


def _files(root: Path) -> tuple[list[Path], int]:
    """Return the regular files of a folder and of its subfolders, and how many hidden files and folders are left out.

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


def _bytes_of(file: Path) -> Array:
    if file.stat().st_size < MAPPED_BYTES:
        return np.frombuffer(file.read_bytes(), np.uint8)
    return np.memmap(file, np.uint8, mode="r")


def _in_order(root: Path, files: Iterable[Path]) -> list[Path]:
    return sorted(files, key=lambda p: p.relative_to(root).parts)


def _first_files(files: Iterable[Path], limit: int) -> list[Path]:
    """Return the first files, as many as it takes to have `limit` bytes together, or all."""
    kept, size = [], 0
    for file in files:
        if size >= limit:
            break
        kept.append(file)
        size += file.stat().st_size
    return kept


def split_text(text: Text, length: int) -> tuple[Text, Text]:
    """Return the part to train on and the part held out, which is the last twentieth of the text, but at least one sample.

    A text with a border is split there instead. Raises ChimeraError E803 if the text is too short for one sample in each part.
    """
    unit, needed = text.encoding.unit, length + 1
    border = len(text) - max(len(text) // HELD_OUT, needed) if text.border is None else text.border
    if min(border, len(text) - border) < needed:
        own = "" if text.border is None else f", of which the data set itself holds out {len(text) - border}"
        raise refuse(
            "E803",
            f"the data has {len(text)} {unit}s{own}; the part to train on and the part held out need {needed} each",
            notes=(f"a sample has --seq-len {length} {unit}s, and a part needs one {unit} more",),
            help="give longer data or a smaller --seq-len",
        )
    return text.part(0, border), text.part(border, len(text))


def windows(text: Text, starts: Sequence[int], length: int) -> Array:
    """Return `length` tokens from each of these starts, as an array (starts, length)."""
    return np.stack([text.read(start, start + length) for start in starts])
