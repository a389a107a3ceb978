"""Checks of statements: how often each is given, parameters, names and types in expressions (E201 to E204, E206 to E208)."""

from __future__ import annotations

from collections.abc import Mapping

from chimerac.chimera_ir.diagnostics import Diagnostic, Span, did_you_mean
from chimerac.chimera_ir.program import LIMITS
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.check_orders import check_order
from chimerac.compiler.resolve.expressions import LIMIT, WITHIN_LIMIT
from chimerac.compiler.resolve.findings import given_twice
from chimerac.compiler.resolve.scope import MEANINGS, define, define_let, local, with_hints
from chimerac.compiler.resolve.types import Scope, check
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.kinds import KINDS, kind_of_alias

# Names that an author may expect in a formula of a pipe, but that are not defined there -> what to write instead.
_IN_PIPE = {
    "r": "this formula gives the rank: write it with the stage",
    "m": "a stage is on one rank for all micro-batches: write the formula with the stage",
    "p": "the pipes of a family are numbered: pipe main[i in 0 .. 1] { ... }",
}
# The same for a condition of `recompute`.
_IN_RECOMPUTE = _IN_PIPE | dict.fromkeys(
    ("r", "m"), "a pipe says which of its stages recompute: write the condition with the stage"
)


def check_settings(schedule: n.Schedule, found: list[Diagnostic]) -> dict[str, n.Setting]:
    """Return the statements `ranks`, `stages` and `window` by their first word.

    Adds E208 for a statement that is missing, and for one that is given twice and may be given only once.
    """
    seen: dict[str, n.Statement] = {}
    for s in schedule.statements:
        key = _given_once(s)
        if key and key in seen:
            note = f"first at {seen[key].span}"
            found.append(Diagnostic("E208", f"'{key}' is given twice", s.span, notes=(note,), help="keep one of them"))
        elif key:
            seen[key] = s
    present = {*seen, *("pipe" for s in schedule.statements if isinstance(s, n.PipeDecl))}
    for key, example in (("ranks", "ranks D"), ("stages", "stages D"), ("order", "order ticks { ... }"),
                         ("pipe", "pipe main { stage s on rank s   micro_batches N }")):  # fmt: skip
        if key not in present:
            found.append(Diagnostic("E208", f"the schedule has no '{key}'", schedule.name.span, help=f"add: {example}"))
    return {key: s for key, s in seen.items() if isinstance(s, n.Setting)}


def _given_once(s: n.Statement) -> str:
    """Return the first word of a statement that may be given only once, else ''."""
    match s:
        case n.Setting():
            return s.what
        case n.Size():
            return "size"
        case n.Sync():
            return "sync"
        case n.Ticks() | n.Greedy() | n.Listing():
            return "order"
        case _:
            return ""


def check_parameters(schedule: n.Schedule, given: Mapping[str, int], found: list[Diagnostic]) -> None:
    """Check the values of the parameters.

    Adds E203 for a given one that the schedule does not have, E204 for one of the schedule that is not given and has no
    default, and E206 for a given value that is not within `LIMIT`.
    """
    params = {s.name.name: s for s in schedule.statements if isinstance(s, n.Param)}
    for name, value in given.items():
        if name not in params:
            help = did_you_mean(name, params) if params else "this schedule has no parameters"
            note = f"given as -p {name}={value}"
            found.append(
                Diagnostic("E203", f"schedule {schedule.name.name} has no parameter '{name}'", notes=(note,), help=help)
            )
        elif abs(value) > LIMIT:
            found.append(Diagnostic("E206", f"{name} = {value} is not {WITHIN_LIMIT}", params[name].span))
    for name, s in params.items():
        if s.default is None and name not in given:
            found.append(
                Diagnostic("E204", f"parameter '{name}' has no value", s.span, "no default", help=f"give one: -p {name}=4")
            )


def check_globals(schedule: n.Schedule, found: list[Diagnostic]) -> Scope:
    """Check params, lets and requirements, each of which may use only names above it. Return the names of params and lets."""
    scope = Scope()
    for s in schedule.statements:
        match s:
            case n.Param():
                if s.default is not None:
                    check(s.default, scope, "integer", found)
                define(scope, s.name, "integer", found)
            case n.Let():
                define_let(scope, s, found)
            case n.Require():
                check(s.condition, scope, "truth value", found)
            case _:
                pass
    return scope


