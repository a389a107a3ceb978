"""The position of a syntax error, with its context: the tokens, the open blocks, and the terminals that are allowed there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from chimerac.chimera_ir.diagnostics import Source, Span

# A symbol of another language, such as && or **, is one token.
_TOKEN = re.compile(
    r"[A-Za-z_][A-Za-z0-9_]*|[0-9]+(?:\.[0-9]+)?|\.\.\.|\.\.[=<]|\.\.|->|<>|=[<>]|[:=<>!]==?|&&|\|\||\*\*|//|\S"
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_MAX_HEAD_CHARS = 50  # characters of a block's head that messages show


@dataclass(frozen=True, slots=True)
class Token:
    """A word, number or symbol.

    Attributes:
        start, end: its offsets in the text.
        line, column: where it starts, counted from 1.
    """

    text: str
    start: int
    end: int
    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Block:
    """What is between two braces, with the head before them.

    Attributes:
        source: the text.
        head: the tokens before the opening brace that belong to the block, such as `order ticks`.
        brace, close: the indices of the opening and the closing brace among the tokens, close None while the block is open.
        indent: how many spaces the line with the opening brace begins with.
    """

    source: Source
    head: tuple[Token, ...]
    brace: int
    indent: int
    close: int | None = None

    @property
    def kind(self) -> str:
        """The kind of its contents: 'pipe', 'ticks', 'greedy' or 'listing'. A block in a listing is of the kind 'listing'."""
        first = self.head[0].text
        return self.head[1].text if first == "order" else "pipe" if first == "pipe" else "listing"

    @property
    def opening(self) -> str:
        """The text up to its opening brace, on one line and cut if it is long, for messages: 'order ticks {'."""
        lines = self.source.text[self.head[0].start : self.head[-1].end].split("\n")
        text = lines[0] if len(lines) == 1 else " ".join(" ".join(line.partition("#")[0] for line in lines).split())
        return (text if len(text) < _MAX_HEAD_CHARS else f"{text[: _MAX_HEAD_CHARS - 3]}...") + " {"


@dataclass(frozen=True, slots=True)
class Place:
    """The position of a syntax error, with its context.

    Attributes:
        tokens: those of the whole text, without comments.
        at: the index of the first token that is not allowed, or the number of tokens if the text ends too early.
        terminals: the names of the terminals that are allowed there.
        allowed: the texts of those that are keywords or symbols; of the operators only `not`.
        blocks: those open there, the outermost first.
        closed: the blocks that ended before, in the order of their ends.
        keywords: the reserved words.
    """

    source: Source
    tokens: tuple[Token, ...]
    at: int
    terminals: frozenset[str]
    allowed: frozenset[str]
    blocks: tuple[Block, ...]
    closed: tuple[Block, ...]
    keywords: frozenset[str]

    @classmethod
    def of(cls, source: Source, position: int, follow: Callable[[int], tuple[frozenset[str], frozenset[str]]],
           keywords: frozenset[str]) -> Place:  # fmt: skip
        """Return the place of the character at a position.

        Args:
            follow: position -> `terminals` and `allowed` there.
        """
        tokens = tuple(_tokens(source.text))
        at = next((k for k, w in enumerate(tokens) if w.end > position), len(tokens))
        blocks, closed = _blocks(source, tokens, at)
        return cls(source, tokens, at, *follow(tokens[at].start if at < len(tokens) else position), blocks, closed, keywords)

    @property
    def kind(self) -> str:
        """The kind of the innermost block that is open at the error; '' at the top level."""
        return self.blocks[-1].kind if self.blocks else ""

    def allows_only(self, word: str) -> bool:
        """Return whether, apart from operators and "(", this keyword or symbol alone is allowed here.

        "(" is left out, because after any name it could begin the arguments of a function.
        """
        return self.allowed - {"("} == {word} and "NAME" not in self.terminals

    def text(self, offset: int = 0) -> str:
        """Return the text of the token at the error, or of the one `offset` tokens after it; '' if there is none."""
        return self.text_at(self.at + offset)

    def text_at(self, k: int) -> str:
        """Return the text of token k; '' if there is none."""
        return self.tokens[k].text if 0 <= k < len(self.tokens) else ""

    def between(self, first: int, end: int) -> str:
        """Return the tokens first .. end - 1 as one line of text, for messages and changes."""
        end = min(end, len(self.tokens))
        return " ".join(self.source.text[self.tokens[first].start : self.tokens[end - 1].end].split()) if first < end else ""

    def span(self, first: int, end: int) -> Span:
        """Return the span from token `first` to token end - 1."""
        a, b = self.tokens[first], self.tokens[end - 1]
        return Span(self.source, a.line, a.column, b.line, b.column + len(b.text))

    def on_one_line(self, first: int, end: int) -> bool:
        """Return whether the tokens first .. end - 1 exist and are on one line."""
        return 0 <= first < end <= len(self.tokens) and self.tokens[first].line == self.tokens[end - 1].line

    @property
    def ended(self) -> bool:
        """Whether the error is at the end of the text."""
        return self.at == len(self.tokens)

    @property
    def starts_line(self) -> bool:
        """Whether the token at the error is the first one of its line, or the error is at the end of the text."""
        return self.at == len(self.tokens) or self.at == 0 or self.tokens[self.at - 1].line < self.tokens[self.at].line

    def closing_bracket(self, k: int) -> int | None:
        """Return the index of the bracket that closes token k; None if k is no opening bracket or is not closed."""
        if not 0 <= k < len(self.tokens) or self.tokens[k].text not in _CLOSING:
            return None
        depth = 0
        for other in range(k, len(self.tokens)):
            text = self.tokens[other].text
            depth += (text in _CLOSING) - (text in _CLOSING.values())
            if depth <= 0:
                return other if text == _CLOSING[self.tokens[k].text] else None
        return None

    def opening_bracket(self, k: int) -> int | None:
        """Return the index of the bracket that token k closes; None if it closes none."""
        depth = 0
        for other in range(k, -1, -1):
            text = self.tokens[other].text
            depth += (text in _CLOSING.values()) - (text in _CLOSING)
            if depth <= 0:
                return other if _CLOSING.get(text) == self.tokens[k].text else None
        return None

    def open_brackets(self, symbols: str = "([") -> list[int]:
        """Return the indices of the brackets that are open at the error, within its block.

        Args:
            symbols: which brackets.
        """
        found: list[int] = []
        for k in range(self.blocks[-1].brace + 1 if self.blocks else 0, self.at):
            text = self.tokens[k].text
            if text in "{}":
                found = []
            elif text in "([":
                found.append(k)
            elif text in ")]" and found:
                found.pop()
        return [k for k in found if self.tokens[k].text in symbols]

    def end_of_line(self, k: int) -> int:
        """Return the index after the last token that is on the line of token k and in its block."""
        depth, end = 0, k
        while end < len(self.tokens) and self.tokens[end].line == self.tokens[k].line:
            depth += (self.tokens[end].text == "{") - (self.tokens[end].text == "}")
            if depth < 0:
                break
            end += 1
        return end


def _tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a text, without comments."""
    start = 0
    for number, line in enumerate(text.split("\n"), 1):
        for found in _TOKEN.finditer(line.partition("#")[0]):
            yield Token(found[0], start + found.start(), start + found.end(), number, found.start() + 1)
        start += len(line) + 1


def _blocks(source: Source, tokens: tuple[Token, ...], end: int) -> tuple[tuple[Block, ...], tuple[Block, ...]]:
    """Return the blocks that are open before token `end`, and those that have ended. The tokens before `end` have no error."""
    open: list[Block] = []
    closed: list[Block] = []
    line = 0  # the index of the first token of the line
    head = 0  # the index of the first token of the head of the next block
    # The heads before each `if`. A `then` means that the `if` is an expression, so it begins no head.
    saved_heads: list[int] = []
    branches = 0  # number of if-expressions still without `else`
    for k, word in enumerate(tokens[:end]):
        if k and tokens[k - 1].line < word.line:
            line = k
        match word.text:
            case "pipe" | "order" | "repeat":
                head, saved_heads, branches = k, [], 0
            case "if":
                saved_heads.append(head)
                head = k
            case "then" if saved_heads:
                head = saved_heads.pop()
                branches += 1
            case "else" if branches:
                branches -= 1
            case "else":
                head = k
            case "{":
                open.append(Block(source, tokens[head:k], k, tokens[line].column - 1))
                saved_heads, branches = [], 0
            case "}":
                closed.append(replace(open.pop(), close=k))
                saved_heads, branches = [], 0
    return tuple(open), tuple(closed)
