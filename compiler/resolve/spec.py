"""Specs: schedules for given parameters. All sizes are numbers, and every formula comes with the values of its names."""

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
    """The ticks that one rule gives to tasks of one kind in one pipe.

    Attributes:
        pipe: its number.
        stage, micro_batch: the names that the formula has for them.
        group: the micro-batches of one task, LOW .. HIGH; None: each task has one.
        counter: the name that numbers the groups, '' if there is none.
        condition: that of `when`; None: the rule has none.
        lets: those of the order that the formula uses.
        env: the values of all other names.
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
    """The ticks that `fill` gives to the weight gradients of every rank.

    Attributes:
        rank, number: the names that the formula has for the rank and for the number of the weight gradient on this rank.
        lets: those of the order that the formula uses.
        env: the values of all other names.
    """

    rank: str
    number: str
    tick: Expr
    lets: tuple[Let, ...]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class TicksOrder:
    """The order form `ticks`.

    Attributes:
        filling: the `fill`, which then places all weight gradients; None: the order has none.
    """

    formulas: tuple[Formula, ...]
    filling: Filling | None
    span: Span


@dataclass(frozen=True, slots=True)
class Bound:
    """A limit of a greedy order, such as `F - B <= 4`: a weighted sum of counts of started tasks is at most `value`.

    Attributes:
        weights: the factor, 1 or -1, of each kind of task in this sum.
        scope: which tasks are counted together: all of a 'rank', or those of each 'stage' or 'pipe' of a rank. order/greedy.py
            says how tasks of groups, and limits with R, are counted.
    """

    weights: Mapping[Op, int]
    value: Expr
    scope: str
    span: Span


@dataclass(frozen=True, slots=True)
class GreedyOrder:
    """The order form `greedy`.

    Attributes:
        kinds: those of `prefer`, in its order.
        keys: those of `then`.
        group: the number of micro-batches of one forward, except that the last group of a pipe may have fewer.
        env: the values of params and lets.
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

    Attributes:
        rank: the name that the block has for the rank.
        pipes: the number of each pipe, by its declared name and its index in the family (0 if it is no family).
        env: the values of params and lets.
    """

    rank: str
    actions: tuple[Action, ...]
    pipes: Mapping[str, Mapping[int, int]]
    env: Env
    span: Span


@dataclass(frozen=True, slots=True)
class Spec:
    """A schedule for given parameters.

    Attributes:
        recompute: for every pipe and stage whether its forward is run again.
        limits: where the text gives each limit of the header, by name.
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
