"""Finding parts of a JSON text without parsing them: a text may be a gigabyte, and its Python values fifty times as large.

An `Excerpt` joins such parts, and knows their places in the source, for findings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]

from chimerac.chimera_ir.diagnostics import Source, Span

Path = tuple[int | str, ...]  # to a value in a file: fields and indices

SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair, as a character
_SPACE = re.compile(r"[ \t\n\r]*")
_QUOTE_OR_BRACKET = re.compile(r'["\[\]{}]')
_SCALAR = re.compile(r"[^\s,:\"\[\]{}]+")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A JSON text that consists of parts of a source, or one that was written for lines of the compact text form.

    Attributes:
        offsets: for each part of the source, ascending, the position in this text at which it begins, and the number that is
            added to a position in this text for the position in the source. The default is for a text that is the whole source.
            A text that was written has none.
    """

    text: str
    source: Source
    offsets: tuple[tuple[int, int], ...] = ((0, 0),)

    @staticmethod
    def of(source: Source, *parts: tuple[int, int] | str) -> Excerpt:
        """Return these parts of a source, given as (start, end), joined with the texts given between them."""
        text, offsets, length = [], [], 0
        for part in parts:
            if isinstance(part, str):
                text.append(part)
            else:
                offsets.append((length, part[0] - length))
                text.append(source.text[part[0] : part[1]])
            length += len(text[-1])
        return Excerpt("".join(text), source, tuple(offsets))

    def span(self, start: int, end: int) -> Span | None:
        """Return the span in the source of the characters start .. end - 1 of this text; None for a text that was written."""
        if not self.offsets:
            return None
        shift = next((shift for position, shift in reversed(self.offsets) if position <= start), 0)
        return self.source.span(start + shift, end + shift)


def after_space(text: str, at: int) -> int:
    """Return the position after the white space that begins here, or this position if there is none."""
    found = _SPACE.match(text, at)
    assert found
    return found.end()


def after(text: str, at: int, allowed: str) -> int:
    """Return the position after one of these characters and white space. Raises JSONDecodeError if none is here."""
    if text[at : at + 1] not in (*allowed,):
        raise JSONDecodeError(f"Expecting '{allowed[0]}' delimiter", text, at)
    return after_space(text, at + 1)


def string(text: str, at: int) -> tuple[str, int]:
    """Return the string that begins here, and the position after it. Raises JSONDecodeError if there is none."""
    if text[at : at + 1] != '"':
        raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
    value, end = scanstring(text, at + 1, True)
    return value, end


def end_of(text: str, at: int) -> int:
    """Return the position after the value that begins here.

    Only strings are checked: outside of brackets any characters up to white space or a delimiter are a value.

    Raises JSONDecodeError if no value begins here, if a string is not valid, or if a bracket has no end.
    """
    if text[at : at + 1] not in ('"', "[", "{"):
        found = _SCALAR.match(text, at)
        if not found:
            raise JSONDecodeError("Expecting value", text, at)
        return found.end()
    depth = 0  # the number of brackets that are open
    while found := _QUOTE_OR_BRACKET.search(text, at):
        if found[0] == '"':
            _, at = scanstring(text, found.end(), True)
        else:
            depth, at = depth + (1 if found[0] in "[{" else -1), found.end()
        if depth <= 0:
            return at
    raise JSONDecodeError("Expecting ',' delimiter", text, len(text))


def place_of(text: str, field: str) -> int | None:
    """Return the position of the value of a field of the outermost object; None if there is no such field or no object.

    Of the values before it only strings and the ends of brackets are checked (see `end_of`), and a comma before the closing
    brace is accepted. Raises JSONDecodeError if the object is otherwise not JSON up to this position, or up to its end if there
    is no such field.
    """
    at = after_space(text, 0)
    if text[at : at + 1] != "{":
        return None
    at = after(text, at, "{")
    while text[at : at + 1] != "}":
        key, at = string(text, at)
        at = after(text, after_space(text, at), ":")
        if key == field:
            return at
        at = after_space(text, end_of(text, at))
        if text[at : at + 1] != "}":
            at = after(text, at, ",")
    return None


def place_in_words(loc: Path) -> str:
    """Return a path as text, without what pydantic adds to it: the op of an instruction, and [key] after a key."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in _path(loc)).lstrip(".")


def _path(loc: Path) -> Iterator[int | str]:
    for k, p in enumerate(loc):
        # The op follows the two indices of an instruction: streams, rank, number, op.
        if p != "[key]" and not (k > 2 and isinstance(loc[k - 1], int) and isinstance(loc[k - 2], int) and str(p).isupper()):
            yield p
