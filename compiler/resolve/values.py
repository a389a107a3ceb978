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


def values(schedule: n.Schedule, given: Mapping[str, int], budget: Budget) -> dict[str, ExprValue]:
    """Return the values of params and lets.

    Raises ChimeraError: E210 for the requirements that do not hold, at most MAX_FOUND; E205, E206 and E211 (`evaluate`) if a
    value or a requirement cannot be computed and every requirement above it holds. What is below that one is not checked.
    """
    env: dict[str, ExprValue] = {}
    found: list[Diagnostic] = []
    try:
        for s in _unmet(schedule, given, env, budget):
            found.append(_requirement_finding(s, env, given))
            if len(found) == MAX_FOUND:
                break
    except ChimeraError:
        if not found:  # after an unmet requirement the error may be a consequence of it
            raise
    if found:
        raise ChimeraError(found)
    return env


def _unmet(schedule: n.Schedule, given: Mapping[str, int], env: dict[str, ExprValue], budget: Budget) -> Iterator[n.Require]:
    """Yield the requirements that do not hold. The values of params and lets are put into `env` in the order of the text."""
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


def parameter_values(schedule: n.Schedule, given: Mapping[str, int], budget: Budget) -> dict[str, int] | None:
    """Return the values of all parameters; None if a value or a requirement cannot be computed.

    Args:
        given: a value for each parameter without a default, and for any others; the rest take their defaults.
    """
    env: dict[str, ExprValue] = {}
    try:
        for _ in _unmet(schedule, given, env, budget):
            pass
    except ChimeraError:
        return None
    return {s.name.name: int(env[s.name.name]) for s in schedule.statements if isinstance(s, n.Param)}


def _not_none(e: n.Expr | None) -> n.Expr:
    """Return the default of a parameter that is not given: `check_parameters` has refused one without a default."""
    assert e is not None
    return e


def given_note(name: str, value: int) -> str:
    """Return the note of a finding that the caller gave this value of a parameter."""
    return f"{name} was given: -p {name}={value}"


def _requirement_finding(s: n.Require, env: Env, given: Mapping[str, int]) -> Diagnostic:
    names = names_in(s.condition)
    notes = tuple(given_note(k, v) for k, v in given.items() if k in names)
    return Diagnostic("E210", f"this does not hold: {expression(s.condition)}", s.span, values_of(s.condition, env), notes)


def requirements_hold(schedule: n.Schedule, given: Mapping[str, int], budget: Budget) -> bool:
    """Return whether a schedule allows these parameters: every value can be computed, and every requirement holds."""
    try:
        return next(_unmet(schedule, given, {}, budget), None) is None
    except ChimeraError:
        return False
