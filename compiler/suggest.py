"""Changes to the text of an order that deadlocks, or has two tasks on one tick, each tried before one is suggested."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from chimera_ir import limits
from chimera_ir.diagnostics import ChimeraError, Span
from compiler.resolve.expressions import spent
from compiler.syntax import nodes as n

MAX_EDITS = 100
MAX_TRIED = 2_000_000  # tasks ordered, and characters read, for the sake of a suggestion
_AMOUNTS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
# What is added to a tick, or taken away: a constant, else a multiple of the stage.
SHIFTS = [("+", str(k)) for k in _AMOUNTS] + [(sign, f"{k}*s") for sign in "+-" for k in _AMOUNTS]
SMALL_SHIFTS = [(sign, str(k)) for k in _AMOUNTS[:6] for sign in "-+"] + [(sign, f"{k}*s") for k in (1, 2) for sign in "-+"]

Edit = tuple[Span, str]


def suggest_edit(schedule: n.Schedule, early: Sequence[Span], runs: Callable[[str], bool], tasks: int) -> str:
    """Return the first small edit under which a deadlocked order runs, having tried it; nothing if none that was tried does.

    early: what orders the tasks that come too early; tasks: how many there are, which bounds what is tried.
    """
    order = next(s for s in schedule.statements if isinstance(s, n.Order))
    edits: Iterator[Edit] = iter(())
    match order:
        case n.Ticks():
            edits = _other_ticks([rule for rule in order.rules if rule.span in early], SHIFTS)
        case n.Listing():
            ranks = next(s.value for s in schedule.statements if isinstance(s, n.Setting) and s.what == "ranks")
            edits = _other_counts(order, ranks)
    return _first(edits, runs, tasks)


def suggest_shift(error: ChimeraError, schedule: n.Schedule, runs: Callable[[str], bool], tasks: int) -> ChimeraError:
    """Return the findings of an order that puts two tasks of a rank on one tick, the first with an edit that was tried."""
    rules = [rule for order in schedule.statements if isinstance(order, n.Ticks) for rule in order.rules]
    first, *others = error.diagnostics
    help = _first(_other_ticks(rules[::-1], SMALL_SHIFTS), runs, tasks) if first.code == "E303" else ""
    return ChimeraError([replace(first, help=help or first.help), *others])


def _first(edits: Iterator[Edit], runs: Callable[[str], bool], tasks: int) -> str:
    work = 0
    for tried, (span, new) in enumerate(islice(edits, MAX_EDITS), 1):
        if tried * max(tasks, len(span.source.text)) > MAX_TRIED or work > limits.WORK // 4:
            break
        lines = span.source.text.split("\n")
        line = lines[span.line - 1]
        old = line[span.column - 1 : span.end_column - 1]
        lines[span.line - 1] = line[: span.column - 1] + new + line[span.end_column - 1 :]
        found = runs("\n".join(lines))
        work += spent()
        if found:
            return f"{span.source.name}:{span.line}: write '{new}' instead of '{old}'; tried: the order then runs"
    return ""


def _text(e: n.Expr, inside: bool = False) -> str:
    """Return the text of an expression on one line, in parentheses where an operator beside it would tear it apart."""
    text = e.span.source.line(e.span.line)[e.span.column - 1 : e.span.end_column - 1]
    return f"({text})" if inside and not isinstance(e, n.Int | n.Name | n.Call) else text


def _other_ticks(rules: list[n.Rule], shifts: Sequence[tuple[str, str]]) -> Iterator[Edit]:
    """Yield ticks with something added or taken away."""
    for sign, amount in shifts:
        for rule in (rule for rule in rules if rule.tick.span.line == rule.tick.span.end_line):
            tick = _text(rule.tick, inside=isinstance(rule.tick, n.IfElse))
            yield rule.tick.span, f"{tick} {sign} {amount.replace('s', rule.stage.name)}"


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
