"""`order ticks`: ticks determine only the order of tasks, a fill places weight gradients, and wrong formulas are findings."""

from __future__ import annotations

import pytest

from chimerac.compiler import compile_text
from tests.helpers_text import findings_of, small, tasks_of


def test_a_rank_runs_its_tasks_in_the_order_of_their_ticks() -> None:
    p = small()
    # rank 0  F0 F1 B0 F2 B1 B2   on the ticks 0 2 3 4 5 7
    # rank 1  F0 B0 F1 B1 F2 B2   on the ticks 1 2 3 4 5 6
    assert tasks_of(p, 0) == "F0 F1 B0 F2 B1 B2"
    assert tasks_of(p, 1) == "F0 B0 F1 B1 F2 B2"


def test_only_the_order_of_ticks_counts() -> None:
    stretched = small(rule1="F(s, m) at 1000*(s + 2*m) - 5", rule2="B(s, m) at 1000*(2*D - 1 - s + 2*m) + m*m")
    assert [stretched.stream(g) for g in range(2)] == [small().stream(g) for g in range(2)]


def test_formulas_may_be_negative_and_conditional() -> None:
    p = small(rule1="F(s, m) when m < 2 at s + 2*m   F(s, m) when m >= 2 at s + 2*m", rule2="B(s, m) at 2*D - 1 - s + 2*m")
    assert [p.stream(g) for g in range(2)] == [small().stream(g) for g in range(2)]
    p = small(rule1="F(s, m) at s + 2*m - 1000")
    assert tasks_of(p, 1) == "F0 F1 F2 B0 B1 B2"


def test_lets_of_the_order_see_stage_and_micro_batch() -> None:
    p = small(
        order="order ticks { let twice = 2*m  let base = s + twice",
        rule1="F(s, m) at base",
        rule2="B(s, m) at 2*D - 1 - s + twice",
    )
    assert [p.stream(g) for g in range(2)] == [small().stream(g) for g in range(2)]
    # This head calls the stage q, so its rule may not use a let with s.
    assert findings_of(order="order ticks { let base = s + 2*m", rule1="F(q, m) at base")[0].code == "E201"


def test_collisions_name_both_tasks_once_per_pair_of_formulas() -> None:
    [d] = findings_of(rule2="B(s, m) at 2*D - s + 2*m")
    assert d.code == "E303"
    assert d.message == "rank 0 has two tasks on tick 4: FWD main s0 m2 and BWD main s0 m0"
    assert d.label == "places FWD main s0 m2"
    assert "BWD main s0 m0 is placed by <text>:9: B(s, m) at 2*D - s + 2*m" in d.notes[0]
    # Two tasks of one formula may collide, too.
    found = findings_of(rule1="F(s, m) at m // 2", rule2="B(s, m) at 100 + m")
    assert [d.message for d in found] == ["rank 0 has two tasks on tick 0: FWD main s0 m0 and FWD main s0 m1"]


def test_three_tasks_on_one_tick_are_two_pairs() -> None:
    [d] = findings_of(rule1="F(s, m) at 0")
    assert d.notes[-1] == "4 such pairs of FWD main and FWD main"  # two pairs on each of two ranks


def test_every_task_needs_one_formula() -> None:
    [d] = findings_of(rule1="F(s, m) when m > 0 at s + 2*m")
    assert (d.code, d.message) == ("E301", "no formula places F of pipe main, stage 0, micro-batch 0 (2 such tasks)")
    assert [d.code for d in findings_of(rule2="I(s, m) at 2*D - 1 - s + 2*m")] == ["E301"]
    assert [d.code for d in findings_of(rule2="W(s, m) at 2*D - 1 - s + 2*m")] == ["E301"]
    both = "B(s, m) at 90 + m  I(s, m) at 190 + m  W(s, m) at 290 + m"
    assert [d.code for d in findings_of(rule2=both)] == ["E302"]
    for kind in "IW":  # the other half is missing too, but has no finding: with it there would still be two backwards
        assert [d.code for d in findings_of(rule2=f"B(s, m) at 9 + m  {kind}(s, m) at 99 + m")] == ["E302"]
    [d] = findings_of(rule1="F(s, m) at s + 2*m   F(s, m) when m == 1 at 77")
    assert (d.code, d.message) == ("E302", "2 formulas place F of pipe main, stage 0, micro-batch 1")
    [d] = findings_of(rule1="F(s, m) at s + 2*m   F(s, m) when m == 1 at 77   F(s, m) when m == 1 at 78")
    assert (d.code, d.message) == ("E302", "3 formulas place F of pipe main, stage 0, micro-batch 1")


