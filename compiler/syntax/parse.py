"""text -> syntax tree (E1xx).

lark does the work. A text that is too large is refused before lark sees it, and a tree that is too deep before anything
recursive walks it. A syntax error is raised as the plain fact; compiler/diagnose/texts.py finds the others and adds help.
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
from chimerac.compiler.syntax.grammar import grammar, keywords
from chimerac.compiler.syntax.tokens import TOKEN


class ParseError(ChimeraError):
    """The text stops being one of the language at some place (E101, E102)."""


def parse(source: Source) -> n.Schedule:
    """Return the syntax tree of a schedule.

    Raises ParseError at the first syntax error, and ChimeraError for a text that is too large or cannot be built.
    """
    count_tokens(source)
    try:
        tree = grammar().parse(source.text)
    except UnexpectedInput as error:
        raise _parse_error(source, _stop(source.text, error)) from None
    found = _too_large(source, tree)
    if found:
        raise ChimeraError(found)
    result = build(source, tree)
    _check_names(result)
    return result


# --- sizes ----------------------------------------------------------------------------------------------------------


def count_tokens(source: Source) -> int:
    """Return how many tokens a text has, at least 1. Raises ChimeraError: E102 a product without its sign, E104 brackets
    within brackets, E105 its size."""
    if len(source.text) > limits.TEXT:
        raise refuse("E105", f"{source.name} has {len(source.text)} characters, a schedule at most {limits.TEXT}")
    count = depth = 0
    number, last, before = None, "", ""  # the word before if it is a number, the word before, and the one before that
    for count, found in enumerate(TOKEN.finditer(source.text), 1):
        word = found[0]
        if number and number.end() == found.start() and (word == "(" or (word.isidentifier() and word not in keywords())):
            raise _no_sign(source.span(number.start(), found.end()), before)
        before, number = last, found if word.isdigit() else None
        last = word
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


def _no_sign(span: Span, before: str) -> ChimeraError:
    """Return the finding of a number that touches a name. before: the word that stands before both."""
    number, name = re.fullmatch(r"([0-9]+)(.*)", span.text).groups()  # type: ignore[union-attr]
    if before in ("schedule", "param", "let", "pipe", "tied"):
        help = f"write '{before}_{number}{name}' instead of '{number}{name}'"
        return refuse("E102", "a name begins with a letter", span, help=help)
    help = f"write '{number}*{name}' instead of '{number}{name}'"
    return refuse("E102", "two factors without a sign between them", span, help=help)


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


# --- where a text stops ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stop:
    """Where a text stops being one of the language.

    position: of the first character that cannot stand there, the length of the text at its end; meaningless: that
    character if nothing in the language can begin with it.
    """

    position: int
    meaningless: str = ""


def stop_of(text: str) -> Stop | None:
    """Return where a text stops being one of the language; None if it does not."""
    try:
        grammar().parse(text)
    except UnexpectedInput as error:
        return _stop(text, error)
    return None


def terminals_after(text: str, end: int) -> frozenset[str]:
    """Return the names of the terminals that could stand at a position of a text, if it is right up to there."""
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
    """Return what each terminal looks like: its pattern, which for a word or sign is its text."""
    return {t.name: t.pattern.value.replace("\\", "") for t in grammar().terminals}


def _stop(text: str, error: UnexpectedInput) -> Stop:
    if isinstance(error, UnexpectedToken) and error.token.type == "$END":
        return Stop(len(text))
    position = error.pos_in_stream or 0
    # '/' is a token of `size 1/2`, and has no meaning anywhere else.
    slash = isinstance(error, UnexpectedToken) and error.token == "/"
    return Stop(position, text[position] if slash or isinstance(error, UnexpectedCharacters) else "")


def _parse_error(source: Source, stop: Stop) -> ParseError:
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
