"""The list scheduler of `order greedy`: preferences, keys, ties, limits and groups, and the findings when it is stuck."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_text
from tests.helpers import findings_of_call, program
from tests.helpers_text import tasks_of

# In the expected texts F1.0 is the forward of micro-batch 1 on stage 0. On a rank with one stage it is F1 (`tasks_of`).
PIPE = "pipe main { stage k on rank k   micro_batches N }"
TWO_PIPES = "pipe a { stage k on rank k   micro_batches N }   pipe b { stage k on rank D - 1 - k   micro_batches N }"


def greedy(*lines: str, pipes: str = PIPE, D: int = 2, N: int = 3, stages: str = "D") -> Program:  # noqa: N803
    """Return the program of an `order greedy` with these lines.

    Args:
        stages: how many there are, as an expression.
    """
    order = "order greedy {\n" + "".join(f"    {line}\n" for line in lines) + "}"
    return compile_text(f"schedule g param D = {D} param N = {N} ranks D stages {stages}\n{pipes}\n{order}\n").program


def stuck_finding(*lines: str, **more: object) -> Diagnostic:
    """Return the finding E305 about an order in which the scheduler gets stuck.

    Args:
        more: further arguments of `greedy`.
    """
    [d] = findings_of_call(greedy, *lines, **more)
    assert d.code == "E305"
    return d


def test_the_preferred_task_starts_first() -> None:
    p = greedy("prefer B, F")
    assert [tasks_of(p, r) for r in (0, 1)] == ["F0 F1 F2 B0 B1 B2", "F0 B0 F1 B1 F2 B2"]
    p = greedy("prefer F, B")
    assert [tasks_of(p, r) for r in (0, 1)] == ["F0 F1 F2 B0 B1 B2", "F0 F1 F2 B0 B1 B2"]
    p = greedy("prefer I, F, W")
    assert [tasks_of(p, r) for r in (0, 1)] == ["F0 F1 F2 I0 W0 I1 W1 I2 W2", "F0 I0 F1 I1 F2 I2 W0 W1 W2"]
    p = greedy("prefer W, I, F")
    assert tasks_of(p, 1) == "F0 I0 W0 F1 I1 W1 F2 I2 W2"


def test_a_rank_never_waits_for_a_preferred_task() -> None:
    """A free rank starts a ready task, even if a preferred one becomes ready shortly after."""
    lines = ("cost F = 2, B = 2, hop = 1", "prefer B, F")
    assert tasks_of(greedy(*lines, N=4), 0) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert tasks_of(greedy(*lines, "limit F - B <= 2", N=4), 0) == "F0 F1 B0 F2 B1 F3 B2 B3"


def test_keys_decide_between_tasks_of_one_kind() -> None:
    assert tasks_of(greedy("prefer B, F", "then larger m"), 0) == "F2 F1 F0 B2 B1 B0"
    assert tasks_of(greedy("prefer B, F", "then smaller m % 2, later m"), 0).startswith("F2 F0 F1")
    assert tasks_of(greedy("prefer B, F", "then smaller if r == 0 then -m else m"), 0).startswith("F2 F1 F0")
    # With several `then` the first has priority.
    assert tasks_of(greedy("prefer B, F", "then smaller m % 2", "then larger m"), 0).startswith("F2 F0 F1")


def test_ties_go_to_the_lower_pipe_then_stage_then_micro_batch() -> None:
    pipes_of_rank_0 = "pipe a { stage k on rank 0 micro_batches 2 }   pipe b { stage k on rank 0 micro_batches 2 }"
    p = greedy("prefer F, B", pipes=pipes_of_rank_0, D=1, stages="2")
    # Of the forwards that are ready, the one with the lowest pipe, then stage, then micro-batch starts.
    assert tasks_of(p, 0).startswith("F0.0 F1.0 F0.1 F1.1 F2.0 F3.0 F2.1 F3.1 B0.1 B0.0 B1.1 B1.0 B2.1")
    by_pipe = greedy("prefer F, B", "then larger p", pipes=pipes_of_rank_0, D=1, stages="2")
    assert tasks_of(by_pipe, 0).startswith("F2.0 F3.0 F2.1 F3.1 F0.0")


def test_a_limit_bounds_the_tasks_that_have_started() -> None:
    assert tasks_of(greedy("prefer F, B", "limit F - B <= 1", N=3), 0) == "F0 B0 F1 B1 F2 B2"
    assert tasks_of(greedy("prefer F, B", "limit F - B <= D - r", N=3), 1) == "F0 B0 F1 B1 F2 B2"
    assert tasks_of(greedy("prefer F, I, W", "limit F - W <= 1", N=2), 0) == "F0 I0 W0 F1 I1 W1"
    assert tasks_of(greedy("prefer F, I, W", "limit F - I <= 1", N=2), 0) == "F0 I0 F1 W0 I1 W1"


def test_limits_per_stage_and_per_pipe() -> None:
    looped = "pipe main { stage k on rank k % D   micro_batches N }"
    per_rank = greedy("prefer F, B", "limit F - B <= 2", pipes=looped, stages="2*D", N=4)
    per_stage = greedy("prefer F, B", "limit F - B <= 2 per stage", pipes=looped, stages="2*D", N=4)
    assert tasks_of(per_rank, 0).startswith("F0.0 F0.2 B0.2 B0.0")
    assert tasks_of(per_stage, 0).startswith("F0.0 F1.0 F0.2 F1.2 B0.2")
    per_pipe = greedy("prefer F, B", "limit F - B <= 1 per pipe", pipes=TWO_PIPES, N=2)
    assert tasks_of(per_pipe, 0).startswith("F0.0 F2.1 B2.1")
    varied = greedy("prefer F, B", "limit F - B <= 1 + s per stage", pipes=looped, stages="2*D", N=4)
    assert tasks_of(varied, 0).startswith("F0.0 F0.2 B0.2 B0.0")


def test_a_place_is_kept_for_the_other_direction() -> None:
    """Otherwise each rank would use up its limit of two on one direction, and the ranks would deadlock."""
    p = greedy("cost F = 1, B = 2, hop = 3", "prefer F, B", "limit F - B <= 2", pipes=TWO_PIPES, N=3)
    assert [tasks_of(p, r).split()[:2] for r in (0, 1)] == [["F0.0", "F3.1"], ["F3.0", "F0.1"]]
    d = stuck_finding("prefer F, B", "limit F - B <= 1", pipes=TWO_PIPES)
    assert d.notes[0] == "rank 0 has 0 of 1, 1 reserved for other stages or pipes: F a s0 m0 may not start"
    assert d.help == "line 5: write 'limit F - B <= 2'; tried: the scheduler then finishes"


def test_no_place_is_kept_for_a_pipe_without_micro_batches() -> None:
    empty = "pipe a { stage k on rank k micro_batches N }   pipe b { stage k on rank k micro_batches 0 }"
    assert tasks_of(greedy("prefer F, B", "limit F - B <= 1", pipes=empty), 0) == "F0 B0 F1 B1 F2 B2"


def test_a_stuck_scheduler_names_the_limit_that_refuses() -> None:
    d = stuck_finding("prefer B, F", "limit F - B <= 9", "limit F <= 2", N=3)
    assert d.message == "the scheduler is stuck after 8 of 12 tasks: limits forbid every task that would be next"
    assert d.notes == ("rank 0 has 2 of 2: F main s0 m2 may not start",)
    assert d.span is not None and d.span.source.text.split("\n")[d.span.line - 1].strip() == "limit F <= 2"


def test_a_limit_that_was_tried_is_named_with_its_scope_and_its_formula() -> None:
    three = TWO_PIPES.replace("D - 1 - k", "2 - k")  # rank 1 has stage 1 of both pipes, which count together
    d = stuck_finding("prefer B, F", "limit F - B <= 1 per stage", pipes=three, D=3, N=2)
    assert d.help == "line 5: write 'limit F - B <= 2 per stage'; tried: the scheduler then finishes"
    d = stuck_finding("prefer B, F", "limit F - B <= r + 1 - D", pipes=TWO_PIPES, N=2)
    assert d.help == "line 5: write 'limit F - B <= r + 1 - D + 3'; tried: the scheduler then finishes"
    d = stuck_finding("prefer B, F", "limit F <= 1", "limit F - B <= 0", N=3)
    assert d.help.startswith(
        "line 5: write 'limit F <= 3'; line 6: write 'limit F - B <= 2'; tried: the scheduler then finishes"
    )


def test_the_help_is_advice_if_there_are_too_many_tasks_to_try_limits() -> None:
    d = stuck_finding("prefer B, F", "limit F <= 1", D=10, N=26_000)  # 520,000 tasks: more than MAX_TRIED of diagnose/stuck.py
    assert d.help == (
        "limit F - B instead, a count that every backward lowers; "
        "and let each limit be at least the number of pairs of pipe and stage that it counts"
    )


def test_groups_of_forwards() -> None:
    p = greedy("prefer B, F", "group F by 2", N=5)
    ids = [i.micro_batches for i in p.stream(0) if i.op == "FWD"]
    assert ids == [(0, 1), (2, 3), (4,)]  # the last group has the remaining one
    assert [i.micro_batches for i in p.stream(1) if i.op == "BWD"] == [(m,) for m in range(5)]
    assert [i.micro_batches for i in p.stream(0) if i.op == "SEND"] == ids  # one message for a group
    assert [i.micro_batches for i in p.stream(1) if i.op == "SEND"] == [(m,) for m in range(5)]
    d = stuck_finding("prefer B, F", "group F by 2", "limit F - B <= 1")
    assert d.help == "line 6: write 'limit F - B <= 2'; tried: the scheduler then finishes"


def test_a_smaller_last_group_waits_while_a_limit_forbids_the_group_before_it() -> None:
    """Of the ready forwards of a pipe and stage only the first is considered, here F2-3. F4 alone would be within the limit."""
    p = greedy("prefer F, B", "group F by 2", "limit F - B <= 3", D=1, N=5)
    first = ["FWD main s0 m0,1", "BWD main s0 m0", "FWD main s0 m2,3", "BWD main s0 m1", "FWD main s0 m4"]
    assert [p.text(row) for row in range(5)] == first


def test_a_group_size_above_the_number_of_micro_batches_makes_one_task() -> None:
    p = greedy("prefer B, F", "group F by 100", N=3)
    assert [i.micro_batches for i in p.stream(0) if i.op == "FWD"] == [(0, 1, 2)]


def test_costs_and_hops_determine_the_order() -> None:
    quick = greedy("cost B = 1", "prefer B, F", N=6)
    slow = greedy("cost B(k) = 1 + 5*(1 - k)", "prefer B, F", N=6)
    assert quick.costs.BWD == (1, 1) and tasks_of(quick, 0) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"
    assert slow.costs.BWD == (6, 1) and tasks_of(slow, 0) == "F0 F1 F2 B0 B1 B2 F3 F4 F5 B3 B4 B5"
    near, far = (program("chimera_zb", D=4, N=8, hop=hop) for hop in (0, 2))
    assert [tasks_of(near, r) for r in range(4)] != [tasks_of(far, r) for r in range(4)]
    assert far.costs.hop == 2


def test_recomputation_that_prefer_does_not_name_does_not_change_the_order() -> None:
    for D, N in ((4, 8), (4, 7), (8, 16)):  # noqa: N806
        plain, recomputing = (program("chimera_doubling", D=D, N=N, again=again) for again in (0, 1))
        assert [tasks_of(plain, r) for r in range(D)] == [tasks_of(recomputing, r) for r in range(D)]
        assert not any(i.op == "FWD" and i.recompute for g in range(D) for i in plain.stream(g))
        assert all(i.recompute for g in range(D) for i in recomputing.stream(g) if i.op == "FWD")
