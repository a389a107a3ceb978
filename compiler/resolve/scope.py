"""Names and types: what every expression may use, checked before anything is computed (E201, E202, E207, E208, E209)."""

from __future__ import annotations

from collections.abc import Mapping

from chimera_ir import limits
from chimera_ir.diagnostics import Diagnostic, Span, did_you_mean
from chimera_ir.program import LIMITS
from compiler.resolve.counts import limit_weights, no_limit
from compiler.resolve.expressions import LIMIT, Type, check, inside, names_in, spend
from compiler.resolve.spec import KINDS
from compiler.syntax import nodes as n

# What expressions of a greedy block are about: stage, micro-batch, pipe and rank of a task.
GREEDY_NAMES = ("s", "m", "p", "r")


def check_settings(schedule: n.Schedule, found: list[Diagnostic]) -> dict[str, n.Setting]:
    """Return ranks, stages and window by name; what must stand once stands once."""
    seen: dict[str, n.Statement] = {}
    for s in schedule.statements:
        key = {n.Setting: getattr(s, "what", ""), n.Size: "size", n.Sync: "sync"}.get(type(s))
        key = "order" if isinstance(s, n.Order) else key
        if key and key in seen:
            note = f"first at {seen[key].span}"
            found.append(Diagnostic("E208", f"'{key}' stands twice", s.span, notes=(note,), help="keep one of them"))
        elif key:
            seen[key] = s
    if any(isinstance(s, n.PipeDecl) for s in schedule.statements):
        seen["pipe"] = schedule.statements[0]
    for key, example in (("ranks", "ranks D"), ("stages", "stages D"), ("order", "order ticks { ... }"),
                         ("pipe", "pipe main { stage s on rank s   micro_batches N }")):  # fmt: skip
        if key not in seen:
            found.append(Diagnostic("E208", f"the schedule has no '{key}'", schedule.name.span, help=f"add: {example}"))
    return {key: s for key, s in seen.items() if isinstance(s, n.Setting)}


def check_parameters(schedule: n.Schedule, given: Mapping[str, int], found: list[Diagnostic]) -> None:
    params = {s.name.name: s for s in schedule.statements if isinstance(s, n.Param)}
    for name, value in given.items():
        if name not in params:
            help = did_you_mean(name, params) if params else "this schedule has no parameters"
            note = f"given as -p {name}={value}"
            found.append(
                Diagnostic("E203", f"schedule {schedule.name.name} has no parameter '{name}'", notes=(note,), help=help)
            )
        elif abs(value) > LIMIT:
            found.append(Diagnostic("E206", f"{name} = {value} is larger than {LIMIT}", params[name].span))
    for name, s in params.items():
        if s.default is None and name not in given:
            found.append(
                Diagnostic("E204", f"parameter '{name}' has no value", s.span, "no default", help=f"give one: -p {name}=4")
            )


class Scope(dict[str, Type]):
    """Names and their types. seen: where each is defined."""

    def __init__(self, outer: Scope | None = None) -> None:
        super().__init__(outer or {})
        self.seen: dict[str, Span] = dict(outer.seen) if outer is not None else {}


def _define(scope: Scope, binder: n.Binder, kind: Type, found: list[Diagnostic]) -> None:
    if binder.name in scope:
        notes = (f"first at {scope.seen[binder.name]}",)
        found.append(
            Diagnostic("E207", f"'{binder.name}' is defined twice", binder.span, notes=notes, help="choose another name")
        )
    scope[binder.name] = kind
    scope.seen[binder.name] = binder.span


def _kind(e: n.Expr, scope: Mapping[str, Type]) -> Type:
    """Return the type that a let takes from its value."""
    match e:
        case n.Binary():
            return "integer" if e.op in ("+", "-", "*", "//", "%") else "truth value"
        case n.Unary():
            return "integer" if e.op == "-" else "truth value"
        case n.Name():
            return scope.get(e.name, "integer")
        case n.IfElse():
            return _kind(e.then, scope)
        case _:
            return "integer"


