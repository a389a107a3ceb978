"""text -> syntax tree (E1xx).

lark parses the text. A text that is too large is rejected before that, and a tree that is too deep before a recursive
function visits it. Only the first syntax error is raised, without help: compiler/diagnose/texts.py finds the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from lark import Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, refuse
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.build import build, span_of, token_span
from chimerac.compiler.syntax.grammar import grammar, keywords
from chimerac.compiler.syntax.tokens import TOKEN


class ParseError(ChimeraError):
    """A syntax error (E101, E102)."""


def parse(source: Source) -> n.Schedule:
    """Return the syntax tree of a schedule.

    Raises ParseError at the first syntax error, and ChimeraError for a text that is too large or cannot be built.
    """
    count_tokens(source)
    try:
        tree = grammar().parse(source.text)
    except UnexpectedInput as error:
        raise _parse_error(source, _error_position(source.text, error)) from None
    found = _too_large(source, tree)
    if found:
        raise ChimeraError(found)
    result = build(source, tree)
    _check_names(result)
    return result


# --- sizes ----------------------------------------------------------------------------------------------------------


def count_tokens(source: Source) -> int:
    """Return how many tokens a text has, at least 1. Raises ChimeraError: E102 a product without its operator, E104 brackets
    within brackets, E105 its size."""
    if len(source.text) > limits.TEXT:
        raise refuse("E105", f"{source.name} has {len(source.text)} characters, a schedule at most {limits.TEXT}")
    count = depth = 0
    number, last, before = None, "", ""  # the word before if it is a number, the word before, and the one before that
    for count, found in enumerate(TOKEN.finditer(source.text), 1):
        word = found[0]
        is_name = word.isascii() and word.isidentifier() and word not in keywords()
        if number and number.end() == found.start() and (is_name or word == "("):
            raise _missing_operator(source.span(number.start(), found.end()), number[0], word, before)
        before, number = last, found if word.isascii() and word.isdigit() else None
        last = word
        if word in "([{":
            depth += 1
        elif word in ")]}":
            depth -= 1
        if depth > limits.NESTING:
            message = f"brackets nested more than {limits.NESTING} deep"
            raise refuse("E104", message, source.span(*found.span()), help="give parts of it a name with let")
        if count > limits.TOKENS:
            message = f"{source.name} has more than {limits.TOKENS} words, numbers and symbols"
            raise refuse(
                "E105", message, source.span(*found.span()), "the first too many", help="write formulas instead of lists"
            )
        if len(word) > limits.NAME and word.isidentifier():
            message = f"a name of {len(word)} characters; at most {limits.NAME} are allowed"
            raise refuse("E105", message, source.span(*found.span()), help="choose a shorter name")
    return max(count, 1)


def _missing_operator(span: Span, number: str, following: str, before: str) -> ChimeraError:
    """Return the finding about a number directly followed by a name or a parenthesis. before: the word before both."""
    if before in ("schedule", "param", "let", "pipe", "tied"):
        name = f"{before}_{number}" + (following if following != "(" else "")
        help = f"write '{name}' instead of '{span.text.removesuffix('(')}'"
        return refuse("E102", "a name begins with a letter", span, help=help)
    help = f"write '{number}*{following}' instead of '{span.text}'"
    return refuse("E102", "two factors without an operator between them", span, help=help)


def _too_large(source: Source, tree: Tree[Token]) -> list[Diagnostic]:
    """Return findings for numbers and nesting that later passes cannot process. Iterative: any depth is safe here.

    Parentheses are counted before, and the first operand of a chain a + b + c ... is not nested: functions on
    trees process a chain in a loop.
    """
    found: list[Diagnostic] = []
    stack: list[tuple[Any, int]] = [(child, 0) for child in tree.children]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, Tree):
            if depth > limits.NESTING:
                span, help = span_of(source, node.meta), "give parts of it a name with let"
                return [Diagnostic("E104", f"nested more than {limits.NESTING} deep", span, help=help)]
            child_depth = depth if node.data == "parenthesized" else depth + 1
            chained = node.data == "binary"
            stack += [(child, depth if chained and k == 0 else child_depth) for k, child in enumerate(node.children)]
        elif isinstance(node, Token) and node.type == "INT" and (len(node) > 20 or int(node) > limits.MAGNITUDE):
            span = token_span(source, node)
            message = f"a number of {len(node)} digits; at most {limits.MAGNITUDE} is allowed"
            found.append(Diagnostic("E103", message, span))
    return found


def _check_names(schedule: n.Schedule) -> None:
    """Raise ChimeraError E105 for too many params and lets: names are searched in all of them."""
    orders = [s.lets for s in schedule.statements if isinstance(s, n.Ticks)]
    for named in ([s for s in schedule.statements if isinstance(s, n.Param | n.Let)], *orders):
        if len(named) > limits.NAMES:
            message = f"{len(named)} names are defined by param and let; at most {limits.NAMES} are allowed"
            raise refuse("E105", message, named[limits.NAMES].name.span, "the first too many")


# --- syntax errors ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorPosition:
    """The position of a syntax error, with its context.

    position: of the first token that cannot follow, or the length of the text if it ends too early; meaningless: the
    character there if no token of the language begins with it, else empty.
    """

    position: int
    meaningless: str = ""


def syntax_error_of(text: str) -> ErrorPosition | None:
    """Return the position of the first syntax error of a text; None if there is none."""
    try:
        grammar().parse(text)
    except UnexpectedInput as error:
        return _error_position(text, error)
    return None


def terminals_after(text: str, end: int) -> frozenset[str]:
    """Return the names of the terminals that may follow a valid beginning of a text. end: the position where it ends."""
    parser = grammar().parse_interactive(text)
    try:
        for token in parser.lexer_thread.lex(parser.parser_state):  # type: ignore[no-untyped-call]
            if (token.start_pos or 0) >= end:
                break
            parser.feed_token(token)
    except UnexpectedCharacters:
        pass
    accepted: frozenset[str] = frozenset(parser.accepts())  # type: ignore[no-untyped-call]
    return accepted


@cache
def terminal_texts() -> Mapping[str, str]:
    """Return the pattern of each terminal, which for a keyword or symbol is its text."""
    return {t.name: t.pattern.value.replace("\\", "") for t in grammar().terminals}


def _error_position(text: str, error: UnexpectedInput) -> ErrorPosition:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return ErrorPosition(len(text))
    position = error.pos_in_stream or 0
    # '/' is a token of `size 1/2`, and has no meaning anywhere else.
    slash = isinstance(error, UnexpectedToken) and error.token == "/"
    return ErrorPosition(position, text[position] if slash or isinstance(error, UnexpectedCharacters) else "")


def _parse_error(source: Source, stop: ErrorPosition) -> ParseError:
    if stop.position >= len(source.text):
        at = len(source.text.rstrip())
        return ParseError([Diagnostic("E102", "the text ends too early", source.span(at, at + 1))])
    span = source.span(stop.position, stop.position + 1)
    if stop.meaningless:
        return ParseError([Diagnostic("E101", f"the character {stop.meaningless!r} has no meaning here", span)])
    word = TOKEN.match(source.text, stop.position)
    end = word.end() if word else stop.position + 1
    span = source.span(stop.position, end)
    return ParseError([Diagnostic("E102", f"unexpected '{span.text}'", span)])
