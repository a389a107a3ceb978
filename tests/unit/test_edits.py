"""Edits of a schedule's text, as they are tried for a finding: that they can be parsed, and what they write."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler.diagnose.edits import condition_edits, edited, listing_edits, tick_edits
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


def test_a_condition_is_negated_in_the_names_and_before_the_tick_of_another_rule() -> None:
    order = schedule("order ticks {\n  F p(s, m) when s < m at s\n  F p(m, s) at (m + s)\n}").statements[-1]
    assert isinstance(order, n.Ticks)
    texts = [edited(edit) for edit in condition_edits(order.rules)]
    assert any("F p(m, s) when m >= s at (m + s)" in text for text in texts)
    for text in texts:
        parse(Source("x", text))


def test_ranks_are_counted_from_the_end_whatever_their_formula() -> None:
    given = schedule("order ticks {\n  F p(s, m) at s\n}")
    texts = [edited(edit) for edits in tick_edits(given, [], "+") for edit in edits]
    assert any("on rank (if D > 2 then D else 2) - 1 - s " in text for text in texts)


def test_an_overlapped_pair_stays_in_one_loop() -> None:
    given = schedule("order listing for rank r {\n  repeat D { F p & B p  F q }\n}")
    listing = given.statements[-1]
    assert isinstance(listing, n.Listing)
    texts = [edited(edit) for edits in listing_edits(given, listing) for edit in edits]
    assert any("repeat D { F p & B p }  repeat D { F q }" in text for text in texts)
    for text in texts:
        parse(Source("x", text))
