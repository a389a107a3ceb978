"""Common mistakes in order ticks: the heads of rules, `at` and `when`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.slips.change import Answer, Change, begins_value, last_of, start_of_line
from chimerac.compiler.syntax.kinds import KINDS


def heads(p: Place) -> Iterator[Answer]:
    """Heads of rules such as F(0, m), F(s), F[s, m], F s m and F, in place of F(s, m)."""
    if p.kind != "ticks":
        return
    # The indices of the letter of the task and of the word `at`.
    letter = last_of(p, tuple(KINDS), start_of_line(p), p.at + 1)
    word_at = next((k for k in range(letter or 0, p.end_of_line(letter or 0)) if p.tokens[k].text == "at"), None)
    if letter is None or word_at is None or word_at < p.at:
        return
    indices = re.fullmatch(r"(\w+)\[(\w+)\]\[(\w+)\]", p.between(letter, word_at).replace(" ", ""))  # F[s][m]
    if indices:
        yield Change(letter, word_at, f"{indices[1]}({indices[2]}, {indices[3]})")
    bracket = next((k for k in range(letter + 1, word_at) if p.tokens[k].text in "(["), None)
    pipe = f" {p.tokens[letter + 1].text}" if bracket == letter + 2 and p.tokens[letter + 1].text.isidentifier() else ""
    if bracket is None:
        words = [w.text for w in p.tokens[letter + 1 : word_at]]
        if len(words) in (0, 2) and all(word.isidentifier() for word in words):
            end, rest = (word_at, "") if words else (word_at + 1, " at")
            yield Change(letter, end, f"{p.tokens[letter].text}({', '.join(words) or 's, m'}){rest}")
        return
    close = p.closing_bracket(bracket)
    if close is None or not p.at <= close < word_at or (bracket > letter + 1 and not pipe):
        return
    head = f"{p.tokens[letter].text}{pipe}"
    commas = [k for k in range(bracket, close) if p.tokens[k].text == ","]
    parts = [p.between(a + 1, b) for a, b in zip([bracket, *commas], [*commas, close], strict=True)]
    if len(parts) == 1 and parts[0] in ("s", "m"):
        yield Change(letter, close + 1, f"{head}(s, m)")
    if len(parts) == 3 and parts[0].isidentifier() and not pipe:
        yield Change(letter, close + 1, f"{head} {parts[0]}({parts[1]}, {parts[2]})", "the pipe comes before the parentheses")
    if len(parts) != 2 or "=" in parts[1]:
        return
    is_name = [part.isidentifier() and part not in p.keywords for part in parts]
    names = [part if own_name else name for part, own_name, name in zip(parts, is_name, ("s", "m"), strict=True)]
    conditions = " and ".join(
        f"{name} == {part}" for part, name in zip(parts, names, strict=True) if part not in (name, *p.keywords)
    )
    if not conditions:
        yield Change(letter, close + 1, f"{head}({', '.join(names)})")
    elif p.text_at(close + 1) == "at":
        why = "a rule is for every stage and micro-batch, and 'when' narrows it"
        yield Change(letter, close + 1, f"{head}({', '.join(names)}) when {conditions}", why)


_WORDS_FOR_AT = ("=", "==", ":", ":=", "->", "=>", "<-", "@", "in", "by", "is", "on", "after")
_WORDS_FOR_WHEN = ("if", "where", "for", "while", "with")


def at_and_when(p: Place) -> Iterator[Answer]:
    """Other words and symbols for `at` and `when`, a missing `at` or task, names for ticks, and conditions after ticks."""
    text = p.text()
    if "at" in p.allowed:
        if text in _WORDS_FOR_AT:
            yield Change(p.at, p.at + 1, "at")
        elif text in _WORDS_FOR_WHEN and "when" in p.allowed:
            yield Change(p.at, p.at + 1, "when")
        elif begins_value(p, p.at) and not p.starts_line and p.text(-1) == ")":
            yield Change(p.at, p.at + 1, f"at {text}")
    if p.kind != "ticks":
        return
    if text == "=" and p.text(-2) == "at" and p.text(-1).isidentifier():
        yield Change(p.at - 2, p.at + 1, "at", "a tick is a number")
    if text == "at" and p.starts_line:
        yield "a formula begins with its task: F(s, m) at ..."
    for k in (p.at - 1, p.at - 2, p.at - 3):  # at tick 3, at time = 3
        if p.text_at(k) in ("tick", "ticks", "time", "step", "slot") and p.text_at(k - 1) == "at" and p.text_at(k + 1):
            yield Change(k - 1, k + 2, f"at {p.text_at(k + 1)}", "a tick is a number")
    if text in _WORDS_FOR_WHEN or text == "when":
        word_at, end = last_of(p, ("at",), start_of_line(p), p.at), p.end_of_line(p.at)
        otherwise = last_of(p, ("else",), p.at, end)
        if word_at is None or p.at + 1 == end:
            return
        tick = p.between(word_at + 1, p.at)
        if otherwise is not None:
            condition, other_tick = p.between(p.at + 1, otherwise), p.between(otherwise + 1, end)
            yield Change(word_at, end, f"at if {condition} then {tick} else {other_tick}")
        elif last_of(p, ("when",), start_of_line(p), p.at) is None:
            yield Change(word_at, end, f"when {p.between(p.at + 1, end)} at {tick}", "the condition comes before the tick")
