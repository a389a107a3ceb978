"""Slips in ticks, conditions, ranges, placements, counts and listings. Most of these texts parse.

slips_order.txt has one slip per line. The edit in the help of its finding gives a text with the intended program.
"""

from __future__ import annotations

import pytest

from chimerac.compiler import compile_text
from tests.helpers_slips import findings_of, location, right_program, slip, slip_lines, with_edits, with_slip


@pytest.mark.parametrize("line", slip_lines("slips_order.txt"))
def test_the_help_restores_the_intended_program(line: str) -> None:
    base, text = with_slip(line)
    findings = findings_of(text)
    assert len(findings) == 1, [d.message for d in findings]  # one finding for one slip
    assert compile_text(with_edits(text, findings[0])).program == right_program(base)


def test_a_constant_delay_is_preferred_to_a_reversed_order() -> None:
    """If the backwards of GPipe are too early, all of them get later ticks. The order among backwards does not change."""
    for constant, new in (
        ("N + D - 2", "(N + D - 1) + (D - 1 - s) + (N - 1 - m)"),
        ("N + D - 3", "(N + D - 1) + (D - 1 - s) + (N - 1 - m)"),
        ("N + 1", "(N + 1) + (D - 1 - s) + (N - 1 - m) + (D - 1)"),
        ("N", "(N) + (D - 1 - s) + (N - 1 - m) + (D - 1)"),
    ):
        text = slip("gpipe", ("N + D - 1", constant))
        [finding] = findings_of(text)
        assert finding.code == "E303", text
        assert finding.help.startswith(f"slip.sched:9:16: write '{new}' instead of '({constant}) "), text
        assert compile_text(with_edits(text, finding)).program == right_program("gpipe")


def test_a_listing_with_a_missing_iteration_is_one_finding() -> None:
    [finding] = findings_of(slip("listing", ("N - w {", "N - w - 1 {")))
    assert (finding.code, finding.message) == ("E301", "rank 0 never lists F and B of main s0, micro-batch 7")
    assert finding.notes == ("\n".join(f"rank {r} never lists F and B of main s{r}, micro-batch 7" for r in (1, 2, 3)),)
    assert finding.help.startswith("slip.sched:10:12: write 'N - w' instead of 'N - w - 1'; tried with D=4 N=8")


def test_for_a_gap_that_no_edit_closes_the_help_names_the_conditions() -> None:
    rules = "\n    ".join(f"F(s, m) when m % 5 == {k} at s + m" for k in range(3))
    [finding] = findings_of(slip("gpipe", ("F(s, m) at s + m", rules)))
    assert finding.code == "E301" and location(finding) == "8: F(s, m) when m % 5 == 0 at s + m"
    assert finding.help == "no 'when' holds there: m % 5 == 0 (line 8), m % 5 == 1 (line 9), m % 5 == 2 (line 10)"


def test_a_formula_that_names_a_pipe_replaces_the_general_one() -> None:
    formula = "F(s, m) at start + s"
    [finding] = findings_of(slip("chimera", (formula, f"{formula}\n    F up(s, m) when m % 5 == 4 at start + s")))
    assert finding.code == "E301" and finding.message.startswith("no formula places F of pipe up")
    assert finding.notes == ("a formula that names a pipe takes the place of those that name none",)


def test_only_the_wrong_ends_of_a_range_are_changed() -> None:
    for bounds, wrong, new in (
        ("0 .. D - 1 on", "0 .. D on", "0 .. D - 1"),
        ("D .. 2*D - 1 on", "D .. 2*D on", "D .. 2*D - 1"),
        ("D .. 2*D - 1 on", "D + 1 .. 2*D - 1 on", "D .. 2*D - 1"),
        ("D .. 2*D - 1 on", "D .. 2*D - 2 on", "D .. 2*D - 1"),
        ("0 .. D - 1 on", "1 .. D on", "0 .. D - 1"),
    ):
        [finding] = findings_of(slip("vee", (bounds, wrong)))
        assert f"write '{new}' instead of '{wrong.removesuffix(' on')}'" in finding.help


def test_two_ranges_with_the_same_mistake_are_both_mended() -> None:
    for first, second in (("0 .. D on", "D .. 2*D on"), ("1 .. D on", "D + 1 .. 2*D on")):
        text = slip("vee", ("0 .. D - 1 on", first), ("D .. 2*D - 1 on", second))
        [finding] = findings_of(text)
        assert with_edits(text, finding) == slip("vee"), finding.help


def test_a_rank_that_is_a_sum_of_ten_thousand_terms_gets_the_ordinary_finding() -> None:
    """No changes to parts of a long sum are tried, because the effort would be quadratic in its length."""
    [finding] = findings_of(slip("gpipe", ("on rank s", "on rank s" + " + 1 - 1" * 5000 + " + 9")))
    assert finding.code == "E220"


@pytest.mark.parametrize("word", ["F2", "B2", "W11"])
def test_a_task_written_as_in_a_timeline_gets_the_form_with_its_micro_batch(word: str) -> None:
    [finding] = findings_of(slip("listing", ("w { F }", f"w {{ {word} }}")))
    form = f"{word[0]}(STAGE, {word[1:]})"  # F(STAGE, 2)
    assert finding.help == f"a micro-batch is written with its stage: {form}; {word[0]} alone is the next micro-batch"
    # A listing may have both forms: after F(STAGE, 0), F alone is micro-batch 1.
    assert compile_text(slip("listing", ("repeat w { F }", "F(r, 0)  repeat w - 1 { F }"))).program == right_program("listing")


def test_a_block_that_is_not_closed_is_quoted_as_it_is_written() -> None:
    head = "repeat (N - w)//1 * (1+0) {"
    [finding] = findings_of(slip("listing", ("repeat N - w { B  F }", f"{head} B  F")))
    assert finding.message == f"a '}}' is missing: '{head}' is not closed"
    assert finding.notes == (f"'{head}' begins at slip.sched:10:5",)
