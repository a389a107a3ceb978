"""Edits of a schedule's text that are tried for a finding: the edited texts can be parsed, and have what they should."""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler.diagnose.edits import condition_edits, edited, listing_edits, tick_edits
from chimerac.compiler.diagnose.edits.listings import count_edits
from chimerac.compiler.diagnose.edits.text import changed_divisions, negated
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse

HEAD = """schedule a
param D = 4
ranks if D > 2 then D else 2
stages D
pipe p { stage s on rank s  micro_batches D }
pipe q { stage s on rank D - 1 - s  micro_batches D }
"""


def schedule(order: str) -> n.Schedule:
    return parse(Source("x", HEAD + order))


def test_another_rule_gets_the_negated_condition_in_its_own_names_before_its_tick() -> None:
    """The second rule calls the stage m and the micro-batch s. So `s < m` of the first rule is `m < s` there."""
    order = schedule("order ticks {\n  F p(s, m) when s < m at s\n  F p(m, s) at (m + s)\n}").statements[-1]
    assert isinstance(order, n.Ticks)
    texts = [edited(edit) for edit in condition_edits(order.rules)]
    assert any("F p(m, s) when m >= s at (m + s)" in text for text in texts)
    for text in texts:
        parse(Source("x", text))  # every edited text can be parsed


def tick(order: n.Schedule) -> n.Expr:
    (ticks,) = (s for s in order.statements if isinstance(s, n.Ticks))
    return ticks.rules[0].tick


@pytest.mark.parametrize(
    ("division", "texts"),
    [
        ("s // (D*2) + 1", ["s // D + 1", "s % (D*2) + 1", "s % D + 1"]),
        ("s % (-2)", ["s // (-2)", "s // D", "s % D"]),
        ("s//((D))", ["s%((D))"]),
        ("(s % 3)*(m)", ["(s // 3)*(m)", "(s // D)*(m)", "(s % D)*(m)"]),
        ("s // 2 // (m)", ["s // 2 // D", "s // 2 % (m)", "s // 2 % D", "s // D // (m)", "s % 2 // (m)", "s % D // (m)"]),
    ],
)
def test_a_changed_division_keeps_the_parentheses_of_its_divisor_or_replaces_them_with_it(
    division: str, texts: list[str]
) -> None:
    given = schedule(f"order ticks {{\n  F p(s, m) at {division}\n}}")
    found = list(changed_divisions(given, tick(given)))
    assert found == texts
    for text in found:
        assert tick(schedule(f"order ticks {{\n  F p(s, m) at {text}\n}}"))  # it can be parsed


@pytest.mark.parametrize(
    ("condition", "opposite"),
    [
        ("s < -1", "s >= -1"),
        ("(s < 1) == (m < 2)", "(s < 1) != (m < 2)"),
        ("(if s > 0 then 1 else 2) < m", "(if s > 0 then 1 else 2) >= m"),
        ("(s + 1) % 2 != m // 2", "(s + 1) % 2 == m // 2"),
        ("s < m and m < 2", "not (s < m and m < 2)"),
        ("not s < m", "not (not s < m)"),
    ],
)
def test_a_negated_condition_keeps_its_operands_with_their_parentheses(condition: str, opposite: str) -> None:
    given = schedule(f"order ticks {{\n  F p(s, m) when {condition} at s\n}}").statements[-1]
    assert isinstance(given, n.Ticks) and given.rules[0].condition is not None
    assert negated(given.rules[0].condition) == opposite


def test_ranks_are_counted_from_the_end_whatever_the_formula_of_their_number() -> None:
    given = schedule("order ticks {\n  F p(s, m) at s\n}")
    texts = [edited(edit) for edits in tick_edits(given, moved=[], directions="+") for edit in edits]
    assert any("on rank (if D > 2 then D else 2) - 1 - s " in text for text in texts)


# --- listings -----------------------------------------------------------------------------------------------------------

LISTING = """schedule edited
param D = 2   param N = 4
ranks D   stages D
pipe main {{ stage s on rank s   micro_batches N }}
order listing for rank r {{
    {actions}
}}
"""


def listing_candidates(actions: str) -> list[str]:
    """Return the actions of a listing after each edit. Check that each edited text can be parsed."""
    given = parse(Source("edited.sched", LISTING.format(actions=actions)))
    (listing,) = (s for s in given.statements if isinstance(s, n.Listing))
    texts = [edited(e) for edits in (listing_edits, count_edits) for group in edits(given, listing) for e in group]
    for text in texts:
        parse(Source("edited.sched", text))
    return [text.partition("for rank r {")[2].rpartition("}")[0].strip() for text in texts]


def test_a_loop_is_not_cut_inside_an_overlapped_pair() -> None:
    """A cut inside the pair would leave `B &` at the end of a loop, which `listing_candidates` cannot parse."""
    found = listing_candidates("repeat N { F  B & F  B }")
    assert "repeat N { F }  repeat N { B & F  B }" in found
    assert "repeat N { F  B & F }  repeat N { B }" in found


def test_two_loops_become_one() -> None:
    assert "repeat N { F  B }" in listing_candidates("repeat N { F } repeat N { B }")


@pytest.mark.parametrize(
    ("low", "high", "stage"), [("0", "0", "(0 - i)"), ("0", "N - 1", "((N - 1) - i)"), ("1", "D", "(D + 1 - i)")]
)
def test_an_edit_lets_the_stage_decrease_with_the_index_of_a_loop(low: str, high: str, stage: str) -> None:
    assert f"repeat i in {low} .. {high} {{ F({stage}) }}" in listing_candidates(f"repeat i in {low} .. {high} {{ F(i) }}")


def test_counts_bounds_and_conditions_are_edited_at_any_depth() -> None:
    found = listing_candidates("repeat i in 0 .. N - 1 { if r < D { repeat 2 { F } } }")
    for changed in (
        "repeat i in 0 .. N - 2 { if r < D { repeat 2 { F } } }",
        "repeat i in 1 .. N - 1 { if r < D { repeat 2 { F } } }",
        "repeat i in 0 .. N - 1 { if r <= D { repeat 2 { F } } }",
        "repeat i in 0 .. N - 1 { if r < D { repeat 3 { F } } }",
    ):
        assert changed in found
