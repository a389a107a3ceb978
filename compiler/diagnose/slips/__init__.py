"""Common mistakes in schedules, many of them habits of other languages: for each a change to try, or advice.

A change is suggested only if the changed text can be read beyond the place of the error (unexpected.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.slips.blocks import openings, orders, pipes, wrong_blocks
from chimerac.compiler.diagnose.slips.change import Answer, Change
from chimerac.compiler.diagnose.slips.listings import bodies, loops, ranges
from chimerac.compiler.diagnose.slips.statements import lines, names, settings
from chimerac.compiler.diagnose.slips.ticks import heads, times
from chimerac.compiler.diagnose.slips.values import brackets, choices, symbols

__all__ = ["Answer", "Change", "answers"]

_RULES = (
    wrong_blocks,
    heads,
    times,
    choices,
    loops,
    bodies,
    ranges,
    pipes,
    orders,
    openings,
    names,
    settings,
    lines,
    symbols,
    brackets,
)


def answers(p: Place) -> Iterator[Answer]:
    """Yield what the author of a text may have meant; the most specific rules come first."""
    for rule in _RULES:
        yield from rule(p)
