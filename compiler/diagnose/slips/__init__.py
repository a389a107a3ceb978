"""What authors write by mistake or from other languages, and what it should be: changes to try, or advice in words.

A change is suggested only if the changed text can be read beyond the place of the error (unexpected.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.compiler.diagnose.place import Place
from chimerac.compiler.diagnose.slips.blocks import home, openings, orders, pipes
from chimerac.compiler.diagnose.slips.change import Answer, Change
from chimerac.compiler.diagnose.slips.listings import bodies, loops, ranges
from chimerac.compiler.diagnose.slips.statements import lines, names, settings
from chimerac.compiler.diagnose.slips.ticks import heads, times
from chimerac.compiler.diagnose.slips.values import brackets, choices, signs

__all__ = ["Answer", "Change", "answers"]

_RULES = (home, heads, times, choices, loops, bodies, ranges, pipes, orders, openings, names, settings, lines, signs, brackets)


def answers(p: Place) -> Iterator[Answer]:
    """Yield what the author of a text may have meant; the most specific rules come first."""
    for rule in _RULES:
        yield from rule(p)
