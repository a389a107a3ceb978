"""lark's parse tree -> syntax tree. Names, types and sizes are checked later, by resolve."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from lark import Token, Tree
from lark.tree import Meta

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.kinds import KINDS, kind_of_alias
from chimerac.compiler.syntax.printer import as_term

_EXPECTED_TASK = "expected F, B, I, W or R, then the pipe"


def span_of(source: Source, meta: Meta) -> Span:
    """Return the span of a tree of lark."""
    return Span(source, meta.line, meta.column, meta.end_line, meta.end_column)


def token_span(source: Source, t: Token) -> Span:
    """Return the span of a token of lark."""
    line, column = t.line or 1, t.column or 1
    return Span(source, line, column, t.end_line or line, t.end_column or column + len(t))


@dataclass(frozen=True, slots=True)
class _Word:
    """`name[index](stage, first .. last)` in a listing: a kind of task or a pipe. A part that is left out is None."""

    name: n.Identifier
    index: n.Expr | None
    stage: n.Expr | None
    first: n.Expr | None
    last: n.Expr | None
    span: Span

    @property
    def plain(self) -> bool:
        """Return whether the word is a name alone."""
        return self.index is None and self.stage is None


def build(source: Source, tree: Tree[Token]) -> n.Schedule:
    """Return the schedule of a tree of lark, which may be of any depth.

    Raises ChimeraError E102 for invalid tasks of a listing, for a & that does not join two tasks, and for a `limit NAME` with
    another comparison than <=.
    """
    builder = _Builder(source)
    built: dict[int, Any] = {}  # by the identity of a tree
    for t in tree.iter_subtrees():  # children before their parents
        children = [built[id(c)] if isinstance(c, Tree) else c for c in t.children]
        built[id(t)] = getattr(builder, t.data)(t.meta, children)
    if builder.found:
        raise ChimeraError(sorted(builder.found, key=lambda d: (d.span.line, d.span.column) if d.span else (0, 0)))
    result: n.Schedule = built[id(tree)]
    return result


class _Builder:
    """Each method without an underscore has the name of a rule of the grammar, or of an alternative of one (`-> NAME`).

    It returns what is built from a tree of that name, in most cases a node. Its arguments are the position of the tree, and its
    children: tokens, what was returned for subtrees, and None for optional parts that are left out.
    """

    def __init__(self, source: Source):
        self.source = source
        self.found: list[Diagnostic] = []

    def _at(self, meta: Meta) -> Span:
        return span_of(self.source, meta)

    def _identifier(self, token: Token) -> n.Identifier:
        return n.Identifier(str(token), span=token_span(self.source, token))

    def start(self, meta: Meta, c: list[Any]) -> n.Schedule:
        return n.Schedule(self._identifier(c[0]), tuple(c[1:]), span=self._at(meta))

    def param(self, meta: Meta, c: list[Any]) -> n.Param:
        return n.Param(self._identifier(c[0]), c[1], span=self._at(meta))

    def require(self, meta: Meta, c: list[Any]) -> n.Require:
        return n.Require(c[0], span=self._at(meta))

    def let(self, meta: Meta, c: list[Any]) -> n.Let:
        return n.Let(self._identifier(c[0]), c[1], span=self._at(meta))

    def ranks(self, meta: Meta, c: list[Any]) -> n.Setting:
        return n.Setting("ranks", c[0], span=self._at(meta))

    def stages(self, meta: Meta, c: list[Any]) -> n.Setting:
        return n.Setting("stages", c[0], span=self._at(meta))

    def window(self, meta: Meta, c: list[Any]) -> n.Setting:
        return n.Setting("window", c[0], span=self._at(meta))

    def pipe(self, meta: Meta, c: list[Any]) -> n.PipeDecl:
        name, family, *stages, micro_batches = c
        return n.PipeDecl(self._identifier(name), family, tuple(stages), micro_batches, span=self._at(meta))

    def family(self, meta: Meta, c: list[Any]) -> n.Family:
        return n.Family(self._identifier(c[0]), n.Range(c[1], c[2], span=c[1].span.to(c[2].span)), span=self._at(meta))

    def stage_clause(self, meta: Meta, c: list[Any]) -> n.StageClause:
        name, low, high, rank, recompute = c
        bounds = None if low is None else n.Range(low, high, span=low.span.to(high.span))
        return n.StageClause(self._identifier(name), bounds, rank, recompute, span=self._at(meta))

    def recompute(self, meta: Meta, c: list[Any]) -> n.Recompute:
        return n.Recompute(c[0], span=self._at(meta))

    def size(self, meta: Meta, c: list[Any]) -> n.Size:
        return n.Size(int(c[0]), int(c[1]), span=self._at(meta))

    def ticks(self, meta: Meta, c: list[Any]) -> n.Ticks:
        lets = tuple(x for x in c if isinstance(x, n.Let))
        rules = tuple(x for x in c if isinstance(x, n.Rule))
        fills = tuple(x for x in c if isinstance(x, n.Fill))
        return n.Ticks(lets, rules, fills, span=self._at(meta))

    def rule(self, meta: Meta, c: list[Any]) -> n.Rule:
        kind, pipe, stage, micro_batch, group, condition, tick = c
        binders = self._identifier(stage), self._identifier(micro_batch)
        return n.Rule(self._identifier(kind), pipe, *binders, group, condition, tick, span=self._at(meta))

    def fill(self, meta: Meta, c: list[Any]) -> n.Fill:
        kind, rank, number, tick = c
        return n.Fill(self._identifier(kind), self._identifier(rank), self._identifier(number), tick, span=self._at(meta))

    def group(self, meta: Meta, c: list[Any]) -> n.Range:
        return n.Range(c[0], c[1], span=self._at(meta))

    def pipe_ref(self, meta: Meta, c: list[Any]) -> n.PipeRef:
        return n.PipeRef(self._identifier(c[0]), c[1], span=self._at(meta))

    def greedy(self, meta: Meta, c: list[Any]) -> n.Greedy:
        costs = tuple(x for x in c if isinstance(x, n.CostStatement))
        # What `prefer` and `then` return are tuples. Those of several statements are joined.
        prefer = tuple(x for y in c if isinstance(y, tuple) and isinstance(y[0], n.Identifier) for x in y)
        keys = tuple(x for y in c if isinstance(y, tuple) and isinstance(y[0], n.Key) for x in y)
        limits = tuple(x for x in c if isinstance(x, n.Limit))
        groups = tuple(x for x in c if isinstance(x, n.Grouping))
        return n.Greedy(costs, prefer, keys, groups, limits, span=self._at(meta))

    def prefer(self, _: Meta, c: list[Any]) -> tuple[n.Identifier, ...]:
        return tuple(self._identifier(t) for t in c)

    def then(self, _: Meta, c: list[Any]) -> tuple[n.Key, ...]:
        return tuple(c)

    def smaller(self, meta: Meta, c: list[Any]) -> n.Key:
        return n.Key(c[0], larger=False, span=self._at(meta))

    def larger(self, meta: Meta, c: list[Any]) -> n.Key:
        return n.Key(c[0], larger=True, span=self._at(meta))

    def grouping(self, meta: Meta, c: list[Any]) -> n.Grouping:
        return n.Grouping(self._identifier(c[0]), c[1], span=self._at(meta))

    def limit(self, meta: Meta, c: list[Any]) -> n.Limit:
        return n.Limit(c[0], c[1] or "rank", span=self._at(meta))

    def per_stage(self, _: Meta, __: list[Any]) -> str:
        return "stage"

    def per_pipe(self, _: Meta, __: list[Any]) -> str:
        return "pipe"

    def listing(self, meta: Meta, c: list[Any]) -> n.Listing:
        return n.Listing(self._identifier(c[0]), self._actions(c[1:]), span=self._at(meta))

    def repeat(self, meta: Meta, c: list[Any]) -> n.Repeat:
        return n.Repeat(binder=None, low=None, count=c[0], body=self._actions(c[1:]), span=self._at(meta))

    def repeat_in(self, meta: Meta, c: list[Any]) -> n.Repeat:
        return n.Repeat(self._identifier(c[0]), c[1], c[2], self._actions(c[3:]), span=self._at(meta))

    def choice(self, meta: Meta, c: list[Any]) -> n.Choice:
        condition, *then, otherwise = c
        return n.Choice(condition, self._actions(then), self._actions(otherwise or []), span=self._at(meta))

    def otherwise(self, _: Meta, c: list[Any]) -> list[Any]:
        return c

    def word(self, meta: Meta, c: list[Any]) -> _Word:
        return _Word(self._identifier(c[0]), c[1], c[2], c[3], c[4], self._at(meta))

    def _actions(self, parts: list[Any]) -> tuple[n.Action, ...]:
        """Return the actions of a block of a listing.

        Args:
            parts: lets, loops, choices, words and the symbol &.
        """
        actions: list[n.Action] = []
        rest = deque(parts)
        while rest:
            part = rest.popleft()
            if isinstance(part, Token):  # &
                self._join(actions, part, bool(rest) and isinstance(rest[0], _Word))
            elif not isinstance(part, _Word):
                actions.append(part)
            elif task := self._task(part, rest):
                actions.append(task)
        return tuple(actions)

    def _join(self, actions: list[n.Action], symbol: Token, word_follows: bool) -> None:
        """Mark the last action as the first task of an overlapped pair, or add E102 if the symbol & cannot be here.

        Args:
            word_follows: whether the part after the symbol is a word.
        """
        last = actions[-1] if actions else None
        in_pair = len(actions) > 1 and isinstance(actions[-2], n.TaskAction) and actions[-2].overlap
        if isinstance(last, n.TaskAction) and word_follows and not last.overlap and not in_pair:
            actions[-1] = replace(last, overlap=True)
            return
        label, help = "expected a task on both sides", "an overlapped pair is written: F & B"
        if in_pair:
            label = "the task before it belongs to a pair already"
            help = "two pairs are written one after the other: F & B  F & B"
        self.found.append(Diagnostic("E102", "'&' joins two tasks", token_span(self.source, symbol), label, help=help))

    def _task(self, word: _Word, rest: deque[Any]) -> n.TaskAction | None:
        """Return the task whose kind is this word. If the word is no kind, add E102 and return None.

        A kind with an index also adds E102.

        Args:
            rest: the parts that follow. If the first of them is a word that is no kind, it is taken as the pipe and removed
                from `rest`, but not after a kind that has a stage or an index.
        """
        following = rest[0] if rest and isinstance(rest[0], _Word) else None
        pipe_follows = following is not None and following.name.name not in KINDS
        name = word.name.name
        if name not in KINDS:
            help = f"did you mean '{kind}'?" if (kind := kind_of_alias(name)) else ""
            if len(name) > 1 and set(name) <= set(KINDS):
                help = f"did you mean '{' '.join(name)}'?"
            if number := re.fullmatch(f"([{''.join(KINDS)}])([0-9]+)", name):
                kind, m = number.groups()
                help = f"a micro-batch is written with its stage: {kind}(STAGE, {m}); {kind} alone is the next micro-batch"
            if following and not pipe_follows:
                loop = f"a loop is written: repeat {name} {{ {following.name.name} }}"
                help = f"{help}; {loop}" if help else loop
            self.found.append(Diagnostic("E102", f"unexpected '{name}'", word.name.span, _EXPECTED_TASK, help=help))
            if pipe_follows:
                rest.popleft()
            return None
        last, pipe = word, None  # last: the word with the stage and the micro-batches
        if pipe_follows and word.plain:
            last = rest.popleft()
            end = last.index.span if last.index is not None else last.name.span
            pipe = n.PipeRef(last.name, last.index, span=last.name.span.to(end))
        elif word.index is not None:
            help = f"an index is of a pipe: {name} p[0]; a stage is written in parentheses: {name}(0)"
            self.found.append(Diagnostic("E102", "a kind of task has no index", word.span, help=help))
        span = word.span.to(last.span)
        return n.TaskAction(word.name, pipe, last.stage, last.first, last.last, overlap=False, span=span)

    def costs(self, meta: Meta, c: list[Any]) -> n.CostStatement:
        return n.CostStatement(tuple(c), span=self._at(meta))

    def cost(self, meta: Meta, c: list[Any]) -> n.Cost:
        kind, stage, value = c
        return n.Cost(self._identifier(kind), None if stage is None else self._identifier(stage), value, span=self._at(meta))

    def sync_at_end(self, meta: Meta, _: list[Any]) -> n.Sync:
        return n.Sync("at end", span=self._at(meta))

    def sync_eager(self, meta: Meta, _: list[Any]) -> n.Sync:
        return n.Sync("eager", span=self._at(meta))

    def sync_eager_where_idle(self, meta: Meta, _: list[Any]) -> n.Sync:
        return n.Sync("eager where idle", span=self._at(meta))

    def tied(self, meta: Meta, c: list[Any]) -> n.TiedDecl:
        return n.TiedDecl(self._identifier(c[0]), tuple(c[1:]), span=self._at(meta))

    def memory_limit(self, meta: Meta, c: list[Any]) -> n.MemoryLimit:
        name, compare, value = c
        if compare != "<=":
            maximum = as_term(value)
            if compare == "<":
                maximum = str(value.value - 1) if isinstance(value, n.Int) else f"{maximum} - 1"
            help = f"a limit is the most that a rank may hold: limit {name} <= {maximum}"
            span = token_span(self.source, compare)
            self.found.append(Diagnostic("E102", f"unexpected '{compare}'", span, "expected '<='", help=help))
        return n.MemoryLimit(self._identifier(name), value, span=self._at(meta))

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
