"""The texts among which `texts.py` searches: those of a schedule with other orders of the same form.

Some of them also place stages on other ranks. `texts.py` leaves these out.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Protocol, TypeVar

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler.diagnose.edits import edited, tick_edits
from chimerac.compiler.resolve.sizes import all_costs
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.syntax.printer import expression, print_schedule

State = TypeVar("State")
MAX_EDITS = 5_000  # of one text: the next edit is drawn among the first ones, at most this many

KINDS = (("I", "F", "W"), ("F", "I", "W"), ("I", "W", "F"), ("B", "F"), ("F", "B"))  # of `prefer`
KEYS = ("m", "s", "p", "m + s", "m - s", "2*m + s", "2*m - s", "m + 2*s", "m - 2*s", "p - 2*m")  # of `then`
PARTS = ((1, 4), (3, 8), (1, 2), (5, 8), (3, 4), (1, 1))  # shares of the limit of activations, for further limits
ASSUMED = ((1, 0), (20, 1), (10, 1), (20, 3), (4, 1), (2, 1), (1, 1))  # time of a forward, time of a transfer


class Space(Protocol[State]):
    """A set of texts. Each text is made from a state."""

    def start(self, rng: random.Random) -> State:
        """Return a state from which a search begins."""
        ...

    def near(self, state: State, rng: random.Random) -> State:
        """Return a state that differs from this one in one choice or one edit, or is equal to it."""
        ...

    def text(self, state: State) -> str:
        """Return the text of a state."""
        ...


@dataclass(frozen=True, slots=True)
class GreedyChoices:
    """What is chosen in a greedy order.

    Attributes:
        kinds: as `prefer` lists them.
        keys: smaller or larger, and the formula of each.
        parts: of each further limit, on F - I or F - B, the share of the limit of activations, as numerator and denominator,
            and its scope: ' per pipe', ' per stage' or '' for the rank.
        assumed: the costs of a forward and of a transfer, for which the scheduler makes the order.
    """

    kinds: tuple[str, ...]
    keys: tuple[tuple[str, str], ...]
    parts: tuple[tuple[tuple[int, int], str], ...]
    assumed: tuple[int, int]


class GreedyTexts:
    """The texts with `order greedy`: kinds, keys, limits and assumed costs are drawn from the tables above."""

    def __init__(self, schedule: n.Schedule, activations: str) -> None:
        """Read what all texts of the space have in common.

        Args:
            activations: the formula of the most that a rank may hold, or '' for no limit.
        """
        self._activations = activations
        kept = tuple(s for s in schedule.statements if not isinstance(s, n.Order | n.CostStatement))
        self._head = print_schedule(replace(schedule, statements=kept))
        # By kind of task, or hop: what follows its name, '(s)' if the cost is a formula in the stage s, else ''; and the cost.
        self._costs = {c.kind.name: (f"({c.stage.name})" if c.stage else "", expression(c.value)) for c in all_costs(schedule)}

    def start(self, rng: random.Random) -> GreedyChoices:
        keys = tuple((rng.choice(("smaller", "larger")), key) for key in rng.sample(KEYS, 2))
        return GreedyChoices(rng.choice(KINDS), keys, (), rng.choice(ASSUMED))

    def near(self, state: GreedyChoices, rng: random.Random) -> GreedyChoices:
        match rng.randrange(5):
            case 0:
                return replace(state, kinds=rng.choice(KINDS))
            case 1:
                return replace(state, assumed=rng.choice(ASSUMED))
            case 2:
                part = (rng.choice(PARTS), rng.choice(("", " per pipe", " per stage")))
                return replace(state, parts=rng.choice(((), (part,), (*state.parts[:1], part))))
            case 3 if len(state.keys) > 1:
                return replace(state, keys=rng.choice((state.keys[:1], state.keys[::-1], state.keys[1:])))
            case _:
                key, place = (rng.choice(("smaller", "larger")), rng.choice(KEYS)), rng.randrange(2)
                return replace(state, keys=(*state.keys[:place], key, *state.keys[place + 1 :]))

    def text(self, state: GreedyChoices) -> str:
        """Return the text. It states the schedule's costs, each multiplied by the assumed cost of a forward, and another hop.

        Where the schedule gives no cost of F, I or W, the default of the language is stated.
        """
        forward, hop = state.assumed
        costs = {"F": ("", "1"), "I": ("", "1"), "W": ("", "1")} | {k: v for k, v in self._costs.items() if k != "hop"}
        given = [f"{kind}{stage} = {_times(forward, value)}" for kind, (stage, value) in costs.items()]
        first, last = ("B", "B") if "B" in state.kinds else ("I", "W")
        lines = [f"cost {', '.join([*given, f'hop = {hop}'])}", f"prefer {', '.join(state.kinds)}"]
        lines += [f"then {', '.join(f'{word} {key}' for word, key in state.keys)}"] if state.keys else []
        lines += [f"limit F - {last} <= {self._activations}"] if self._activations else []
        parts = state.parts if self._activations else ()
        lines += [f"limit F - {first} <= {_part(part, self._activations)}{scope}" for part, scope in parts]
        return f"{self._head}order greedy {{\n" + "".join(f"    {line}\n" for line in lines) + "}\n"


def _times(factor: int, value: str) -> str:
    """Return the formula of a factor times a formula."""
    if factor == 1 or value == "1":
        return value if factor == 1 else str(factor)
    return f"{factor}*{value}" if value.isidentifier() else f"{factor}*({value})"


def _part(part: tuple[int, int], of: str) -> str:
    """Return the formula of a part of a limit, at least 1.

    Args:
        part: numerator and denominator.
        of: the formula of the limit.
    """
    numerator, denominator = part
    whole = f"({of})" if not of.isidentifier() and not of.isdigit() else of
    times = whole if numerator == 1 else f"{numerator}*{whole}"
    return f"max(1, {times}{f' // {denominator}' if denominator > 1 else ''})"


class TickTexts:
    """The texts with `order ticks` that follow from one another by an edit of `tick_edits` (compiler/diagnose/edits/ticks.py).

    Such an edit changes a number, a coefficient, a sign, a division or the direction of counting in a formula of a tick, a let
    or a placement, or it shifts a tick.
    """

    def __init__(self, schedule: n.Schedule) -> None:
        self._text = print_schedule(schedule)

    def start(self, rng: random.Random) -> str:
        return self._text

    def near(self, state: str, rng: random.Random) -> str:
        schedule = parse(Source("text", state))
        order = next(s for s in schedule.statements if isinstance(s, n.Ticks))
        moved: list[n.Rule | n.Fill] = [*order.rules, *order.fills]  # those whose ticks may be shifted
        edits = list(islice(chain.from_iterable(tick_edits(schedule, moved, "+-")), MAX_EDITS))
        return edited(rng.choice(edits)) if edits else state

    def text(self, state: str) -> str:
        return state
