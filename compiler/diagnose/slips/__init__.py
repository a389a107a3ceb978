"""Common mistakes in schedules, many of them habits of other languages: for each a change to try, or advice.

A change is suggested only if the parser gets further in the changed text than in the original one (unexpected.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.slips.blocks import missing_openings, orders, pipes, wrong_blocks
from chimerac.compiler.diagnose.slips.change import Answer, Change
from chimerac.compiler.diagnose.slips.listings import bodies, loops, ranges
from chimerac.compiler.diagnose.slips.statements import greedy_lines, names, settings
from chimerac.compiler.diagnose.slips.ticks import at_and_when, heads
from chimerac.compiler.diagnose.slips.values import brackets, conditional_expressions, symbols

__all__ = ["Answer", "Change", "answers"]

# Each function yields answers to the mistakes that its docstring names. The most specific functions come first.
_MISTAKES = (
    wrong_blocks,
    heads,
    at_and_when,
    conditional_expressions,
    loops,
    bodies,
    ranges,
    pipes,
    orders,
    missing_openings,
    names,
    settings,
    greedy_lines,
    symbols,
    brackets,
)


def answers(p: Place) -> Iterator[Answer]:
    """Yield what the author of a text may have meant, the most specific answers first."""
    for answers_to in _MISTAKES:
        yield from answers_to(p)
