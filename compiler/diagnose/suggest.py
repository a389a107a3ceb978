"""Changes to the text of an order that deadlocks, or leaves tasks out, or has two on one tick, each tried before one is
suggested.

Of those that work the one with the least makespan is suggested, of those the one that holds the fewest activations, and
then the one that leaves the order of tasks most as it was written. Two tasks on one tick are no reason to turn an order
round: there the order among tasks of one kind comes first. Larger amounts are tried last.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Span
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Ints, Program
from chimerac.compiler.diagnose.edits import Edit, edited, far_ticks, of_conditions, of_counts, of_listing, of_ticks
from chimerac.compiler.syntax import nodes as n

MAX_TRIED = 1_000_000  # tasks ordered for the sake of a suggestion; a character of the text is worth as much as many tasks
A_CHARACTER = 10
MAX_NOTED = 5  # findings that have the same cause

Sizes = Mapping[str, int]
_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class Tried:
    """What a changed text comes to. tasks: its order."""

    makespan: int
    activations: int
    tasks: Program


@dataclass
class Trials:
    """What is tried, and how often. attempt: a changed text under these parameters, None where it is refused; sizes: the
    parameters as given, then others under which the schedule should work too; tasks: how many; how: with which option;
    limited: there are limits, which at other sizes are not kept to."""

    attempt: Callable[[str, Sizes], Tried | None]
    sizes: Sequence[Sizes]
    tasks: int
    how: str
    limited: bool = False
    spent: int = 0

    def costs(self, text: str, size: Sizes) -> Tried | None:
        """Return what a text comes to, None where it is refused, or too much has been tried."""
        self.spent += self.tasks + A_CHARACTER * len(_COMMENT.sub("", text))
        return None if self.spent > MAX_TRIED else self.attempt(text, size)

    def best(
        self, edits: Sequence[Iterator[Edit]], first: bool = False, written: Program | None = None, keep: bool = False
    ) -> str:
        """Return the edit under which the order runs at all sizes in the least time, or the first one; else nothing.

        edits: those that change less before the others; written: the order that the text has; keep: leave the order among
        tasks of one kind as it is, if that is possible.
        """
        found: list[tuple[tuple[int, ...], Tried, Edit]] = []
        for change, edit in ((k, edit) for k, some in enumerate(edits) for edit in some):
            text = edited(edit)
            tried = self.costs(text, self.sizes[0])
            if tried is not None and all(self.costs(text, size) is not None for size in self.sizes[1:]):
                every, alike = _moved(written, tried.tasks) if written is not None else (0, 0)
                held = (change, tried.activations) if keep else (tried.activations, change)
                found.append(((alike if keep else 0, tried.makespan, *held, every), tried, edit))
                if first:
                    break
        if not found:
            return ""
        _, tried, edit = min(found, key=lambda x: x[0])
        said = [
            f"{span}: " + (f"write '{new}' instead of '{span.text}'" if new else f"remove '{span.text}'") for span, new in edit
        ]
        sizes = " and with ".join(" ".join(f"{k}={v}" for k, v in size.items()) for size in self.sizes)
        beyond = ", there without the limits" if self.limited else ""
        return (
            "\n".join(said)
            + f"; tried{' with ' if sizes else ''}{sizes}{beyond}: it then runs{self.how}, "
            + f"makespan {tried.makespan}, activations {tried.activations}"
        )


def _keys(p: Program) -> Ints:
    """Return one number for each task of a program, whatever its order."""
    h, x = p.header, p.table
    return ((x.op.astype(np.int64) * len(h.pipes) + x.pipe) * h.stages + x.stage) * len(p.batches) + x.batch


def _moved(written: Program, other: Program) -> tuple[int, int]:
    """Return how many tasks follow one that they preceded as written: of all that a rank runs, and of those of one kind."""
    before, after = _keys(written), _keys(other)
    if len(before) != len(after) or (np.sort(before) != np.sort(after)).any():
        return 0, 0
    place = np.argsort(before)[np.searchsorted(np.sort(before), after)]
    kind = np.where(other.table.op == Op.BWD_INPUT, Op.BWD, other.table.op)
    by_kind = np.lexsort((kind, other.rank_of))  # stable
    every = (np.diff(place) < 0) & (np.diff(other.rank_of) == 0)
    group = other.rank_of[by_kind] * 8 + kind[by_kind]
    alike = (np.diff(place[by_kind]) < 0) & (np.diff(group) == 0)
    return int(every.sum()), int(alike.sum())


def suggest_edit(schedule: n.Schedule, early: Sequence[Span], trials: Trials, written: Program | None = None) -> str:
    """Return an edit under which a deadlocked order runs, having tried it; nothing if none that was tried does.

    early: what orders the tasks that come too early; written: the order as it is.
    """
    order = next(s for s in schedule.statements if isinstance(s, n.Order))
    match order:
        case n.Ticks():
            rules = [rule for rule in order.rules if rule.span in early]
            near = trials.best(of_ticks(schedule, rules, "+"), written=written)
            return near or trials.best(far_ticks(schedule, rules, "+"), first=True)
        case n.Listing():
            return trials.best(of_listing(schedule, order), written=written)
        case n.Greedy():
            return ""


def suggest_order(error: ChimeraError, schedule: n.Schedule, trials: Trials, written: Program | None) -> ChimeraError:
    """Return the findings of an order that is none, the first with an edit that was tried: two tasks of a rank on one tick,
    tasks that are missing or twice. Where an edit mends them all, the others are notes of the first.

    written: the order of two tasks on one tick, one of them first.
    """
    first, *others = error.diagnostics
    order = next(s for s in schedule.statements if isinstance(s, n.Order))
    help = ""
    if isinstance(order, n.Ticks) and first.code == "E303":
        others = []  # their tasks come apart too
        help = trials.best(of_ticks(schedule, order.rules, "+-"), written=written, keep=True)
        help = help or trials.best(far_ticks(schedule, order.rules, "+-"), first=True)
    elif isinstance(order, n.Ticks) and first.code in ("E301", "E302"):
        help = trials.best([of_conditions(order.rules)], first=True)
    elif isinstance(order, n.Listing) and first.code in ("E301", "E302", "E306"):
        help = trials.best(of_counts(schedule, order), first=True)
    if not help:
        return error
    more = "" if len(others) <= MAX_NOTED else f"\n... and {len(others) - MAX_NOTED} more"
    notes = ("\n".join(d.message for d in others[:MAX_NOTED]) + more,) if others else ()
    return ChimeraError([replace(first, notes=(*first.notes, *notes), help=help)])
