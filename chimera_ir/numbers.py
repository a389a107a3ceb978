"""Numbers in tables and messages: integers in full, others rounded to a few digits, and no large one with an exponent."""

from __future__ import annotations

from fractions import Fraction


def number_text(value: Fraction | float, digits: int = 4, flags: str = "") -> str:
    """Return an integer as it is, and any other number rounded to `digits` significant digits.

    But a number with that many digits or more before its decimal point is rounded to an integer, and has no exponent.

    Args:
        value: finite.
        flags: of Python's format: `+` for a sign also of positive numbers, `,` between thousands, or both.
    """
    exact = Fraction(value)
    if exact.denominator == 1:
        return f"{exact.numerator:{flags}}"
    precision = ".0f" if abs(exact) >= 10 ** (digits - 1) else f".{digits}g"
    return f"{float(exact):{flags}{precision}}"
