"""Numbers in tables and messages."""

from __future__ import annotations

from fractions import Fraction

import pytest

from chimerac.chimera_ir.numbers import number_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1, 3), "0.3333"),
        (0.1 + 0.2, "0.3"),
        (15.0, "15"),
        (1234567, "1234567"),
        (999.96, "1000"),
        (9999.7, "10000"),
        (Fraction(246911, 20), "12346"),
        (-12345.6, "-12346"),
        (2.0**60, str(2**60)),
    ],
)
def test_all_but_integers_are_rounded_and_large_numbers_have_no_exponent(value: Fraction | float, text: str) -> None:
    assert number_text(value) == text


def test_signs_commas_and_more_digits() -> None:
    assert [number_text(x, flags="+,") for x in (12345, 12345.6, 0.25, -1234.5)] == ["+12,345", "+12,346", "+0.25", "-1,234"]
    assert number_text(1234.56, digits=6) == "1234.56"
