"""Syntax nodes: the text as a tree. Every node has its span in the text. Equality ignores the spans."""

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
    """An operator with one operand.

    Attributes:
        op: '-' or 'not'.
    """

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
class Identifier(Node):
    """A name that is not an expression: one that the text defines, or that of a pipe, a kind of task or cost, or a limit."""

    name: str


@dataclass(frozen=True, slots=True)
class Param(Node):
    """`param NAME = EXPR`.

    Attributes:
        default: None if the text gives none.
    """

    name: Identifier
    default: Expr | None


@dataclass(frozen=True, slots=True)
class Require(Node):
    condition: Expr


@dataclass(frozen=True, slots=True)
class Let(Node):
    name: Identifier
    value: Expr


@dataclass(frozen=True, slots=True)
class Setting(Node):
    """`ranks EXPR`, `stages EXPR` or `window EXPR`. At most one of each is valid."""

    what: Literal["ranks", "stages", "window"]
    value: Expr


@dataclass(frozen=True, slots=True)
class Range(Node):
    """`low .. high`, both included."""

    low: Expr
    high: Expr


@dataclass(frozen=True, slots=True)
class Size(Node):
    """`size 1/2`: the size of a micro-batch of this schedule, relative to the size that the user configures."""

    numerator: int
    denominator: int


@dataclass(frozen=True, slots=True)
class Recompute(Node):
    """`recompute`, or `recompute when CONDITION`."""

    condition: Expr | None


@dataclass(frozen=True, slots=True)
class StageClause(Node):
    """`stage s on rank EXPR` places every stage; `stage s in LOW .. HIGH on rank EXPR` those in the range."""

    binder: Identifier
    range: Range | None
    rank: Expr
    recompute: Recompute | None


@dataclass(frozen=True, slots=True)
class Family(Node):
    """`[i in LOW .. HIGH]` after the name of a pipe: one pipe for each i."""

    binder: Identifier
    range: Range


@dataclass(frozen=True, slots=True)
class PipeDecl(Node):
    """`pipe NAME { ... }`: one pipe, or a family of pipes."""

    name: Identifier
    family: Family | None
    stages: tuple[StageClause, ...]
    micro_batches: Expr


@dataclass(frozen=True, slots=True)
class PipeRef(Node):
    """The pipe of a rule or a task: `down`, or `down[i]`."""

    name: Identifier
    index: Expr | None


@dataclass(frozen=True, slots=True)
class Rule(Node):
    """`F down[i](s, m) when CONDITION at TICK`.

    Attributes:
        group: LOW .. HIGH of `m = LOW .. HIGH`, the micro-batches of one task; in the rest of the rule m is the first of them.
    """

    kind: Identifier
    pipe: PipeRef | None
    stage: Identifier
    micro_batch: Identifier
    group: Range | None
    condition: Expr | None
    tick: Expr


@dataclass(frozen=True, slots=True)
class Fill(Node):
    """`fill W(r, k) at TICK`: the weight gradients of rank r, numbered by k from 0 in the order of their input gradients."""

    kind: Identifier
    rank: Identifier
    number: Identifier
    tick: Expr


@dataclass(frozen=True, slots=True)
class Ticks(Node):
    """The order form `ticks`. At most one fill is valid."""

    lets: tuple[Let, ...]
    rules: tuple[Rule, ...]
    fills: tuple[Fill, ...]


@dataclass(frozen=True, slots=True)
class Cost(Node):
    """`F = EXPR` for all stages, `F(s) = EXPR` for each stage s, or `hop = EXPR` for all transfers."""

    kind: Identifier
    stage: Identifier | None
    value: Expr


@dataclass(frozen=True, slots=True)
class CostStatement(Node):
    """`cost F = 1, B = 2`."""

    costs: tuple[Cost, ...]


@dataclass(frozen=True, slots=True)
class Key(Node):
    """`smaller EXPR` or `larger EXPR`: which of the ready tasks of one kind starts first."""

    value: Expr
    larger: bool


@dataclass(frozen=True, slots=True)
class Grouping(Node):
    """`group F by 2`: one task for several micro-batches."""

    kind: Identifier
    size: Expr


@dataclass(frozen=True, slots=True)
class Limit(Node):
    """`limit F - W <= D` in a greedy order: a bound on counts of started tasks, of a rank or of each of its stages or pipes."""

    condition: Expr
    scope: Literal["rank", "stage", "pipe"]


@dataclass(frozen=True, slots=True)
class Greedy(Node):
    """The order form `greedy`."""

    costs: tuple[CostStatement, ...]
    prefer: tuple[Identifier, ...]
    keys: tuple[Key, ...]
    groups: tuple[Grouping, ...]
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class TaskAction(Node):
    """A task of a listing: `F p[INDEX](STAGE, FIRST .. LAST)`. Parts that are left out are None.

    order/listing.py says which task is meant where the pipe, the stage or the micro-batch is left out.

    Attributes:
        last: None for a single micro-batch.
        overlap: `&` follows, so this task and the next one are an overlapped pair.
    """

    kind: Identifier
    pipe: PipeRef | None
    stage: Expr | None
    first: Expr | None
    last: Expr | None
    overlap: bool


@dataclass(frozen=True, slots=True)
class Repeat(Node):
    """`repeat N { ... }`, or `repeat i in LOW .. HIGH { ... }`.

    Attributes:
        count: N or HIGH; binder and low: None in the first form.
    """

    binder: Identifier | None
    low: Expr | None
    count: Expr
    body: tuple[Action, ...]


@dataclass(frozen=True, slots=True)
class Choice(Node):
    """`if CONDITION { ... } else { ... }`.

    Attributes:
        otherwise: empty without an `else`.
    """

    condition: Expr
    then: tuple[Action, ...]
    otherwise: tuple[Action, ...]


Action = Let | TaskAction | Repeat | Choice


@dataclass(frozen=True, slots=True)
class Listing(Node):
    """The order form `listing`: the actions of every rank.

    Attributes:
        rank: the name that is bound to the rank.
    """

    rank: Identifier
    actions: tuple[Action, ...]


Order = Ticks | Greedy | Listing  # a schedule has one of them
SyncPolicy = Literal["at end", "eager", "eager where idle"]


@dataclass(frozen=True, slots=True)
class Sync(Node):
    """`sync at end`, `sync eager` or `sync eager where idle`: when all-reduces of gradients are launched."""

    policy: SyncPolicy


@dataclass(frozen=True, slots=True)
class TiedDecl(Node):
    """`tied NAME on stages EXPR, ...`: a set of parameters that these stages share."""

    name: Identifier
    stages: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class MemoryLimit(Node):
    """`limit activations <= D` as a statement: the most that any rank may hold at once."""

    what: Identifier
    value: Expr


Statement = (
    Param | Require | Let | Setting | Size | PipeDecl | Ticks | Greedy | Listing | CostStatement | Sync | TiedDecl | MemoryLimit
)


@dataclass(frozen=True, slots=True)
class Schedule(Node):
    name: Identifier
    statements: tuple[Statement, ...]
