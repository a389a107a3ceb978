"""syntax tree + parameters -> spec (E2xx)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from chimera_ir.diagnostics import ChimeraError, Diagnostic, Span, did_you_mean, refuse
from chimera_ir.instructions import Op
from chimera_ir.program import Costs, Header, Pipe, Tied
from compiler.resolve.expressions import LIMIT, Env, Type, Variable, check, evaluate, names_in, scalar, values_of
from compiler.resolve.spec import KINDS, Formula, Spec
from compiler.syntax import nodes as n
from compiler.syntax.printer import expression

MAX_RANKS = 2**16  # ranks, stages, pipes
MAX_TASKS = 2**24  # stages x micro-batches
SEARCHED = 64  # how far a help looks for a parameter value that meets a requirement


def resolve(schedule: n.Schedule, given: Mapping[str, int]) -> Spec:
    """Return the spec of a schedule under these parameters; those not given take their defaults.

    Raises ChimeraError: E201 unknown name, E202 type, E203 unknown parameter, E204 parameter without value, E205
    division by zero, E206 number too large, E207 name defined twice, E208 statement missing or twice, E210 requirement
    not met, E211 size out of bounds, E220 placement outside the ranks, E221 stage never placed, E222 stage placed twice.
    """
    found: list[Diagnostic] = []
    settings = _settings(schedule, found)
    _known_parameters(schedule, given, found)
    scope = _globals(schedule, found)
    _check_types(schedule, scope, found)
    _raise(found)
    env = _values(schedule, given)
    ranks = _size(settings["ranks"].value, env, "ranks", 1)
    stages = _size(settings["stages"].value, env, "stages", 1)
    window = _size(settings["window"].value, env, "window", 0) if "window" in settings else 2
    pipes, declared = _pipes(schedule, env, ranks, stages)
    micro_batches = sum(len(p.micro_batches) for p in pipes)
    span = next(s.span for s in schedule.statements if isinstance(s, n.PipeDecl))
    if micro_batches == 0:
        raise refuse("E211", "the pipes have no micro-batches at all", span, help="give at least one micro-batch")
    if stages * micro_batches > MAX_TASKS:
        raise refuse(
            "E211", f"{stages} stages x {micro_batches} micro-batches are too many; together at most {MAX_TASKS}", span
        )
    parameters = {s.name.name: int(env[s.name.name]) for s in schedule.statements if isinstance(s, n.Param)}
    header = Header(
        schedule=schedule.name.name,
        parameters=parameters,
        ranks=ranks,
        stages=stages,
        micro_batches=micro_batches,
        pipes=pipes,
        costs=_costs(schedule, env, stages),
        window=window,
        tied=_tied(schedule, env, stages),
    )
    sync: n.SyncPolicy = next((s.policy for s in schedule.statements if isinstance(s, n.Sync)), "at end")
    order = next(s for s in schedule.statements if isinstance(s, n.Ticks))
    spans = {"order": order.span, "pipes": span} | {k: s.span for k, s in settings.items()}
    return Spec(header, tuple(_formulas(order, schedule, declared, env)), sync, spans)


def _raise(found: list[Diagnostic]) -> None:
    if found:
        raise ChimeraError(found)


# --- names and types ------------------------------------------------------------------------------------------------


def _settings(schedule: n.Schedule, found: list[Diagnostic]) -> dict[str, n.Setting]:
    """Return ranks, stages and window by name; what must stand once stands once."""
    seen: dict[str, n.Statement] = {}
    for s in schedule.statements:
        key = {n.Setting: getattr(s, "what", ""), n.Ticks: "order", n.Sync: "sync"}.get(type(s))
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


def _known_parameters(schedule: n.Schedule, given: Mapping[str, int], found: list[Diagnostic]) -> None:
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


def _define(scope: dict[str, Type], binder: n.Binder, kind: Type, seen: dict[str, Span], found: list[Diagnostic]) -> None:
    if binder.name in scope:
        note = f"first at {seen[binder.name]}" if binder.name in seen else ""
        found.append(
            Diagnostic(
                "E207",
                f"'{binder.name}' is defined twice",
                binder.span,
                notes=(note,) if note else (),
                help="choose another name",
            )
        )
    scope[binder.name] = kind
    seen[binder.name] = binder.span


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


def _globals(schedule: n.Schedule, found: list[Diagnostic]) -> dict[str, Type]:
    """Return the names of params and lets; each sees only those above it."""
    scope: dict[str, Type] = {}
    seen: dict[str, Span] = {}
    for s in schedule.statements:
        match s:
            case n.Param():
                if s.default is not None:
                    check(s.default, scope, "integer", found)
                _define(scope, s.name, "integer", seen, found)
            case n.Let():
                kind = _kind(s.value, scope)
                check(s.value, scope, kind, found)
                _define(scope, s.name, kind, seen, found)
            case n.Require():
                check(s.condition, scope, "truth value", found)
            case _:
                pass
    return scope


def _local(scope: Mapping[str, Type], binders: list[n.Binder], found: list[Diagnostic]) -> dict[str, Type]:
    """Return the scope with names bound here; a name means one thing at a place."""
    inner = dict(scope)
    for binder in binders:
        _define(inner, binder, "integer", {}, found)
    return inner


def _check_types(schedule: n.Schedule, scope: dict[str, Type], found: list[Diagnostic]) -> None:
    """Check every expression that is not a param, let or require of the top level."""
    families: dict[str, n.PipeDecl] = {}
    for s in schedule.statements:
        match s:
            case n.Setting():
                check(s.value, scope, "integer", found)
            case n.PipeDecl():
                if s.name.name in families:
                    note = f"first at {families[s.name.name].name.span}"
                    found.append(Diagnostic("E207", f"pipe '{s.name.name}' is defined twice", s.name.span, notes=(note,)))
                families[s.name.name] = s
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
                    check(clause.rank, _local(inner, [clause.binder], found), "integer", found)
            case n.CostStatement():
                for cost in s.costs:
                    known = {**KINDS, "hop": None}
                    if cost.kind.name not in known:
                        help = did_you_mean(cost.kind.name, known)
                        found.append(Diagnostic("E201", f"unknown cost '{cost.kind.name}'", cost.kind.span, help=help))
                    elif cost.kind.name == "hop" and cost.stage:
                        found.append(Diagnostic("E202", "the hop cost is one number, not one per stage", cost.span))
                    inner = _local(scope, [cost.stage], found) if cost.stage else scope
                    check(cost.value, inner, "integer", found)
            case n.TiedDecl():
                for stage in s.stages:
                    check(stage, scope, "integer", found)
            case _:
                pass
    for s in schedule.statements:
        if isinstance(s, n.Ticks):
            _check_ticks(s, scope, families, found)


def _check_ticks(ticks: n.Ticks, scope: dict[str, Type], families: Mapping[str, n.PipeDecl], found: list[Diagnostic]) -> None:
    used: set[str] = set()
    for rule in ticks.rules:
        if rule.kind.name not in KINDS:
            help = did_you_mean(rule.kind.name, KINDS)
            found.append(Diagnostic("E201", f"unknown kind of task '{rule.kind.name}'", rule.kind.span, help=help))
        binders = [rule.stage, rule.micro_batch]
        if rule.pipe:
            decl = families.get(rule.pipe.name.name)
            index = rule.pipe.index
            if decl is None:
                help = did_you_mean(rule.pipe.name.name, families)
                found.append(Diagnostic("E201", f"unknown pipe '{rule.pipe.name.name}'", rule.pipe.span, help=help))
            elif index is not None and decl.family is None:
                found.append(Diagnostic("E202", f"pipe '{decl.name.name}' is not a family and takes no index", rule.pipe.span))
            elif (binder := _index_binder(rule.pipe, scope)) is not None:
                binders.append(binder)
            elif index is not None:
                check(index, scope, "integer", found)
        inner = _local(scope, binders, found)
        expressions = [e for e in (rule.condition, rule.tick) if e is not None]
        for let in _needed(ticks.lets, expressions):
            used.add(let.name.name)
            kind = _kind(let.value, inner)
            check(let.value, inner, kind, found)
            _define(inner, let.name, kind, {}, found)
        if rule.condition is not None:
            check(rule.condition, inner, "truth value", found)
        check(rule.tick, inner, "integer", found)
    for let in ticks.lets:
        if let.name.name not in used:
            found.append(Diagnostic("E209", f"no formula uses '{let.name.name}'", let.span, help="remove it, or use it"))


def _index_binder(ref: n.PipeRef, scope: Mapping[str, object]) -> n.Binder | None:
    """Return the name that `down[i]` binds; an index that is a known name or a formula selects one pipe instead."""
    if isinstance(ref.index, n.Name) and ref.index.name not in scope:
        return n.Binder(ref.index.name, span=ref.index.span)
    return None


def _needed(lets: tuple[n.Let, ...], expressions: list[n.Expr]) -> list[n.Let]:
    """Return the lets of an order block that these expressions need, in order: a let is read where it is used."""
    names = {name for e in expressions for name in names_in(e)}
    needed: list[n.Let] = []
    for let in reversed(lets):
        if let.name.name in names:
            needed.insert(0, let)
            names |= set(names_in(let.value))
    return needed


# --- values ---------------------------------------------------------------------------------------------------------


def _values(schedule: n.Schedule, given: Mapping[str, int]) -> dict[str, Variable]:
    """Return the values of params and lets; every requirement holds."""
    env: dict[str, Variable] = {}
    found: list[Diagnostic] = []
    try:
        for s in schedule.statements:
            match s:
                case n.Param():
                    env[s.name.name] = given[s.name.name] if s.name.name in given else evaluate(_some(s.default), env)
                case n.Let():
                    env[s.name.name] = evaluate(s.value, env)
                case n.Require() if not evaluate(s.condition, env):
                    found.append(_not_met(schedule, s, env, given))
                case _:
                    pass
    except ChimeraError:
        if not found:  # else it follows from a requirement that is not met
            raise
    _raise(found)
    return env


def _some(e: n.Expr | None) -> n.Expr:
    assert e is not None
    return e


def _not_met(schedule: n.Schedule, s: n.Require, env: Env, given: Mapping[str, int]) -> Diagnostic:
    names = names_in(s.condition)
    notes = tuple(f"{k} was given: -p {k}={v}" for k, v in given.items() if k in names)
    return Diagnostic(
        "E210",
        f"this does not hold: {expression(s.condition)}",
        s.span,
        values_of(s.condition, env),
        notes,
        _mending(schedule, s, env, given),
    )


def _mending(schedule: n.Schedule, s: n.Require, env: Env, given: Mapping[str, int]) -> str:
    """Return the nearest values of one parameter that meet every requirement, found by trying."""
    params = [p.name.name for p in schedule.statements if isinstance(p, n.Param)]
    # The last parameter a requirement names is the one it is about: `N % D == 0` is about N.
    about = [p for p in params if p in names_in(s.condition)][::-1]
    for name in about:
        now = int(env[name])
        good = [v for v in range(max(0, now - SEARCHED), now + SEARCHED + 1) if _holds(schedule, {**given, name: v})]
        lower, higher = [v for v in good if v < now][-1:], [v for v in good if v > now][:1]
        if lower or higher:
            return "give " + " or ".join(f"-p {name}={v}" for v in lower + higher)
    return ""


def _holds(schedule: n.Schedule, given: Mapping[str, int]) -> bool:
    env: dict[str, Variable] = {}
    try:
        for s in schedule.statements:
            match s:
                case n.Param():
                    env[s.name.name] = given[s.name.name] if s.name.name in given else evaluate(_some(s.default), env)
                case n.Let():
                    env[s.name.name] = evaluate(s.value, env)
                case n.Require() if not evaluate(s.condition, env):
                    return False
                case _:
                    pass
    except ChimeraError:
        return False
    return True


def _size(e: n.Expr, env: Env, what: str, least: int) -> int:
    value = scalar(e, env)
    if not least <= value <= MAX_RANKS:
        raise refuse("E211", f"{what} = {value} must lie between {least} and {MAX_RANKS}", e.span, values_of(e, env))
    return value


@dataclass(slots=True)
class _Declared:
    """The pipes of one declaration: pipe id -> index in the family. binder: the family's name for it."""

    decl: n.PipeDecl
    ids: dict[int, int] = field(default_factory=dict)


