"""Checks of an order block: names, types, and what a greedy order prefers and limits (E201, E202, E207, E208, E209, E211)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import Diagnostic, did_you_mean
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.counts import limit_weights, not_a_limit
from chimerac.compiler.resolve.findings import given_twice
from chimerac.compiler.resolve.scope import (
    MEANINGS,
    counter_of,
    define_let,
    index_binder,
    local,
    names_in_group,
    needed_lets,
    type_of_let,
    with_hints,
)
from chimerac.compiler.resolve.types import Scope, check
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.kinds import KINDS, kind_of_alias

GREEDY_NAMES = tuple(MEANINGS)  # predefined in a greedy block
# Names that an author may expect in a part of an order where they are not defined -> what to write instead.
_IN_TICKS = {
    "r": "the pipe defines the rank of a stage: write its formula, with s",
    "p": "a formula for one pipe names it: F main(s, m) at ...",
}
_IN_FILL = dict.fromkeys(
    ("s", "m", "p"), "a fill is not for one stage or micro-batch: its formula uses the rank and the number"
)
_IN_LISTING = {
    "s": "the block is run for every rank: write the stage as a formula of the rank; F alone is a task of its only stage",
    "m": "F is the next micro-batch; to number them, count: repeat i in 0 .. N - 1 { F(STAGE, i) }",
    "p": "the pipe of a task is named: F main(STAGE, MICRO_BATCH)",
}
_IN_KEY = dict.fromkeys(("micro_batch", "microbatch", "mb", "batch"), "m is the micro-batch of a task")
_IN_LIMIT = {
    "s": "a limit that differs by stage is 'per stage': limit F - B <= ... per stage",
    "p": "a limit that differs by pipe is 'per pipe': limit F - B <= ... per pipe",
    "m": "a limit holds for all micro-batches: it may differ by rank, r",
}
# Helps for a let in the range of a rule's groups, for the head of a listing, and for a fill.
_IN_GROUP = "a range of groups is evaluated before s and m, so it cannot use a let of the order: put the let above the order"
_RANK = "write: order listing for rank r"
_FILL = "write: fill W(r, k) at TICK, for the weight gradient k of rank r"


def check_order(
    order: n.Order, scope: Scope, declared: Mapping[str, n.PipeDecl], found: list[Diagnostic], budget: Budget
) -> None:
    """Add the findings about an order block.

    Args:
        scope: the params and lets of the schedule.
        declared: its pipes, by name.

    Raises ChimeraError E211 if finding the lets that its formulas use takes too many operations.
    """
    match order:
        case n.Ticks():
            _check_ticks(order, scope, declared, found, budget)
        case n.Greedy():
            _check_greedy(order, scope, found)
        case n.Listing():
            pipes = {name: f"the pipe is written before the parentheses: F {name}(STAGE)" for name in declared}
            inner = local(with_hints(scope, _IN_LISTING | pipes), [(order.rank, "rank")], found, _RANK)
            _check_actions(order.actions, inner, declared, found)


def _check_kind(kind: n.Identifier, found: list[Diagnostic]) -> None:
    """Add E201 for a name that is no kind of task."""
    if kind.name not in KINDS:
        kinds = "F is a forward, B a backward, I its input gradient alone, W its weight gradient alone, R a recomputation"
        help = f"did you mean '{meant}'?" if (meant := kind_of_alias(kind.name)) else kinds
        found.append(Diagnostic("E201", f"unknown kind of task '{kind.name}'", kind.span, help=help))


def _check_pipe(ref: n.PipeRef, declared: Mapping[str, n.PipeDecl], found: list[Diagnostic], values: Scope) -> bool:
    """Add the findings about a reference to a pipe; return whether the pipe exists.

    Args:
        values: names of values, for the help.
    """
    decl = declared.get(ref.name.name)
    if decl is None:
        help = did_you_mean(ref.name.name, declared)
        if ref.name.name in values:
            help = f"'{ref.name.name}' is a value: a stage is written in parentheses, as in F({ref.name.name})"
        found.append(Diagnostic("E201", f"unknown pipe '{ref.name.name}'", ref.span, help=help))
    elif ref.index is not None and decl.family is None:
        help = f"write '{decl.name.name}' instead of '{ref.span.text}'"
        found.append(Diagnostic("E202", f"pipe '{decl.name.name}' is not a family and takes no index", ref.span, help=help))
    return decl is not None


def _check_greedy(order: n.Greedy, scope: Scope, found: list[Diagnostic]) -> None:
    """Add the findings about a greedy order."""
    if not order.prefer:
        found.append(Diagnostic("E208", "the greedy order has no 'prefer'", order.span, help="add: prefer B, F"))
    for kind in order.prefer:
        _check_kind(kind, found)
    names = [k.name for k in order.prefer]
    for kind in (k for i, k in enumerate(order.prefer) if k.name in names[:i]):
        found.append(Diagnostic("E207", f"'{kind.name}' is preferred twice", kind.span, help="keep one of them"))
    if names and set(names) - {"R"} not in ({"F", "B"}, {"F", "I", "W"}) and set(names) <= set(KINDS):
        needed = "a backward is B, or I and W" if "F" in names else "it needs F, and for the backward B, or I and W"
        message = f"prefer names {', '.join(names)}; {needed}"
        recomputation = ", R" if "R" in names else ""
        help = f"write: prefer B, F{recomputation} or: prefer I, F, W{recomputation}"
        found.append(Diagnostic("E202", message, order.prefer[0].span, help=help))
    inner = with_hints(_with_integers(scope, GREEDY_NAMES), _IN_KEY)
    for name in (x for x in GREEDY_NAMES if x in scope):
        message = f"'{name}' means the {MEANINGS[name]} in a greedy order"
        found.append(Diagnostic("E207", message, order.span, help=f"give your '{name}' another name"))
    for grouping in order.groups:
        if grouping.kind.name != "F" or len(order.groups) > 1:
            help = "a backward has one micro-batch; write one line: group F by 2"
            found.append(Diagnostic("E202", "only forwards can be grouped, and only once", grouping.span, help=help))
        check(grouping.size, scope, "integer", found)
    for what, given in (("keys", order.keys), ("limits", order.limits)):
        if len(given) > limits.KEYS:
            message = f"a greedy order has {len(given)} {what}; at most {limits.KEYS}"
            found.append(Diagnostic("E211", message, given[limits.KEYS].span, "the first too many"))
    for key in order.keys:
        check(key.value, inner, "integer", found)
    for limit in order.limits:
        e = limit.condition
        if not (isinstance(e, n.Binary) and e.op == "<=" and (weights := limit_weights(e.left))):
            found.append(not_a_limit(e, limit.span))
            continue
        not_preferred = [k for k in weights if names and k not in names]
        if not_preferred and set(names) <= set(KINDS):
            message = f"the limit counts {not_preferred[0]}, and the order has no such tasks: it prefers {', '.join(names)}"
            help = f"write: prefer {', '.join(names)}, R" if not_preferred[0] == "R" else ""
            found.append(Diagnostic("E202", message, limit.span, help=help))
        if {"F", "R"} <= set(weights):
            message = "a limit counts F or R, not both: with R it counts only micro-batches that have an R"
            help = "write two limits: limit F - B <= D for activations, limit R - B <= 1 for what R keeps"
            found.append(Diagnostic("E202", message, limit.span, help=help))
        predefined = {"rank": ("r",), "stage": ("r", "s"), "pipe": ("r", "p")}[limit.scope]
        check(e.right, with_hints(_with_integers(scope, predefined), _IN_LIMIT), "integer", found)


def _check_fill(fill: n.Fill, ticks: n.Ticks, found: list[Diagnostic]) -> None:
    """Add the findings about the kind of a fill, and about other lines that place weight gradients."""
    if fill.kind.name != "W":
        message = f"fill places weight gradients, not '{fill.kind.name}'"
        found.append(Diagnostic("E202", message, fill.kind.span, help=_FILL))
    if fill is not ticks.fills[0]:
        found.append(given_twice("'fill' is given twice", fill.span, ticks.fills[0].span, "keep one of them"))
        return
    for rule in (x for x in ticks.rules if x.kind.name == "W"):
        help = "keep this rule, or the fill: a fill places the weight gradients of all pipes"
        found.append(Diagnostic("E202", "a fill and a rule both place weight gradients", rule.span, help=help))


def _with_integers(scope: Scope, names: Iterable[str]) -> Scope:
    """Return a scope with these integers too, which a greedy block predefines."""
    inner = Scope(scope)
    inner.add_integers(names)
    return inner


def _check_actions(
    actions: tuple[n.Action, ...], scope: Scope, declared: Mapping[str, n.PipeDecl], found: list[Diagnostic]
) -> None:
    """Add the findings about a block of a listing. A let is visible up to the end of its block."""
    inner = Scope(scope)
    for action in actions:
        match action:
            case n.Let():
                define_let(inner, action, found)
            case n.Repeat():
                check(action.count, inner, "integer", found)
                if action.low is not None:
                    check(action.low, inner, "integer", found)
                body = local(inner, [(action.binder, "")], found) if action.binder else inner
                _check_actions(action.body, body, declared, found)
            case n.Choice():
                check(action.condition, inner, "truth value", found)
                _check_actions(action.then, inner, declared, found)
                _check_actions(action.otherwise, inner, declared, found)
            case n.TaskAction():
                if action.pipe is not None:
                    _check_pipe(action.pipe, declared, found, inner)
                _check_places(action, inner, found)
                for e in (action.pipe.index if action.pipe else None, action.stage, action.first, action.last):
                    if e is not None:
                        check(e, inner, "integer", found)


def _check_places(task: n.TaskAction, scope: Scope, found: list[Diagnostic]) -> None:
    """Add E207 for m as a stage, as in F(m), or else for s as a micro-batch, as in F(k, s): readers expect the opposite.

    Where the name is unknown, `check` adds E201 instead.
    """
    for e, wrong, place in ((task.stage, "m", "stage"), (task.first, "s", "micro-batch")):
        if isinstance(e, n.Name) and e.name == wrong and wrong in scope:
            message = f"'{wrong}' means the {MEANINGS[wrong]}, and is used here for the {place}"
            help = f"the stage comes first, then the micro-batch: {task.kind.name}(STAGE, MICRO_BATCH)"
            found.append(Diagnostic("E207", message, e.span, help=help))
            return


def _check_ticks(
    ticks: n.Ticks, scope: Scope, declared: Mapping[str, n.PipeDecl], found: list[Diagnostic], budget: Budget
) -> None:
    """Add the findings about an order of ticks."""
    used: set[str] = set()
    wrong: set[str] = set()  # lets with a finding: they are not checked again for a further rule or fill that uses them
    outside = scope
    scope = with_hints(scope, _IN_TICKS)
    scope.others = tuple(let.name.name for let in ticks.lets)
    instead_of_lets = {**_IN_TICKS, **dict.fromkeys(scope.others, _IN_GROUP)}

    def define_lets(inner: Scope, expressions: list[n.Expr]) -> None:
        """Add the lets that these expressions use to a scope, with the findings about them."""
        for let in needed_lets(ticks.lets, expressions, budget):
            used.add(let.name.name)
            if let.name.name in wrong:
                inner.add(let.name, type_of_let(let.value, inner))
                continue
            findings_before = len(found)
            define_let(inner, let, found)
            if len(found) > findings_before:
                wrong.add(let.name.name)

    for rule in ticks.rules:
        _check_kind(rule.kind, found)
        binders: list[tuple[n.Identifier, str]] = []
        if rule.pipe and _check_pipe(rule.pipe, declared, found, values=Scope()):  # (s, m) follows, so no value is meant
            binder = index_binder(rule.pipe, scope)
            binders += [(binder, "index of a pipe")] if binder else []
            if rule.pipe.index is not None and binder is None:
                check(rule.pipe.index, scope, "integer", found)
        names = names_in_group(rule)
        used.update(name.name for name in names)
        group_scope = with_hints(scope, instead_of_lets)
        for binder, _ in binders:
            group_scope.add(binder, "integer")
        # The name of a let of the order is no new name, so it does not number the groups.
        counter = counter_of(rule, {name.name for name in names if name.name in group_scope or name.name in scope.others})
        if rule.group is not None:
            group_scope = local(group_scope, [(counter, "number of a group")], found) if counter else group_scope
            check(rule.group.low, group_scope, "integer", found)
            check(rule.group.high, group_scope, "integer", found)
            if counter is None:
                help = f"number the groups with a new name: {rule.micro_batch.name} = 2*g .. 2*g + 1"
                found.append(Diagnostic("E202", "the group is not numbered", rule.group.span, help=help))
        binders += [(counter, "")] if counter else []
        help = f"the first name is the stage, the second the micro-batch: write {rule.kind.name}(s, m)"
        inner = local(scope, [(rule.stage, "stage"), (rule.micro_batch, "micro-batch"), *binders], found, help)
        expressions = [e for e in (rule.condition, rule.tick) if e is not None]
        define_lets(inner, expressions)
        if rule.condition is not None:
            check(rule.condition, inner, "truth value", found)
        check(rule.tick, inner, "integer", found)
    for fill in ticks.fills:
        _check_fill(fill, ticks, found)
        binders = [(fill.rank, "rank"), (fill.number, "number of a weight gradient")]
        inner = local(with_hints(outside, _IN_FILL), binders, found, _FILL)
        inner.others = scope.others
        define_lets(inner, [fill.tick])
        check(fill.tick, inner, "integer", found)
    for let in ticks.lets:
        if let.name.name not in used:
            found.append(Diagnostic("E209", f"no formula uses '{let.name.name}'", let.span, help="remove it, or use it"))
