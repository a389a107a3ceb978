"""Names in wrong places: s, m, p or r in a place of another meaning, and names that are known only elsewhere."""

from __future__ import annotations

import pytest

from chimerac.compiler import compile_text
from tests.helpers_slips import findings_of, location, slip

COST = "a cost may differ by stage only: write F(s), and s in its formula"
RULE = "the first name is the stage, the second the micro-batch: write F(s, m)"
TASK = "the stage comes first, then the micro-batch: F(STAGE, MICRO_BATCH)"
FAMILY = "number the pipes of a family with another name, such as i"


@pytest.mark.parametrize(
    ("base", "right", "wrong", "where", "message", "help"),
    [
        ("greedy", "F = 1", "F(p) = 2 + p", "8: p", "'p' means the pipe, and is used here for the stage", COST),
        ("greedy", "F = 1", "F(m) = 1 + m % 2", "8: m", "'m' means the micro-batch, and is used here for the stage", COST),
        ("greedy", "F = 1", "F(r) = 1 + r", "8: r", "'r' means the rank, and is used here for the stage", COST),
        ("greedy", "sync eager", "cost W(M) = M", "13: M", "'M' means the micro-batch, and is used here for the stage", "W(s)"),
        ("gpipe", "F(s, m)", "F(m, s)", "8: m", "'m' means the micro-batch, and is used here for the stage", RULE),
        ("gpipe", "F(s, m)", "F(M, S)", "8: M", "'M' means the micro-batch", RULE),
        ("gpipe", "F(s, m) at s", "F(r, m) at r", "8: r", "'r' means the rank, and is used here for the stage", RULE),
        ("gpipe", "F(s, m) at s + m", "F(s, p) at s + p", "8: p", "'p' means the pipe", RULE),
        ("gpipe", "F(s, m)", "F(s, m = 2*r .. 2*r + 1)", "8: r", "'r' means the rank", "such as g"),
        ("gpipe", "stage s on rank s", "stage r on rank r", "6: r", "'r' means the rank", "write: stage s on rank"),
        ("gpipe", "stage s on rank s", "stage m on rank m", "6: m", "'m' means the micro-batch", "write: stage s on rank"),
        ("gpipe", "main { stage s on rank s", "main[s in 0 .. 0] { stage k on rank k", "6: s", "'s' means the stage", FAMILY),
        ("gpipe", "pipe main", "pipe main[m in 0 .. 0]", "6: m", "'m' means the micro-batch", FAMILY),
        ("listing", "for rank r", "for rank s", "7: s", "'s' means the stage, and is used here for the rank", "for rank r"),
        ("listing", "w { F }", "m in 0 .. w - 1 { F(m) }", "9: m", "'m' means the micro-batch", TASK),
        ("listing", "w { F }", "m in 0 .. w - 1 { F(m, r) }", "9: m", "'m' means the micro-batch", TASK),
        ("listing", "w { F }", "s in 0 .. w - 1 { F(r, s) }", "9: s", "'s' means the stage", TASK),
    ],
)
def test_a_name_without_its_usual_meaning_is_refused(
    base: str, right: str, wrong: str, where: str, message: str, help: str
) -> None:
    [finding] = findings_of(slip(base, (right, wrong)))
    assert (finding.code, location(finding)) == ("E207", where)
    assert finding.message.startswith(message) and help in finding.help


def test_a_rule_may_not_call_the_index_of_a_family_r() -> None:
    [finding] = findings_of(slip("gpipe", ("pipe main", "pipe main[i in 0 .. 0]"), ("F(s, m)", "F main[r](s, m)")))
    assert (finding.code, location(finding), finding.help) == ("E207", "8: r", FAMILY)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        ("greedy", [("F = 1", "F(s) = 1 + s % 2")]),
        ("greedy", [("F = 1", "F(k) = 1 + k % 2")]),
        ("gpipe", [("F(s, m) at s + m", "F(k, j) at k + j")]),
        ("gpipe", [("F(s, m) at s + m", "F(S, M) at S + M")]),
        ("gpipe", [("pipe main", "pipe main[p in 0 .. 0]"), ("F(s, m)", "F main[p](s, m)")]),
        ("listing", [("w { F }", "m in 0 .. w - 1 { F(r, m) }")]),
        ("listing", [("w { F }", "p in 1 .. w { F }")]),  # `repeat` may count with any name
        ("listing", [("for rank r", "for rank k"), ("D - r", "D - k")]),
    ],
)
def test_other_names_and_names_with_their_usual_meaning_are_accepted(base: str, changes: list[tuple[str, str]]) -> None:
    compile_text(slip(base, *changes))


@pytest.mark.parametrize(
    ("base", "right", "wrong", "help"),
    [
        ("greedy", "F = 1", "F = 1 + s", COST),
        ("greedy", "F = 1", "F(s) = 1 + m", COST),
        ("greedy", "D - r", "D - s", "per stage"),
        ("greedy", "D - r", "D - p", "per pipe"),
        ("greedy", "D - r", "D - m", "it may differ by rank, r"),
        ("gpipe", "at s + m", "at r + m", "the pipe defines the rank of a stage"),
        ("gpipe", "on rank s", "on rank r", "this formula gives the rank: write it with the stage"),
        ("gpipe", "at s + m", "when p == 0 at s + m", "a formula for one pipe names it: F main(s, m) at"),
        ("listing", "w { F }", "w { F(m) }", "F is the next micro-batch; to number them, count"),
        ("listing", "w { F }", "w { F(s) }", "write the stage as a formula of the rank"),
        ("listing", "D - r", "D - s", "write the stage as a formula of the rank"),
    ],
)
def test_a_name_that_is_known_only_elsewhere_gets_a_help_for_its_place(base: str, right: str, wrong: str, help: str) -> None:
    finding = findings_of(slip(base, (right, wrong)))[0]
    assert finding.code == "E201" and help in finding.help, finding.help
