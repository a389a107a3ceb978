"""Answers to common mistakes, which are changes or advice, and functions that search the tokens of a text."""

from __future__ import annotations

from dataclasses import dataclass

from chimerac.compiler.diagnose.place import Place

COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_MAX_DIGITS = 19  # a number with more digits is larger than the language allows, and is not lowered by one


@dataclass(frozen=True, slots=True)
class Change:
    """Write `new` instead of the tokens first .. end - 1. It is suggested only if these are on one line.

    Attributes:
        why: the reason for the change, for the help; '' if the help gives none.
    """

    first: int
    end: int
    new: str
    why: str = ""


Answer = Change | str  # a change, or advice in words if no change is known

# An expression begins after one of these symbols or after a keyword, and ends before the next one.
_BOUNDARIES = frozenset(("=", "<=", "..", "{", "}"))
_INSIDE = frozenset(("and", "or", "not"))  # keywords that are operators; `if`, `then` and `else` are boundaries


def is_number(word: str) -> bool:
    """Return whether a word is a number of the language. Other digits, such as ² and ٣, are not."""
    return word.isascii() and word.isdigit()


def minus_one(p: Place, first: int, end: int) -> str:
    """Return the text of the tokens first .. end - 1, minus one."""
    text = p.between(first, end)
    return str(int(text) - 1) if is_number(text) and len(text) <= _MAX_DIGITS else f"{text} - 1"


def begins_value(p: Place, k: int) -> bool:
    """Return whether an expression can begin with token k."""
    text = p.text_at(k)
    return text in ("(", "-") or is_number(text) or (text.isidentifier() and (text in ("not", "if") or text not in p.keywords))


def _is_boundary(p: Place, text: str) -> bool:
    """Return whether an expression begins after this token or ends before it."""
    return text in _BOUNDARIES or text in p.keywords - _INSIDE


def value_before(p: Place, k: int) -> int:
    """Return the index of the first token of the expression that ends right before token k; k if there is none.

    An `if` is not searched for: only its last part belongs to the expression.
    """
    depth = 0
    while k > 0:
        text = p.tokens[k - 1].text
        if text in (")", "]"):
            depth += 1
        elif text in ("(", "["):
            depth -= 1
        if depth < 0 or (depth == 0 and (_is_boundary(p, text) or text == ",")):
            break
        k -= 1
    return k


def value_after(p: Place, k: int) -> int:
    """Return the index after the last token of the expression that begins at token k; k if there is none.

    The expression ends with the line of token k at the latest. One that begins with `if` is not found.
    """
    depth, line = 0, p.tokens[k].line if k < len(p.tokens) else 0
    while k < len(p.tokens) and p.tokens[k].line == line:
        text = p.tokens[k].text
        if text in ("(", "["):
            depth += 1
        elif text in (")", "]"):
            depth -= 1
        if depth < 0 or (depth == 0 and (_is_boundary(p, text) or text in (",", ":", ";"))):
            break
        k += 1
    return k


def last_of(p: Place, words: tuple[str, ...], first: int, end: int) -> int | None:
    """Return the index of the last of these words among the tokens first .. end - 1; None if there is none."""
    return next((k for k in reversed(range(max(first, 0), end)) if p.tokens[k].text in words), None)


def start_of_line(p: Place) -> int:
    """Return the index of the first token on the line of the error.

    If braces come before the error on this line, return the index of the first token after the last of them.
    """
    k = min(p.at, len(p.tokens) - 1)
    line = p.tokens[k].line
    while k and p.tokens[k - 1].line == line and p.tokens[k - 1].text not in "{}":
        k -= 1
    return k
