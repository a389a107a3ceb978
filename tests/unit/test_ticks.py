"""Ticks determine the order of tasks; their values have no other effect."""

from __future__ import annotations

from tests.helpers_text import findings_of, small, tasks_of


def test_a_rank_runs_its_tasks_in_the_order_of_their_ticks() -> None:
    p = small()
    #          rank 0  F0 F1 -- B0 F2 B1 -- B2     ticks 0 2 3 4 5 6 7
    #          rank 1  -- F0 B0 F1 B1 F2 B2
    assert tasks_of(p, 0) == "F0 F1 B0 F2 B1 B2"
    assert tasks_of(p, 1) == "F0 B0 F1 B1 F2 B2"


def test_only_the_order_of_ticks_counts() -> None:
    stretched = small(F="F(s, m) at 1000*(s + 2*m) - 5", B="B(s, m) at 1000*(2*D - 1 - s + 2*m) + m*m")
    assert [stretched.stream(g) for g in range(2)] == [small().stream(g) for g in range(2)]


def test_formulas_may_be_negative_and_conditional() -> None:
    p = small(F="F(s, m) when m < 2 at s + 2*m   F(s, m) when m >= 2 at s + 2*m", B="B(s, m) at 2*D - 1 - s + 2*m")
    assert [p.stream(g) for g in range(2)] == [small().stream(g) for g in range(2)]
    p = small(F="F(s, m) at s + 2*m - 1000")
    assert tasks_of(p, 1) == "F0 F1 F2 B0 B1 B2"


def test_lets_of_the_order_see_stage_and_micro_batch() -> None:
    p = small(
        order="order ticks { let twice = 2*m  let base = s + twice", F="F(s, m) at base", B="B(s, m) at 2*D - 1 - s + twice"
    )
    assert [p.stream(g) for g in range(2)] == [small().stream(g) for g in range(2)]
    # A let may use only the names that the head of the rule defines.
    assert findings_of(order="order ticks { let base = s + 2*m", F="F(q, m) at base")[0].code == "E201"


def test_collisions_name_both_tasks_once_per_pair_of_formulas() -> None:
    [d] = findings_of(B="B(s, m) at 2*D - s + 2*m")
    assert d.code == "E303"
    assert d.message == "rank 0 has two tasks on tick 4: FWD main s0 m2 and BWD main s0 m0"
    assert d.label == "places FWD main s0 m2"
    assert "BWD main s0 m0 is placed by <text>:9: B(s, m) at 2*D - s + 2*m" in d.notes[0]
    # One formula may put two of its tasks on the same tick.
    found = findings_of(F="F(s, m) at m // 2", B="B(s, m) at 100 + m")
    assert [d.message for d in found] == ["rank 0 has two tasks on tick 0: FWD main s0 m0 and FWD main s0 m1"]


def test_three_tasks_on_one_tick_are_two_pairs() -> None:
    [d] = findings_of(F="F(s, m) at 0")
    assert d.notes[-1] == "4 such pairs in all"  # two pairs on each of two ranks


def test_every_task_needs_one_formula() -> None:
    [d] = findings_of(F="F(s, m) when m > 0 at s + 2*m")
    assert (d.code, d.message) == ("E301", "no formula places F of pipe main, stage 0, micro-batch 0 (2 such tasks)")
    assert [d.code for d in findings_of(B="I(s, m) at 2*D - 1 - s + 2*m")] == ["E301"]
    assert [d.code for d in findings_of(B="W(s, m) at 2*D - 1 - s + 2*m")] == ["E301"]
    both = "B(s, m) at 90 + m  I(s, m) at 190 + m  W(s, m) at 290 + m"
    assert [d.code for d in findings_of(B=both)] == ["E302"]
    for kind in "IW":  # no finding for the missing half: with it there would still be two backwards
        assert [d.code for d in findings_of(B=f"B(s, m) at 9 + m  {kind}(s, m) at 99 + m")] == ["E302"]
    [d] = findings_of(F="F(s, m) at s + 2*m   F(s, m) when m == 1 at 77")
    assert (d.code, d.message) == ("E302", "two formulas place F of pipe main, stage 0, micro-batch 1")


def test_full_and_split_backwards_may_be_mixed() -> None:
    p = small(
        F="F(s, m) at s + 4*m",
        B="B(s, m) when m == 0 at 4*D - 1 - s + 4*m  I(s, m) when m > 0 at 4*D - 1 - s + 4*m  W(s, m) when m > 0 at 99 + m",
    )
    assert tasks_of(p, 0) == "F0 F1 B0 F2 I1 I2 W1 W2"


def test_a_deadlock_names_the_formulas_that_ordered_it() -> None:
    [d] = findings_of(
        {"N": 2},
        pipe="pipe a { stage s on rank s micro_batches N } pipe b { stage s on rank 1 - s micro_batches N }",
        F="F(s, m) at 10 - 9*s + 2*m",
        B="B(s, m) at 99 - s + 2*m",
    )
    assert d.code == "E304"
    assert d.message == "the order deadlocks: ranks 0, 1 wait for each other in a cycle"
    assert d.notes[0].count("which") == 2  # the shortest cycle has two waits
    assert any("ordered by <text>:8: F(s, m) at 10 - 9*s + 2*m" in note for note in d.notes)
    [d] = findings_of(B="B(s, m) at s - 100 + 2*m")
    assert d.message == "the order deadlocks: rank 0 waits for itself"
