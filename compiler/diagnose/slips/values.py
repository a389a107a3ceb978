"""Common mistakes in expressions: conditional expressions, symbols of other languages, brackets."""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.slips.change import (
    COMPARISONS,
    Answer,
    Change,
    begins_value,
    is_number,
    last_of,
    start_of_line,
    value_after,
    value_before,
)


def conditional_expressions(p: Place) -> Iterator[Answer]:
    """Conditional expressions of other languages, such as c ? a : b, a if c else b, if c { a } else { b } and elif.

    Also missing words `then` and `else`.
    """
    text, tokens = p.text(), p.tokens
    question = next((k for k in range(p.at, p.end_of_line(p.at)) if tokens[k].text == "?"), None)
    if question is not None:
        first, end = value_before(p, question), p.end_of_line(question)
        colon = next((k for k in range(question, end) if tokens[k].text == ":"), None)
        if colon is not None:
            end = value_after(p, colon + 1)
            new = f"if {p.between(first, question)} then {p.between(question + 1, colon)} else {p.between(colon + 1, end)}"
            yield Change(first, end, new)
    if text in ("if", "else") and (text == "if" or "then" in p.allowed or "{" in p.allowed):
        test = p.at if text == "if" else last_of(p, ("if",), start_of_line(p), p.at)
        otherwise = last_of(p, ("else",), p.at, p.end_of_line(p.at))
        if test is not None and otherwise is not None and test > 0 and value_before(p, test) < test:
            first, end = value_before(p, test), value_after(p, otherwise + 1)
            new = f"if {p.between(test + 1, otherwise)} then {p.between(first, test)} else {p.between(otherwise + 1, end)}"
            yield Change(first, end, new)
    if p.allows_only("then"):
        if text == "{":
            close = p.closing_bracket(p.at)
            if close is not None and [w.text for w in tokens[close + 1 : close + 3]] == ["else", "{"]:
                last = p.closing_bracket(close + 2)
                if last is not None:
                    new = f"then {p.between(p.at + 1, close)} else {p.between(close + 3, last)}"
                    yield Change(p.at, last + 1, new, "braces are for tasks only")
        otherwise = last_of(p, ("else",), p.at, p.end_of_line(p.at))
        if text == ":" and otherwise is not None and p.text_at(otherwise + 1) == ":":
            end = value_after(p, otherwise + 2)
            yield Change(p.at, end, f"then {p.between(p.at + 1, otherwise)} else {p.between(otherwise + 2, end)}")
        if text in (":", ",", "?"):
            yield Change(p.at, p.at + 1, "then")
        elif begins_value(p, p.at) or text == "if":
            yield Change(p.at, p.at + 1, f"then {text}")
    elif_at = last_of(p, ("elif", "elseif", "elsif"), p.at - 2, min(p.at + 1, len(tokens)))
    if elif_at is not None:
        yield Change(elif_at, elif_at + 1, "else if")
    if text == "otherwise":
        yield Change(p.at, p.at + 1, "else")
    if p.allows_only("else"):
        yield "an if-expression needs both branches: if CONDITION then A else B"


_SYMBOLS = {"&&": "and", "||": "or", "|": "or", "<>": "!=", "=<": "<=", "=>": ">=", "===": "==", "×": "*", "·": "*", "÷": "//",
            "−": "-", "–": "-", "≤": "<=", "≥": ">=", "≠": "!=", "…": "..", "∧": "and", "∨": "or", "¬": "not", "/": "//",
            "mod": "%", "rem": "%", "div": "//"}  # fmt: skip
_REASONS = {  # symbol of the language -> reason for writing it
    "and": "conditions are joined with 'and'",
    "or": "conditions are joined with 'or'",
    "//": "a quotient is written //, and rounds down",
    "%": "the remainder is written %",
}
NO_POWERS = "there are no powers; write a product, such as m*m"