def check_globals(schedule: n.Schedule, found: list[Diagnostic]) -> Scope:
    """Return the names of params and lets; each sees only those above it."""
    scope = Scope()
    for s in schedule.statements:
        match s:
            case n.Param():
                if s.default is not None:
                    check(s.default, scope, "integer", found)
                _define(scope, s.name, "integer", found)
            case n.Let():
                kind = _kind(s.value, scope)
                check(s.value, scope, kind, found)
                _define(scope, s.name, kind, found)
            case n.Require():
                check(s.condition, scope, "truth value", found)
            case _:
                pass
    return scope


def _local(scope: Scope, binders: list[n.Binder], found: list[Diagnostic]) -> Scope:
    """Return the scope with names bound here; a name means one thing at a place."""
    inner = Scope(scope)
    for binder in binders:
        _define(inner, binder, "integer", found)
    return inner


def check_statements(schedule: n.Schedule, scope: Scope, found: list[Diagnostic]) -> None:
    """Check every expression that is not a param, let or require of the top level."""
    families: dict[str, n.PipeDecl] = {}
    costs: dict[str, Span] = {}
    tied: dict[str, Span] = {}
    bounds: dict[str, Span] = {}
    for s in schedule.statements:
        match s:
            case n.Setting():
                check(s.value, scope, "integer", found)
            case n.PipeDecl():
                if s.name.name in families:
                    note = f"first at {families[s.name.name].name.span}"
                    message = f"pipe '{s.name.name}' is defined twice"
                    found.append(Diagnostic("E207", message, s.name.span, notes=(note,), help="choose another name"))
                families[s.name.name] = s
                if s.name.name in KINDS:
                    message = f"a pipe cannot be named '{s.name.name}', which is a kind of task"
                    found.append(Diagnostic("E207", message, s.name.span, help="choose another name"))
                inner = scope
                if s.family:
                    check(s.family.range.low, scope, "integer", found)
                    check(s.family.range.high, scope, "integer", found)
                    inner = _local(scope, [s.family.binder], found)
                check(s.micro_batches, inner, "integer", found)
                for clause in s.stages:
                    if clause.range:
                        check(clause.range.low, inner, "integer", found)
                        check(clause.range.high, inner, "integer", found)
                    own = _local(inner, [clause.binder], found)
                    check(clause.rank, own, "integer", found)
                    if clause.recompute and clause.recompute.condition:
                        check(clause.recompute.condition, own, "truth value", found)
            case n.CostStatement():
                _check_costs(s, scope, costs, found)
            case n.Greedy():
                for statement in s.costs:
                    _check_costs(statement, scope, costs, found)
            case n.TiedDecl():
                if s.name.name in tied:
                    note = f"first at {tied[s.name.name]}"
                    message = f"tied set '{s.name.name}' is defined twice"
                    found.append(Diagnostic("E207", message, s.name.span, notes=(note,), help="choose another name"))
                tied[s.name.name] = s.name.span
                for stage in s.stages:
                    check(stage, scope, "integer", found)
            case n.MemoryLimit():
                if s.what.name not in LIMITS:
                    help = did_you_mean(s.what.name, LIMITS)
                    found.append(Diagnostic("E201", f"unknown limit '{s.what.name}'", s.what.span, help=help))
                if s.what.name in bounds:
                    note = f"first at {bounds[s.what.name]}"
                    message = f"the limit of '{s.what.name}' is given twice"
                    found.append(Diagnostic("E207", message, s.span, notes=(note,), help="keep one of them"))
                bounds[s.what.name] = s.span
                check(s.value, scope, "integer", found)
            case _:
                pass
    for s in schedule.statements:
        match s:
            case n.Ticks():
                _check_ticks(s, scope, families, found)
            case n.Greedy():
                _check_greedy(s, scope, found)
            case n.Listing():
                _check_actions(s.actions, _local(scope, [s.rank], found), families, found)
            case _:
                pass


