"""The finding about a syntax error: the fact, the place, what is expected there, and a change that helps (E101, E102).

A change is applied (texts.py), so that later errors are found, only if the parser gets further with it. Help may also name a
similar word or a missing brace with which the parser does not get further.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from chimerac.chimera_ir.diagnostics import Diagnostic, Span
from chimerac.compiler.diagnose.place import Block, Place
from chimerac.compiler.diagnose.slips import Change, answers

MIN_WORDS_FURTHER = 4  # words that must parse after a change; `_parses_further` says when fewer are enough
# The statements that are never in a block.
_STATEMENTS = frozenset(["param", "require", "ranks", "stages", "pipe", "order", "size", "sync", "tied", "window"])
_OPERATORS = frozenset(("PLUS", "MINUS", "MULTIPLY", "COMPARE", "OR", "AND"))

# text -> the position of its first syntax error, None if it has none, 0 if the text was not parsed (texts.py).
Reader = Callable[[str], int | None]


@dataclass(frozen=True, slots=True)
class SyntaxFinding:
    """A syntax error.

    Attributes:
        change: the one that corrects it, if it is known.
    """

    finding: Diagnostic
    change: Change | None = None


def changed(p: Place, change: Change) -> str:
    """Return the whole text with a change made."""
    text, first, last = p.source.text, p.tokens[change.first], p.tokens[change.end - 1]
    return text[: first.start] + change.new + text[last.end :]


def explain(p: Place, meaningless: str, read: Reader) -> SyntaxFinding:
    """Return the finding about a syntax error.

    Args:
        meaningless: the character at the error, if no token of the language has it; else ''.
    """
    if p.ended and not p.blocks:
        return SyntaxFinding(_end(p))
    if (p.ended or _brace_is_missing(p)) and "}" in p.allowed:
        return _missing_brace(p, read)
    if p.ended:
        return SyntaxFinding(_end(p))
    if p.text() == "}" and not p.blocks:
        return _extra_brace(p, read)
    span, label = p.span(p.at, p.at + 1), f"expected {expected(p)}"
    code, message = "E102", f"unexpected '{p.text()}'"
    if meaningless:
        column = span.column + max(p.text().find(meaningless), 0)
        span = Span(span.source, span.line, column, span.line, column + 1)
        code, message, label = "E101", f"the character {meaningless!r} has no meaning here", ""
    help, change = _help_and_change(p, read)
    return SyntaxFinding(Diagnostic(code, message, span, label, help=help), change)


# --- braces ---------------------------------------------------------------------------------------------------------


def _brace_is_missing(p: Place) -> bool:
    """Return whether a block is probably not closed: the text has fewer } than {, and a word that belongs after the block.

    The word is at the error. It begins a statement that is never in a block, or it is an `else` while the block of an `if` is
    open.
    """
    texts = [w.text for w in p.tokens]
    is_statement = p.starts_line and p.text() in _STATEMENTS - p.allowed and not _most_similar(p.text(), p.allowed)
    is_else = p.text() == "else" and any("if" in (w.text for w in b.head) for b in p.blocks)
    return (is_statement or is_else) and bool(p.blocks) and texts.count("{") > texts.count("}")


def _missing_brace(p: Place, read: Reader) -> SyntaxFinding:
    """Return the finding about a block that is not closed."""
    # A closing brace further left than the line of its block was meant for an outer block.
    misplaced = [b for b in p.closed if b.close is not None and _closes_another(p, b, b.close)]
    for block in [*misplaced[:1], p.blocks[-1]]:
        last = _last_token_of(p, block)
        change = Change(last, last + 1, p.tokens[last].text + " }")
        stop = read(changed(p, change))
        if stop is None or stop > p.tokens[p.at - 1].end:
            break
    else:
        change = None
    word = p.tokens[last]
    column = word.column + len(word.text)
    ends_line = last + 1 == len(p.tokens) or p.tokens[last + 1].line > word.line
    where = f"at the end of line {word.line}" if ends_line else f"after '{word.text}'"
    return SyntaxFinding(
        Diagnostic(
            "E102",
            f"a '}}' is missing: '{block.opening}' is not closed",
            span=Span(p.source, word.line, column, word.line, column + 1),
            label="expected '}'",
            notes=(_beginning(p, block),),
            help=f"write '}}' {where}",
        ),
        change,
    )


def _beginning(p: Place, block: Block) -> str:
    """Return the note that says where a block begins."""
    return f"'{block.opening}' begins at {p.span(block.brace - len(block.head), block.brace + 1)}"


def _closes_another(p: Place, block: Block, close: int) -> bool:
    """Return whether the closing brace of a block begins a line, and is further left than the line of the opening brace."""
    word = p.tokens[close]
    return p.tokens[close - 1].line < word.line != p.tokens[block.brace].line and word.column - 1 < block.indent


def _last_token_of(p: Place, block: Block) -> int:
    """Return the index of the last token of a block that is not closed, as the indentation suggests."""
    for k in range(block.brace + 1, p.at):
        if p.tokens[k - 1].line < p.tokens[k].line and p.tokens[k].column - 1 <= block.indent:
            return k - 1
    return p.at - 1


def _extra_brace(p: Place, read: Reader) -> SyntaxFinding:
    """Return the finding about a closing brace outside of any block."""
    notes = tuple(f"'{b.opening}' has ended at {p.span(b.close, b.close + 1)}" for b in p.closed[-1:] if b.close is not None)
    change = Change(p.at, p.at + 1, "")
    applied = change if _parses_further(p, change, read) else None
    span = p.span(p.at, p.at + 1)
    help = "remove '}'" if applied else ""
    return SyntaxFinding(Diagnostic("E102", "unexpected '}'", span, "no block is open here", notes, help), applied)


# --- the help ---------------------------------------------------------------------------------------------------


def _help_and_change(p: Place, read: Reader) -> tuple[str, Change | None]:
    """Return a help text, '' if there is none, and the change that it suggests.

    The change is None if the help suggests none, or one with which the parser gets no further.
    """
    text = p.text()
    if text not in p.keywords and (near := _most_similar(text, p.allowed & p.keywords)):
        return _did_you_mean(p, near, read)
    for k in range(p.at - 1, max(p.at - 4, -1), -1):  # the three tokens before the error, the last one first
        word = p.tokens[k].text
        if p.tokens[k].line == p.tokens[p.at].line and word.isidentifier() and word not in p.keywords:
            near = _most_similar(word, p.keywords)
            if near and _parses_further(p, Change(k, k + 1, near), read):
                return f"did you mean '{near}' instead of '{word}'?", Change(k, k + 1, near)
    for answer in answers(p):
        if isinstance(answer, str):
            return answer, None
        if p.on_one_line(answer.first, answer.end) and _parses_further(p, answer := _with_spaces(p, answer), read):
            return _help_of_change(p, answer), answer
    if near := _most_similar(text, p.allowed & p.keywords):
        return _did_you_mean(p, near, read)
    line_above_is_open = p.starts_line and p.at and (not p.text(-1).isalnum() or p.text(-1) in p.keywords)
    if line_above_is_open and {"INT", "NAME", "LPAR"} <= p.terminals:
        return f"something is missing after '{p.text(-1)}' in line {p.tokens[p.at - 1].line}", None
    if p.terminals == {"NAME"} and text in p.keywords:
        return f"'{text}' is a word of the language; choose another name", None
    only_words = [word for word in p.allowed if p.allows_only(word)]
    for change in [c for word in only_words for c in (Change(p.at, p.at + 1, f"{word} {text}"), Change(p.at, p.at + 1, word))]:
        if _parses_further(p, change, read):
            return _help_of_change(p, change), change
    if p.terminals == {"SCHEDULE"}:
        return "a text begins with the word schedule and a name", None
    if text in _STATEMENTS and p.blocks:
        return f"'{text}' belongs outside of '{p.blocks[0].opening}'", None
    return "", None


def _did_you_mean(p: Place, near: str, read: Reader) -> tuple[str, Change | None]:
    """Return the help that suggests a word for the token at the error, and the change if the parser then gets further."""
    change = Change(p.at, p.at + 1, near)
    return f"did you mean '{near}'?", change if _parses_further(p, change, read) else None


def _with_spaces(p: Place, change: Change) -> Change:
    """Return the change with spaces where it would join two words."""
    before, after = p.source.text[: p.tokens[change.first].start][-1:], p.source.text[p.tokens[change.end - 1].end :][:1]
    new = change.new
    if new and (before.isalnum() or before == "_") and (new[0].isalnum() or new[0] == "_"):
        new = f" {new}"
    if new and (after.isalnum() or after == "_") and (new[-1].isalnum() or new[-1] == "_"):
        new = f"{new} "
    if not new and (before.isalnum() or before == "_") and (after.isalnum() or after == "_"):
        new = " "
    return replace(change, new=new)


def _help_of_change(p: Place, change: Change) -> str:
    """Return the help that suggests a change. It names the place of the change if the finding marks another place."""
    old = p.between(change.first, change.end)
    where = "" if change.first == p.at else f"{p.span(change.first, change.end)}: "
    instruction = f"write '{change.new}' instead of '{old}'" if change.new else f"remove '{old}'"
    return where + instruction + (f"; {change.why}" if change.why else "")


def _parses_further(p: Place, change: Change, read: Reader) -> bool:
    """Return whether the parser gets further in the text with a change than without it.

    It does if it then gets to the end of the text, to the next line, or MIN_WORDS_FURTHER words further. One word is enough if
    the next error is at the same word as before, or at a separator: the same mistake may be there again.
    """
    text, shift = changed(p, change), len(change.new) - (p.tokens[change.end - 1].end - p.tokens[change.first].start)
    if text == p.source.text:
        return False
    stop = read(text)
    if stop is None:
        return True
    # In the changed text, the end of the change, or of the word that was not allowed if that is later.
    end = max(p.tokens[change.end - 1].end, p.tokens[p.at].end if p.at >= change.end else 0) + shift
    text_between = text[end:stop]
    at_same_error = text[stop:].startswith((p.text(), ",", ";"))  # the error is at the same word as before, or at a separator
    return "\n" in text_between.strip(" \t") or len(text_between.split()) >= (1 if at_same_error else MIN_WORDS_FURTHER)


def _most_similar(word: str, known: Iterable[str]) -> str:
    """Return the most similar known word; '' if none is similar."""
    words = sorted(known)
    same = [w for w in words if w.casefold() == word.casefold()]
    return next(iter(same or difflib.get_close_matches(word, words, n=1, cutoff=0.7)), "")


# --- what is expected there ------------------------------------------------------------------------------------------


def expected(p: Place) -> str:
    """Return what is expected at a place, for messages. Everything that can begin an expression is called 'an expression'."""
    if {"INT", "NAME", "LPAR"} <= p.terminals:
        return "an expression"
    words: list[str] = []
    if len(_OPERATORS & p.terminals) > 2:
        words.append("an operator")
    if "param" in p.allowed:
        return _joined([*words, *(f"'{symbol}'" for symbol in ("=", ",") if symbol in p.allowed), "the next statement"])
    names: list[str] = []
    if "INT" in p.terminals:
        names.append("a number")
    if "NAME" in p.terminals:
        block_may_end = "}" in p.allowed  # then the name would begin a rule or a task
        names.append({"ticks": "a formula", "listing": "a task"}.get(p.kind, "a name") if block_may_end else "a name")
    if "$END" in p.terminals:
        names.append("the end of the text")
    if p.terminals == {"COMPARE"}:
        names.append("'<='" if p.text(-2) == "limit" else "a comparison")
    texts = p.allowed - {"("} if words else p.allowed  # after an operand, "(" could only begin arguments
    return _joined([*words, *sorted([*(f"'{word}'" for word in texts), *names])])


def _joined(words: list[str]) -> str:
    """Return words as 'a, b or c'; there is at least one."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _end(p: Place) -> Diagnostic:
    """Return the finding about a text that ends too early."""
    lines = p.source.text.rstrip().split("\n")
    span = Span(p.source, len(lines), len(lines[-1]) + 1, len(lines), len(lines[-1]) + 2)
    notes = tuple(_beginning(p, b) for b in p.blocks[-1:])
    last = p.tokens[-1].text if p.tokens else ""
    help = (
        f"something is missing after '{last}'"
        if last and (last in p.keywords or (last not in ")]}" and not last.isalnum()))
        else ""
    )
    return Diagnostic("E102", "the text ends too early", span, f"expected {expected(p)}", notes, help)