def _pipes(schedule: n.Schedule, env: Env, ranks: int, stages: int) -> tuple[tuple[Pipe, ...], dict[str, _Declared]]:
    pipes: list[Pipe] = []
    declared: dict[str, _Declared] = {}
    found: list[Diagnostic] = []
    first = 0
    for decl in (s for s in schedule.statements if isinstance(s, n.PipeDecl)):
        mine = declared[decl.name.name] = _Declared(decl)
        for index, name, inner in _members(decl, env):
            if len(pipes) == MAX_RANKS:
                raise refuse("E211", f"there are more than {MAX_RANKS} pipes", decl.span)
            count = scalar(decl.micro_batches, inner)
            if not 0 <= count <= MAX_TASKS:
                label = values_of(decl.micro_batches, inner)
                raise refuse("E211", f"pipe {name} cannot have {count} micro-batches", decl.micro_batches.span, label)
            placement = _placement(decl, name, inner, ranks, stages, found)
            if found:
                break
            mine.ids[len(pipes)] = index
            pipes.append(Pipe(name, placement, tuple(range(first, first + count))))
            first += count
    _raise(found)
    if not pipes:
        decl = next(s for s in schedule.statements if isinstance(s, n.PipeDecl))
        raise refuse("E211", "the schedule has no pipes: every family is empty", decl.span)
    return tuple(pipes), declared


