"""The text of an editor's document, and its positions as the protocol counts them.

The protocol counts lines and code units from 0, and code units are UTF-16 unless editor and server agree on others.
Everything else in the compiler counts characters.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property

from chimerac.compiler.syntax.tokens import TOKEN

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_BYTES = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}  # codec, bytes of a code unit


@dataclass(frozen=True, slots=True)
class Word:
    """A token of a text.

    Attributes:
        start, end: offsets in characters.
    """

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Text:
    """The text of a document.

    Attributes:
        text: with `\\n` line ends, and as long as the document itself, so that offsets are the same.
        encoding: the code units in which positions are counted, 'utf-8', 'utf-16' or 'utf-32'.
    """

    text: str = field(repr=False)
    encoding: str = "utf-16"

    @staticmethod
    def of(document: str, encoding: str = "utf-16") -> Text:
        """Return the text of a document.

        A byte order mark at the start and the `\\r` of each `\\r\\n` become spaces. Any other `\\r` becomes `\\n`.
        """
        text = document.replace("\r\n", " \n").replace("\r", "\n")
        return Text(" " + text[1:] if text.startswith("\ufeff") else text, encoding)

    @cached_property
    def starts(self) -> list[int]:
        """Return the offset at which each line starts."""
        return [0, *(k + 1 for k, c in enumerate(self.text) if c == "\n")]

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and the code unit of an offset, both from 0."""
        line = bisect_right(self.starts, offset) - 1
        codec, size = _BYTES[self.encoding]
        return line, len(self.text[self.starts[line] : offset].encode(codec, "surrogatepass")) // size

    def offset(self, line: int, unit: int) -> int:
        """Return the offset of a position.

        A position past the end of its line means the end of the line, one after the last line the end of the text, and one
        within a character the end of the character.
        """
        if line >= len(self.starts):
            return len(self.text)
        end = self.starts[line + 1] - 1 if line + 1 < len(self.starts) else len(self.text)
        codec, size = _BYTES[self.encoding]
        offset = self.starts[line]
        while unit > 0 and offset < end:
            unit -= len(self.text[offset].encode(codec, "surrogatepass")) // size
            offset += 1
        return offset

    def at(self, line: int, column: int) -> int:
        """Return the offset of a line and a column in characters, both from 1, as findings have them."""
        if line > len(self.starts):
            return len(self.text)
        return min(self.starts[max(line, 1) - 1] + max(column, 1) - 1, len(self.text))

    def word_at(self, offset: int) -> Word | None:
        """Return the name or keyword at an offset, or the one that ends there; None if there is none, or in a comment."""
        line = bisect_right(self.starts, offset) - 1
        start = self.starts[line]
        end = self.text.find("\n", start)
        code = self.text[start : end if end >= 0 else len(self.text)].partition("#")[0]
        for found in _WORD.finditer(code):
            if start + found.start() <= offset <= start + found.end():
                return Word(found[0], start + found.start(), start + found.end())
        return None

    @cached_property
    def words(self) -> tuple[Word, ...]:
        """Return the tokens of the text, without comments."""
        matches = TOKEN.finditer(self.text)
        return tuple(Word(m[0], m.start(), m.end()) for m in matches if not m[0].startswith("#"))
