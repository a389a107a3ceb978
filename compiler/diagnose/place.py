"""A place in a text that does not parse: the words around it, the blocks that are open there, and what could follow."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from chimerac.chimera_ir.diagnostics import Source, Span

# A sign of another language, such as && or **, is one word.
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
    """What is between two braces.

    head: the words before the opening brace that belong to it; brace, close: the numbers of the opening and the closing
    brace among the words, close None while it is open; indent: spaces before the line with its head.
    """

    head: tuple[Word, ...]
    brace: int
    indent: int
    close: int | None = None

    @property
    def kind(self) -> str:
        """What may be in it: 'pipe', 'ticks', 'greedy' or 'listing'; '' if that is not known."""
        words = [w.text for w in self.head]
        if words[:1] == ["order"]:
            return next((w for w in words if w in ("ticks", "greedy", "listing")), "")
        return {"pipe": "pipe", "repeat": "listing", "if": "listing", "else": "listing"}.get(words[0] if words else "", "")

    @property
    def opening(self) -> str:
        """Its beginning, for messages: 'order ticks {'."""
        text = re.sub(r" ?([(\[\])]) ?", r"\1", " ".join(w.text for w in self.head)).replace(" ,", ",")
        return (text if len(text) < _LONG else f"{text[: _LONG - 3]}...") + " {"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a text stops being one of the language.

    words: all of the text but comments; at: the number of the first word that is not allowed, or one past the last word;
    expected: the names of the terminals that are allowed there; literal: those of them that are words or signs, but no
    operators; blocks: open there, the outermost first; closed: the blocks before; keywords: words that cannot be names.
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
        """Return the place of the character at a position. follow: position -> `expected` and `literal` there."""
        words = tuple(_words(source.text))
        at = next((k for k, w in enumerate(words) if w.end > position), len(words))
        blocks, closed = _blocks(words, at)
        return cls(source, words, at, *follow(words[at].start if at < len(words) else position), blocks, closed, keywords)

    @property
    def kind(self) -> str:
        """What may be in the block that is open; '' at the top level."""
        return next((b.kind for b in reversed(self.blocks) if b.kind), "")

    def wants(self, word: str) -> bool:
        """Return whether only this word, or an operator, is allowed here."""
        return self.literal - {"("} == {word} and "NAME" not in self.expected

    def text(self, offset: int = 0) -> str:
        """Return the word at the place, or `offset` words after it; '' outside of the text."""
        k = self.at + offset
        return self.words[k].text if 0 <= k < len(self.words) else ""

    def text_of(self, first: int, end: int) -> str:
        """Return the text of the words first .. end - 1 on one line, for messages and changes."""
        end = min(end, len(self.words))
        return " ".join(self.source.text[self.words[first].start : self.words[end - 1].end].split()) if first < end else ""

    def span(self, first: int, end: int) -> Span:
        """Return the span of the words first .. end - 1, which are on one line."""
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
        """Return the number of the bracket that closes word k; None if k is no opening bracket or is not closed."""
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
        """Return the number of the bracket that word k closes; None if it closes none."""
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
        """Return one past the number of the last word that is on the line of word k and in its block."""
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
    line = after = 0  # the first word of the line, and the first one after the last brace
    head: int | None = None
    # The heads before each `if`. `then` shows that the `if` is one of an expression, and restores the head.
    outer: list[int | None] = []
    branches = 0  # `if ... then` of expressions whose `else` has not come
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
