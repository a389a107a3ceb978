"""Common mistakes in statements and in the lines of order greedy."""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.slips.change import Answer, Change, begins_value, is_number, start_of_line
from chimerac.compiler.syntax.kinds import KINDS

_WORDS_FOR_EQUALS = ("==", ":=", ":", "<-", "is", "be")
_WORDS_FOR_SMALLER = ("lower", "lowest", "least", "less", "min", "ascending",
    "first", "oldest", "old", "increasing", "smallest", "low")  # fmt: skip
_WORDS_FOR_LARGER = ("higher", "highest", "greater", "greatest", "max", "descending",
    "bigger", "decreasing", "largest", "last", "high")  # fmt: skip
# What authors write between the kinds of tasks after `prefer`; in the language it is a comma.
_SEPARATORS = (",", ">", "then", "over", "before", "and", "/", "<", "-", "->", "=>", ";", "&", "(", ")", "[", "]", ":", "=")
_KEYS = ("smaller", "larger", "earlier", "later")  # words that begin a key of `then`: earlier means smaller, later means larger
_LETTERS = {"stage": "s", "rank": "r", "pipe": "p"}  # what the language writes for these words in a key or a limit
_ONE_HOP = "the hop cost is one number, not one per stage"
_NO_LIMIT_ON_TASKS = (
    "limits on counts of tasks belong in order greedy; outside of it only activations, receive_buffers and weight_copies "
    "have limits, as in: limit activations <= 4"
)
# word of another language -> keyword to write instead
_KEYWORD_FOR = {"assert": "require", "ensure": "require", "check": "require", "const": "param", "int": "param", "set": "let",
                "var": "let", "def": "let", "define": "let"}  # fmt: skip


def names(p: Place) -> Iterator[Answer]:
    """Mistakes in `schedule NAME`, `param NAME = EXPR` and `let NAME = EXPR`, and keywords of other languages.

    Also commas that are missing between costs, or that stand between statements.
    """
    text = p.text()
    if text in ('"', "'", "`"):
        close = next((k for k in range(p.at + 1, p.end_of_line(p.at)) if p.tokens[k].text == text), None)
        if close is not None and close > p.at + 1:
            inner = "_".join(w.text for w in p.tokens[p.at + 1 : close] if w.text.isalnum() or "_" in w.text)
            yield Change(p.at, close + 1, inner, "names have no quotes")
        yield "the language has no strings: names have no quotes"
    if p.text(-2) == "schedule" and text in ("-", "."):
        end = p.at
        while p.text_at(end) == text and p.on_one_line(p.at, end + 2):
            end += 2
        parts = [w.text for w in p.tokens[p.at - 1 : end] if w.text != text]
        yield Change(p.at - 1, end, "_".join(parts), "a name is one word")
    if p.text(-2) == "schedule" and text == "{":
        yield "a schedule has no braces: its statements follow its name"
    if "=" in p.allowed:
        if text == ":" and p.text(2) == "=":  # param N: int = 4
            yield Change(p.at, p.at + 2, "", "all parameters are integers")
        if text in _WORDS_FOR_EQUALS:
            yield Change(p.at, p.at + 1, "=")
        elif begins_value(p, p.at) and not p.starts_line:
            yield Change(p.at, p.at + 1, f"= {text}")
    if p.text(-2) in _KEYWORD_FOR and text in ("=", ":=") and p.on_one_line(p.at - 2, p.at + 1):
        yield Change(p.at - 2, p.at + 1, f"let {p.text(-1)} =")
    if text == "," and p.text(-2) == "let":
        yield "each value is a let of its own: let a = 1   let b = 2"
    if text == "," and p.tokens[start_of_line(p)].text == "let" and p.text(2) == "=":
        yield Change(p.at, p.at + 1, "let")
    if not p.blocks:
        if p.tokens[start_of_line(p)].text == "cost" and "," in p.allowed and text.isidentifier() and not p.starts_line:
            yield Change(p.at, p.at + 1, f", {text}")
        if text in _KEYWORD_FOR:
            yield Change(p.at, p.at + 1, _KEYWORD_FOR[text])
        if text.isidentifier() and p.text(1) in ("=", ":="):
            yield Change(p.at, p.at + 2, f"param {text} =", "a value that -p sets is a param, any other is a let")
        if text == "," and p.tokens[start_of_line(p)].text in ("param", "let", "ranks", "stages"):
            new = p.tokens[start_of_line(p)].text if p.text(2) in ("=", ",") else ""
            yield Change(p.at, p.at + 1, new, "each is a statement of its own, without a comma")
    elif text in ("=", ":=") and p.kind in ("ticks", "listing") and p.text(-1).isidentifier() and p.text(-1) not in KINDS:
        yield Change(p.at - 1, p.at + 1, f"let {p.text(-1)} =")


