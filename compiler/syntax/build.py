"""lark tree -> nodes. Names, types and sizes are checked later, by resolve."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from lark import Token, Tree
from lark.tree import Meta

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.kinds import TASKS, kind_of_alias
from chimerac.compiler.syntax.printer import as_term


def span_of(source: Source, meta: Meta) -> Span:
    return Span(source, meta.line, meta.column, meta.end_line, meta.end_column)


def token_span(source: Source, t: Token) -> Span:
    line, column = t.line or 1, t.column or 1
    return Span(source, line, column, t.end_line or line, t.end_column or column + len(t))


_EXPECTED = "expected F, B, I, W or R, then the pipe"


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


def build(source: Source, tree: Tree[Token]) -> n.Schedule:
    """Return the nodes of a tree, of any depth. Raises ChimeraError E102 for invalid tasks and limits."""
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
    """One method for each rule of the grammar, which makes its node from its position and the nodes of its parts."""

    def __init__(self, source: Source):
        self.source = source
        self.found: list[Diagnostic] = []

    def _at(self, meta: Meta) -> Span:
        return span_of(self.source, meta)

    def _binder(self, token: Token) -> n.Binder:
        return n.Binder(str(token), span=token_span(self.source, token))

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
        fills = tuple(x for x in c if isinstance(x, n.Fill))
        return n.Ticks(lets, rules, fills, span=self._at(meta))

    def rule(self, meta: Meta, c: list[Any]) -> n.Rule:
        kind, pipe, stage, micro_batch, group, condition, tick = c
        binders = self._binder(stage), self._binder(micro_batch)
        return n.Rule(self._binder(kind), pipe, *binders, group, condition, tick, span=self._at(meta))

    def fill(self, meta: Meta, c: list[Any]) -> n.Fill:
        kind, rank, number, tick = c
        return n.Fill(self._binder(kind), self._binder(rank), self._binder(number), tick, span=self._at(meta))

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
        """Return the actions. Words become tasks: a kind, then its pipe if that is named. `&` overlaps two tasks."""
        actions: list[n.Action] = []
        rest = deque(parts)
        while rest:
            part = rest.popleft()
            if isinstance(part, Token):  # &
                last = actions[-1] if actions else None
                following = isinstance(rest[0], _Word) if rest else False
                in_pair = len(actions) > 1 and isinstance(actions[-2], n.TaskAction) and actions[-2].overlap
                if isinstance(last, n.TaskAction) and following and not last.overlap and not in_pair:
                    actions[-1] = replace(last, overlap=True)
                else:
                    span = token_span(self.source, part)
                    label = "expected a task on both sides" if not in_pair else "the task before it belongs to a pair already"
                    help = (
                        "an overlapped pair is written: F & B"
                        if not in_pair
                        else "two pairs are written one after the other: F & B  F & B"
                    )
                    self.found.append(Diagnostic("E102", "'&' joins two tasks", span, label, help=help))
            elif isinstance(part, _Word):
                if part.name.name not in TASKS:
                    name = part.name.name
                    help = f"did you mean '{kind}'?" if (kind := kind_of_alias(name)) else ""
                    if len(name) > 1 and set(name) <= set(TASKS):
                        help = f"did you mean '{' '.join(name)}'?"
                    if rest and isinstance(rest[0], _Word) and rest[0].name.name in TASKS:
                        help += "; " * bool(help) + f"a loop is written: repeat {name} {{ {rest[0].name.name} }}"
                    self.found.append(Diagnostic("E102", f"unexpected '{name}'", part.name.span, _EXPECTED, help=help))
                    if rest and isinstance(rest[0], _Word) and rest[0].name.name not in TASKS:
                        rest.popleft()  # its pipe
                    continue
                word, pipe = part, None
                if rest and isinstance(rest[0], _Word) and rest[0].name.name not in TASKS and part.plain:
                    word = rest.popleft()
                    end = word.index.span if word.index is not None else word.name.span
                    pipe = n.PipeRef(word.name, word.index, span=word.name.span.to(end))
                elif part.index is not None:
                    help = (
                        f"an index is of a pipe: {part.name.name} p[0]; a stage is written in parentheses: {part.name.name}(0)"
                    )
                    self.found.append(Diagnostic("E102", "a kind of task has no index", part.span, help=help))
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

    def memory_limit(self, meta: Meta, c: list[Any]) -> n.MemoryLimit:
        name, compare, value = c
        if compare != "<=":
            maximum = as_term(value)
            if compare == "<":
                maximum = str(value.value - 1) if isinstance(value, n.Int) else f"{maximum} - 1"
            help = f"a limit is the most that a rank may hold: limit {name} <= {maximum}"
            span = token_span(self.source, compare)
            self.found.append(Diagnostic("E102", f"unexpected '{compare}'", span, "expected '<='", help=help))
        return n.MemoryLimit(self._binder(name), value, span=self._at(meta))

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
