"""Values of parameters and lets, and whether the requirements hold (E205, E206, E210, E211)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import Env, ExprValue, evaluate, values_of
from chimerac.compiler.resolve.findings import MAX_FOUND
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import expression
from chimerac.compiler.syntax.walk import names_in

MAX_CHANGE = 64  # the largest change of a parameter in the search for a value that meets a requirement
MAX_PAIR_CHANGE = 8  # the largest sum of changes of two parameters at once
MAX_PAIRS = 4  # pairs of parameters that are tried
MAX_SEARCH = 2**20  # operations of the search for one requirement
_PAIR_CHANGES = range(-MAX_PAIR_CHANGE, MAX_PAIR_CHANGE + 1)
# What is added to the two parameters of a pair, small changes first.
_SHIFTS = sorted(
    ((a, b) for a in _PAIR_CHANGES for b in _PAIR_CHANGES if a and b and abs(a) + abs(b) <= MAX_PAIR_CHANGE),
    key=lambda shift: (abs(shift[0]) + abs(shift[1]), shift),
)


def values(schedule: n.Schedule, given: Mapping[str, int], budget: Budget) -> dict[str, ExprValue]:
    """Return the values of params and lets.

    Raises ChimeraError: E210 for every requirement that does not hold; E205, E206 and E211 (`evaluate`).
    """
    env: dict[str, ExprValue] = {}
    found: list[Diagnostic] = []
    try:
        for s in _unmet(schedule, given, env, budget):
            found.append(_requirement_finding(schedule, s, env, given, budget))
            if len(found) == MAX_FOUND:
                break
    except ChimeraError:
        if not found:  # after an unmet requirement the error may be a consequence of it
            raise
    if found:
        raise ChimeraError(found)
    return env


def _unmet(schedule: n.Schedule, given: Mapping[str, int], env: dict[str, ExprValue], budget: Budget) -> Iterator[n.Require]:
    """Yield the requirements that do not hold. Before that, put the values of the params and lets above each into `env`."""
    for s in schedule.statements:
        match s:
            case n.Param():
                env[s.name.name] = given[s.name.name] if s.name.name in given else evaluate(_not_none(s.default), env, budget)
            case n.Let():
                env[s.name.name] = evaluate(s.value, env, budget)
            case n.Require() if not evaluate(s.condition, env, budget):
                yield s
            case _:
                pass


def default_values(schedule: n.Schedule, given: Mapping[str, int], budget: Budget) -> dict[str, int] | None:
    """Return the defaults of all parameters; those without one are as given. Return None if a default has no value."""
    params = [s for s in schedule.statements if isinstance(s, n.Param)]
    env: dict[str, ExprValue] = {}
    try:
        for _ in _unmet(schedule, {s.name.name: given[s.name.name] for s in params if s.default is None}, env, budget):
            pass
    except ChimeraError:
        return None
    return {s.name.name: int(env[s.name.name]) for s in params}


def _not_none(e: n.Expr | None) -> n.Expr:
    assert e is not None
    return e


def given_note(name: str, value: int) -> str:
    """Return the note of a finding that the caller gave this value of a parameter."""
    return f"{name} was given: -p {name}={value}"


def _requirement_finding(schedule: n.Schedule, s: n.Require, env: Env, given: Mapping[str, int], budget: Budget) -> Diagnostic:
    names = names_in(s.condition)
    notes = tuple(given_note(k, v) for k, v in given.items() if k in names)
    return Diagnostic(
        "E210",
        f"this does not hold: {expression(s.condition)}",
        s.span,
        values_of(s.condition, env),
        notes,
        _parameter_help(schedule, s, env, given, budget),
    )


def _parameter_help(schedule: n.Schedule, s: n.Require, env: Env, given: Mapping[str, int], budget: Budget) -> str:
    """Return the help with the nearest values of one parameter, else of two, that meet every requirement; '' if none is found.

    The values are found by trying.
    """
    params = [p.name.name for p in schedule.statements if isinstance(p, n.Param)]
    names = set(names_in(s.condition))
    # A requirement is taken to be about the last parameter that it names: `N % D == 0` is about N.
    involved = [p for p in params if p in names][::-1]
    reserve = budget.left - MAX_SEARCH  # the search ends when no more than this is left
    for name in involved:
        current = int(env[name])
        near = sorted(range(max(0, current - MAX_CHANGE), current + MAX_CHANGE + 1), key=lambda v: abs(v - current))
        valid = sorted(v for v in near if budget.left > reserve and requirements_hold(schedule, {**given, name: v}, budget))
        lower, higher = [v for v in valid if v < current][-1:], [v for v in valid if v > current][:1]
        if lower or higher:
            return "give " + " or ".join(f"-p {name}={v}" for v in lower + higher)
    values_by_name = {name: value for name, value in {**given, **env}.items() if name in params}
    for pair in _pairs(involved, [name for name in params if name in values_by_name]):
        for shift in _SHIFTS:
            changed = {name: int(values_by_name[name]) + by for name, by in zip(pair, shift, strict=True)}
            may_try = budget.left > reserve and min(changed.values()) >= 0
            if may_try and requirements_hold(schedule, {**given, **changed}, budget):
                return "give " + " ".join(f"-p {name}={v}" for name, v in changed.items())
    return ""


def _pairs(involved: list[str], params: list[str]) -> list[tuple[str, str]]:
    """Return the pairs of parameters to change together, each pair in the order of the text.

    involved: the parameters that the requirement names, the last one first. Each pair has that one and another parameter.
    """
    others = [*involved[1:], *(name for name in params if name not in involved)]
    pairs = [(a, b) for a in involved[:1] for b in others[:MAX_PAIRS]]
    return [(a, b) if params.index(a) < params.index(b) else (b, a) for a, b in pairs]


def requirements_hold(schedule: n.Schedule, given: Mapping[str, int], budget: Budget) -> bool:
    """Return whether a schedule allows these parameters: every requirement holds, and no value has an error."""
    try:
        return next(_unmet(schedule, given, {}, budget), None) is None
    except ChimeraError:
        return False
