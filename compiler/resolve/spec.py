"""A resolved schedule: the sizes are numbers, and every formula has the values of its names."""

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
    """The ticks of the tasks of one kind in one pipe.

    stage, micro_batch: the names of the two in the formula; group: the micro-batches of one task, LOW .. HIGH, or None;
    counter: the name that numbers the groups, '' if there is none; condition: of `when`; lets: those of the order that the
    formula uses; env: the values of all other names.
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
    """The ticks of the weight gradients of every rank, of `fill`.

    rank, number: the names of the two in the formula; lets: those of the order that it uses; env: the values of all other
    names.
    """

    rank: str
    number: str
    tick: Expr
    lets: tuple[Let, ...]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class TicksOrder:
    """The order form `ticks`. filling: places the weight gradients, if no formula does."""

    formulas: tuple[Formula, ...]
    filling: Filling | None
    span: Span


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit of a greedy order: the sum over the kinds of `weights` times the number of started tasks is at most `value`.

    scope: which tasks are counted together: those of the 'rank', or of each 'stage' or 'pipe' of the rank.
    """

    weights: Mapping[Op, int]
    value: Expr
    scope: str
    span: Span


@dataclass(frozen=True, slots=True)
class GreedyOrder:
    """The order form `greedy`.

    kinds: those of `prefer`, in its order; keys: those of `then`; group: the number of micro-batches of one forward; env: the
    values of params and lets.
    """

    kinds: tuple[Op, ...]
    keys: tuple[Key, ...]
    group: int
    bounds: tuple[Bound, ...]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class ListingOrder:
    """The order form `listing`.

    rank: the name that is bound to the rank; families: declared name -> index in the family, 0 without one -> number of the
    pipe; env: the values of params and lets.
    """

    rank: str
    actions: tuple[Action, ...]
    families: Mapping[str, Mapping[int, int]]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class Spec:
    """A resolved schedule.

    recompute: for every pipe and stage whether its forward is run again; limits: the spans of the limits in the header, by
    name; is_recompute_chosen: the caller said which stages recompute, in the place of the text.
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
