"""Documents: the texts of a data source, read one piece at a time, and the prepared file of their tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.data.prepared import Writer, key_of, prepared
from chimerac.interpreter.data.text import BYTES, Array, Text, reading, standard_library, text_files
from chimerac.interpreter.data.tokenizer import Tokenizer

PIECE = 2**18  # characters of a piece, which then goes on to the end of its line, for at most as many again
GROUP = 2**22  # characters that are tokenized at a time, at least
LINE_END = 10  # the byte after each document, without a tokenizer


class Piece(NamedTuple):
    """A part of a document.

    Attributes:
        ends: whether it is the last part.
    """

    text: str
    ends: bool


@dataclass(frozen=True)
class Documents:
    """The documents of a source.

    Attributes:
        train, held_out: return the documents of this part piece by piece; held_out is None if the source itself holds none out.
        name: of the source, as in the message "the data NAME holds no text".
        key: a text that changes when the files do.
        note: what was read and skipped, as text for the user.
    """

    name: str
    key: str
    train: Callable[[], Iterator[Piece]]
    held_out: Callable[[], Iterator[Piece]] | None = None
    note: str = ""


def key_of_files(root: Path, files: Iterable[Path]) -> str:
    """Return a key of these files: their paths below `root`, sizes, and times of their last change."""
    stats = [(str(file.relative_to(root)) if file != root else file.name, file.stat()) for file in files]
    return key_of(*((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def text_documents(path: Path | None) -> Documents:
    """Return the documents of a file or a folder: each file is one, unless it is empty.

    Args:
        path: None for files of Python's library.

    Raises ChimeraError E802 as `load_text` does.
    """
    files, note = text_files(path)

    def pieces() -> Iterator[Piece]:
        with reading(path):
            yield from pieces_of_files(files)

    with reading(path):
        key = key_of_files(path or standard_library(), files)
    return Documents(str(path or "of Python"), key, pieces, note=note)


def pieces_of_files(files: Iterable[Path]) -> Iterator[Piece]:
    """Yield the texts of files. A piece ends at the end of a line or of a file, unless the line is very long (PIECE)."""
    for file in files:
        with file.open(encoding="utf-8", errors="replace", newline="") as opened:
            piece = opened.read(PIECE) + opened.readline(PIECE)
            while piece:
                following = opened.read(PIECE) + opened.readline(PIECE)
                yield Piece(piece, ends=not following)
                piece = following


def tokenized(documents: Documents, tokenizer: Tokenizer | None, folder: Path, limit_s: float) -> Text:
    """Return the tokens of these documents, mapped into memory from a prepared file in `folder`, which is written if missing.

    Args:
        tokenizer: None for bytes.
        limit_s: as in `prepared`.

    Raises ChimeraError E860 as `prepared` does, and E802 if there is no text or it cannot be read.
    """
    encoding, end = (BYTES, LINE_END) if tokenizer is None else (tokenizer.encoding, tokenizer.end)
    encode = _bytes if tokenizer is None else tokenizer.encode
    kind = "u1" if encoding.vocabulary <= 2**8 else "u2" if encoding.vocabulary <= 2**16 else "u4"

    def write(writer: Writer) -> dict[str, Any]:
        count = _append(writer, documents.train(), encode, end)
        border = writer.count
        if documents.held_out is not None:
            count += _append(writer, documents.held_out(), encode, end)
        if not writer.count:
            raise refuse("E802", f"the data {documents.name} holds no text", notes=(documents.note,) if documents.note else ())
        return {
            "encoding": encoding.name,
            "vocabulary": encoding.vocabulary,
            "documents": count,
            "border": None if documents.held_out is None else border,
        }

    path = folder / f"text-{key_of(documents.key, encoding.name)}.tokens"
    found = prepared(path, kind, write, limit_s)
    return Text([found.array], documents.note, encoding, found.about["border"], found.digest)


def _append(writer: Writer, pieces: Iterator[Piece], encode: Callable[[list[str]], list[Array]], end: int | None) -> int:
    """Append the tokens of these pieces. Return how many documents there are.

    Args:
        end: the token after each document, or None.
    """
    documents = 0
    for group in _grouped(pieces):
        parts: list[Array] = []
        for piece, tokens in zip(group, encode([piece.text for piece in group]), strict=True):
            parts.append(tokens)
            if piece.ends:
                documents += 1
                if end is not None:
                    parts.append(np.array([end], np.uint32))
        writer.append(np.concatenate(parts))
    return documents


def _grouped(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Yield the pieces in groups of at least GROUP characters; the last group may have fewer."""
    group, size = list[Piece](), 0
    for piece in pieces:
        group.append(piece)
        size += len(piece.text)
        if size >= GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


def _bytes(texts: list[str]) -> list[Array]:
    return [np.frombuffer(text.encode("utf-8", "replace"), np.uint8) for text in texts]
