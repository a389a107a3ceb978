"""text -> syntax tree (E1xx).

lark does the work. A syntax error is mended, or its statement blanked, and the text read again, so that one run shows all of
them. A text that is too large is refused before lark sees it, and a tree that is too deep before anything recursive
walks it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, refuse
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax import tables
from chimerac.compiler.syntax.build import Builder, span_of, token_span
from chimerac.compiler.syntax.tokens import TOKEN

if TYPE_CHECKING:  # what explains errors is loaded where there is one
    from chimerac.compiler.diagnose.place import Place
    from chimerac.compiler.diagnose.unexpected import Unexpected

MAX_SYNTAX_ERRORS = 10  # fewer in a long text, which is read once more for each


def parse(source: Source) -> n.Schedule:
    """Return the syntax tree of a schedule. Raises ChimeraError with every syntax error that can be told apart."""
    words = _count(source)
    most = min(MAX_SYNTAX_ERRORS, max(1, limits.TOKENS // words))
    found: list[Diagnostic] = []
    draft, trials = _Draft(source), limits.TOKENS // 4 // words
    while True:
        try:
            tree = _grammar().parse(draft.text)
            break
        except UnexpectedInput as error:
            from chimerac.compiler.diagnose.unexpected import explain

            p, meaningless = _place(Source(source.name, draft.text), error)
            if draft.blanked and (p.ended or p.text() in ("{", "}")):  # it follows from what was blanked
                raise ChimeraError(found) from None
            reader = _Reader(trials)
            told = explain(p, meaningless, reader)
            trials = reader.left
            finding = draft.original(told.finding)
            found += [finding] if all(d.span != finding.span for d in found) else []
            if len(found) >= most or not draft.go_on(p, told):
                raise ChimeraError(found) from None
    found += _too_large(source, tree) if draft.text == source.text else []
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
    folder = resources.files("chimerac.compiler.syntax")
    text, stored = folder.joinpath("grammar.lark").read_text(encoding="utf-8"), folder.joinpath(tables.FILE)
    loaded = tables.load(stored.read_text(encoding="utf-8"), text) if stored.is_file() else None
    return loaded or tables.build(text)


@cache
def keywords() -> frozenset[str]:
    """Return the words that cannot be names."""
    return frozenset(t.pattern.value for t in _grammar().terminals if t.pattern.value.isidentifier())


# --- sizes ----------------------------------------------------------------------------------------------------------


def _count(source: Source) -> int:
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


# --- errors ---------------------------------------------------------------------------------------------------------

_STARTS = re.compile(
    r"\b(?:schedule|param|require|let|ranks|stages|pipe|order|cost|sync|tied|window)\b|(?m:^[ \t]*[A-Z]\b(?=.*\bat\b))|[{}]"
)


class _Reader:
    """Reads texts to find where they stop being one of the language. left: how many more it may read."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, text: str) -> int | None:
        self.left -= 1
        if self.left < 0:
            return 0
        try:
            _grammar().parse(text)
        except UnexpectedInput as error:
            return len(text) if _at_end(error) else error.pos_in_stream or 0
        return None


class _Draft:
    """A text whose errors are mended one by one, or blanked where that is not possible, so that all of them are found.

    changes: line, column, and the lengths before and after; blanked: some errors may follow from what is gone.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.text, self.blanked = source, source.text, False
        self.last = (0, 0)  # the line and column of the last error that was blanked
        self.changes: list[tuple[int, int, int, int]] = []

    def go_on(self, p: Place, told: Unexpected) -> bool:
        """Mend or blank an error; return whether that was possible."""
        if told.change is not None:
            first, last = p.words[told.change.first], p.words[told.change.end - 1]
            self.changes.append((first.line, first.column, last.end - first.start, len(told.change.new)))
            from chimerac.compiler.diagnose.unexpected import changed

            self.text = changed(p, told.change)
            return True
        again = p.at < len(p.words) and self.last == (p.words[p.at].line, p.words[p.at].column)
        self.last = (p.words[p.at].line, p.words[p.at].column) if p.at < len(p.words) else (0, 0)
        self.blanked = True
        self.text = "" if again else _without_statement_at(self.text, p)
        return bool(self.text)

    def original(self, d: Diagnostic) -> Diagnostic:
        """Return a finding about this text as one about the author's."""
        assert d.span is not None
        s = d.span
        columns = [self._column(s.line, s.column), self._column(s.end_line, s.end_column)]
        span = Span(self.source, s.line, columns[0], s.end_line, max(columns[1], columns[0] + 1))
        return replace(d, span=span)

    def _column(self, line: int, column: int) -> int:
        for changed_line, at, before, after in reversed(self.changes):
            if line == changed_line and column >= at + after:
                column += before - after
        return column


def _place(source: Source, error: UnexpectedInput) -> tuple[Place, str]:
    """Return the place of an error, and the character there if it is none of the language's."""
    from chimerac.compiler.diagnose.place import Place

    position = len(source.text) if _at_end(error) else error.pos_in_stream or 0
    terminals = {t.name: t.pattern.value.replace("\\", "") for t in _grammar().terminals}

    def follow(end: int) -> tuple[frozenset[str], frozenset[str]]:
        parser = _grammar().parse_interactive(source.text)
        try:
            for token in parser.lexer_thread.lex(parser.parser_state):  # type: ignore[no-untyped-call]
                if (token.start_pos or 0) >= end:
                    break
                parser.feed_token(token)
        except UnexpectedCharacters:
            pass
        expected: frozenset[str] = frozenset(parser.accepts())  # type: ignore[no-untyped-call]
        return expected, frozenset(terminals[t] for t in expected - _WITHOUT_TEXT if t in terminals)

    meaningless = source.text[position] if isinstance(error, UnexpectedCharacters) else ""
    if isinstance(error, UnexpectedToken) and error.token == "/":  # it stands only in `size 1/2`
        meaningless = "/"
    return Place.of(source, position, follow, keywords()), meaningless


_WITHOUT_TEXT = frozenset(("NAME", "INT", "PLUS", "MINUS", "MULTIPLY", "COMPARE", "OR", "AND", "$END"))


def _at_end(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


def _without_statement_at(text: str, p: Place) -> str:
    """Return the text with the statement around an error blanked, or nothing where braces make that unsafe."""
    if p.ended or p.expected == {"SCHEDULE"}:
        return ""
    position = p.words[p.at].start
    bare = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), text)
    starts = [m.start() for m in _STARTS.finditer(bare)]
    if not starts:
        return ""
    # An error that shows at the start of a statement was made in the one before it, if that can go on no further.
    complete = position in starts and p.literal & {"}", "param"}
    begin = position if complete else max((s for s in starts if s < position), default=0)
    end = min((s for s in starts if s >= max(position, begin + 1)), default=len(text))
    if bare[begin] in "{}" or bare.startswith(("schedule", "pipe", "order"), begin) or not bare[begin:end].strip():
        return ""
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]