def _check_costs(s: n.CostStatement, scope: Scope, seen: dict[str, Span], found: list[Diagnostic]) -> None:
    for cost in s.costs:
        if cost.kind.name in seen:
            note = f"first at {seen[cost.kind.name]}"
            message = f"the cost of '{cost.kind.name}' is given twice"
            found.append(Diagnostic("E207", message, cost.span, notes=(note,), help="keep one of them"))
        seen[cost.kind.name] = cost.kind.span
        known = {**KINDS, "hop": None}
        if cost.kind.name not in known:
            help = did_you_mean(cost.kind.name, known)
            found.append(Diagnostic("E201", f"unknown cost '{cost.kind.name}'", cost.kind.span, help=help))
        elif cost.kind.name == "hop" and cost.stage:
            found.append(Diagnostic("E202", "the hop cost is one number, not one per stage", cost.span))
        check(cost.value, _local(scope, [cost.stage], found) if cost.stage else scope, "integer", found)


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
    inner = scope | dict.fromkeys(GREEDY_NAMES, "integer")
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
            check(e.right, scope | dict.fromkeys(named, "integer"), "integer", found)


def _check_actions(
    actions: tuple[n.Action, ...], scope: Scope, families: Mapping[str, n.PipeDecl], found: list[Diagnostic]
) -> None:
    inner = Scope(scope)
    for a in actions:
        match a:
            case n.Let():
                kind = _kind(a.value, inner)
                check(a.value, inner, kind, found)
                _define(inner, a.name, kind, found)
            case n.Repeat():
                check(a.count, inner, "integer", found)
                if a.low is not None:
                    check(a.low, inner, "integer", found)
                body = _local(inner, [a.binder], found) if a.binder else inner
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
            group_scope = _local(scope, [counter], found) if counter else scope
            check(rule.group.low, group_scope, "integer", found)
            check(rule.group.high, group_scope, "integer", found)
            if counter is None:
                help = f"number the groups with a new name: {rule.micro_batch.name} = 2*g .. 2*g + 1"
                found.append(Diagnostic("E202", "the group does not say which one it is", rule.group.span, help=help))
        binders += [counter] if counter else []
        inner = _local(scope, binders, found)
        expressions = [e for e in (rule.condition, rule.tick) if e is not None]
        for let in needed_lets(ticks.lets, expressions):
            used.add(let.name.name)
            kind = _kind(let.value, inner)
            wrong: list[Diagnostic] = []
            check(let.value, inner, kind, wrong)
            _define(inner, let.name, kind, wrong)
            for d in (d for d in wrong if (d.message, d.span) not in told):  # what is wrong for several rules is told once
                told.add((d.message, d.span))
                found.append(d)
        if rule.condition is not None:
            check(rule.condition, inner, "truth value", found)
        check(rule.tick, inner, "integer", found)
    for let in ticks.lets:
        if let.name.name not in used:
            found.append(Diagnostic("E209", f"no formula uses '{let.name.name}'", let.span, help="remove it, or use it"))


def index_binder(ref: n.PipeRef, scope: Mapping[str, object]) -> n.Binder | None:
    """Return the name that `down[i]` binds; an index that is a known name or a formula selects one pipe instead."""
    if isinstance(ref.index, n.Name) and ref.index.name not in scope:
        return n.Binder(ref.index.name, span=ref.index.span)
    return None


def counter_of(rule: n.Rule, scope: Mapping[str, object]) -> n.Binder | None:
    """Return the name that numbers the groups of a rule: the first of its range that means nothing else."""
    if rule.group is None:
        return None
    new = [name for e in (rule.group.low, rule.group.high) for name in names_in(e) if name not in scope]
    return n.Binder(new[0], span=rule.group.span) if new else None


def needed_lets(lets: tuple[n.Let, ...], expressions: list[n.Expr]) -> list[n.Let]:
    """Return the lets of an order block that these expressions need, in order: a let is read where it is used."""
    names = {name for e in expressions for name in names_in(e)}
    needed: list[n.Let] = []
    for let in reversed(lets):
        if let.name.name in names:
            needed.insert(0, let)
            inner = list(inside(let.value))
            spend(8 * len(inner), let.span)
            names |= {e.name for e in inner if isinstance(e, n.Name)}
    return needed