def test_full_and_split_backwards_may_be_mixed() -> None:
    p = small(
        rule1="F(s, m) at s + 4*m",
        rule2="B(s, m) when m == 0 at 4*D - 1 - s + 4*m  I(s, m) when m > 0 at 4*D - 1 - s + 4*m  W(s, m) when m > 0 at 99 + m",
    )
    assert tasks_of(p, 0) == "F0 F1 B0 F2 I1 I2 W1 W2"


def test_a_deadlock_names_the_formulas_that_ordered_it() -> None:
    [d] = findings_of(
        {"N": 2},
        pipe="pipe a { stage s on rank s micro_batches N } pipe b { stage s on rank 1 - s micro_batches N }",
        rule1="F(s, m) at 10 - 9*s + 2*m",
        rule2="B(s, m) at 99 - s + 2*m",
    )
    assert d.code == "E304"
    assert d.message == "the order deadlocks: ranks 0, 1 wait for each other in a cycle"
    assert d.notes[0].count("which") == 2  # the shortest cycle has two waits
    assert any("ordered by <text>:8: F(s, m) at 10 - 9*s + 2*m" in note for note in d.notes)
    [d] = findings_of(rule2="B(s, m) at s - 100 + 2*m")
    assert d.message == "the order deadlocks: rank 0 waits for itself"


def test_formulas_that_place_a_task_often_are_the_only_finding() -> None:
    """Placing stops at more tasks than a correct order can have. The tasks of later formulas are not reported as missing."""
    [d] = findings_of(rule1="F(s, m) at s + 2*m " + "F(s, m) when m == 0 at 77 " * 20)
    assert (d.code, d.message) == ("E302", "at least 14 formulas place F of pipe main, stage 0, micro-batch 0")
    assert len(d.notes) == 9 and d.notes[-1] == "..."


def test_the_number_of_findings_is_limited() -> None:
    pipe = "pipe main[i in 0 .. 99] { stage s on rank s   micro_batches 1 }"
    found = findings_of(pipe=pipe, rule1="F(s, m) when m > 0 at s")
    assert 20 <= len(found) <= 24  # after 20, no further pipe is checked; the last one may have added several


def test_a_wrong_let_is_reported_once() -> None:
    rules = " ".join(f"F(s, m) when m == {k} at base" for k in range(9))
    found = findings_of(order="order ticks { let base = a + b  let top = base", rule1=rules, rule2="B(s, m) at top")
    assert [(d.code, d.message) for d in found] == [("E201", "unknown name 'a'"), ("E201", "unknown name 'b'")]


# --- fill -------------------------------------------------------------------------------------------------------------

INPUT_GRADIENTS = "I(s, m) at 3*D - 2 - 2*s + 3*m"


def filled(tick: str, **changes: str) -> list[str]:
    """Return the tasks of every rank of a schedule with split backwards whose weight gradients have ticks by this formula."""
    p = small(rule1="F(s, m) at s + 3*m", rule2=f"{INPUT_GRADIENTS}   fill W(r, k) at {tick}", **changes)
    return [tasks_of(p, r) for r in range(p.header.ranks)]


def test_a_fill_is_a_rule_for_the_weight_gradients_of_a_rank() -> None:
    by_rule = small(rule1="F(s, m) at s + 3*m", rule2=f"{INPUT_GRADIENTS}   W(s, m) at 3*m + 3*D + s - 1")
    assert filled("3*k + 3*D + r - 1") == [tasks_of(by_rule, r) for r in range(2)]
    assert filled("99 + k") == ["F0 F1 I0 F2 I1 I2 W0 W1 W2", "F0 I0 F1 I1 F2 I2 W0 W1 W2"]


def test_a_weight_gradient_is_not_before_its_input_gradient() -> None:
    assert filled("k - 99") == ["F0 F1 I0 W0 F2 I1 W1 I2 W2", "F0 I0 W0 F1 I1 W1 F2 I2 W2"]
    same_tick = filled("3*D - 2 - 2*r + 3*k")  # the tick of the input gradient
    assert same_tick == filled("k - 99")


def test_the_numbers_of_a_fill_count_all_pipes_and_stages_of_a_rank() -> None:
    """Each rank has four weight gradients. Two come right after their input gradients, two at the end, in reverse."""
    text = """schedule x  ranks 2  stages 4
    pipe a { stage s on rank s % 2      micro_batches 1 }
    pipe b { stage s on rank 1 - s % 2  micro_batches 1 }
    order ticks {
        F a(s, m) at 2*s        F b(s, m) at 2*s + 1
        I a(s, m) at 20 - 2*s   I b(s, m) at 21 - 2*s
        fill W(r, k) at if k < 2 then 0 else 100 - k
    }"""
    p = compile_text(text).program
    assert tasks_of(p, 0) == "F0.0 F1.1 F0.2 F1.3 I1.3 W1.3 I0.2 W0.2 I1.1 I0.0 W0.0 W1.1"
    assert tasks_of(p, 1) == "F1.0 F0.1 F1.2 F0.3 I0.3 W0.3 I1.2 W1.2 I0.1 I1.0 W1.0 W0.1"