def symbols(p: Place) -> Iterator[Answer]:
    """Symbols and words of other languages, keywords not in lower case, chained comparisons, and numbers with decimals."""
    text = p.text()
    for k in (p.at, p.at - 1, p.at - 2):  # `mod` is read as a name: the error is one or two words later
        word = p.text_at(k)
        if word in _SYMBOLS and (k == p.at or word.isidentifier()):
            yield Change(k, k + 1, _SYMBOLS[word], _REASONS.get(_SYMBOLS[word], ""))
        if word.lower() in p.keywords and word != word.lower():
            yield Change(k, k + 1, word.lower(), "keywords are lower case")
    if text == "&" and "AND" in p.terminals:
        yield Change(p.at, p.at + 1, "and", "conditions are joined with 'and'; & joins two tasks of a listing")
    if text == "!":
        why = "negation is written 'not'"
        if begins_value(p, p.at + 1):
            yield Change(p.at, p.at + 2, f"not {p.text(1)}", why)
        else:
            yield Change(p.at, p.at + 1, "not", why)
    if text in ("^", "**") or (text == "*" and p.text(-1) == "*"):
        yield NO_POWERS
    if text in COMPARISONS and "COMPARE" not in p.terminals:
        before = last_of(p, COMPARISONS, start_of_line(p), p.at)
        if before is not None and before + 1 < p.at:
            yield Change(p.at, p.at + 1, f"and {p.between(before + 1, p.at)} {text}", "comparisons do not chain")
            yield "comparisons do not chain; join them with 'and'"
    if text in ("=", ":", ":=") and p.text(-1) in p.keywords and "INT" in p.terminals:
        yield Change(p.at, p.at + 1, "", f"a value comes right after the word {p.text(-1)}")
    if text in ("=", ":=", "is", ":", "==") and "COMPARE" in p.terminals and p.tokens[start_of_line(p)].text == "limit":
        yield Change(p.at, p.at + 1, "<=", "a limit is an upper bound")
    if (text in ("=", ":=") or (text == "is" and is_number(p.text(1)))) and "COMPARE" in p.terminals:
        yield Change(p.at, p.at + 1, "==", "equality is written ==")
    if "." in text and text[0].isdigit():
        yield "there are no decimals: all numbers are integers; ranges are written low .. high"
    if text == "?":
        yield "a conditional expression is written: if CONDITION then A else B"


def brackets(p: Place) -> Iterator[Answer]:
    """Missing, superfluous or wrong commas, brackets and separators; products without *; comments of other languages."""
    text = p.text()
    if "," in p.allowed and (begins_value(p, p.at) or text in ("smaller", "larger", "earlier", "later")) and not p.starts_line:
        yield Change(p.at, p.at + 1, f", {text}")
    if p.text(-1) == "," and (text in p.keywords or text == "}"):
        yield Change(p.at - 1, p.at, "", "nothing follows it")
    function = last_of(p, ("min", "max"), start_of_line(p), min(p.at, len(p.tokens)))
    if text == "," and function is not None and p.text_at(function + 1) != "(":
        end = p.end_of_line(function)
        yield Change(function, end, f"{p.tokens[function].text}({p.between(function + 1, end)})")
    if text == ";" and "," in p.allowed and p.on_one_line(p.at, p.at + 2):
        yield Change(p.at, p.at + 1, ",")
    for k in (p.at, p.at - 1):  # a product without its operator: 2 m
        number = p.tokens[k - 1].text if k > 0 else ""
        if is_number(number) and p.on_one_line(k - 1, k + 1) and begins_value(p, k) and p.tokens[k].text != "-":
            yield Change(k - 1, k + 1, f"{number}*{p.tokens[k].text}", "a product is written with *")
    if text in (",", ";", ":", "."):
        reason = "tasks are written one after another" if p.kind == "listing" else "statements and lines need no separator"
        yield Change(p.at, p.at + 1, "", reason)
    open_here = p.open_brackets()
    if text in (")", "]") and not open_here and "INT" not in p.terminals:
        yield Change(p.at, p.at + 1, "", "no bracket is open here")
    if text == "[" and "(" in p.allowed and (close := p.closing_bracket(p.at)) is not None:
        yield Change(p.at, close + 1, f"({p.between(p.at + 1, close)})")
    if open_here and p.at and ({")", "]"} & p.allowed):
        closing = "".join(")" if p.tokens[k].text == "(" else "]" for k in reversed(open_here))
        last = p.tokens[p.at - 1]
        where = p.span(open_here[-1], open_here[-1] + 1)
        why = f"the '{p.tokens[open_here[-1]].text}' at {where.line}:{where.column} is not closed"
        yield Change(p.at - 1, p.at, last.text + closing, why)
        if p.starts_line or text in p.keywords or text in "{}":
            yield why
    if text == "{" and "INT" in p.terminals and (close := p.closing_bracket(p.at)) is not None:
        yield Change(p.at, close + 1, f"({p.between(p.at + 1, close)})", "braces are for tasks, parentheses for values")
    # A comment of another language may be read as code, with the error at the first word of the next line. It is looked for
    # among the token at the error and the 30 tokens before it.
    last_read = p.at - 1 if p.starts_line else p.at
    line = p.tokens[last_read].line if p.at else 0
    for k in (k for k in range(max(p.at - 30, 1), min(p.at + 1, len(p.tokens))) if p.tokens[k].line == line):
        prose = [w.text for w in p.tokens[k + 1 : p.end_of_line(k)] if w.text not in ",.:;'"]
        if p.between(k, k + 2) == "/*" or (p.tokens[k].text == "//" and len(prose) > 1 and all(x.isalpha() for x in prose)):
            yield Change(k, k + 1 + (p.tokens[k].text == "/"), "#", "a comment begins with #")
    before = p.text(-1)
    is_product = (before.isidentifier() or before == ")" or is_number(before)) and not p.starts_line and "PLUS" in p.terminals
    if is_product and text not in p.keywords and before not in p.keywords and (text.isidentifier() or text == "("):
        yield Change(p.at - 1, p.at + 1, f"{before}*{text}", "a product is written with *")
