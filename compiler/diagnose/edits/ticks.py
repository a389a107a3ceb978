"""Edits of a schedule with `order ticks`: of its ticks, conditions and lets, and of the placement of stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import TypeVar

from chimerac.compiler.diagnose.edits.text import (
    Edit,
    changed_constants,
    changed_divisions,
    changed_strictness,
    first_parameters,
    flipped_signs,
    from_the_end,
    is_on_one_line,
    negated,
    parameters,
    renamed,
    scaled,
    setting,
)
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import as_term, as_written, shifted

# Amounts by which the tick of a rule or a fill is shifted, as text. `4*` means 4 times the stage in a rule, and 4 times the
# rank in a fill.
SMALL_AMOUNTS = ("1", "2")
STAGE_AMOUNTS = ("1*", "2*")
FAR_AMOUNTS = (*(str(2**k) for k in range(3, 11)), *(f"{2**k}*" for k in range(2, 11)))

R = TypeVar("R", bound=n.Rule | n.Fill)


def tick_edits(schedule: n.Schedule, moved: Sequence[n.Rule | n.Fill], directions: str) -> list[Iterator[Edit]]:
    """Return edits of formulas in two groups.

    The first group changes numbers and coefficients, and adds amounts to ticks. The second changes signs, the direction of
    counting, divisions and placements, and adds multiples of the stage (in a fill, of the rank) to ticks.

    Args:
        moved: the rules and fills to whose ticks amounts are added; the other edits do not depend on it.
        directions: '+' for later ticks, '-' for earlier ones, '+-' for both.
    """
    order = next(s for s in schedule.statements if isinstance(s, n.Ticks))
    rules, lets = _on_one_line(order.rules), [let.value for let in order.lets if is_on_one_line(let.value)]
    ticks = [rule.tick for rule in rules] + [fill.tick for fill in _on_one_line(order.fills)]
    moved = _on_one_line(moved)[::-1]
    names = parameters(schedule)
    constant_edits = chain(
        (((e.span, new),) for e in ticks for new in changed_constants(e)),
        _shift_edits(moved, SMALL_AMOUNTS, directions),
        (((e.span, new),) for e in (*ticks, *lets) for new in scaled(e, names, fixed=False)),
        (((e.span, new),) for e in lets for new in changed_constants(e)),
        _shift_edits(moved, _near_amounts(schedule), directions),
        (((e.span, new),) for e in (*ticks, *lets) for new in scaled(e, names, fixed=True)),
    )
    other_edits = chain(
        _sign_and_end_edits(schedule, order, rules),
        _shift_edits(moved, STAGE_AMOUNTS, directions),
        (((e.span, new),) for e in lets for new in flipped_signs(e)),
        (((e.span, new),) for e in (*lets, *ticks) for new in changed_divisions(schedule, e)),
        _placement_edits(schedule),
    )
    return [constant_edits, other_edits]


def distant_tick_edits(schedule: n.Schedule, moved: Sequence[n.Rule | n.Fill], directions: str) -> list[Iterator[Edit]]:
    """Return one group of edits that shift ticks by large amounts.

    The amounts are multiples of a parameter, then numbers, then multiples of the stage in a rule and of the rank in a fill.

    Args:
        moved, directions: as in `tick_edits`.
    """
    multiples = [f"{k}*{name}" for k in (2, 3, 4) for name in first_parameters(schedule)]
    return [_shift_edits(_on_one_line(moved)[::-1], (*multiples, *FAR_AMOUNTS), directions)]


def condition_edits(rules: Sequence[n.Rule]) -> Iterator[Edit]:
    """Yield edits of `when`.

    They exchange < and <=, or > and >=, or change a number, or give a rule the negated condition of another rule with the same
    kind of task and the same pipe.
    """
    conditions = [(rule, rule.condition) for rule in rules if rule.condition and is_on_one_line(rule.condition)]
    for _, condition in conditions:
        yield from (((condition.span, new),) for new in changed_strictness(condition))
        yield from (((condition.span, new),) for new in changed_constants(condition))
    for rule, condition in conditions:
        for other_rule in (x for x in rules if x is not rule and x.kind.name == rule.kind.name and x.pipe == rule.pipe):
            # Each rule has its own names for stage and micro-batch.
            new_names = {rule.stage.name: other_rule.stage.name, rule.micro_batch.name: other_rule.micro_batch.name}
            opposite = renamed(negated(condition), new_names)
            if other_rule.condition is not None and is_on_one_line(other_rule.condition):
                yield ((other_rule.condition.span, opposite),)
            elif other_rule.condition is None and other_rule.span.line == other_rule.tick.span.line:
                head = replace(other_rule.span, end_line=other_rule.tick.span.line, end_column=other_rule.tick.span.column)
                end = head.text.rindex("at") + len("at")  # a parenthesis of the tick may follow
                head = replace(head, end_column=head.column + end)
                yield ((head, f"{head.text.removesuffix('at').rstrip()} when {opposite} at"),)


def _on_one_line(rules: Sequence[R]) -> list[R]:
    """Return the rules or fills whose tick is on one line."""
    return [rule for rule in rules if is_on_one_line(rule.tick)]


def _sign_and_end_edits(schedule: n.Schedule, order: n.Ticks, rules: Sequence[n.Rule]) -> Iterator[Edit]:
    """Yield edits of ticks of rules that change a sign, or reverse the direction in which the stage or a let is counted."""
    for rule in rules:
        tick, stage = rule.tick, rule.stage.name
        yield from (((tick.span, new),) for new in flipped_signs(tick))
        reversed_ticks = [renamed(as_written(tick), {stage: from_the_end(setting(schedule, "stages"), stage)})]
        reversed_ticks += [
            renamed(as_written(tick), {let.name.name: f"({name} - 1 - {let.name.name})"})
            for let in order.lets
            for name in first_parameters(schedule)
        ]
        yield from (((tick.span, new),) for new in dict.fromkeys(reversed_ticks) if new != as_written(tick))


def _placement_edits(schedule: n.Schedule) -> Iterator[Edit]:
    """Yield edits of pipes that place stages on other ranks: counted from the other end, or with another division.

    If a schedule has only one pipe statement, the ranks are not counted from the other end. With one stage clause, that would
    only give the ranks other numbers, and tasks would wait as before.
    """
    last_rank = f"{as_term(setting(schedule, 'ranks'))} - 1"
    pipes = [s for s in schedule.statements if isinstance(s, n.PipeDecl)]
    for pipe in pipes[::-1]:
        for clause in (c for c in pipe.stages if is_on_one_line(c.rank)):
            if len(pipes) > 1:
                yield ((clause.rank.span, f"{last_rank} - {as_written(clause.rank, inside=True)}"),)
            yield from (((clause.rank.span, new),) for new in changed_divisions(schedule, clause.rank))


def _near_amounts(schedule: n.Schedule) -> list[str]:
    """Return the amounts that are tried after SMALL_AMOUNTS, in this order."""
    with_parameters = [amount for name in first_parameters(schedule) for amount in (f"({name} - 1)", name)]
    return ["3", *with_parameters, "4", "5", "6"]


def _shift_edits(rules: Sequence[n.Rule | n.Fill], amounts: Sequence[str], directions: str) -> Iterator[Edit]:
    """Yield edits that add an amount to ticks or subtract it.

    An amount like `4*` is a multiple of the stage in a rule, and of the rank in a fill.
    """
    for amount, rule, sign in product(amounts, rules, directions):
        if amount.isdigit():
            new = shifted(rule.tick, int(f"{sign}{amount}"))
        else:
            counted = rule.stage if isinstance(rule, n.Rule) else rule.rank
            written = f"{amount.removeprefix('1*')}{counted.name}" if amount.endswith("*") else amount
            new = f"{as_term(rule.tick)} {sign} {written}"
        yield ((rule.tick.span, new),)
