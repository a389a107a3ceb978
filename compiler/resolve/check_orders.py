"""Names and types within an order block (E201, E202, E207, E208, E209, E211)."""

from __future__ import annotations

from collections.abc import Mapping

from chimera_ir import limits
from chimera_ir.diagnostics import Diagnostic, Span, did_you_mean
from compiler.resolve.counts import limit_weights, no_limit
from compiler.resolve.expressions import Type, check
from compiler.resolve.scope import Scope, counter_of, define_let, index_binder, local, needed_lets
from compiler.resolve.spec import KINDS
from compiler.syntax import nodes as n

# What expressions of a greedy block are about: stage, micro-batch, pipe and rank of a task.
GREEDY_NAMES = ("s", "m", "p", "r")


def check_order(s: n.Order, scope: Scope, families: Mapping[str, n.PipeDecl], found: list[Diagnostic]) -> None:
    """Check every expression of an order block. families: the pipes, by name."""
    match s:
        case n.Ticks():
            _check_ticks(s, scope, families, found)
        case n.Greedy():
            _check_greedy(s, scope, found)
        case n.Listing():
            _check_actions(s.actions, local(scope, [s.rank], found), families, found)


def _check_kind(kind: n.Binder, found: list[Diagnostic]) -> None:
    if kind.name not in KINDS:
        help = "F is a forward, B a backward, I its input gradient alone, W its weight gradient alone"
        found.append(Diagnostic("E201", f"unknown kind of task '{kind.name}'", kind.span, help=help))


def _check_pipe(ref: n.PipeRef, families: Mapping[str, n.PipeDecl], found: list[Diagnostic]) -> bool:
    """Add what is wrong with the name of a pipe; return whether it is there."""
    decl = families.get(ref.name.name)
    if decl is None:
        help = did_you_mean(ref.name.name, families)
        found.append(Diagnostic("E201", f"unknown pipe '{ref.name.name}'", ref.span, help=help))
    elif ref.index is not None and decl.family is None:
        found.append(Diagnostic("E202", f"pipe '{decl.name.name}' is not a family and takes no index", ref.span))
    return decl is not None


def _check_greedy(s: n.Greedy, scope: Scope, found: list[Diagnostic]) -> None:
    if not s.prefer:
        found.append(Diagnostic("E208", "the greedy order has no 'prefer'", s.span, help="add: prefer B, F"))
    for kind in s.prefer:
        _check_kind(kind, found)
    names = [k.name for k in s.prefer]
    for kind in (k for i, k in enumerate(s.prefer) if k.name in names[:i]):
        found.append(Diagnostic("E207", f"'{kind.name}' is preferred twice", kind.span, help="keep one of them"))
    if names and set(names) not in ({"F", "B"}, {"F", "I", "W"}) and set(names) <= set(KINDS):
        message = f"prefer names {', '.join(names)}; a backward is B, or I and W"
        found.append(Diagnostic("E202", message, s.prefer[0].span, help="write: prefer B, F or: prefer I, F, W"))
    inner: dict[str, Type] = {**scope, **dict.fromkeys(GREEDY_NAMES, "integer")}
    for name in (x for x in GREEDY_NAMES if x in scope):
        message = f"'{name}' means stage, micro-batch, pipe or rank in a greedy order"
        found.append(Diagnostic("E207", message, s.span, help=f"give your '{name}' another name"))
    for grouping in s.groups:
        if grouping.kind.name != "F" or len(s.groups) > 1:
            help = "backwards are single; write once: group F by 2"
            found.append(Diagnostic("E202", "forwards can be grouped, once", grouping.span, help=help))
        check(grouping.size, scope, "integer", found)
    for what, given in (("keys", s.keys), ("limits", s.limits)):
        if len(given) > limits.KEYS:
            message = f"a greedy order has {len(given)} {what}; at most {limits.KEYS}"
            found.append(Diagnostic("E211", message, given[limits.KEYS].span, "the first too many"))
    for key in s.keys:
        check(key.value, inner, "integer", found)
    for limit in s.limits:
        e = limit.condition
        if not (isinstance(e, n.Binary) and e.op == "<=" and limit_weights(e.left)):
            found.append(no_limit(e, limit.span))
        else:
            absent = [k for k in limit_weights(e.left) or () if names and k not in names]
            if absent:
                message = f"the limit counts {absent[0]}, and the order has no such tasks: it prefers {', '.join(names)}"
                found.append(Diagnostic("E202", message, limit.span))
            named = {"rank": ("r",), "stage": ("r", "s"), "pipe": ("r", "p")}[limit.scope]
            check(e.right, {**scope, **dict.fromkeys(named, "integer")}, "integer", found)


def _check_actions(
    actions: tuple[n.Action, ...], scope: Scope, families: Mapping[str, n.PipeDecl], found: list[Diagnostic]
) -> None:
    inner = Scope(scope)
    for a in actions:
        match a:
            case n.Let():
                define_let(inner, a, found)
            case n.Repeat():
                check(a.count, inner, "integer", found)
                if a.low is not None:
                    check(a.low, inner, "integer", found)
                body = local(inner, [a.binder], found) if a.binder else inner
                _check_actions(a.body, body, families, found)
            case n.Choice():
                check(a.condition, inner, "truth value", found)
                _check_actions(a.then, inner, families, found)
                _check_actions(a.otherwise, inner, families, found)
            case n.TaskAction():
                if a.pipe is not None:
                    _check_pipe(a.pipe, families, found)
                for e in (a.pipe.index if a.pipe else None, a.stage, a.first, a.last):
                    if e is not None:
                        check(e, inner, "integer", found)


def _check_ticks(ticks: n.Ticks, scope: Scope, families: Mapping[str, n.PipeDecl], found: list[Diagnostic]) -> None:
    used: set[str] = set()
    told: set[tuple[str, Span | None]] = set()
    for rule in ticks.rules:
        _check_kind(rule.kind, found)
        binders = [rule.stage, rule.micro_batch]
        if rule.pipe and _check_pipe(rule.pipe, families, found):
            binder = index_binder(rule.pipe, scope)
            binders += [binder] if binder else []
            if rule.pipe.index is not None and binder is None:
                check(rule.pipe.index, scope, "integer", found)
        counter = counter_of(rule, scope)
        if rule.group is not None:
            group_scope = local(scope, [counter], found) if counter else scope
            check(rule.group.low, group_scope, "integer", found)
            check(rule.group.high, group_scope, "integer", found)
            if counter is None:
                help = f"number the groups with a new name: {rule.micro_batch.name} = 2*g .. 2*g + 1"
                found.append(Diagnostic("E202", "the group does not say which one it is", rule.group.span, help=help))
        binders += [counter] if counter else []
        inner = local(scope, binders, found)
        expressions = [e for e in (rule.condition, rule.tick) if e is not None]
        for let in needed_lets(ticks.lets, expressions):
            used.add(let.name.name)
            wrong: list[Diagnostic] = []
            define_let(inner, let, wrong)
            for d in (d for d in wrong if (d.message, d.span) not in told):  # what is wrong for several rules is told once
                told.add((d.message, d.span))
                found.append(d)
        if rule.condition is not None:
            check(rule.condition, inner, "truth value", found)
        check(rule.tick, inner, "integer", found)
    for let in ticks.lets:
        if let.name.name not in used:
            found.append(Diagnostic("E209", f"no formula uses '{let.name.name}'", let.span, help="remove it, or use it"))
