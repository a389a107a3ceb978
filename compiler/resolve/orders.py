"""The order of a spec: the order block of a schedule, with its pipes by number and the values of its names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.counts import limit_weights
from chimerac.compiler.resolve.expressions import Env, scalar
from chimerac.compiler.resolve.placements import PipeDeclaration
from chimerac.compiler.resolve.scope import counter_of, index_binder, needed_lets
from chimerac.compiler.resolve.sizes import size
from chimerac.compiler.resolve.spec import Bound, Filling, Formula, GreedyOrder, ListingOrder, TicksOrder
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.kinds import KINDS


def order_of(
    schedule: n.Schedule, declared: Mapping[str, PipeDeclaration], env: Env, budget: Budget
) -> TicksOrder | GreedyOrder | ListingOrder:
    """Return the order of a checked schedule.

    Args:
        declared: its pipe declarations, by name.
        env: the values of params and lets.

    Raises ChimeraError: E205, E206 and E211 (`evaluate`); E211 also for too many formulas, or a size of a group out of bounds.
    """
    order = next(s for s in schedule.statements if isinstance(s, n.Order))
    match order:
        case n.Ticks():
            return TicksOrder(tuple(_formulas(order, declared, env, budget)), _filling(order, env, budget), order.span)
        case n.Greedy():
            kinds = tuple(KINDS[b.name] for b in order.prefer)
            group = size(order.groups[0].size, env, "micro-batches of a group", 1, budget) if order.groups else 1
            return GreedyOrder(kinds, order.keys, group, tuple(map(_bound, order.limits)), env, order.span)
        case n.Listing():
            pipes = {name: {index: pipe for pipe, index in d.indices.items()} for name, d in declared.items()}
            return ListingOrder(order.rank.name, order.actions, pipes, env, order.span)


def _bound(limit: n.Limit) -> Bound:
    """Return a limit of a greedy order as a bound. check_orders.py has checked it."""
    assert isinstance(limit.condition, n.Binary)
    weights = limit_weights(limit.condition.left)
    assert weights is not None
    return Bound({KINDS[k]: w for k, w in weights.items()}, limit.condition.right, limit.scope, limit.span)


def _formulas(ticks: n.Ticks, declared: Mapping[str, PipeDeclaration], env: Env, budget: Budget) -> Iterator[Formula]:
    """Yield a formula for every pipe and every rule that applies to it.

    Where a rule names the pipe, rules for the same kind of task that name no pipe do not apply to it.
    """
    pipes = sum(len(d.indices) for d in declared.values())
    if pipes * len(ticks.rules) > limits.FORMULAS:
        message = f"{pipes} pipes x {len(ticks.rules)} rules are too many formulas; at most {limits.FORMULAS}"
        raise refuse("E211", message, ticks.span, help="take fewer pipes, or fewer rules")
    lets = {
        id(rule): tuple(needed_lets(ticks.lets, [e for e in (rule.condition, rule.tick) if e], budget)) for rule in ticks.rules
    }
    for declaration in declared.values():
        for pipe, index in declaration.indices.items():
            for letter, kind in KINDS.items():
                rules = [r for r in ticks.rules if r.kind.name == letter]
                of_kind = [(r, _names_for_pipe(r, declaration, index, env, budget)) for r in rules]
                applicable = [(rule, names) for rule, names in of_kind if names is not None]
                with_pipe = [(rule, names) for rule, names in applicable if rule.pipe]
                for rule, names in with_pipe or applicable:
                    yield _formula(kind, pipe, rule, lets[id(rule)], names)


def _filling(ticks: n.Ticks, env: Env, budget: Budget) -> Filling | None:
    """Return the filling of a ticks order, or None if it has none."""
    if not ticks.fills:
        return None
    fill = ticks.fills[0]
    lets = tuple(needed_lets(ticks.lets, [fill.tick], budget))
    return Filling(fill.rank.name, fill.number.name, fill.tick, lets, env, fill.span)


def _names_for_pipe(rule: n.Rule, declaration: PipeDeclaration, index: int, env: Env, budget: Budget) -> Env | None:
    """Return the values of the names that a rule may use for a pipe; None if it does not apply to the pipe.

    Args:
        index: the index of the pipe in its family; 0 if it is in none.
    """
    if rule.pipe is None:
        return env
    if rule.pipe.name.name != declaration.node.name.name:
        return None
    if rule.pipe.index is None:
        return env
    binder = index_binder(rule.pipe, env)
    if binder is not None:
        return {**env, binder.name: index}
    return env if scalar(rule.pipe.index, env, budget) == index else None


def _formula(kind: Op, pipe: int, rule: n.Rule, lets: tuple[n.Let, ...], env: Env) -> Formula:
    """Return the formula of a rule for a pipe.

    Args:
        lets: those that the rule uses.
    """
    binder = counter_of(rule, env)
    counter = binder.name if binder else ""
    return Formula(
        kind, pipe, rule.stage.name, rule.micro_batch.name, rule.group, counter, rule.condition, rule.tick, lets, env, rule.span
    )
