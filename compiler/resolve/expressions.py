"""Evaluating expressions, at one point or at many points at a time. Their types are checked before (types.py).

A point fixes the values of the names, for instance for one stage, or for one stage and one micro-batch. Of an `if`, only
the branch that the condition selects is computed at each point. So `if m > 0 then N // m else 0` never divides by zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import Span, refuse
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.walk import left_spine, names_in

Array = npt.NDArray[Any]
ExprValue = int | bool | Array  # of a name or an expression: one value for all points, or an array with a value for each
Env = Mapping[str, ExprValue]

LIMIT = limits.MAGNITUDE  # the sum of two such values fits into 64 bits
WITHIN_LIMIT = f"between -2^{LIMIT.bit_length() - 1} and 2^{LIMIT.bit_length() - 1}"
MAX_NAMES = 20  # names whose values a finding shows
# How each function is computed: for two integers, and for two values of which at least one is an array.
FUNCTIONS: dict[str, tuple[Callable[[int, int], int], Callable[[Any, Any], Any]]] = {
    "min": (min, np.minimum),
    "max": (max, np.maximum),
}


def scalar(e: n.Expr, env: Env, budget: Budget) -> int:
    """Return the value of a checked integer expression in which no name stands for an array."""
    return int(evaluate(e, env, budget))


def values_at(e: n.Expr, env: Env, count: int, budget: Budget, kind: npt.DTypeLike = np.int64) -> Array:
    """Return the value of a checked expression at each of `count` points. Without points nothing is computed.

    Args:
        kind: the numpy type of the values.
    """
    return np.broadcast_to(np.asarray(evaluate(e, env, budget), kind), count) if count else np.zeros(0, kind)


def evaluate(e: n.Expr, env: Env, budget: Budget) -> ExprValue:
    """Return the value of a checked expression.

    Raises ChimeraError: E205 division by zero, E206 a value that is not within `LIMIT`, each with the values of the names at
    the first such point, or for a product with the magnitudes of its largest factors; E211 more operations than the budget has
    left.
    """
    budget.spend(1, e.span)
    match e:
        case n.Int():
            return e.value
        case n.Name():
            return env[e.name]
        case n.Unary():
            value = evaluate(e.operand, env, budget)
            budget.spend(_operations(value), e.span)
            return -value if e.op == "-" else _invert(value)
        case n.Binary():
            first, operations = left_spine(e)
            value = evaluate(first, env, budget)
            for operation in operations:
                value = _apply(operation, value, env, budget)
            return value
        case n.IfElse():
            condition = evaluate(e.condition, env, budget)
            return _choose(
                condition,
                lambda inner: evaluate(e.then, inner, budget),
                lambda inner: evaluate(e.otherwise, inner, budget),
                env,
                budget,
                e.span,
            )
        case n.Call():
            on_ints, on_arrays = FUNCTIONS[e.function]
            result = evaluate(e.arguments[0], env, budget)
            for argument in e.arguments[1:]:  # one after another, since each value may be a large array
                value = evaluate(argument, env, budget)
                budget.spend(_operations(result, value), e.span)
                result = (
                    on_arrays(result, value)
                    if isinstance(result, np.ndarray) or isinstance(value, np.ndarray)
                    else on_ints(result, value)
                )
            return result


def _apply(e: n.Binary, left: ExprValue, env: Env, budget: Budget) -> ExprValue:
    """Return the value of an operation with two operands.

    Args:
        left: the value of the left one.
    """
    if e.op not in ("and", "or"):
        right = evaluate(e.right, env, budget)
        budget.spend(_operations(left, right), e.span)
        return _arithmetic(e, left, right, env)
    budget.spend(_operations(left), e.span)
    is_decided = left if e.op == "or" else _invert(left)
    return _choose(is_decided, lambda _: e.op == "or", lambda inner: evaluate(e.right, inner, budget), env, budget, e.span)


def _operations(*operands: ExprValue) -> int:
    """Return what one operation on these operands counts in the budget: 1, and 1 more for every 64 points."""
    points = 0
    for x in operands:  # mostly integers, for which max() over a generator takes more than twice as long
        if isinstance(x, np.ndarray) and len(x) > points:
            points = len(x)
    return 1 + points // 64


def _invert(value: ExprValue) -> ExprValue:
    """Return `not value`, at each point."""
    return np.logical_not(value) if isinstance(value, np.ndarray) else not value


def _choose(
    condition: ExprValue,
    then: Callable[[Env], ExprValue],
    otherwise: Callable[[Env], ExprValue],
    env: Env,
    budget: Budget,
    span: Span,
) -> ExprValue:
    """Return then(...) where the condition holds and otherwise(...) elsewhere, each computed for its own points only.

    Each is called with the values of the names at these points, and is not called if it has none.

    Args:
        span: the text with the condition.
    """
    if not isinstance(condition, np.ndarray):
        return then(env) if condition else otherwise(env)
    if condition.all():
        return then(env)
    if not condition.any():
        return otherwise(env)
    where_true = then(subset(env, condition, budget, span))
    where_false = otherwise(subset(env, ~condition, budget, span))
    result = np.empty(len(condition), np.asarray(where_true).dtype)
    result[condition] = where_true
    result[~condition] = where_false
    return result


def subset(env: Env, mask: Array, budget: Budget, span: Span) -> dict[str, ExprValue]:
    """Return the values of all names at the points of a mask.

    Args:
        span: the text that selects the points.
    """
    arrays = sum(isinstance(v, np.ndarray) for v in env.values())
    budget.spend(len(env) // 16 + arrays * _operations(mask), span)
    return {k: v[mask] if isinstance(v, np.ndarray) else v for k, v in env.items()}


def _arithmetic(e: n.Binary, left: ExprValue, right: ExprValue, env: Env) -> ExprValue:
    """Return the value of an arithmetic operation or a comparison.

    Args:
        env: the values of the names, for findings.
    """
    match e.op:
        case "+":
            return _bounded(left + right, e, env)
        case "-":
            return _bounded(left - right, e, env)
        case "*":
            if _magnitude(left) * _magnitude(right) > LIMIT:  # the largest factors may be of different points
                too_large = _has_large_product(left, right)
                if np.any(too_large):
                    factors = (_magnitude(x[too_large] if isinstance(x, np.ndarray) else x) for x in (left, right))
                    label = "magnitudes of the factors: up to {} and {}".format(*factors)
                    raise refuse("E206", f"the product is not {WITHIN_LIMIT}", e.span, label, help="take factors closer to 0")
            return left * right
        case "//" | "%":
            zero = right == 0
            if zero.any() if isinstance(zero, np.ndarray) else zero:
                help = "require that it is not zero, or guard it: if ... then ... else ..."
                raise refuse("E205", "division by zero", e.right.span, label=_values(e, env, zero), help=help)
            return left // right if e.op == "//" else left % right
        case "==":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case _:
            return left >= right


def _magnitude(value: ExprValue) -> int:
    """Return the largest magnitude of all points, 0 without points."""
    if isinstance(value, np.ndarray):
        return max(abs(int(value.min())), abs(int(value.max()))) if value.size else 0
    return abs(value)


def _has_large_product(left: ExprValue, right: ExprValue) -> Any:
    """Return at each point whether the magnitude of a product exceeds the limit. The product itself may exceed 64 bits."""
    return np.abs(left) > LIMIT // np.maximum(np.abs(right), 1)


def _bounded(value: ExprValue, e: n.Binary, env: Env) -> ExprValue:
    """Return the value of a sum or a difference. Raises ChimeraError E206 if it is not within `LIMIT` at some point."""
    if _magnitude(value) > LIMIT:
        label = _values(e, env, np.abs(value) > LIMIT)
        raise refuse("E206", f"the value is not {WITHIN_LIMIT}", e.span, label, help="take numbers closer to 0")
    return value


def _values(e: n.Expr, env: Env, where: Any) -> str:
    """Return 'a = 1, b = 2': the values of an expression's names at the first of some points.

    Args:
        where: a mask of these points; True: all of them.
    """
    first = int(np.argmax(where)) if isinstance(where, np.ndarray) else 0
    return values_of(e, {k: int(v[first]) if isinstance(v, np.ndarray) else v for k, v in env.items()})


def values_of(e: n.Expr, env: Mapping[str, Any]) -> str:
    """Return 'a = 1, b = 2' for the names of an expression that have a value in `env`, for at most MAX_NAMES of them."""
    names = [name for name in names_in(e) if name in env]
    texts = [f"{name} = {env[name]}" for name in names[:MAX_NAMES]]
    return ", ".join([*texts, "..."] if len(names) > MAX_NAMES else texts)
