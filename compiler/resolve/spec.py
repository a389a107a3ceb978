"""A resolved schedule: every number known, every formula bound to its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chimerac.chimera_ir.diagnostics import Span
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Costs, Header, Tied
from chimerac.compiler.resolve.expressions import Env
from chimerac.compiler.syntax.nodes import Action, Expr, Key, Let, Range, SyncPolicy


@dataclass(frozen=True, slots=True)
class Formula:
    """The ticks of the tasks of one kind in one pipe. env: the values of all names except those of stage and micro-batch.

    group: the micro-batches of one task, low .. high; `counter` is the name that numbers the groups.
    """

    kind: Op
    pipe: int
    stage: str
    micro_batch: str
    group: Range | None
    counter: str
    condition: Expr | None
    tick: Expr
    lets: tuple[Let, ...]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class Filling:
    """The ticks of the weight gradients of every rank, by their numbers. env: the values of all other names."""

    rank: str
    number: str
    tick: Expr
    lets: tuple[Let, ...]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class TicksOrder:
    """The order form `ticks`: formulas. filling: of the weight gradients, if no formula places them."""

    formulas: tuple[Formula, ...]
    filling: Filling | None
    span: Span


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit: the sum of `weights` (per kind) times counts of started tasks stays at or below a value.

    scope: what is counted together: all tasks of a rank, or of each of its stages or pipes.
    """

    weights: Mapping[Op, int]
    value: Expr
    scope: str
    span: Span


@dataclass(frozen=True, slots=True)
class GreedyOrder:
    """The order form `greedy`. kinds: in the order of preference; keys: they order tasks of one kind; group: the number of
    micro-batches of one forward."""

    kinds: tuple[Op, ...]
    keys: tuple[Key, ...]
    group: int
    bounds: tuple[Bound, ...]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class ListingOrder:
    """The order form `listing`. families: declared name -> index -> pipe."""

    rank: str
    actions: tuple[Action, ...]
    families: Mapping[str, Mapping[int, int]]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class Spec:
    """A resolved schedule.

    recompute: whether a forward is run again, per pipe and stage; limits: the spans of the limits in the header;
    is_recompute_chosen: the caller said which stages recompute, in the place of the text.
    """

    header: Header
    costs: Costs
    order: TicksOrder | GreedyOrder | ListingOrder
    recompute: tuple[tuple[bool, ...], ...]
    sync: SyncPolicy
    limits: Mapping[str, Span]
    is_recompute_chosen: bool = False

    def tying(self, tied: Sequence[Tied]) -> Spec:
        """Return the same schedule with further sets of tied parameters."""
        return replace(self, header=replace(self.header, tied=(*self.header.tied, *tied))) if tied else self
