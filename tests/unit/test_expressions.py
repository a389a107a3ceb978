"""Expressions: their values at one point and at many points, checks of types and names, and what evaluating them takes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.diagnostics import Diagnostic, Source
from chimerac.compiler.pipeline import parse_source as parse
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import LIMIT, evaluate
from chimerac.compiler.resolve.types import check
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.walk import names_in
from tests.helpers import findings_of_call
from tests.helpers_cost import peak


def expression(text: str) -> n.Expr:
    tree = parse(Source("x", f"schedule x\nlet y = {text}"))
    [let] = tree.statements
    assert isinstance(let, n.Let)
    return let.value


def value(text: str, **env: object) -> object:
    """Return the value of an expression.

    Args:
        env: for each name its value, or an array of its values at many points.
    """
    return evaluate(expression(text), env, Budget())


def finding(text: str, **env: object) -> Diagnostic:
    """Return the finding about an expression that has no value."""
    [d] = findings_of_call(value, text, **env)
    return d


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 3 - 2", 5),
        ("2 * 7 // 3", 4),
        ("-7 // 2", -4),  # floored, as in Python
        ("-7 % 3", 2),
        ("7 % -3", -2),
        ("- - 3", 3),
        ("min(3, 1, 2) + max(4, 5)", 6),
        ("if 1 < 2 then 3 else 4", 3),
        ("if not (1 < 2) then 3 else 4", 4),
        ("1 + (if 2 == 2 then 10 else 20)", 11),
        ("1 + if 2 == 2 then 10 else 20", 11),
        ("1 + if 2 == 3 then 10 else 20 + 5", 26),  # what follows `else`, up to the end, is the last branch
        ("2 * 3 - if 2 == 3 then 10 else 20 // 3 + 1", -1),
        ("- if 1 < 2 then 3 else 4", -3),
        ("5 <= if 1 < 2 then 6 else 4", True),
        ("1 < 2 and not if 1 < 2 then 3 == 4 else 3 == 3", True),
        ("1 == 2 or 3 < if 1 < 2 then 3 + 1 else 4", True),
        ("if if 1 < 2 then 2 < 1 else 3 < 2 then 1 else 2 + if 1 < 2 then 3 else 4", 5),
        ("1 < 2 and 2 < 3 or 1 == 2", True),
        ("not 1 == 2", True),
        ("1 != 2 and not 3 >= 4", True),
    ],
)
def test_the_value_of_an_expression(text: str, expected: object) -> None:
    assert value(text) == expected


def test_only_the_branch_taken_is_computed() -> None:
    assert value("if m > 0 then N // m else 0", m=0, N=8) == 0
    m = np.arange(4)
    assert np.asarray(value("if m > 0 then N // m else -1", m=m, N=8)).tolist() == [-1, 8, 4, 2]
    assert np.asarray(value("if m % 2 == 0 then m else 100 * m", m=m)).tolist() == [0, 100, 2, 300]


def test_and_and_or_short_circuit() -> None:
    assert value("m == 0 or N // m > 3", m=0, N=8) is True
    assert value("m != 0 and N // m > 3", m=0, N=8) is False
    m = np.arange(4)
    assert np.asarray(value("m == 0 or N // m > 3", m=m, N=8)).tolist() == [True, True, True, False]
    assert np.asarray(value("m != 0 and N // m > 3", m=m, N=8)).tolist() == [False, True, True, False]


def test_division_by_zero_names_the_values_of_the_first_such_point() -> None:
    d = finding("N // (m % 2)", m=np.arange(1, 6), N=8)
    assert (d.code, d.message) == ("E205", "division by zero")
    assert d.label == "N = 8, m = 2"
    assert finding("7 % N", N=0).code == "E205"


def test_values_beyond_the_limit_are_refused() -> None:
    assert value("N * 2", N=LIMIT // 2) == LIMIT
    assert finding("N * 2 + 1", N=LIMIT // 2).label == f"N = {LIMIT // 2}"
    assert finding("N * N", N=2**31).code == "E206"
    d = finding("m * N", m=np.arange(3), N=LIMIT)
    assert (d.code, d.label) == ("E206", f"magnitudes of the factors: up to 2 and {LIMIT}")
    for text in ("0 - N - N", "N + N", "N * -2"):
        d = finding(text, N=LIMIT)
        assert (d.code, d.message.partition(" is ")[2]) == ("E206", "not between -2^61 and 2^61")
    assert finding("m + N", m=np.arange(3), N=LIMIT - 1).label == f"m = 2, N = {LIMIT - 1}"


@given(st.integers(-20, 20), st.lists(st.integers(-20, 20), min_size=1, max_size=6), st.data())
def test_evaluating_at_many_points_equals_evaluating_at_each(a: int, points: list[int], data: st.DataObject) -> None:
    text = data.draw(
        st.sampled_from(
            [
                "if m < a then m * a else a - m",
                "if m > 0 and a // m > 2 or m == a then m % 7 else -m",
                "min(m, a, 3) + max(m * m, a) - (if not m == 0 then a // m else a)",
                "if a > 0 then m else (if m > a then 1 else 2)",
            ]
        )
    )
    at_all_points = np.broadcast_to(np.asarray(value(text, m=np.array(points), a=a)), len(points)).tolist()
    assert at_all_points == [value(text, m=m, a=a) for m in points]


def findings(text: str, expected: str, **scope: str) -> list[tuple[str, str]]:
    """Return code and message of each finding of the type check.

    Args:
        expected: the type that the expression must have.
        scope: the types of the names.
    """
    found: list[Diagnostic] = []
    check(expression(text), scope, expected, found)
    return [(d.code, d.message) for d in found]


def test_a_wrong_type_is_a_finding() -> None:
    assert findings("m + 1", "integer", m="integer") == []
    assert findings("m < 1 and t", "truth value", m="integer", t="truth value") == []
    assert findings("m", "truth value", m="integer") == [("E202", "this must be a truth value, and is an integer")]
    assert findings("1 + t", "integer", t="truth value") == [("E202", "this must be an integer, and is a truth value")]
    assert findings("if t then 1 else t", "integer", t="truth value")[0] == (
        "E202",
        "one branch is an integer, the other a truth value",
    )
    assert findings("min(t, 2)", "integer", t="truth value")[0][0] == "E202"
    assert findings("t == t", "truth value", t="truth value")[0][0] == "E202"  # only integers are compared


def test_every_unknown_name_is_found() -> None:
    assert findings("a + b * (if c then d else e)", "integer") == [("E201", f"unknown name '{x}'") for x in "abcde"]
    assert findings("abs(1)", "integer") == [("E201", "unknown function 'abs'")]


def test_the_help_for_a_word_for_a_truth_value_is_a_condition_with_that_value() -> None:
    for word, condition, expected in (("true", "0 == 0", True), ("False", "0 == 1", False)):
        found: list[Diagnostic] = []
        check(expression(f"not {word}"), {"m": "integer"}, "truth value", found)
        assert found[0].help == f"write '{condition}' instead of '{word}'; the language has no words for truth values"
        assert value(condition) is expected


def test_names_are_found_in_the_order_of_the_text() -> None:
    assert names_in(expression("b + min(a, b) - (if c == 0 then -d else b)")) == ["b", "a", "c", "d"]


@pytest.mark.parametrize(
    "text", ["-a", "not t", "a + a", "a + 1", "1 + a", "1 <= a", "t and t", "if t then a else 1", "min(a, a)", "max(1, 2, a)"]
)
def test_the_operations_counted_in_the_budget_grow_with_the_points(text: str) -> None:
    def spent(points: int) -> int:
        budget = Budget()
        evaluate(expression(text), {"a": np.arange(points), "t": np.arange(points) % 2 == 0}, budget)
        return budget.spent

    assert spent(2**16) >= spent(1) + 2**16 // 64  # one more operation for every 64 points


def test_the_arguments_of_a_function_are_not_all_held_at_once() -> None:
    call, points = expression(f"min({', '.join(['a + 1'] * 100)})"), np.arange(2**14)
    assert peak(lambda: evaluate(call, {"a": points}, Budget())) < 20 * points.nbytes


def test_a_product_is_refused_only_if_the_factors_of_one_point_are_too_large() -> None:
    a, b = np.array([2**61, 3, -(2**31), 0]), np.array([1, 2**40, 2**30, 2**61])
    assert np.array_equal(value("a * b", a=a, b=b), a * b)
    d = finding("a * b", a=a, b=b + np.array([0, 0, 1, 0]))
    assert (d.code, d.message) == ("E206", "the product is not between -2^61 and 2^61")
    assert d.label == f"magnitudes of the factors: up to {2**31} and {2**30 + 1}"