def test_a_fill_covers_the_micro_batches_of_its_input_gradients() -> None:
    p = small(rule1="F(s, m) at s + m", rule2="I(s, m = 2*g .. 2*g + 1) at 9 - s + 4*g   fill W(r, k) at 50 + k")
    assert tasks_of(p, 0) == "F0 F1 F2 I0 I2 W0 W2"
    assert [i.micro_batches for i in p.stream(0) if i.op == "BWD_WEIGHT"] == [(0, 1), (2,)]


def test_a_fill_leaves_full_backwards_alone() -> None:
    split_on_stage_0 = "I(s, m) when s == 0 at 9 + 2*m   B(s, m) when s == 1 at 8 + 2*m   fill W(r, k) at 50 + k"
    p = small(rule1="F(s, m) at s + 2*m", rule2=split_on_stage_0)
    assert [tasks_of(p, r) for r in range(2)] == ["F0 F1 F2 I0 I1 I2 W0 W1 W2", "F0 F1 F2 B0 B1 B2"]


def test_a_fill_may_use_lets_of_the_order() -> None:
    lets = "order ticks { let start = 50  let tick = start + k + (if r == 0 then 0 else N - 2*k)"
    # The ticks rise with k on rank 0, and fall on rank 1.
    assert filled("tick", order=lets) == ["F0 F1 I0 F2 I1 I2 W0 W1 W2", "F0 I0 F1 I1 F2 I2 W2 W1 W0"]


def test_a_fill_on_the_tick_of_another_task_is_a_finding() -> None:
    [d] = findings_of(rule1="F(s, m) at s + 3*m", rule2=f"{INPUT_GRADIENTS}   fill W(r, k) at 6 + 2*k")
    assert d.code == "E303"
    assert d.message == "rank 0 has two tasks on tick 6: FWD main s0 m2 and BWD_WEIGHT main s0 m0"
    assert d.notes[0] == "BWD_WEIGHT main s0 m0 is placed by <text>:9: I(s, m) at 3*D - 2 - 2*s + 3*m   fill W(r, k) at 6 + 2*k"
    assert "write '6 + 2*k - 3' instead of '6 + 2*k'" in d.help and "it then runs" in d.help


@pytest.mark.parametrize(
    ("backward", "code", "message"),
    [
        ("fill I(r, k) at 9", "E202", "fill places weight gradients, not 'I'"),
        ("fill W(r, k) at 99 + k  fill W(r, k) at 199 + k", "E207", "'fill' is given twice"),
        ("W(s, m) at 99 + m  fill W(r, k) at 50 + k", "E202", "a fill and a rule both place weight gradients"),
        ("fill W(s, k) at 99 + k", "E207", "'s' means the stage, and is used here for the rank"),
        ("fill W(r, m) at 99 + m", "E207", "'m' means the micro-batch, and is used here for the number of a weight gradient"),
        ("fill W(r, k) at 99 + k + s", "E201", "unknown name 's'"),
        ("fill W(r, k) at k < 9", "E202", "this must be an integer"),
        ("fill W(r, r) at 99 + r", "E207", "'r' is defined twice"),
        ("fill W(r, k) at 99 + k // (r - 1)", "E205", "division by zero"),
    ],
)
def test_a_wrong_fill_is_refused(backward: str, code: str, message: str) -> None:
    found = findings_of(rule1="F(s, m) at s + 3*m", rule2=f"{INPUT_GRADIENTS}   {backward}")
    assert [d.code for d in found] == [code]
    assert found[0].message.startswith(message)


def test_a_let_that_only_a_fill_uses_counts_as_used_and_is_checked() -> None:
    lets = "order ticks { let far = 99"
    assert filled("far + k", order=lets) == filled("99 + k")
    [d] = findings_of(order="order ticks { let far = 99  let near = s", rule1="F(s, m) at s + 3*m",
                      rule2=f"{INPUT_GRADIENTS}  fill W(r, k) at far + near + k")  # fmt: skip
    assert (d.code, d.message) == ("E201", "unknown name 's'")


def test_a_fill_without_input_gradients_is_one_finding() -> None:
    [d] = findings_of(rule1="F(s, m) at s + 3*m", rule2="fill W(r, k) at 50 + k")
    assert (d.code, d.message) == ("E301", "no formula places B of pipe main, stage 0, micro-batch 0 (6 such tasks)")
    assert d.help == "add: B(s, m) at ..., or I, whose W the fill places"