def _members(decl: n.PipeDecl, env: Env) -> Iterator[tuple[int, str, Env]]:
    if decl.family is None:
        yield 0, decl.name.name, env
        return
    low, high = scalar(decl.family.range.low, env), scalar(decl.family.range.high, env)
    if low < 0 or high > MAX_RANKS:
        raise refuse("E211", f"the family's index runs from {low} to {high}; allowed is 0 to {MAX_RANKS}", decl.family.span)
    for i in range(low, high + 1):
        yield i, f"{decl.name.name}[{i}]", {**env, decl.family.binder.name: i}


def _placement(decl: n.PipeDecl, pipe: str, env: Env, ranks: int, stages: int, found: list[Diagnostic]) -> tuple[int, ...]:
    placement = np.full(stages, -1, np.int64)
    for clause in decl.stages:
        low, high = 0, stages - 1
        if clause.range:
            low, high = scalar(clause.range.low, env), scalar(clause.range.high, env)
            if low <= high and not (low >= 0 and high < stages):
                message = f"pipe {pipe} places stages {low} .. {high}, but stages are 0 .. {stages - 1}"
                found.append(Diagnostic("E220", message, clause.range.span))
                continue
        at = np.arange(low, high + 1, dtype=np.int64)
        rank = np.broadcast_to(np.asarray(evaluate(clause.rank, {**env, clause.binder.name: at})), at.shape)
        outside = (rank < 0) | (rank >= ranks)
        if outside.any():
            s = int(at[np.argmax(outside)])
            message = f"stage {s} of pipe {pipe} is placed on rank {rank[np.argmax(outside)]}, but ranks are 0 .. {ranks - 1}"
            label = values_of(clause.rank, {**env, clause.binder.name: s})
            found.append(Diagnostic("E220", message, clause.rank.span, label))
            continue
        twice = placement[at] >= 0
        if twice.any():
            s = int(at[np.argmax(twice)])
            message = f"stage {s} of pipe {pipe} is placed twice, on rank {placement[s]} and on rank {rank[s - low]}"
            found.append(Diagnostic("E222", message, clause.span, help="a second copy of a stage needs a pipe of its own"))
        placement[at] = rank
    missing = np.flatnonzero(placement < 0)
    if missing.size and not found:
        message = f"stage {missing[0]} of pipe {pipe} is never placed"
        if missing.size > 1:
            message = f"stages {missing[0]} .. {missing[-1]} of pipe {pipe}: {missing.size} are never placed"
        found.append(
            Diagnostic("E221", message, decl.span, help=f"place it: stage s in {missing[0]} .. {missing[-1]} on rank ...")
        )
    return tuple(placement.tolist())


