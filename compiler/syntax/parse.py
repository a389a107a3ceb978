"""text -> syntax tree (E1xx).

lark does the work. A statement with a syntax error is blanked and the rest read again, so that one run shows all of
them; the depth of a tree is checked before anything recursive walks it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Any

from lark import Lark, Token, Transformer, Tree, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args
from lark.tree import Meta

from chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, refuse
from compiler.syntax import nodes as n

MAX_TEXT = 1_000_000  # characters of a schedule
MAX_DEPTH = 100  # nesting of an expression
MAX_INT = 2**61
MAX_SYNTAX_ERRORS = 10


def parse(source: Source) -> n.Schedule:
    """Return the syntax tree of a schedule. Raises ChimeraError with every syntax error that can be told apart."""
    if len(source.text) > MAX_TEXT:
        raise refuse("E105", f"{source.name} has {len(source.text)} characters, a schedule at most {MAX_TEXT}")
    found: list[Diagnostic] = []
    text = source.text
    while True:
        try:
            tree = _grammar().parse(text)
            break
        except UnexpectedInput as error:
            if not found or not _at_end(error):  # a later error at the end follows from what was blanked
                found.append(_explain(error, source))
            text = "" if _at_end(error) else _without_statement_at(text, _position(error, text))
            if not text or len(found) == MAX_SYNTAX_ERRORS:
                raise ChimeraError(found) from None
    found += _too_large(source, tree)
    if found:
        raise ChimeraError(found)
    builder = _Builder(source)
    result: n.Schedule = builder.transform(tree)
    if builder.found:
        raise ChimeraError(builder.found)
    return result


@cache
def _grammar() -> Lark:
    text = resources.files("compiler.syntax").joinpath("grammar.lark").read_text(encoding="utf-8")
    # The basic lexer: the contextual one reports wrong columns (lark 1.3.1).
    return Lark(text, parser="lalr", lexer="basic", propagate_positions=True)


@cache
def keywords() -> frozenset[str]:
    """Return the words that cannot be names."""
    return frozenset(t.pattern.value for t in _grammar().terminals if t.pattern.value.isidentifier())


def _too_large(source: Source, tree: Tree[Token]) -> list[Diagnostic]:
    """Return findings for numbers and nesting that later passes could not bear. Iterative: any depth is safe here."""
    found: list[Diagnostic] = []
    stack: list[tuple[Any, int]] = [(tree, 0)]
    while stack:
        node, depth = stack.pop()
        if isinstance(node, Tree):
            if depth > MAX_DEPTH:
                span, help = _span(source, node.meta), "give parts of it a name with let"
                return [Diagnostic("E104", f"an expression nested more than {MAX_DEPTH} deep", span, help=help)]
            stack += [(child, depth + 1) for child in node.children]
        elif isinstance(node, Token) and node.type == "INT" and (len(node) > 20 or int(node) > MAX_INT):
            span = _token_span(source, node)
            found.append(Diagnostic("E103", f"a number of {len(node)} digits; at most {MAX_INT} is allowed", span))
    return found


# --- errors ---------------------------------------------------------------------------------------------------------

_STARTS = re.compile(
    r"\b(?:schedule|param|require|let|ranks|stages|pipe|order|cost|sync|tied|window)\b|(?m:^[ \t]*[A-Z]\b(?=.*\bat\b))|[{}]"
)


def _without_statement_at(text: str, position: int) -> str:
    """Return the text with the statement around `position` blanked, or nothing where braces make that unsafe."""
    bare = re.sub(r"#[^\n]*", lambda m: " " * len(m[0]), text)
    starts = [m.start() for m in _STARTS.finditer(bare)]
    if not starts:
        return ""
    # An error that shows at the start of a statement was made in the one before it.
    begin = max((s for s in starts if s < position), default=0)
    end = min((s for s in starts if s >= max(position, begin + 1)), default=len(text))
    if bare[begin] in "{}" or bare.startswith(("schedule", "pipe", "order"), begin) or not bare[begin:end].strip():
        return ""
    return text[:begin] + re.sub(r"[^\n]", " ", text[begin:end]) + text[end:]


def _at_end(error: UnexpectedInput) -> bool:
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


def _position(error: UnexpectedInput, text: str) -> int:
    return len(text) if _at_end(error) or error.pos_in_stream is None else error.pos_in_stream


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
}


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
    span = _token_span(source, token)
    if token == "/":  # it stands only in `size 1/2`
        return Diagnostic("E101", "the character '/' has no meaning here", span, help=_HINTS["/"])
    label = f"expected {_expected(error.expected)}"
    help = ""
    if error.expected == {"NAME"} and token in keywords():
        help = f"'{token}' is a word of the language; choose another name"
    elif token == "=" and "COMPARE" in error.expected:
        help = "equality is written =="
    elif token in ("<", ">", "==", "!=", "<=", ">=") and "COMPARE" not in error.expected:
        help = "comparisons do not chain; join them with 'and'"
    return Diagnostic("E102", f"unexpected '{token}'", span, label, help=help)


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


# --- tree -> nodes --------------------------------------------------------------------------------------------------


def _span(source: Source, meta: Meta) -> Span:
    return Span(source, meta.line, meta.column, meta.end_line, meta.end_column)


def _token_span(source: Source, t: Token) -> Span:
    line, column = t.line or 1, t.column or 1
    return Span(source, line, column, t.end_line or line, t.end_column or column + len(t))


TASKS = ("F", "B", "I", "W")


@dataclass(frozen=True, slots=True)
class _Word:
    """`name[index](stage, first .. last)` in a listing."""

    name: n.Binder
    index: n.Expr | None
    stage: n.Expr | None
    first: n.Expr | None
    last: n.Expr | None
    span: Span

    @property
    def plain(self) -> bool:
        return self.index is None and self.stage is None


@v_args(meta=True)
class _Builder(Transformer[Token, Any]):
    """Build nodes only; whether they make sense is checked later."""

    def __init__(self, source: Source):
        super().__init__()
        self.source = source
        self.found: list[Diagnostic] = []

    def _at(self, meta: Meta) -> Span:
        return _span(self.source, meta)

    def _binder(self, token: Token) -> n.Binder:
        return n.Binder(str(token), span=_token_span(self.source, token))

    def start(self, meta: Meta, c: list[Any]) -> n.Schedule:
        return n.Schedule(self._binder(c[0]), tuple(c[1:]), span=self._at(meta))

    def param(self, meta: Meta, c: list[Any]) -> n.Param:
        return n.Param(self._binder(c[0]), c[1], span=self._at(meta))

    def require(self, meta: Meta, c: list[Any]) -> n.Require:
        return n.Require(c[0], span=self._at(meta))

    def let(self, meta: Meta, c: list[Any]) -> n.Let:
        return n.Let(self._binder(c[0]), c[1], span=self._at(meta))

    def ranks(self, meta: Meta, c: list[Any]) -> n.Setting:
        return n.Setting("ranks", c[0], span=self._at(meta))

    def stages(self, meta: Meta, c: list[Any]) -> n.Setting:
        return n.Setting("stages", c[0], span=self._at(meta))

    def window(self, meta: Meta, c: list[Any]) -> n.Setting:
        return n.Setting("window", c[0], span=self._at(meta))

    def pipe(self, meta: Meta, c: list[Any]) -> n.PipeDecl:
        name, family, *stages, micro_batches = c
        return n.PipeDecl(self._binder(name), family, tuple(stages), micro_batches, span=self._at(meta))

    def family(self, meta: Meta, c: list[Any]) -> n.Family:
        return n.Family(self._binder(c[0]), n.Range(c[1], c[2], span=c[1].span.to(c[2].span)), span=self._at(meta))

    def stage_clause(self, meta: Meta, c: list[Any]) -> n.StageClause:
        name, low, high, rank, recompute = c
        bounds = None if low is None else n.Range(low, high, span=low.span.to(high.span))
        return n.StageClause(self._binder(name), bounds, rank, recompute, span=self._at(meta))

    def recompute(self, meta: Meta, c: list[Any]) -> n.Recompute:
        return n.Recompute(c[0], span=self._at(meta))

    def size(self, meta: Meta, c: list[Any]) -> n.Size:
        return n.Size(int(c[0]), int(c[1]), span=self._at(meta))

    def ticks(self, meta: Meta, c: list[Any]) -> n.Ticks:
        lets = tuple(x for x in c if isinstance(x, n.Let))
        rules = tuple(x for x in c if isinstance(x, n.Rule))
        return n.Ticks(lets, rules, span=self._at(meta))

    def rule(self, meta: Meta, c: list[Any]) -> n.Rule:
        kind, pipe, stage, micro_batch, group, condition, tick = c
        binders = self._binder(stage), self._binder(micro_batch)
        return n.Rule(self._binder(kind), pipe, *binders, group, condition, tick, span=self._at(meta))

    def group(self, meta: Meta, c: list[Any]) -> n.Range:
        return n.Range(c[0], c[1], span=self._at(meta))

    def pipe_ref(self, meta: Meta, c: list[Any]) -> n.PipeRef:
        return n.PipeRef(self._binder(c[0]), c[1], span=self._at(meta))

    def greedy(self, meta: Meta, c: list[Any]) -> n.Greedy:
        costs = tuple(x for x in c if isinstance(x, n.CostStatement))
        prefer = tuple(x for y in c if isinstance(y, tuple) and isinstance(y[0], n.Binder) for x in y)
        keys = tuple(x for y in c if isinstance(y, tuple) and isinstance(y[0], n.Key) for x in y)
        limits = tuple(x for x in c if isinstance(x, n.Limit))
        groups = tuple(x for x in c if isinstance(x, n.Grouping))
        return n.Greedy(costs, prefer, keys, groups, limits, span=self._at(meta))

    def prefer(self, _: Meta, c: list[Any]) -> tuple[n.Binder, ...]:
        return tuple(self._binder(t) for t in c)

    def then(self, _: Meta, c: list[Any]) -> tuple[n.Key, ...]:
        return tuple(c)

    def smaller(self, meta: Meta, c: list[Any]) -> n.Key:
        return n.Key(c[0], False, span=self._at(meta))

    def larger(self, meta: Meta, c: list[Any]) -> n.Key:
        return n.Key(c[0], True, span=self._at(meta))

    def grouping(self, meta: Meta, c: list[Any]) -> n.Grouping:
        return n.Grouping(self._binder(c[0]), c[1], span=self._at(meta))

    def limit(self, meta: Meta, c: list[Any]) -> n.Limit:
        return n.Limit(c[0], c[1] or "rank", span=self._at(meta))

    def per_stage(self, _: Meta, __: list[Any]) -> str:
        return "stage"

    def per_pipe(self, _: Meta, __: list[Any]) -> str:
        return "pipe"

    def listing(self, meta: Meta, c: list[Any]) -> n.Listing:
        return n.Listing(self._binder(c[0]), self._actions(c[1:]), span=self._at(meta))

    def repeat(self, meta: Meta, c: list[Any]) -> n.Repeat:
        return n.Repeat(None, None, c[0], self._actions(c[1:]), span=self._at(meta))

    def repeat_in(self, meta: Meta, c: list[Any]) -> n.Repeat:
        return n.Repeat(self._binder(c[0]), c[1], c[2], self._actions(c[3:]), span=self._at(meta))

    def choice(self, meta: Meta, c: list[Any]) -> n.Choice:
        condition, *then, otherwise = c
        return n.Choice(condition, self._actions(then), self._actions(otherwise or []), span=self._at(meta))

    def otherwise(self, _: Meta, c: list[Any]) -> list[Any]:
        return c

    def word(self, meta: Meta, c: list[Any]) -> _Word:
        return _Word(self._binder(c[0]), c[1], c[2], c[3], c[4], self._at(meta))

    def _actions(self, parts: list[Any]) -> tuple[n.Action, ...]:
        """Join words to tasks: a kind, then the pipe it is of if that is named; `&` between two tasks overlaps them."""
        actions: list[n.Action] = []
        rest = list(parts)
        while rest:
            part = rest.pop(0)
            if isinstance(part, Token):  # &
                last = actions[-1] if actions else None
                following = isinstance(rest[0], _Word) if rest else False
                taken = len(actions) > 1 and isinstance(actions[-2], n.TaskAction) and actions[-2].overlap
                if isinstance(last, n.TaskAction) and following and not last.overlap and not taken:
                    actions[-1] = replace(last, overlap=True)
                else:
                    span = _token_span(self.source, part)
                    label = "expected a task on both sides" if not taken else "the one before it is of a pair already"
                    self.found.append(Diagnostic("E102", "'&' joins two tasks", span, label))
            elif isinstance(part, _Word):
                if part.name.name not in TASKS:
                    message, label = f"unexpected '{part.name.name}'", "expected F, B, I or W, then the pipe"
                    self.found.append(Diagnostic("E102", message, part.name.span, label))
                    if rest and isinstance(rest[0], _Word) and rest[0].name.name not in TASKS:
                        rest.pop(0)  # its pipe
                    continue
                word, pipe = part, None
                if rest and isinstance(rest[0], _Word) and rest[0].name.name not in TASKS and part.plain:
                    word = rest.pop(0)
                    end = word.index.span if word.index is not None else word.name.span
                    pipe = n.PipeRef(word.name, word.index, span=word.name.span.to(end))
                elif part.index is not None:
                    self.found.append(Diagnostic("E102", "a kind of task has no index", part.span, "expected the pipe's name"))
                span = part.span.to(word.span)
                actions.append(n.TaskAction(part.name, pipe, word.stage, word.first, word.last, False, span=span))
            else:
                actions.append(part)
        return tuple(actions)

    def costs(self, meta: Meta, c: list[Any]) -> n.CostStatement:
        return n.CostStatement(tuple(c), span=self._at(meta))

    def cost(self, meta: Meta, c: list[Any]) -> n.Cost:
        kind, stage, value = c
        return n.Cost(self._binder(kind), None if stage is None else self._binder(stage), value, span=self._at(meta))

    def sync_at_end(self, meta: Meta, _: list[Any]) -> n.Sync:
        return n.Sync("at end", span=self._at(meta))

    def sync_eager(self, meta: Meta, _: list[Any]) -> n.Sync:
        return n.Sync("eager", span=self._at(meta))

    def sync_eager_where_idle(self, meta: Meta, _: list[Any]) -> n.Sync:
        return n.Sync("eager where idle", span=self._at(meta))

    def tied(self, meta: Meta, c: list[Any]) -> n.TiedDecl:
        return n.TiedDecl(self._binder(c[0]), tuple(c[1:]), span=self._at(meta))

    def integer(self, meta: Meta, c: list[Any]) -> n.Int:
        return n.Int(int(c[0]), span=self._at(meta))

    def name(self, meta: Meta, c: list[Any]) -> n.Name:
        return n.Name(str(c[0]), span=self._at(meta))

    def unary(self, meta: Meta, c: list[Any]) -> n.Unary:
        return n.Unary(str(c[0]), c[1], span=self._at(meta))

    def binary(self, meta: Meta, c: list[Any]) -> n.Binary:
        return n.Binary(str(c[1]), c[0], c[2], span=self._at(meta))

    def if_else(self, meta: Meta, c: list[Any]) -> n.IfElse:
        return n.IfElse(*c, span=self._at(meta))

    def call(self, meta: Meta, c: list[Any]) -> n.Call:
        return n.Call(str(c[0]), tuple(c[1:]), span=self._at(meta))

    def parenthesized(self, _: Meta, c: list[Any]) -> n.Expr:
        result: n.Expr = c[0]
        return result
