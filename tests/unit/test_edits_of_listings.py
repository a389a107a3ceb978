"""The candidate edits of a listing: every one is a text that parses."""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler.diagnose.edits.listings import count_edits, listing_edits
from chimerac.compiler.diagnose.edits.text import edited
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse

SCHEDULE = """schedule edited
param D = 2   param N = 4
ranks D   stages D
pipe main {{ stage s on rank s   micro_batches N }}
order listing for rank r {{
    {actions}
}}
"""


def candidates(actions: str) -> list[str]:
    """Return the text between the braces of the order, for each edit."""
    schedule = parse(Source("edited.sched", SCHEDULE.format(actions=actions)))
    (listing,) = (s for s in schedule.statements if isinstance(s, n.Listing))
    texts = [edited(e) for edits in (listing_edits, count_edits) for group in edits(schedule, listing) for e in group]
    for text in texts:
        parse(Source("edited.sched", text))
    return [text.partition("for rank r {")[2].rpartition("}")[0].strip() for text in texts]


def test_a_loop_is_not_cut_inside_an_overlapped_pair() -> None:
    found = candidates("repeat N { F  B & F  B }")
    assert "repeat N { F }  repeat N { B & F  B }" in found
    assert "repeat N { F  B & F }  repeat N { B }" in found


def test_two_loops_become_one() -> None:
    assert "repeat N { F  B }" in candidates("repeat N { F } repeat N { B }")


@pytest.mark.parametrize(
    ("low", "high", "stage"), [("0", "0", "(0 - i)"), ("0", "N - 1", "((N - 1) - i)"), ("1", "D", "(D + 1 - i)")]
)
def test_the_stage_decreases_with_the_index_of_a_loop(low: str, high: str, stage: str) -> None:
    assert f"repeat i in {low} .. {high} {{ F({stage}) }}" in candidates(f"repeat i in {low} .. {high} {{ F(i) }}")


def test_counts_bounds_and_conditions_are_edited_at_any_depth() -> None:
    found = candidates("repeat i in 0 .. N - 1 { if r < D { repeat 2 { F } } }")
    for changed in (
        "repeat i in 0 .. N - 2 { if r < D { repeat 2 { F } } }",
        "repeat i in 1 .. N - 1 { if r < D { repeat 2 { F } } }",
        "repeat i in 0 .. N - 1 { if r <= D { repeat 2 { F } } }",
        "repeat i in 0 .. N - 1 { if r < D { repeat 3 { F } } }",
    ):
        assert changed in found