def settings(p: Place) -> Iterator[Answer]:
    """Mistakes in the statements sync, tied, size, limit and cost; and keywords of any statement that are joined with _."""
    text = p.text()
    parts = text.split("_")  # keywords joined with _, such as sync_eager
    if len(parts) > 1 and set(parts) <= p.keywords:
        yield Change(p.at, p.at + 1, " ".join(parts))
    if text == "eager" and not p.blocks:
        yield Change(p.at, p.at + 1, "sync eager")
    if p.allows_only("end") and text in ("the", "its"):
        yield Change(p.at, p.at + 1, "")
    if "eager" in p.allowed:
        if text == "end":
            yield Change(p.at, p.at + 1, "at end")
        if text in ("=", ":"):
            yield Change(p.at, p.at + 1, "")
        yield "write: sync at end, sync eager, or sync eager where idle"
    if p.text(-1) == "eager" and p.text(-2) == "sync":
        if text in ("when", "if", "while") and p.text(1) == "idle":
            yield Change(p.at, p.at + 1, "where")
        if text == "idle":
            yield Change(p.at, p.at + 1, "where idle")
    if p.text(-1) == "tied" and text == "on":
        yield Change(p.at, p.at + 1, "weights on", "a tied set needs a name")
    if p.text(-2) == "tied" and p.allows_only("on"):
        yield Change(p.at, p.at + 1, "on stages" if text in ("stages", "stage", "=", ":", "at") else f"on stages {text}")
    if p.text(-3) == "tied" and p.allows_only("stages"):
        yield Change(p.at, p.at + 1, "stages" if text == "stage" else f"stages {text}")
    if "size" in (p.text(-1), p.text(-2), p.text(-3)):
        if "." in text:
            yield "write a fraction of two numbers: size 1/2"
        if "INT" in p.terminals and text.isidentifier():
            yield "a size is a fraction of two numbers, as in size 1/2: a name is not allowed there"
        if p.allows_only("/"):
            yield Change(p.at, p.at + 1, "/") if text in (":", "//", "over") else Change(p.at - 1, p.at, f"{p.text(-1)}/1")
    if p.text(-2) == "limit" and p.terminals == {"COMPARE"}:
        if p.text(-1) in KINDS:
            yield _NO_LIMIT_ON_TASKS
        if text in ("=", ":", "is", "=<", ":=", "=="):
            yield Change(p.at, p.at + 1, "<=")
        elif begins_value(p, p.at):
            yield Change(p.at, p.at + 1, f"<= {text}")
    if p.text(-1) in KINDS and p.text(-2) == "limit" and not p.blocks:
        yield _NO_LIMIT_ON_TASKS
    first_word = p.tokens[start_of_line(p)].text if p.tokens else ""
    if first_word == "cost" and text == "," and p.allows_only(")") and p.open_brackets("("):
        bracket = p.open_brackets("(")[-1]
        close = p.closing_bracket(bracket)
        if close is not None and p.text_at(bracket - 1) == "hop":
            yield Change(bracket, close + 1, "", _ONE_HOP)
        elif close is not None:
            yield Change(p.at, close + 1, ")", "a cost may differ by stage only")
    if first_word == "cost" and is_number(text) and p.text(-1) == "(":
        if p.text(-2) == "hop":
            yield _ONE_HOP
        else:
            yield f"a cost that differs by stage is one formula: {p.text(-2)}(s) = if s == {text} then ... else ..."
    if p.text(-1) == "cost" and text in ("{", ":"):
        yield "costs are on one line, with commas: cost F = 1, B = 2"
    if "." in text and text not in ("..", "...") and first_word == "cost":
        yield "costs are integers: multiply all of them by the same number"


