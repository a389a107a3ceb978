"""Syntax nodes: the text as a tree. Spans say where; two trees are equal when they say the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from chimera_ir.diagnostics import Span


@dataclass(frozen=True, slots=True)
class Node:
    """A piece of the text."""

    span: Span = field(compare=False, repr=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Int(Node):
    value: int


@dataclass(frozen=True, slots=True)
class Name(Node):
    name: str


@dataclass(frozen=True, slots=True)
class Unary(Node):
    """op: '-' or 'not'."""

    op: str
    operand: Expr


@dataclass(frozen=True, slots=True)
class Binary(Node):
    op: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True)
class IfElse(Node):
    condition: Expr
    then: Expr
    otherwise: Expr


@dataclass(frozen=True, slots=True)
class Call(Node):
    function: str
    arguments: tuple[Expr, ...]


Expr = Int | Name | Unary | Binary | IfElse | Call


@dataclass(frozen=True, slots=True)
class Binder(Node):
    """A name at the place that introduces it."""

    name: str


@dataclass(frozen=True, slots=True)
class Param(Node):
    name: Binder
    default: Expr | None


@dataclass(frozen=True, slots=True)
class Require(Node):
    condition: Expr


@dataclass(frozen=True, slots=True)
class Let(Node):
    name: Binder
    value: Expr


@dataclass(frozen=True, slots=True)
class Setting(Node):
    """`ranks`, `stages` or `window`, once each."""

    what: Literal["ranks", "stages", "window"]
    value: Expr


@dataclass(frozen=True, slots=True)
class Range(Node):
    """low .. high, both included."""

    low: Expr
    high: Expr


@dataclass(frozen=True, slots=True)
class StageClause(Node):
    """`stage s on rank EXPR`, for every stage or those in a range."""

    binder: Binder
    range: Range | None
    rank: Expr


@dataclass(frozen=True, slots=True)
class Family(Node):
    binder: Binder
    range: Range


@dataclass(frozen=True, slots=True)
class PipeDecl(Node):
    name: Binder
    family: Family | None
    stages: tuple[StageClause, ...]
    micro_batches: Expr


@dataclass(frozen=True, slots=True)
class PipeRef(Node):
    name: Binder
    index: Expr | None


@dataclass(frozen=True, slots=True)
class Rule(Node):
    """`F down[i](s, m) when CONDITION at TICK`."""

    kind: Binder
    pipe: PipeRef | None
    stage: Binder
    micro_batch: Binder
    condition: Expr | None
    tick: Expr


@dataclass(frozen=True, slots=True)
class Ticks(Node):
    """The order form `ticks`."""

    lets: tuple[Let, ...]
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Cost(Node):
    """`F = 1`, or `F(s) = EXPR` stage by stage."""

    kind: Binder
    stage: Binder | None
    value: Expr


@dataclass(frozen=True, slots=True)
class CostStatement(Node):
    costs: tuple[Cost, ...]


SyncPolicy = Literal["at end", "eager", "eager where idle"]


@dataclass(frozen=True, slots=True)
class Sync(Node):
    policy: SyncPolicy


@dataclass(frozen=True, slots=True)
class TiedDecl(Node):
    name: Binder
    stages: tuple[Expr, ...]


Statement = Param | Require | Let | Setting | PipeDecl | Ticks | CostStatement | Sync | TiedDecl


@dataclass(frozen=True, slots=True)
class Schedule(Node):
    name: Binder
    statements: tuple[Statement, ...]