def _costs(schedule: n.Schedule, env: Env, stages: int) -> Costs:
    """Return the costs of tasks: F = I = W = 1 unless given, B = I + W unless given."""
    values: dict[str, tuple[int, ...]] = {}
    for cost in (c for s in schedule.statements if isinstance(s, n.CostStatement) for c in s.costs):
        at = np.arange(stages, dtype=np.int64)
        inner = {**env, cost.stage.name: at} if cost.stage else env
        value = np.broadcast_to(np.asarray(evaluate(cost.value, inner)), at.shape)
        if (value < 0).any() or (value > 2**40).any():
            raise refuse("E211", f"the cost of {cost.kind.name} must lie between 0 and 2^40", cost.value.span)
        values[cost.kind.name] = tuple(value.tolist())
    one = (1,) * stages
    inputs, weights = values.get("I", one), values.get("W", one)
    both = tuple(i + w for i, w in zip(inputs, weights, strict=True))
    return Costs(values.get("F", one), values.get("B", both), inputs, weights, values.get("hop", (0,))[0])


def _tied(schedule: n.Schedule, env: Env, stages: int) -> tuple[Tied, ...]:
    result = []
    for decl in (s for s in schedule.statements if isinstance(s, n.TiedDecl)):
        members = [scalar(e, env) for e in decl.stages]
        for e, s in zip(decl.stages, members, strict=True):
            if not 0 <= s < stages:
                raise refuse("E220", f"tied {decl.name.name} names stage {s}, but stages are 0 .. {stages - 1}", e.span)
        result.append(Tied(decl.name.name, tuple(sorted(set(members)))))
    return tuple(result)