def greedy_lines(p: Place) -> Iterator[Answer]:
    """Mistakes in the lines `prefer`, `then`, `group` and `limit` of order greedy."""
    text = p.text()
    first_word = p.tokens[start_of_line(p)].text if p.tokens else ""
    if first_word == "prefer":
        first = start_of_line(p) + 1
        end = p.end_of_line(first)
        end = next((k for k in range(first, end) if p.tokens[k].text not in (*KINDS, *_SEPARATORS)), end)
        tasks = [w.text for w in p.tokens[first:end] if w.text in KINDS]
        while end > first and p.tokens[end - 1].text == "then":
            end -= 1
        if len(tasks) > 1 and p.at <= end:
            yield Change(first, end, ", ".join(tasks))
    if "prefer" in p.allowed and text in ("priority", "priorities", "first", "preference"):
        yield Change(p.at, p.at + 1, "prefer")
    if p.text(-1) == "group" and text == "by":
        yield Change(p.at, p.at + 1, "F by")
    if "per" in p.allowed and text == "for" and p.text(1) in ("each", "every", "all"):
        yield Change(p.at, p.at + 2, "per")
    if first_word == "limit" and "COMPARE" in p.terminals and text in ("at", "to", "by", "of", "is", "max", "most"):
        yield Change(p.at, p.at + 1, "<=")
    if "per" in p.allowed and text in ("each", "every", "for", "on", "at", "by"):
        yield Change(p.at, p.at + 1, "per")
    if p.text(-1) == "per" and text == "rank":
        yield Change(p.at - 1, p.at + 1, "", "a limit is per rank unless it names another scope")
    if text == "per" and p.text(-1) == "limit":
        yield "'per stage' and 'per pipe' come at the end of a limit, as in: limit F - B <= D per stage"
    if text in _KEYS and "then" in p.allowed:
        yield Change(p.at, p.at + 1, f"then {text}")
    if text in _KEYS and p.text(-1) == "and":
        yield Change(p.at - 1, p.at + 1, f", {text}")
    if text in _LETTERS and "INT" in p.terminals and p.kind == "greedy":
        yield Change(p.at, p.at + 1, _LETTERS[text], "s is the stage of a task, m its micro-batch, p its pipe, r its rank")
    if "smaller" in p.allowed:
        if text == "(" and p.text(1) in _KEYS and (close := p.closing_bracket(p.at)) is not None:
            yield Change(p.at, close + 1, p.between(p.at + 1, close))
        if p.text(1) in _WORDS_FOR_SMALLER + _WORDS_FOR_LARGER:  # then m ascending
            yield Change(p.at, p.at + 2, f"{'smaller' if p.text(1) in _WORDS_FOR_SMALLER else 'larger'} {text}")
        if text in _WORDS_FOR_SMALLER + _WORDS_FOR_LARGER and p.text(1) != "(":  # then lowest m, then oldest
            word = "smaller" if text in _WORDS_FOR_SMALLER else "larger"
            has_value = p.on_one_line(p.at, p.at + 2) and begins_value(p, p.at + 1)
            yield Change(p.at, p.at + 1, word if has_value else f"{word} m")
        elif begins_value(p, p.at):
            why = "a key begins with smaller, larger, earlier or later"
            yield Change(p.at, p.at + 1, f"smaller {text}", why)
            yield f"{why}, as in: then smaller m, larger s"