def check_statements(schedule: n.Schedule, scope: Scope, found: list[Diagnostic], budget: Budget) -> None:
    """Check the expressions and names of every statement except param, let and require.

    Args:
        scope: the params and lets.
    """
    declared: dict[str, n.PipeDecl] = {}
    # Where each cost, tied set and limit is given.
    costs: dict[str, Span] = {}
    tied: dict[str, Span] = {}
    limits: dict[str, Span] = {}
    for s in schedule.statements:
        match s:
            case n.Setting():
                check(s.value, scope, "integer", found)
            case n.PipeDecl():
                if s.name.name in declared:
                    found.append(
                        given_twice(f"pipe '{s.name.name}' is defined twice", s.name.span, declared[s.name.name].name.span)
                    )
                declared[s.name.name] = s
                if s.name.name in KINDS:
                    message = f"a pipe cannot be named '{s.name.name}', which is a kind of task"
                    found.append(Diagnostic("E207", message, s.name.span, help="choose another name"))
                inner = scope
                if s.family:
                    check(s.family.range.low, scope, "integer", found)
                    check(s.family.range.high, scope, "integer", found)
                    inner = local(scope, [(s.family.binder, "index of a pipe")], found)
                check(s.micro_batches, inner, "integer", found)
                for clause in s.stages:
                    if clause.range:
                        check(clause.range.low, inner, "integer", found)
                        check(clause.range.high, inner, "integer", found)
                    help = "write: stage s on rank ..."
                    clause_scope = local(with_hints(inner, _IN_PIPE), [(clause.binder, "stage")], found, help)
                    check(clause.rank, clause_scope, "integer", found)
                    if clause.recompute and clause.recompute.condition:
                        check(clause.recompute.condition, with_hints(clause_scope, _IN_RECOMPUTE), "truth value", found)
            case n.CostStatement():
                _check_costs(s, scope, costs, found)
            case n.Greedy():
                for statement in s.costs:
                    _check_costs(statement, scope, costs, found)
            case n.TiedDecl():
                if s.name.name in tied:
                    found.append(given_twice(f"tied set '{s.name.name}' is defined twice", s.name.span, tied[s.name.name]))
                tied[s.name.name] = s.name.span
                for stage in s.stages:
                    if isinstance(stage, n.Binary) and stage.op == "and":
                        help = "put commas between the stages"
                        found.append(Diagnostic("E202", "a tied set lists stages, joined by commas", stage.span, help=help))
                    else:
                        check(stage, scope, "integer", found)
            case n.MemoryLimit():
                if s.what.name not in LIMITS:
                    help = did_you_mean(s.what.name, LIMITS)
                    found.append(Diagnostic("E201", f"unknown limit '{s.what.name}'", s.what.span, help=help))
                if s.what.name in limits:
                    message = f"the limit of '{s.what.name}' is given twice"
                    found.append(given_twice(message, s.span, limits[s.what.name], "keep one of them"))
                limits[s.what.name] = s.span
                check(s.value, scope, "integer", found)
            case _:
                pass
    for s in schedule.statements:
        if isinstance(s, n.Order):
            check_order(s, scope, declared, found, budget)


def _check_costs(s: n.CostStatement, scope: Scope, seen: dict[str, Span], found: list[Diagnostic]) -> None:
    """Check the costs of a statement.

    Args:
        seen: by kind, where earlier ones give a cost; those of this one are added.
    """
    for cost in s.costs:
        kind = cost.kind.name
        if kind in seen:
            found.append(given_twice(f"the cost of '{kind}' is given twice", cost.span, seen[kind], "keep one of them"))
        seen[kind] = cost.kind.span
        if kind not in (known := (*KINDS, "hop")):
            meant = kind_of_alias(kind)
            help = f"did you mean '{meant}'?" if meant else did_you_mean(kind, known)
            found.append(Diagnostic("E201", f"unknown cost '{kind}'", cost.kind.span, help=help))
        elif kind == "hop" and cost.stage:
            found.append(Diagnostic("E202", "the hop cost is one number, not one per stage", cost.span))
        help = f"a cost may differ by stage only: write {kind}(s), and s in its formula"
        if kind == "hop":
            help = "the hop cost is one number: write it without s, m, p and r"
        inner = with_hints(scope, dict.fromkeys(MEANINGS, help))
        check(cost.value, local(inner, [(cost.stage, "stage")], found, help) if cost.stage else inner, "integer", found)
