"""The edits that are tried for an order that deadlocks, has too few or too many tasks, or two tasks of a rank on one tick.

For two tasks on one tick, edits that keep the order among tasks of one kind are preferred. Edits that shift ticks by large
amounts are tried only if no other edit helps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from chimerac.chimera_ir.diagnostics import ChimeraError, Span
from chimerac.chimera_ir.program import Program
from chimerac.compiler.diagnose.edits import condition_edits, count_edits, distant_tick_edits, listing_edits, tick_edits
from chimerac.compiler.diagnose.trials import Trials
from chimerac.compiler.order.ticks import order_with_ties
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.spec import Spec, TicksOrder
from chimerac.compiler.syntax import nodes as n

MAX_NOTED = 5  # findings with the same cause that notes list


def suggest_edit(schedule: n.Schedule, early: Sequence[Span], trials: Trials, written: Program | None = None) -> str:
    """Return the help with an edit that was tried, under which a deadlocked order runs. Return '' if none was found.

    Args:
        early: the spans of the text that orders tasks of the cycle too early; in an order by ticks, amounts are added only to
            the ticks of these rules and fills.
        written: the tasks in the original order; None: how many tasks an edit reorders does not count.
    """
    order = next(s for s in schedule.statements if isinstance(s, n.Order))
    match order:
        case n.Ticks():
            rules = [rule for rule in _rules_and_fills(order) if rule.span in early]
            near = trials.best(tick_edits(schedule, rules, directions="+"), original=written)
            return near or trials.best(distant_tick_edits(schedule, rules, directions="+"), take_first=True)
        case n.Listing():
            return trials.best(listing_edits(schedule, order), original=written)
        case n.Greedy():
            return ""


def _rules_and_fills(order: n.Ticks) -> list[n.Rule | n.Fill]:
    """Return the rules and the fills of an order, which place its tasks."""
    return [*order.rules, *order.fills]


def suggest_edit_of_order(
    error: ChimeraError, schedule: n.Schedule, spec: Spec, trials: Trials, budget: Budget
) -> ChimeraError:
    """Return the findings about an order with two tasks of a rank on one tick, or with missing, duplicated or unknown tasks.

    If an edit that was tried corrects them all, only the first finding remains, with the edit as its help. If there were other
    findings, it gets one more note with their messages, at most MAX_NOTED, and how many more there are. If the first finding is
    about two tasks on one tick, it gets no such note.

    Args:
        budget: of the operations that computing the original order may take.
    """
    first, *others = error.diagnostics
    order = next(s for s in schedule.statements if isinstance(s, n.Order))
    help = ""
    if isinstance(order, n.Ticks) and first.code == "E303":
        others = []  # an edit is suggested only if it separates the tasks of these findings too
        written = order_with_ties(spec, spec.order, budget)[0].program if isinstance(spec.order, TicksOrder) else None
        rules = _rules_and_fills(order)
        help = trials.best(tick_edits(schedule, rules, directions="+-"), original=written, keep_order=True)
        help = help or trials.best(distant_tick_edits(schedule, rules, directions="+-"), take_first=True)
    elif isinstance(order, n.Ticks) and first.code in ("E301", "E302"):
        help = trials.best([condition_edits(order.rules)], take_first=True)
    elif isinstance(order, n.Listing) and first.code in ("E301", "E302", "E306"):
        help = trials.best(count_edits(schedule, order), take_first=True)
    if not help:
        return error
    more = "" if len(others) <= MAX_NOTED else f"\n... and {len(others) - MAX_NOTED} more"
    notes = ("\n".join(d.message for d in others[:MAX_NOTED]) + more,) if others else ()
    return ChimeraError([replace(first, notes=(*first.notes, *notes), help=help)])
