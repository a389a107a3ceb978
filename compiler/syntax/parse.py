"""text -> syntax tree (E1xx).

lark parses the text. A text that is too large is rejected before lark reads it, and a tree that is too deep before a
recursive function visits it. lark stops at the first syntax error, which is raised without help. compiler/diagnose/texts.py
adds the help and finds the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from lark import Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, refuse
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.build import build, span_of, token_span
from chimerac.compiler.syntax.grammar import keywords, parser
from chimerac.compiler.syntax.tokens import TOKEN

# More digits than limits.MAGNITUDE has. A number with more than these is refused without computing it, also with leading zeros.
MAX_DIGITS = 20


class ParseError(ChimeraError):
    """The first syntax error that lark finds (E101, E102)."""


def parse(source: Source) -> n.Schedule:
    """Return the syntax tree of a schedule.

    Raises ParseError (E101, E102) for the first syntax error that lark finds. Raises ChimeraError for what lark does not check:
    E102 from `count_tokens` and `build`, E103 numbers that are too large, E104 too deep nesting, E105 a text or names that are
    too long, or too many tokens or names.
    """
    count_tokens(source)
    try:
        tree = parser().parse(source.text)
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
    """Return how many tokens a text has, at least 1.

    Raises ChimeraError: E102 a number that a name or a ( follows without a space, E104 brackets nested too deep, E105 a text
    or a name that is too long, or too many tokens.
    """
    if len(source.text) > limits.TEXT:
        raise refuse("E105", f"{source.name} has {len(source.text)} characters; a schedule may have at most {limits.TEXT}")
    count = depth = 0
    number: re.Match[str] | None = None  # the previous token, if it is a number
    previous = before_previous = ""
    for count, found in enumerate(TOKEN.finditer(source.text), 1):
        word = found[0]
        is_name = word.isascii() and word.isidentifier() and word not in keywords()
        if number and number.end() == found.start() and (is_name or word == "("):
            raise _missing_operator(source.span(number.start(), found.end()), number[0], word, before_previous)
        number = found if word.isascii() and word.isdigit() else None
        before_previous, previous = previous, word
        if word in "([{":
            depth += 1
        elif word in ")]}":
            depth -= 1
        if depth > limits.NESTING:
            message = f"brackets nested more than {limits.NESTING} deep"
            raise refuse("E104", message, source.span(*found.span()), help="give parts of it a name with let")
        if count > limits.TOKENS:
            message = f"{source.name} has more than {limits.TOKENS} words, numbers, symbols and comments"
            raise refuse(
                "E105", message, source.span(*found.span()), "the first too many", help="write formulas instead of lists"
            )
        if len(word) > limits.NAME and word.isidentifier():
            message = f"a name of {len(word)} characters; at most {limits.NAME} are allowed"
            raise refuse("E105", message, source.span(*found.span()), help="choose a shorter name")
    return max(count, 1)


def _missing_operator(span: Span, number: str, following: str, before: str) -> ChimeraError:
    """Return the error E102 for a number that a name or a ( follows without a space.

    Args:
        following: the name or the (.
        span: of the number and of what follows.
        before: the token before the number.
    """
    if before in ("schedule", "param", "let", "pipe", "tied"):
        name = f"{before}_{number}" + (following if following != "(" else "")
        help = f"write '{name}' instead of '{span.text.removesuffix('(')}'"
        return refuse("E102", "a name begins with a letter or _", span, help=help)
    help = f"write '{number}*{following}' instead of '{span.text}'"
    return refuse("E102", "two factors without an operator between them", span, help=help)


def _too_large(source: Source, tree: Tree[Token]) -> list[Diagnostic]:
    """Return the findings about numbers and nesting that exceed the limits. A loop visits the tree, which may be deep.

    Two things do not count as nesting: parentheses, which `count_tokens` has counted, and the first operand of an operation,
    since later passes process a chain a + b + c ... in a loop.
    """
    found: list[Diagnostic] = []
    stack: list[tuple[Any, int]] = [(child, 0) for child in tree.children]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, Tree):
            if depth > limits.NESTING:
                span, help = span_of(source, node.meta), "give parts of it a name with let"
                return [Diagnostic("E104", f"nested more than {limits.NESTING} deep", span, help=help)]
            inner = depth if node.data == "parenthesized" else depth + 1
            first = depth if node.data == "binary" else inner
            stack += [(child, inner if k else first) for k, child in enumerate(node.children)]
        elif isinstance(node, Token) and node.type == "INT" and (len(node) > MAX_DIGITS or int(node) > limits.MAGNITUDE):
            span = token_span(source, node)
            message = f"a number of {len(node)} digits; at most {limits.MAGNITUDE} is allowed"
            found.append(Diagnostic("E103", message, span))
    return found


def _check_names(schedule: n.Schedule) -> None:
    """Raise ChimeraError E105 for too many params and lets of the top level, or too many lets of a ticks order."""
    lets_of_orders = [("let in the order", s.lets) for s in schedule.statements if isinstance(s, n.Ticks)]
    top_level = tuple(s for s in schedule.statements if isinstance(s, n.Param | n.Let))
    for words, definitions in (("param and let", top_level), *lets_of_orders):
        if len(definitions) > limits.NAMES:
            message = f"{len(definitions)} names are defined by {words}; at most {limits.NAMES} are allowed"
            raise refuse("E105", message, definitions[limits.NAMES].name.span, "the first too many")


# --- syntax errors ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorPosition:
    """The position of a syntax error.

    Attributes:
        position: of the first token or character that is not allowed, or the length of the text if it ends too early.
        meaningless: the character at the position if it has no meaning there, else ''.
    """

    position: int
    meaningless: str = ""


def syntax_error_of(text: str) -> ErrorPosition | None:
    """Return the position of the first syntax error of a text; None if there is none."""
    try:
        parser().parse(text)
    except UnexpectedInput as error:
        return _error_position(text, error)
    return None


def terminals_after(text: str, end: int) -> frozenset[str]:
    """Return the names of the terminals that may follow a valid beginning of a text.

    Args:
        end: the position where it ends.
    """
    interactive = parser().parse_interactive(text)
    try:
        for token in interactive.lexer_thread.lex(interactive.parser_state):  # type: ignore[no-untyped-call]
            if (token.start_pos or 0) >= end:
                break
            interactive.feed_token(token)
    except UnexpectedCharacters:
        pass
    accepted: frozenset[str] = frozenset(interactive.accepts())  # type: ignore[no-untyped-call]
    return accepted


@cache
def terminal_texts() -> Mapping[str, str]:
    """Return the pattern of each terminal, without backslashes, by the terminal's name.

    If a terminal is a single keyword or symbol, this is its text.
    """
    return {t.name: t.pattern.value.replace("\\", "") for t in parser().terminals}


def _error_position(text: str, error: UnexpectedInput) -> ErrorPosition:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return ErrorPosition(len(text))
    position = error.pos_in_stream or 0
    # '/' is a token, but has a meaning only in `size 1/2`.
    slash = isinstance(error, UnexpectedToken) and error.token == "/"
    return ErrorPosition(position, text[position] if slash or isinstance(error, UnexpectedCharacters) else "")


def _parse_error(source: Source, error: ErrorPosition) -> ParseError:
    if error.position >= len(source.text):
        at = len(source.text.rstrip())
        return ParseError([Diagnostic("E102", "the text ends too early", source.span(at, at + 1))])
    span = source.span(error.position, error.position + 1)
    if error.meaningless:
        return ParseError([Diagnostic("E101", f"the character {error.meaningless!r} has no meaning here", span)])
    word = TOKEN.match(source.text, error.position)
    end = word.end() if word else error.position + 1
    span = source.span(error.position, end)
    return ParseError([Diagnostic("E102", f"unexpected '{span.text}'", span)])