# --- formulas -------------------------------------------------------------------------------------------------------


def _formulas(ticks: n.Ticks, schedule: n.Schedule, declared: Mapping[str, _Declared], env: Env) -> Iterator[Formula]:
    """Yield one formula per rule and pipe it applies to. Rules that name a pipe replace, for its kind, those that do not."""
    for decl in declared.values():
        for pipe, index in decl.ids.items():
            for letter, kind in KINDS.items():
                mine = [(r, _applies(r, decl, index, env)) for r in ticks.rules if r.kind.name == letter]
                rules = [(r, inner) for r, inner in mine if inner is not None]
                for rule, inner in [(r, inner) for r, inner in rules if r.pipe] or rules:
                    yield _formula(kind, pipe, rule, ticks, inner)


def _applies(rule: n.Rule, decl: _Declared, index: int, env: Env) -> Env | None:
    """Return the names under which a rule applies to a pipe, or None."""
    if rule.pipe is None:
        return env
    if rule.pipe.name.name != decl.decl.name.name:
        return None
    if rule.pipe.index is None:
        return env
    binder = _index_binder(rule.pipe, env)
    if binder is not None:
        return {**env, binder.name: index}
    return env if scalar(rule.pipe.index, env) == index else None


def _formula(kind: Op, pipe: int, rule: n.Rule, ticks: n.Ticks, env: Env) -> Formula:
    expressions = [e for e in (rule.condition, rule.tick) if e is not None]
    lets = tuple(_needed(ticks.lets, expressions))
    return Formula(kind, pipe, rule.stage.name, rule.micro_batch.name, rule.condition, rule.tick, lets, env, rule.span)
