"""Numbers in tables and messages: rounded to a few significant digits, and large ones without an exponent."""

from __future__ import annotations

from fractions import Fraction


def number_text(value: Fraction | float, digits: int = 4, flags: str = "") -> str:
    """Return an integer as it is, and any other number with `digits` significant digits.

    A number with `digits` or more digits before its decimal point is rounded to an integer. So no large number has an exponent.
    value: finite. flags: of Python's format: `+` for a sign also of positive numbers, `,` between thousands, or both.
    """
    exact = Fraction(value)
    if exact.denominator == 1:
        return f"{exact.numerator:{flags}}"
    precision = ".0f" if abs(exact) >= 10 ** (digits - 1) else f".{digits}g"
    return f"{float(exact):{flags}{precision}}"
