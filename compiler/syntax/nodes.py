"""Syntax nodes: the text as a tree. Every node has its span; equality ignores it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from chimerac.chimera_ir.diagnostics import Span


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
class Size(Node):
    """`size 1/2`: the size of a micro-batch of this schedule, as a fraction of the size that a run is given."""

    numerator: int
    denominator: int


@dataclass(frozen=True, slots=True)
class Recompute(Node):
    """`recompute`, or `recompute when CONDITION`."""

    condition: Expr | None


@dataclass(frozen=True, slots=True)
class StageClause(Node):
    """`stage s on rank EXPR`, for every stage or those in a range."""

    binder: Binder
    range: Range | None
    rank: Expr
    recompute: Recompute | None


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
    """`F down[i](s, m) when CONDITION at TICK`; with a group, m is the first of `low .. high`."""

    kind: Binder
    pipe: PipeRef | None
    stage: Binder
    micro_batch: Binder
    group: Range | None
    condition: Expr | None
    tick: Expr


@dataclass(frozen=True, slots=True)
class Fill(Node):
    """`fill W(r, k) at TICK`: the weight gradients of rank r, numbered by k from 0 in the order of their input gradients."""

    kind: Binder
    rank: Binder
    number: Binder
    tick: Expr


@dataclass(frozen=True, slots=True)
class Ticks(Node):
    """The order form `ticks`. At most one fill is valid."""

    lets: tuple[Let, ...]
    rules: tuple[Rule, ...]
    fills: tuple[Fill, ...]


@dataclass(frozen=True, slots=True)
class Cost(Node):
    """`F = 1`, or `F(s) = EXPR` stage by stage."""

    kind: Binder
    stage: Binder | None
    value: Expr


@dataclass(frozen=True, slots=True)
class CostStatement(Node):
    costs: tuple[Cost, ...]


@dataclass(frozen=True, slots=True)
class Key(Node):
    """`smaller EXPR` or `larger EXPR`: the order of tasks that are ready."""

    value: Expr
    larger: bool


@dataclass(frozen=True, slots=True)
class Grouping(Node):
    """`group F by 2`: one task for several micro-batches."""

    kind: Binder
    size: Expr


@dataclass(frozen=True, slots=True)
class Limit(Node):
    """`limit F - W <= D`: a bound on counts of started tasks, on a rank or on each of its stages or pipes."""

    condition: Expr
    scope: Literal["rank", "stage", "pipe"]


@dataclass(frozen=True, slots=True)
class Greedy(Node):
    """The order form `greedy`."""

    costs: tuple[CostStatement, ...]
    prefer: tuple[Binder, ...]
    keys: tuple[Key, ...]
    groups: tuple[Grouping, ...]
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class TaskAction(Node):
    """`F p[a](s, m)` in a listing: the next one where stage or micro-batch are left out. overlap: `&` follows."""

    kind: Binder
    pipe: PipeRef | None
    stage: Expr | None
    first: Expr | None
    last: Expr | None
    overlap: bool


@dataclass(frozen=True, slots=True)
class Repeat(Node):
    """`repeat N { ... }`, or `repeat i in low .. high { ... }`."""

    binder: Binder | None
    low: Expr | None
    count: Expr
    body: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Choice(Node):
    condition: Expr
    then: tuple[Action, ...]
    otherwise: tuple[Action, ...]


Action = Let | TaskAction | Repeat | Choice


@dataclass(frozen=True, slots=True)
class Listing(Node):
    """The order form `listing`: a program for every rank."""

    rank: Binder
    actions: tuple[Action, ...]


Order = Ticks | Greedy | Listing  # one schedule has one
SyncPolicy = Literal["at end", "eager", "eager where idle"]


@dataclass(frozen=True, slots=True)
class Sync(Node):
    policy: SyncPolicy


@dataclass(frozen=True, slots=True)
class TiedDecl(Node):
    name: Binder
    stages: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class MemoryLimit(Node):
    """`limit activations <= D`: the most that any rank may hold at once."""

    what: Binder
    value: Expr


Statement = (
    Param | Require | Let | Setting | Size | PipeDecl | Ticks | Greedy | Listing | CostStatement | Sync | TiedDecl | MemoryLimit
)


@dataclass(frozen=True, slots=True)
class Schedule(Node):
    name: Binder
    statements: tuple[Statement, ...]
