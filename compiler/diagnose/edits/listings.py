"""Edits of a listing: of its counts, bounds, conditions and stages, and of the order of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, pairwise

from chimerac.compiler.diagnose.edits.text import (
    Edit,
    changed_constants,
    changed_strictness,
    first_parameters,
    flipped_signs,
    from_the_end,
    is_on_one_line,
    renamed,
    setting,
)
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import as_term, as_written, shifted


def listing_edits(schedule: n.Schedule, listing: n.Listing) -> list[Iterator[Edit]]:
    """Return edits of a listing whose ranks wait for each other, in two groups.

    The first group changes counts and lower bounds. The second changes a sign, counts ranks or stages from the other end,
    groups tasks in another way, or swaps two tasks.
    """
    other_edits = chain(
        _sign_and_rank_edits(schedule, listing), _regroup_edits(listing.actions), _reversed_stage_edits(listing.actions)
    )
    return [_count_changes(listing), other_edits]


def count_edits(schedule: n.Schedule, listing: n.Listing) -> list[Iterator[Edit]]:
    """Return edits of a listing that has too many or too few tasks, in two groups.

    The first group changes counts, lower bounds and conditions. The second changes a sign, or counts ranks from the other end.
    """
    counts = list(_counts(listing.actions))
    lets = [a.name.name for a in listing.actions if isinstance(a, n.Let)]
    first_edits = chain(
        _count_changes(listing),
        (((c.span, new),) for c in _conditions(listing.actions) for new in changed_strictness(c)),
        (((e.span, f"{as_term(e)} {sign} {name}"),) for sign in "-+" for e in counts for name in lets),
        (((e.span, f"min({name}, {as_written(e)})"),) for e in counts for name in first_parameters(schedule)),
    )
    return [first_edits, _sign_and_rank_edits(schedule, listing)]


def _nested(actions: tuple[n.Action, ...]) -> Iterator[n.Action]:
    """Yield all actions, also those inside loops and conditions; a loop or condition comes right before its own actions."""
    for a in actions:
        yield a
        match a:
            case n.Repeat():
                yield from _nested(a.body)
            case n.Choice():
                yield from _nested(a.then + a.otherwise)
            case _:
                pass


def _counts(actions: tuple[n.Action, ...]) -> Iterator[n.Expr]:
    """Yield the counts and upper bounds of loops, and the values of lets, that are on one line. All are called counts here."""
    counts = (a.value if isinstance(a, n.Let) else a.count for a in _nested(actions) if isinstance(a, n.Let | n.Repeat))
    return filter(is_on_one_line, counts)


def _lows(actions: tuple[n.Action, ...]) -> Iterator[n.Expr]:
    """Yield the lower bounds of loops that are on one line."""
    return (a.low for a in _nested(actions) if isinstance(a, n.Repeat) and a.low is not None and is_on_one_line(a.low))


def _count_changes(listing: n.Listing) -> Iterator[Edit]:
    """Yield edits of counts (see `_counts`): one number in a count is changed, then a whole count is 1 more or 1 less.

    Then yield the same edits of lower bounds.
    """
    for counts in (list(_counts(listing.actions)), list(_lows(listing.actions))):
        yield from (((e.span, new),) for e in counts for new in changed_constants(e))
        for amount in (1, -1):
            yield from (((e.span, shifted(e, amount)),) for e in counts)


def _conditions(actions: tuple[n.Action, ...]) -> Iterator[n.Expr]:
    """Yield the conditions of a listing that are on one line."""
    return (a.condition for a in _nested(actions) if isinstance(a, n.Choice) and is_on_one_line(a.condition))


def _sign_and_rank_edits(schedule: n.Schedule, listing: n.Listing) -> Iterator[Edit]:
    """Yield edits of counts: the rank r becomes ranks - 1 - r or ranks - r, in one count or in all that have it.

    Then yield edits that change a sign.
    """
    rank, counts = listing.rank.name, list(_counts(listing.actions))
    ranks = setting(schedule, "ranks")
    for new_rank in (from_the_end(ranks, rank), f"({as_written(ranks, inside=True)} - {rank})"):
        in_all = tuple((e.span, new) for e in counts if (new := renamed(as_written(e), {rank: new_rank})) != as_written(e))
        yield from ((in_one,) for in_one in in_all)
        if len(in_all) > 1:
            yield in_all
    for e in counts:
        yield from (((e.span, new),) for new in flipped_signs(e))


def _regroup_edits(actions: tuple[n.Action, ...]) -> Iterator[Edit]:
    """Yield edits that group tasks in another way.

    A loop `repeat N { F  B }` becomes two, `repeat N { F }  repeat N { B }`. Two neighbouring loops with the same head become
    one. An overlapped pair becomes two tasks. Two neighbouring tasks on one line are swapped. A loop that is on more than one
    line is neither cut nor joined, but what is inside it may be.
    """
    for a in actions:
        match a:
            case n.Repeat():
                yield from _regroup_edits(a.body)
                if is_on_one_line(a):
                    head, body, end = _parts(a)
                    for before, cut in pairwise(a.body):
                        if isinstance(before, n.TaskAction) and before.overlap:
                            continue  # both tasks of a pair stay in one loop
                        at = cut.span.column - a.span.column - len(head)  # where the second loop's actions begin in `body`
                        yield ((a.span, f"{head}{body[:at].rstrip()}{end}  {head} {body[at:]}{end}"),)
            case n.Choice():
                yield from _regroup_edits(a.then)
                yield from _regroup_edits(a.otherwise)
            case _:
                pass
    for a, b in pairwise(actions):
        if not (is_on_one_line(a) and is_on_one_line(b)):
            continue
        span = replace(a.span, end_column=b.span.end_column)  # of both, if they are on the same line
        if isinstance(a, n.TaskAction) and isinstance(b, n.TaskAction) and a.span.line == b.span.line:
            swapped = f"{b.span.text}  {a.span.text}"
            yield ((span, f"{a.span.text}  {b.span.text}" if a.overlap else swapped),)
        if isinstance(a, n.Repeat) and isinstance(b, n.Repeat):
            (head, body, end), (other_head, other_body, _) = _parts(a), _parts(b)
            if head == other_head:
                new = f"{head}{body}  {other_body.lstrip()}{end}"
                yield ((span, new),) if a.span.line == b.span.line else ((a.span, new), (b.span, ""))


def _reversed_stage_edits(actions: tuple[n.Action, ...], around: tuple[n.Repeat, ...] = ()) -> Iterator[Edit]:
    """Yield edits that reverse the direction in which the stage of a task counts with the index of a loop around it.

    Args:
        around: the loops around the actions, the outermost first.
    """
    for a in actions:
        match a:
            case n.Repeat():
                yield from _reversed_stage_edits(a.body, (*around, a))
            case n.Choice():
                yield from _reversed_stage_edits(a.then + a.otherwise, around)
            case n.TaskAction() if a.stage is not None and is_on_one_line(a.stage):
                for loop in around:
                    if loop.binder and loop.low:  # its index i becomes HIGH + LOW - i
                        ends = [as_written(loop.count, inside=True), as_written(loop.low, inside=True)]
                        down = f"({' + '.join(x for x in ends if x != '0') or '0'} - {loop.binder.name})"
                        new = renamed(as_written(a.stage), {loop.binder.name: down})
                        if new != as_written(a.stage):
                            yield ((a.stage.span, new),)
            case _:
                pass


def _parts(loop: n.Repeat) -> tuple[str, str, str]:
    """Return the text of a loop on one line in three parts: the head with the opening brace, the actions, and the rest."""
    text, begin = loop.span.text, loop.span.column
    if not loop.body:
        return text[:-1], "", text[-1:]
    head, end = text[: loop.body[0].span.column - begin].rstrip(), loop.body[-1].span.end_column - begin
    return head, text[len(head) : end], text[end:]
