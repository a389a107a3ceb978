"""Arguments of callers: checks of numbers and choices, from Python or as the text of an option (E002)."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Integral, Rational, Real

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import did_you_mean, refuse

COSTS = ("F", "B", "I", "W", "R", "hop")
SHOWN = 40  # characters of a value that messages show, and digits that an integer may have
# In the text of a cost, the most digits before the point, after the point, and on each side of `/`. In a Decimal, the largest
# magnitude of the exponent.
DIGITS = 40
_DIGITS = rf"[0-9]{{1,{DIGITS}}}"
_STAGES = re.compile(r"([0-9]{1,9})(?: *\.\. *([0-9]{1,9}))?")
_NUMBER = re.compile(rf"({_DIGITS}(\.{_DIGITS})?|\.{_DIGITS})([eE][+-]?[0-9]{{1,2}})?|{_DIGITS}/{_DIGITS}")


@dataclass(frozen=True, slots=True)
class StageChoice:
    """Some stages of a schedule, chosen by a caller.

    Attributes:
        text: the choice in messages.
        ranges: of stages; None for all stages.
    """

    text: str
    ranges: tuple[range, ...] | None

    def mask(self, stages: int) -> tuple[bool, ...]:
        """Return for each stage whether it is chosen. Raises ChimeraError E002 for a stage that does not exist."""
        if self.ranges is None:
            return (True,) * stages
        if outside := [r[-1] for r in self.ranges if r[-1] >= stages]:
            existing = f"stages are 0 .. {stages - 1}" if stages > 1 else "stage 0 is the only one"
            raise refuse("E002", f"recompute {self.text}: there is no stage {outside[0]}", help=existing)
        chosen = {s for r in self.ranges for s in r}
        return tuple(s in chosen for s in range(stages))


def stage_choice(given: str | Iterable[int]) -> StageChoice:
    """Return the stages that are to recompute. Raises ChimeraError E002.

    Args:
        given: 'all', 'none', a list as text such as '0,2..5', or the numbers of stages.
    """
    expected = "give all, none, or a list of stages such as 0,2..5, where 2..5 includes 5"
    if not isinstance(given, str):
        if not isinstance(given, Iterable):
            raise refuse("E002", f"recompute is {shown(given)}: that is no list of stages", help=expected)
        given = ",".join(str(whole_number("a stage to recompute", s)) for s in given) or "none"
    if given.strip() in ("all", "none"):
        return StageChoice(given.strip(), None if given.strip() == "all" else ())
    ranges = []
    for part in given.split(","):
        bounds = _STAGES.fullmatch(part.strip())
        if bounds is None:
            raise refuse("E002", f"recompute {shown_text(given)}: {shown(part.strip())} is no stage", help=expected)
        low, high = int(bounds[1]), int(bounds[2] or bounds[1])
        if low > high:
            raise refuse("E002", f"recompute {shown_text(given)}: {low}..{high} is empty", help=f"write {high}..{low}")
        ranges.append(range(low, high + 1))
    return StageChoice(shown_text(given), tuple(ranges))


def whole_numbers(what: str, given: object) -> dict[str, int]:
    """Return integers by name, from integers of any type.

    Args:
        what: the word for one in messages, such as 'parameter'.
    """
    by_name = _by_name(f"{what}s", given, "{'N': 4}")
    return {name: whole_number(f"{what} {name}", value) for name, value in by_name.items()}


def whole_number(what: str, value: object) -> int:
    """Return an integer, from any integer type.

    Args:
        what: its name in messages.

    Raises ChimeraError E002 for an integer of more than SHOWN digits, and for anything else, also for a bool or a float.
    """
    if isinstance(value, Integral) and not isinstance(value, bool):
        if abs(value) >= 10**SHOWN:
            raise refuse("E002", f"{what} is {shown(value)}: that is too large")
        return int(value)
    number = _fraction(value)
    help = f"give {int(number)}" if number is not None and number.denominator == 1 and abs(number) < 10**SHOWN else ""
    raise refuse("E002", f"{what} is {shown(value)}: expected an integer", help=help)


def one_of(what: str, value: object, known: Collection[str]) -> None:
    """Raise ChimeraError E002 if a value is not one of the known choices."""
    if not isinstance(value, str) or value not in known:
        help = did_you_mean(value if isinstance(value, str) else "", known)
        raise refuse("E002", f"{what} is {shown(value)}: there is none of that name", help=help)


def costs_from(given: object) -> dict[str, Fraction]:
    """Return costs by name, given as numbers. A float is taken as its decimal text: 0.1 is 1/10."""
    by_name = _by_name("costs", given, "{'hop': 0.5}")
    return {name: _cost(f"cost {name}={shown(v)}", name, _fraction(v)) for name, v in by_name.items()}


def cost_from_text(name: str, text: str, option: str = "") -> Fraction:
    """Return the cost that a text gives, such as the 0.5 of --cost hop=0.5.

    Args:
        option: what messages write before the text, if it is not `--cost NAME=`.

    Raises ChimeraError E002.
    """
    is_number = _NUMBER.fullmatch(text) and not re.search(r"/0+$", text)  # no division by zero
    return _cost(f"{option} {text}" if option else f"--cost {name}={text}", name, Fraction(text) if is_number else None)


def _cost(given: str, name: str, cost: Fraction | None) -> Fraction:
    """Return a cost if it is allowed.

    Args:
        given: what the caller wrote, for messages.
        cost: None if that is no number.
    """
    if name not in COSTS:
        raise refuse("E002", f"{given}: there is no cost '{name}'", help=did_you_mean(name, COSTS))
    if cost is None or cost < 0:
        raise refuse("E002", f"{given}: expected a number like 2, 0.5 or 1/3, not below 0")
    if cost > limits.COST:
        raise refuse("E002", f"{given}: a cost is at most {limits.COST}", help="give all costs in a larger unit")
    if cost.denominator > limits.TIME:
        message = f"{given}: a part this small is lost when times are added up"
        raise refuse("E002", message, help="give fewer digits")
    return cost


def _fraction(value: object) -> Fraction | None:
    """Return a value as an exact number, a float as its decimal text.

    None for a bool, for anything but a finite real number, and for a Decimal with a large exponent.
    """
    match value:
        case bool():
            return None
        case Rational():
            return Fraction(int(value.numerator), int(value.denominator))
        case Decimal():
            # A Decimal of a few characters, such as 1e999999999, can have a billion digits as a fraction.
            return Fraction(value) if value.is_finite() and abs(value.adjusted()) <= DIGITS else None
        case Real():  # str gives the shortest text that reads back as the same float, of numpy's types too
            return Fraction(str(value)) if math.isfinite(value) else None
        case _:
            return None


def _by_name(what: str, given: object, example: str) -> Mapping[str, object]:
    """Return values that must be given by name.

    Args:
        what: what they are called in messages.
        example: how they are written.
    """
    if not isinstance(given, Mapping):
        raise refuse("E002", f"{what} are given by name, as in {example}, and not as {shown(given)}")
    for name in given:
        if not isinstance(name, str):
            raise refuse("E002", f"{what} are given by name, and {shown(name)} is no name")
    return given


def shown_text(text: str) -> str:
    """Return a text as messages show it, shortened if it is long."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def shown(value: object) -> str:
    """Return a value as messages show it, shortened if it is long."""
    if isinstance(value, Integral) and abs(value) >= 10**SHOWN:
        digits = int(math.log10(abs(value))) + 1  # may be one too many or too few, as the logarithm is rounded
        digits += (abs(value) >= 10**digits) - (abs(value) < 10 ** (digits - 1))
        return f"a number of {digits} digits"
    try:
        return shown_text(str(value) if isinstance(value, int | float) else repr(value))
    except ValueError:  # Python writes no integer of more than 4300 digits
        return f"a {type(value).__name__} with a huge number"
