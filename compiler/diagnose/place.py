"""A place in a text that does not parse: the words around it, the blocks that are open there, and what could follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from chimerac.chimera_ir.diagnostics import Source, Span

# A sign of another language is one word, as it is to its authors.
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+(?:\.[0-9]+)?|\.\.\.|\.\.[=<]|\.\.|->|<>|=[<>]|[:=<>!]==?|&&|\|\||\*\*|//|\S")
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_LONG = 50  # characters of a block's head


@dataclass(frozen=True, slots=True)
class Word:
    """A word, number or sign. start, end: where in the text; line, column: the same, from 1."""

    text: str
    start: int
    end: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Block:
    """What stands between two braces. head: the words that begin it, up to the brace, which is number `brace`; close: the
    number of the one that ends it; indent: how far the line with its head is indented."""

    head: tuple[Word, ...]
    brace: int
    indent: int
    close: int | None = None

    @property
    def kind(self) -> str:
        """What may stand in it: 'pipe', 'ticks', 'greedy' or 'listing'; nothing where that is not known."""
        words = [w.text for w in self.head]
        if words[:1] == ["order"]:
            return next((w for w in words if w in ("ticks", "greedy", "listing")), "")
        return {"pipe": "pipe", "repeat": "listing", "if": "listing", "else": "listing"}.get(words[0] if words else "", "")

    @property
    def said(self) -> str:
        """Its beginning, as in 'order ticks {'."""
        text = re.sub(r" ?([(\[\])]) ?", r"\1", " ".join(w.text for w in self.head)).replace(" ,", ",")
        return (text if len(text) < _LONG else f"{text[: _LONG - 3]}...") + " {"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stops being one of the language.

    words: all of the text but comments; at: the number of the first that cannot stand where it does, or one past the last;
    expected: the names of the terminals that could; literal: the words and signs among them but operators; blocks: open
    there, the outermost first; closed: those that have ended; keywords: the words that cannot be names.
    """

    source: Source
    words: tuple[Word, ...]
    at: int
    expected: frozenset[str]
    literal: frozenset[str]
    blocks: tuple[Block, ...]
    closed: tuple[Block, ...]
    keywords: frozenset[str]

    @classmethod
    def of(cls, source: Source, position: int, follow: Callable[[int], tuple[frozenset[str], frozenset[str]]],
           keywords: frozenset[str]) -> Place:  # fmt: skip
        """Return the place of a character. follow: where in the text -> the terminals that could stand there, and their
        words and signs."""
        words = tuple(_words(source.text))
        at = next((k for k, w in enumerate(words) if w.end > position), len(words))
        blocks, closed = _blocks(words, at)
        return cls(source, words, at, *follow(words[at].start if at < len(words) else position), blocks, closed, keywords)

    @property
    def kind(self) -> str:
        """What may stand in the block that is open; nothing at the top level."""
        return next((b.kind for b in reversed(self.blocks) if b.kind), "")

    def wants(self, word: str) -> bool:
        """Return whether nothing but this word, or an operator, can stand here."""
        return self.literal - {"("} == {word} and "NAME" not in self.expected

    def text(self, offset: int = 0) -> str:
        """Return the word at the place, or so many words further on; nothing beyond the ends of the text."""
        k = self.at + offset
        return self.words[k].text if 0 <= k < len(self.words) else ""

    def said(self, first: int, end: int) -> str:
        """Return the text from one word up to another; of several lines, on one."""
        end = min(end, len(self.words))
        return " ".join(self.source.text[self.words[first].start : self.words[end - 1].end].split()) if first < end else ""

    def span(self, first: int, end: int) -> Span:
        """Return where words stand that are on one line."""
        a, b = self.words[first], self.words[end - 1]
        return Span(self.source, a.line, a.column, b.line, b.column + len(b.text))

    def on_one_line(self, first: int, end: int) -> bool:
        return 0 <= first < end <= len(self.words) and self.words[first].line == self.words[end - 1].line

    @property
    def ended(self) -> bool:
        """Whether it is the end of the text."""
        return self.at == len(self.words)

    @property
    def starts_line(self) -> bool:
        return self.at == len(self.words) or self.at == 0 or self.words[self.at - 1].line < self.words[self.at].line

    def partner(self, k: int) -> int | None:
        """Return the number of the bracket that closes this one, if it is one and another closes it."""
        if not 0 <= k < len(self.words) or self.words[k].text not in _CLOSING:
            return None
        depth = 0
        for other in range(k, len(self.words)):
            text = self.words[other].text
            depth += (text in _CLOSING) - (text in _CLOSING.values())
            if depth <= 0:
                return other if text == _CLOSING[self.words[k].text] else None
        return None

    def opener(self, k: int) -> int | None:
        """Return the number of the bracket that this one closes, if it closes one."""
        depth = 0
        for other in range(k, -1, -1):
            text = self.words[other].text
            depth += (text in _CLOSING.values()) - (text in _CLOSING)
            if depth <= 0:
                return other if _CLOSING.get(text) == self.words[k].text else None
        return None

    def opened(self, signs: str = "([") -> list[int]:
        """Return the numbers of the brackets that are open at the place within its block."""
        found: list[int] = []
        for k in range(self.blocks[-1].brace + 1 if self.blocks else 0, self.at):
            text = self.words[k].text
            if text in "{}":
                found = []
            elif text in "([":
                found.append(k)
            elif text in ")]" and found:
                found.pop()
        return [k for k in found if self.words[k].text in signs]

    def rest_of_line(self, k: int) -> int:
        """Return the number past the last word that stands on the line of a word, and in its block."""
        depth, end = 0, k
        while end < len(self.words) and self.words[end].line == self.words[k].line:
            depth += (self.words[end].text == "{") - (self.words[end].text == "}")
            if depth < 0:
                break
            end += 1
        return end


def _words(text: str) -> Iterator[Word]:
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        for found in _WORD.finditer(line.partition("#")[0]):
            yield Word(found[0], start + found.start(), start + found.end(), number, found.start() + 1)
        start += len(line) + 1


def _blocks(words: tuple[Word, ...], end: int) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """Return the blocks that are open before a word, and those that have ended."""
    open: list[Block] = []
    closed: list[Block] = []
    line = after = 0  # the words that begin the line, and what follows the last brace
    head: int | None = None
    outer: list[int | None] = []  # what an `if` has taken the place of, until it turns out to be one of an expression
    branches = 0  # expressions that wait for their `else`
    for k, word in enumerate(words[:end]):
        if k and words[k - 1].line < word.line:
            line = k
        match word.text:
            case "pipe" | "order" | "repeat":
                head, outer, branches = k, [], 0
            case "if":
                outer.append(head)
                head = k
            case "then" if outer:
                head = outer.pop()
                branches += 1
            case "else" if branches:
                branches -= 1
            case "else":
                head = k
            case "{" | "}":
                if word.text == "{":
                    first = max(line, after) if head is None else head
                    open.append(Block(words[first:k], k, words[line].column - 1))
                elif open:
                    closed.append(replace(open.pop(), close=k))
                after, head, outer, branches = k + 1, None, [], 0
    return tuple(open), tuple(closed)
