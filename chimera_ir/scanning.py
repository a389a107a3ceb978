"""Parts of a JSON text, found without making values of it: a text may be a gigabyte, and its values fifty times as large."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from json import JSONDecodeError
from json.decoder import scanstring  # type: ignore[attr-defined]

from chimerac.chimera_ir.diagnostics import Source, Span

Path = tuple[int | str, ...]  # where a value stands in a file: fields and indices

_SPACE = re.compile(r"[ \t\n\r]*")
_MARK = re.compile(r'["\[\]{}]')
_SCALAR = re.compile(r"[^\s,:\"\[\]{}]+")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A part of a text that is read on its own. moved: (place in it, how much further on in the source), by place."""

    text: str
    source: Source
    moved: tuple[tuple[int, int], ...] = ((0, 0),)

    @staticmethod
    def of(source: Source, *parts: tuple[int, int] | str) -> Excerpt:
        """Return these parts of a source, one after another, and texts that stand between them."""
        text, moved, length = [], [], 0
        for part in parts:
            if isinstance(part, str):
                text.append(part)
            else:
                moved.append((length, part[0] - length))
                text.append(source.text[part[0] : part[1]])
            length += len(text[-1])
        return Excerpt("".join(text), source, tuple(moved))

    def span(self, start: int, end: int) -> Span:
        """Return where a place of this text stands in the source."""
        by = next((by for place, by in reversed(self.moved) if place <= start), 0)
        return self.source.span(start + by, end + by)


def after_space(text: str, at: int) -> int:
    """Return the place of what follows white space."""
    found = _SPACE.match(text, at)
    assert found
    return found.end()


def after(text: str, at: int, sign: str) -> int:
    """Return the place behind a sign, one of these, and behind white space. Raises JSONDecodeError where none stands here."""
    if text[at : at + 1] not in (*sign,):
        raise JSONDecodeError(f"Expecting '{sign[0]}' delimiter", text, at)
    return after_space(text, at + 1)


def string(text: str, at: int) -> tuple[str, int]:
    """Return the string that begins here, and the place behind it. Raises JSONDecodeError where there is none."""
    if text[at : at + 1] != '"':
        raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
    value, end = scanstring(text, at + 1, True)
    return value, end


def end_of(text: str, at: int, depth: int = 0) -> int:
    """Return the place behind the value that begins here; or, within brackets, behind the last of `depth` that close.

    Raises JSONDecodeError where it has no end. What stands within is looked at no further.
    """
    if not depth and text[at : at + 1] not in ('"', "[", "{"):
        found = _SCALAR.match(text, at)
        if not found:
            raise JSONDecodeError("Expecting value", text, at)
        return found.end()
    while found := _MARK.search(text, at):
        if found[0] == '"':
            _, at = scanstring(text, found.end(), True)
        else:
            depth, at = depth + (1 if found[0] in "[{" else -1), found.end()
        if depth <= 0:
            return at
    raise JSONDecodeError("Expecting ',' delimiter", text, len(text))


def place_of(text: str, field: str) -> int | None:
    """Return where the value of a field of the outermost object begins; None where it has none, or is no object.

    Raises JSONDecodeError where the text makes no sense before that.
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
    """Return a path into the file. The value of a discriminator, which pydantic adds to a path, is left out."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in _path(loc)).lstrip(".")


def _path(loc: Path) -> Iterator[int | str]:
    for k, p in enumerate(loc):
        # An instruction stands at two indices, and its op after them. What pydantic says of a key ends in [key].
        if p != "[key]" and not (k > 2 and isinstance(loc[k - 1], int) and isinstance(loc[k - 2], int) and str(p).isupper()):
            yield p
