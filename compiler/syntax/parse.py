"""text -> syntax tree (E1xx).

lark does the work. A statement with a syntax error is blanked and the rest read again, so that one run shows all of
them. A text that is too large is refused before lark sees it, and a tree that is too deep before anything recursive
walks it.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from chimera_ir import limits
from chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, refuse
from compiler.syntax import nodes as n
from compiler.syntax import tables
from compiler.syntax.build import Builder, span_of, token_span

MAX_SYNTAX_ERRORS = 10  # fewer in a long text, which is read once more for each


def parse(source: Source) -> n.Schedule:
    """Return the syntax tree of a schedule. Raises ChimeraError with every syntax error that can be told apart."""
    most = min(MAX_SYNTAX_ERRORS, max(1, limits.TOKENS // _count(source)))
    found: list[Diagnostic] = []
    text = source.text
    while True:
        try:
            tree = _grammar().parse(text)
            break
        except UnexpectedInput as error:
            if not found or not _at_end(error):  # a later error at the end follows from what was blanked
                found.append(_explain(error, source))
            text = _without_statement_at(text, error)
            if not text or len(found) >= most:
                raise ChimeraError(found) from None
    found += _too_large(source, tree)
    if found:
        raise ChimeraError(found)
    builder = Builder(source)
    result: n.Schedule = builder.transform(tree)
    if builder.found:
        raise ChimeraError(builder.found)
    _check_names(result)
    return result


@cache
def _grammar() -> Lark:
    folder = resources.files("compiler.syntax")
    text, stored = folder.joinpath("grammar.lark").read_text(encoding="utf-8"), folder.joinpath(tables.FILE)
    loaded = tables.load(stored.read_text(encoding="utf-8"), text) if stored.is_file() else None
    return loaded or tables.build(text)


@cache
def keywords() -> frozenset[str]:
    """Return the words that cannot be names."""
    return frozenset(t.pattern.value for t in _grammar().terminals if t.pattern.value.isidentifier())


# --- sizes ----------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"#[^\n]*|[A-Za-z_][A-Za-z0-9_]*|[0-9]+|\.\.|\S")


def _count(source: Source) -> int:
    """Return how many tokens a text has, at least 1. Raises ChimeraError: E102 a product without its sign, E104 brackets
    within brackets, E105 its size."""
    if len(source.text) > limits.TEXT:
        raise refuse("E105", f"{source.name} has {len(source.text)} characters, a schedule at most {limits.TEXT}")
    count = depth = 0
    number = None  # the one before, if it is one
    for count, found in enumerate(_TOKEN.finditer(source.text), 1):
        word = found[0]
        if number and number.end() == found.start() and (word == "(" or (word.isidentifier() and word not in keywords())):
            span = source.span(number.start(), found.end())
            raise refuse("E102", "two factors without a sign between them", span, help=f"write {number[0]}*{word}")
        number = found if word.isdigit() else None
        if word in "([{":
            depth += 1
        elif word in ")]}":
            depth -= 1
        if depth > limits.NESTING:
            message = f"brackets nested more than {limits.NESTING} deep"
            raise refuse("E104", message, source.span(*found.span()), help="give parts of it a name with let")
        if count > limits.TOKENS:
            message = f"{source.name} has more than {limits.TOKENS} words, numbers and signs"
            raise refuse(
                "E105", message, source.span(*found.span()), "the first too many", help="write formulas instead of lists"
            )
        if len(word) > limits.NAME and word.isidentifier():
            message = f"a name of {len(word)} characters; at most {limits.NAME} are allowed"
            raise refuse("E105", message, source.span(*found.span()), help="choose a shorter name")
    return max(count, 1)


def _too_large(source: Source, tree: Tree[Token]) -> list[Diagnostic]:
    """Return findings for numbers and nesting that later passes could not bear. Iterative: any depth is safe here.

    Parentheses are counted before, and the first operand of a chain a + b + c ... is not nested: whoever walks a tree
    walks a chain in a loop.
    """
    found: list[Diagnostic] = []
    stack: list[tuple[Any, int]] = [(child, 0) for child in tree.children]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, Tree):
            if depth > limits.NESTING:
                span, help = span_of(source, node.meta), "give parts of it a name with let"
                return [Diagnostic("E104", f"nested more than {limits.NESTING} deep", span, help=help)]
            deeper = depth if node.data == "parenthesized" else depth + 1
            chained = node.data == "binary"
            stack += [(child, depth if chained and k == 0 else deeper) for k, child in enumerate(node.children)]
        elif isinstance(node, Token) and node.type == "INT" and (len(node) > 20 or int(node) > limits.MAGNITUDE):
            span = token_span(source, node)
            message = f"a number of {len(node)} digits; at most {limits.MAGNITUDE} is allowed"
            found.append(Diagnostic("E103", message, span))
    return found


def _check_names(schedule: n.Schedule) -> None:
    """Refuse more params and lets than what is looked up among them can bear."""
    orders = [s.lets for s in schedule.statements if isinstance(s, n.Ticks)]
    for named in ([s for s in schedule.statements if isinstance(s, n.Param | n.Let)], *orders):
        if len(named) > limits.NAMES:
            message = f"{len(named)} names are defined by param and let; at most {limits.NAMES} are allowed"
            raise refuse("E105", message, named[limits.NAMES].name.span, "the first too many")


# --- errors ---------------------------------------------------------------------------------------------------------

_STARTS = re.compile(
    r"\b(?:schedule|param|require|let|ranks|stages|pipe|order|cost|sync|tied|window)\b|(?m:^[ \t]*[A-Z]\b(?=.*\bat\b))|[{}]"
)


def _without_statement_at(text: str, error: UnexpectedInput) -> str:
    """Return the text with the statement around an error blanked, or nothing where braces make that unsafe."""
    expected = error.expected if isinstance(error, UnexpectedToken) else set()
    if _at_end(error) or expected == {"SCHEDULE"}:
        return ""
    position = error.pos_in_stream or 0
    bare = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), text)
    starts = [m.start() for m in _STARTS.finditer(bare)]
    if not starts:
        return ""
    # An error that shows at the start of a statement was made in the one before it; not so a word that is misspelt.
    misspelt = "PARAM" in expected and isinstance(error, UnexpectedToken) and _near(error.token, _words(expected))
    begin = position if misspelt else max((s for s in starts if s < position), default=0)
    end = min((s for s in starts if s >= max(position, begin + 1)), default=len(text))
    if bare[begin] in "{}" or bare.startswith(("schedule", "pipe", "order"), begin) or not bare[begin:end].strip():
        return ""
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]


def _at_end(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


_HINTS = {
    "/": "integer division is written //",
    "=": "equality is written ==",
    "!": "inequality is written !=, negation 'not'",
    "&": "use 'and'",
    "|": "use 'or'",
    ".": "ranges are written low .. high; there are no decimals",
    '"': "the language has no strings",
    "'": "the language has no strings",
    ";": "statements need no separator",
    ":": "write no colon: a block stands in braces, and a value right behind its word",
    "^": "there are no powers; write a product, such as m*m",
}


def _slip(token: Token, expected: set[str], source: Source) -> str:
    """Return a help for what other languages write here."""
    before = source.line(token.line or 1)[: (token.column or 1) - 1].split()
    if token == "=" and "COMPARE" in expected:
        return "equality is written =="
    if token == "=" and "INT" in expected and before and before[-1] in keywords():
        return f"write no '=': a value stands right behind the word {before[-1]}"
    if token == "*" and before and before[-1].endswith("*"):
        return _HINTS["^"]
    if token == "&":
        return "conditions are joined with 'and'; & stands between two tasks of a listing"
    if token == "for" and "REPEAT" in expected:
        return "a loop is written: repeat i in 0 .. 3 { ... }"
    if token == "for":
        return "formulas need no loop: F(s, m) at ... is for every stage and micro-batch; listings have loops: repeat"
    return ""


def _explain(error: UnexpectedInput, source: Source) -> Diagnostic:
    if isinstance(error, UnexpectedCharacters):
        character = source.text[error.pos_in_stream or 0]
        span = Span(source, error.line, error.column, error.line, error.column + 1)
        return Diagnostic("E101", f"the character {character!r} has no meaning here", span, help=_HINTS.get(character, ""))
    assert isinstance(error, UnexpectedToken)
    token = error.token
    if token.type == "$END":
        lines = source.text.rstrip().split("\n")
        span = Span(source, len(lines), len(lines[-1]) + 1, len(lines), len(lines[-1]) + 2)
        return Diagnostic("E102", "the text ends too early", span, f"expected {_expected(error.expected)}")
    span = token_span(source, token)
    if token == "/":  # it stands only in `size 1/2`
        return Diagnostic("E101", "the character '/' has no meaning here", span, help=_HINTS["/"])
    label = f"expected {_expected(error.expected)}"
    help = ""
    if error.expected == {"NAME"} and token in keywords():
        help = f"'{token}' is a word of the language; choose another name"
    elif slip := _slip(token, error.expected, source):
        help = slip
    elif token in ("<", ">", "==", "!=", "<=", ">=") and "COMPARE" not in error.expected:
        help = "comparisons do not chain; join them with 'and'"
    return Diagnostic("E102", f"unexpected '{token}'", span, label, help=help or _meant(token, error.expected, source))


def _meant(token: Token, expected: set[str], source: Source) -> str:
    """Return a help that names the word that was nearly written: here, just before or at the start of the line."""
    if near := _near(token, _words(expected)):
        return f"did you mean '{near}'?"
    before = re.findall(r"[A-Za-z_]\w*", source.line(token.line or 1)[: (token.column or 1) - 1])
    for word in [*before[:-4:-1], *before[:1]]:
        if word not in keywords() and (near := _near(word, keywords())):
            return f"did you mean '{near}' instead of '{word}'?"
    return "a text begins with the word schedule and a name" if expected == {"SCHEDULE"} else ""


def _words(terminals: set[str]) -> set[str]:
    """Return the words of the language among these terminals."""
    return {t.pattern.value for t in _grammar().terminals if t.name in terminals} & keywords()


def _near(word: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.7)), "")


def _expected(terminals: set[str]) -> str:
    """Return what may stand here, in words: an expression, an operator, a statement are one word each."""
    patterns = {t.name: t.pattern.value for t in _grammar().terminals}
    operators = {"PLUS", "MINUS", "MULTIPLY", "COMPARE", "OR", "AND"}
    if {"INT", "NAME", "LPAR"} <= terminals:
        return "an expression"
    words: list[str] = []
    rest = set(terminals)
    if len(operators & rest) > 2:
        words.append("an operator")
        rest -= operators
    if "PARAM" in rest:
        words.append("the next statement")
        rest = set()  # LALR merges states: what closes a bracket or a block is listed even where none is open
    names = {"NAME": "a name", "INT": "a number", "$END": "the end of the text", "_DOTDOT": "'..'", "__ANON_0": "'..'"}
    words += sorted(names.get(t) or f"'{patterns.get(t, t)}'".replace("\\", "") for t in rest)
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]
