"""Edits of a schedule with `order ticks`: of the ticks and conditions of its rules, and of the placement of stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, product

from chimerac.compiler.diagnose.edits.text import (
    Edit,
    bounds,
    changed_constants,
    divided,
    first_parameters,
    flipped_signs,
    from_the_end,
    one_line,
    opposite,
    parameters,
    renamed,
    scaled,
    setting,
)
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import as_term, as_written, shifted

# Amounts by which the ticks of a rule are shifted. `4*` means 4 times the stage.
NEAR_AMOUNTS = ("4", "5", "6")
STAGE_AMOUNTS = ("1*", "2*")
FAR_AMOUNTS = (*(str(2**k) for k in range(3, 11)), *(f"{2**k}*" for k in range(2, 11)))


def tick_edits(schedule: n.Schedule, moved: Sequence[n.Rule], directions: str) -> list[Iterator[Edit]]:
    """Return edits of an order's formulas: of constants, then of signs and of the direction in which stages are counted.

    moved: the rules whose ticks are shifted; directions: '+' for later, '-' for earlier, or both.
    """
    order = next(s for s in schedule.statements if isinstance(s, n.Ticks))
    rules, lets = _on_one_line(order.rules), [let.value for let in order.lets if one_line(let.value)]
    ticks, moved = [rule.tick for rule in rules], _on_one_line(moved)[::-1]
    amounts, fixed = _amounts(schedule), parameters(schedule)
    constants = chain(
        (((e.span, new),) for e in ticks for new in changed_constants(e)),
        _shift_edits(moved, amounts[:2], directions),
        (((e.span, new),) for e in (*ticks, *lets) for new in scaled(e, fixed, False)),
        (((e.span, new),) for e in lets for new in changed_constants(e)),
        _shift_edits(moved, amounts[2:], directions),
        (((e.span, new),) for e in (*ticks, *lets) for new in scaled(e, fixed, True)),
    )
    other_edits = chain(
        _sign_and_end_edits(schedule, rules),
        _shift_edits(moved, STAGE_AMOUNTS, directions),
        (((e.span, new),) for e in lets for new in flipped_signs(e)),
        (((e.span, new),) for e in (*lets, *ticks) for new in divided(schedule, e)),
        _placement_edits(schedule),
    )
    return [constants, other_edits]


def distant_tick_edits(schedule: n.Schedule, moved: Sequence[n.Rule], directions: str) -> list[Iterator[Edit]]:
    """Return edits that shift ticks by large amounts: multiples of a parameter, then constants and multiples of the stage."""
    multiples = [f"{k}*{name}" for k in (2, 3, 4) for name in first_parameters(schedule)]
    return [_shift_edits(_on_one_line(moved)[::-1], (*multiples, *FAR_AMOUNTS), directions)]


def condition_edits(rules: Sequence[n.Rule]) -> Iterator[Edit]:
    """Yield edits of `when`: another comparison, a constant changed by 1 or 2, or the negation of another rule's condition."""
    conditions = [(rule, rule.condition) for rule in rules if rule.condition and one_line(rule.condition)]
    for _, condition in conditions:
        yield from (((condition.span, new),) for new in bounds(condition))
        yield from (((condition.span, new),) for new in changed_constants(condition))
    for rule, condition in conditions:
        for other_rule in (x for x in rules if x is not rule and x.kind.name == rule.kind.name and x.pipe == rule.pipe):
            negated = opposite(condition)
            if other_rule.condition is not None and one_line(other_rule.condition):
                yield ((other_rule.condition.span, negated),)
            elif other_rule.condition is None and other_rule.span.line == other_rule.tick.span.line:
                head = replace(other_rule.span, end_line=other_rule.tick.span.line, end_column=other_rule.tick.span.column)
                head = replace(head, end_column=head.column + len(head.text.rstrip()))
                yield ((head, f"{head.text.removesuffix('at').rstrip()} when {negated} at"),)


def _on_one_line(rules: Sequence[n.Rule]) -> list[n.Rule]:
    return [rule for rule in rules if one_line(rule.tick)]


def _sign_and_end_edits(schedule: n.Schedule, rules: Sequence[n.Rule]) -> Iterator[Edit]:
    """Yield edits of ticks that change a sign, or reverse the direction in which the stage or the value of a let is counted."""
    order = next(s for s in schedule.statements if isinstance(s, n.Ticks))
    for rule in rules:
        tick, stage = rule.tick, rule.stage.name
        yield from (((tick.span, new),) for new in flipped_signs(tick))
        others = [renamed(as_written(tick), stage, from_the_end(setting(schedule, "stages"), stage))]
        others += [
            renamed(as_written(tick), let.name.name, f"({name} - 1 - {let.name.name})")
            for let in order.lets
            for name in first_parameters(schedule)
        ]
        yield from (((tick.span, other),) for other in dict.fromkeys(others) if other != as_written(tick))


def _placement_edits(schedule: n.Schedule) -> Iterator[Edit]:
    """Yield edits of pipes that place stages on other ranks: counted from the other end, or with // and % exchanged."""
    pipes = [s for s in schedule.statements if isinstance(s, n.PipeDecl)]
    for pipe in pipes[::-1]:
        for clause in (c for c in pipe.stages if one_line(c.rank)):
            if len(pipes) > 1:
                yield ((clause.rank.span, f"{as_written(setting(schedule, 'ranks'))} - 1 - {as_written(clause.rank, True)}"),)
            yield from (((clause.rank.span, new),) for new in divided(schedule, clause.rank))


def _amounts(schedule: n.Schedule) -> list[str]:
    """Return amounts in the order in which they are tried: small ones, those that grow with a parameter, then NEAR_AMOUNTS."""
    return [
        "1",
        "2",
        "3",
        *(amount for name in first_parameters(schedule) for amount in (f"({name} - 1)", name)),
        *NEAR_AMOUNTS,
    ]


def _shift_edits(rules: Sequence[n.Rule], amounts: Sequence[str], directions: str) -> Iterator[Edit]:
    """Yield edits that add an amount to ticks or subtract it. An amount like `4*` is a multiple of the stage."""
    for amount, rule, sign in product(amounts, rules, directions):
        if amount.isdigit():
            new = shifted(rule.tick, int(f"{sign}{amount}"))
        else:
            of_stage = amount.removeprefix("1*") + rule.stage.name
            new = f"{as_term(rule.tick)} {sign} {of_stage if amount.endswith('*') else amount}"
        yield ((rule.tick.span, new),)
