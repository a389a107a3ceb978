"""What may be written at a place of a text: the words that the parser allows there, and the names that are defined there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lark import UnexpectedInput

from chimerac.chimera_ir import limits
from chimerac.compiler.language_server.meanings import CONVENTIONS, KEYWORDS, LIMITS, OTHERS, TASK_KINDS, meaning
from chimerac.compiler.language_server.names import MAX_WORDS, STATEMENTS, Names
from chimerac.compiler.language_server.text import Text, Word
from chimerac.compiler.syntax.parse import terminal_texts, terminals_after

_DEFINING = ("schedule", "param", "let", "pipe", "tied")  # a new name follows


@dataclass(frozen=True, slots=True)
class Proposal:
    """A word that may be written.

    Attributes:
        kind: 'keyword', 'name', 'pipe', 'task', 'function' or 'limit'.
        about: what it means.
    """

    word: str
    kind: str
    about: str


def proposals(text: Text, offset: int) -> list[Proposal]:
    """Return the words that may be written at an offset. Each replaces the part of a word that is before the offset.

    If the parser refuses a token before the offset, it cannot tell what is allowed. Then all keywords are proposed, and other
    words as for an expression. If a character before the offset is no token, the parser tells only what is allowed at that
    character. In a comment and in a text that is too large, nothing is proposed.
    """
    if len(text.text) > limits.TEXT or len(text.words) > MAX_WORDS:
        return []
    line_start = text.text.rfind("\n", 0, offset) + 1
    if "#" in text.text[line_start:offset]:  # in a comment
        return []
    start = offset
    while start > line_start and (text.text[start - 1].isalnum() or text.text[start - 1] == "_"):
        start -= 1
    before = [w for w in text.words if w.end <= start]
    allowed = _terminals(text.text, start)
    text_of = terminal_texts()
    keywords = (text_of.get(terminal, "") for terminal in allowed) if allowed is not None else iter(KEYWORDS)
    result = [Proposal(word, "keyword", KEYWORDS[word]) for word in sorted(keywords) if word in KEYWORDS]
    if allowed is None or "NAME" in allowed:
        in_expression = allowed is None or "INT" in allowed
        result += _names(Names(text), before, start, in_expression)
    return result


def _terminals(text: str, start: int) -> frozenset[str] | None:
    """Return the terminals that are allowed at an offset; None if the parser refuses a token before it."""
    try:
        return terminals_after(text, start)
    except UnexpectedInput:
        return None


def _names(names: Names, before: list[Word], offset: int, in_expression: bool) -> Iterator[Proposal]:
    """Yield the words that fit at an offset where the grammar allows a name, or where the parser cannot tell.

    Args:
        before: the tokens before the offset.
        in_expression: whether an operand of an expression may be at the offset, True if the parser cannot tell.
    """
    last = before[-1].text if before else ""
    block = names.block_at(offset)  # the kind of the block, such as 'ticks'
    if last in _DEFINING:
        return
    if (last == "stage" and block == "pipe") or (last == "rank" and len(before) > 1 and before[-2].text == "for"):
        yield Proposal(last[0], "name", CONVENTIONS[last[0]])  # `s` for a stage, `r` for a rank
        return
    # The last word before the offset that can begin a statement or a clause.
    statement = next((w.text for w in reversed(before) if w.text in {*STATEMENTS, "prefer", "then", "group", "fill"}), "")
    if last == "limit" and not block:
        yield from (Proposal(word, "limit", about) for word, about in LIMITS.items())
        return
    tasks = [Proposal(word, "task", about) for word, about in TASK_KINDS.items()]
    if not in_expression:
        if last in TASK_KINDS and block in ("ticks", "listing"):
            yield from (Proposal(d.name, "pipe", d.statement) for d in names.found if d.what == "pipe")
        elif last == "(" and block == "ticks":
            yield Proposal("s", "name", CONVENTIONS["s"])
        elif last == "," and block == "ticks":
            yield Proposal("m", "name", CONVENTIONS["m"])
        else:
            yield from tasks
            yield from [Proposal("hop", "task", OTHERS["hop"])] if statement == "cost" else []
        return
    if statement == "limit" and block == "greedy":
        yield from tasks
    if block == "listing":
        yield from tasks
    yield from (
        Proposal(d.name, "name", d.statement)
        for d in names.holding_at(offset)
        if d.what not in ("pipe", "tied set") and d.end < offset
    )
    if block == "greedy":
        yield from (Proposal(word, "name", about) for word, about in CONVENTIONS.items())
    yield from (Proposal(word, "function", meaning(word)) for word in ("min", "max"))
