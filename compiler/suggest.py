"""Changes to the text of an order that deadlocks, each tried before one is suggested."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from chimera_ir.diagnostics import Span
from compiler.syntax import nodes as n

AMOUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 128, 256, 512, 1024)  # added to a tick

Edit = tuple[Span, str]


def suggest_edit(schedule: n.Schedule, early: Sequence[Span], runs: Callable[[str], bool], most: int) -> str:
    """Return the first small edit under which the order runs, having tried it; nothing if none of the first `most` does.

    early: what orders the tasks that come too early.
    """
    for span, new in islice(_edits(schedule, early), most):
        lines = span.source.text.split("\n")
        line = lines[span.line - 1]
        old = line[span.column - 1 : span.end_column - 1]
        lines[span.line - 1] = line[: span.column - 1] + new + line[span.end_column - 1 :]
        if runs("\n".join(lines)):
            return f"{span.source.name}:{span.line}: write '{new}' instead of '{old}'; tried: the order then runs"
    return ""


def _edits(schedule: n.Schedule, early: Sequence[Span]) -> Iterator[Edit]:
    order = next(s for s in schedule.statements if isinstance(s, n.Order))
    match order:
        case n.Ticks():
            yield from _later_ticks([rule for rule in order.rules if rule.span in early])
        case n.Listing():
            ranks = next(s.value for s in schedule.statements if isinstance(s, n.Setting) and s.what == "ranks")
            yield from _other_counts(order, ranks)


def _text(e: n.Expr, inside: bool = False) -> str:
    """Return the text of an expression on one line, in parentheses where an operator beside it would tear it apart."""
    text = e.span.source.line(e.span.line)[e.span.column - 1 : e.span.end_column - 1]
    return f"({text})" if inside and not isinstance(e, n.Int | n.Name | n.Call) else text


def _later_ticks(rules: list[n.Rule]) -> Iterator[Edit]:
    """Yield ticks with a constant added, then with a multiple of the stage added or taken away."""
    rules = [rule for rule in rules if rule.tick.span.line == rule.tick.span.end_line]
    for sign, of_stage in (("+", False), ("+", True), ("-", True)):
        for amount in AMOUNTS:
            for rule in rules:
                tick = _text(rule.tick, inside=isinstance(rule.tick, n.IfElse))
                yield rule.tick.span, f"{tick} {sign} {amount}" + (f"*{rule.stage.name}" if of_stage else "")


def _other_counts(listing: n.Listing, ranks: n.Expr) -> Iterator[Edit]:
    """Yield the counts of loops, and what is given a name, counted from the other end of the ranks, one more, one less."""
    found = [e for e in _counts(listing.actions) if e.span.line == e.span.end_line]
    mirrored = f"({ranks.value - 1 if isinstance(ranks, n.Int) else f'{_text(ranks, inside=True)} - 1'} - {listing.rank.name})"
    for e in found:
        turned = re.sub(rf"\b{listing.rank.name}\b", mirrored, _text(e))
        if turned != _text(e):
            yield e.span, turned
    for sign in "+-":
        for e in found:
            yield e.span, f"{_text(e, inside=isinstance(e, n.IfElse))} {sign} 1"


def _counts(actions: tuple[n.Action, ...]) -> Iterator[n.Expr]:
    for a in actions:
        match a:
            case n.Let():
                yield a.value
            case n.Repeat():
                yield a.count
                yield from _counts(a.body)
            case n.Choice():
                yield from _counts(a.then)
                yield from _counts(a.otherwise)
            case n.TaskAction():
                pass
