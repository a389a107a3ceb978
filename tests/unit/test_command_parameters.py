"""The values of -p and --cost: how they are read, and the messages for values that are wrong (E002)."""

from __future__ import annotations

import pytest

from chimerac.compiler.command.values import costs_of, parameters_of
from tests.helpers import findings_of_call


def messages(given: list[str]) -> list[str]:
    return [d.message for d in findings_of_call(parameters_of, given)]


def test_a_parameter_without_a_value_does_not_count_as_given() -> None:
    assert messages(["D", "D=4"]) == ["-p D: expected NAME=VALUE, for instance -p D=4"]
    assert messages(["D=2", "D", "D=4"])[1:] == ["-p D=4: D was given before, as 2"]


@pytest.mark.parametrize("sign", ["", "-", "+"])
def test_a_sign_does_not_count_as_a_digit(sign: str) -> None:
    assert parameters_of([f"D={sign}{10**19}"]) == {"D": int(f"{sign}{10**19}")}
    assert "a number of 21 digits is too large" in messages([f"D={sign}{10**20}"])[0]


def test_spaces_around_name_and_value_are_ignored() -> None:
    assert parameters_of([" D = 4 ", "N=8"]) == {"D": 4, "N": 8}
    assert costs_of(["F = 2"]) == {"F": 2}
