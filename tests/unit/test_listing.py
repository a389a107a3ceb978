"""Listings: explicit tasks, the next task, the oldest pending task, loops, conditions, overlapped pairs, and findings."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chimerac.chimera_ir.diagnostics import Diagnostic, Source, Span
from chimerac.chimera_ir.instructions import AllReduce, Recv, Send, Task
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_text
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.diagnose.source_lines import order_notes
from chimerac.compiler.order import listing as listing_module
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax import walk
from chimerac.compiler.verify import peaks
from tests.helpers import SMALL, findings_of_call, program, tasks
from tests.helpers_events import makespan
from tests.helpers_text import tasks_of

PIPE = "pipe main { stage k on rank k   micro_batches N }"
TWO_PIPES = "pipe p[i in 0 .. 1] { stage k on rank if i == 0 then k else D - 1 - k   micro_batches N }"


def listing(body: str, pipes: str = PIPE, D: int = 1, N: int = 3, stages: str = "D", extra: str = "") -> Program:  # noqa: N803
    """Return the program of a listing.

    Args:
        body: its actions.
        pipes: the text of its pipes.
        D, N: the defaults of its parameters; there are D ranks.
        stages: their number, as an expression.
        extra: further statements.
    """
    head = f"schedule l param D = {D} param N = {N} ranks D stages {stages} {extra}\n{pipes}\n"
    return compile_text(f"{head}order listing for rank r {{\n{body}\n}}\n").program


def first_finding(body: str, **more: object) -> Diagnostic:
    """Return the first finding about a listing.

    Args:
        more: further arguments of `listing`.
    """
    return findings_of_call(listing, body, **more)[0]


def test_a_task_without_numbers_is_the_lowest_that_remains() -> None:
    assert tasks_of(listing("repeat N { F }  repeat N { B }"), 0) == "F0 F1 F2 B0 B1 B2"
    # A named task is taken out of order. The next task is the lowest remaining one.
    assert tasks_of(listing("F main(0, 1)  F  F  B(0, 2)  B  B"), 0) == "F1 F0 F2 B2 B0 B1"
    assert tasks_of(listing("F(0, 0 .. 2)  B  B(0, 1 .. 2)"), 0) == "F0 B0 B1"
    assert [i.micro_batches for i in listing("F(0, 0 .. 2)  B  B(0, 1 .. 2)").stream(0)] == [(0, 1, 2), (0,), (1, 2)]


def test_b_and_i_are_both_the_backward_of_a_micro_batch() -> None:
    assert tasks_of(listing("repeat N { F }  I  B  I  W  W"), 0) == "F0 F1 F2 I0 B1 I2 W0 W2"
    assert tasks_of(listing("repeat N { F }  B(0, 1)  I  I  W  W"), 0) == "F0 F1 F2 B1 I0 I2 W0 W2"


def test_w_is_the_oldest_pending_weight_gradient_that_it_could_mean() -> None:
    both = "pipe a { stage k on rank 0 micro_batches N }   pipe b { stage k on rank 0 micro_batches N }"
    body = "repeat N { F a F b }  I b  I a  I b  I a  "
    # In `order`, the letter W stands for `W` without a pipe, a for `W a`, and b for `W b`.
    for order, expected in (("WWWW", "W2 W0 W3 W1"), ("aaWW", "W0 W1 W2 W3"), ("WaWW", "W2 W0 W3 W1"), ("abab", "W0 W2 W1 W3")):
        words = ["W" if x == "W" else f"W {x}" for x in order]
        assert tasks_of(listing(body + " ".join(words), pipes=both, N=2), 0).endswith(expected)
    # A named task is no longer pending.
    assert tasks_of(listing("repeat N { F }  repeat N { I }  W(0, 1)  W  W"), 0).endswith("W1 W0 W2")
    assert first_finding("repeat N { F }  I  W  W").message == "no weight gradient is pending on rank 0"


def test_loops_conditions_and_lets_determine_the_order() -> None:
    assert tasks_of(listing("repeat i in 0 .. N - 1 { F(0, N - 1 - i) }  repeat N { B }"), 0) == "F2 F1 F0 B0 B1 B2"
    assert tasks_of(listing("repeat 0 - 5 { F }  repeat i in 3 .. 1 { F }  repeat N { F  B }"), 0) == "F0 B0 F1 B1 F2 B2"
    body = """let half = N // 2
    repeat i in 0 .. N - 1 {
        let late = i >= half
        if late and i % 2 == 1 { F(0, i) } else { if late { F(0, i) B(0, i) } else { F(0, i) } }
    }
    repeat N - 1 { B }"""
    assert tasks_of(listing(body, N=4), 0) == "F0 F1 F2 B2 F3 B0 B1 B3"
    chain = "repeat i in 0 .. N - 1 { if i == 0 { F(0, 2) } else if i == 1 { F(0, 0) } else { F(0, 1) } }  repeat N { B }"
    assert tasks_of(listing(chain), 0) == "F2 F0 F1 B0 B1 B2"
    assert listing(chain) == listing(chain.replace("else if", "else { if").replace("F(0, 1) }", "F(0, 1) } }"))
    # A name that a let binds is visible in its block only, and must be new.
    assert first_finding("repeat 1 { let x = 1 }  F(0, x)").code == "E201"
    assert first_finding("let N = 1").code == "E207"


def test_conditions_on_r_give_the_ranks_different_orders() -> None:
    p = listing("if r == D - 1 { repeat N { F  B } } else { repeat N { F }  repeat N { B } }", D=3)
    assert [tasks_of(p, r) for r in range(3)] == ["F0 F1 F2 B0 B1 B2"] * 2 + ["F0 B0 F1 B1 F2 B2"]


def test_the_help_for_an_ambiguous_task_has_an_example_that_works() -> None:
    for ambiguous, before, after, expected in (
        ("F", "", "F p[1] I p[0] I p[1] W W", "F p[0](0)"),
        ("F(0, 0)", "", "F p[1] I p[0] I p[1] W W", "F p[0](0, 0)"),
        ("I", "F p[0] F p[1] ", "W I p[1] W", "I p[0](0)"),
        ("I", "F p[0] F p[1] I p[0] ", "W W", "I p[1](0)"),
        ("B(0, N - 1 .. N - 1)", "F p[0] F p[1] ", "B p[1]", "B p[0](0, N - 1 .. N - 1)"),
    ):
        help = first_finding(f"{before}{ambiguous} {after}", pipes=TWO_PIPES, N=1).help
        assert help == f"name the pipe and the stage, for instance {expected}"
        assert listing(f"{before}{expected} {after}", pipes=TWO_PIPES, N=1)


def test_a_task_that_is_ambiguous_or_does_not_exist_is_refused() -> None:
    d = first_finding("F", pipes=TWO_PIPES)
    assert (d.code, d.message) == ("E306", "F could mean 2 stages of rank 0: p[0] s0, p[1] s0")
    assert first_finding("F p", pipes=TWO_PIPES).message == d.message  # the family is two pipes
    d = first_finding("F", D=2, pipes="pipe main { stage k on rank 1 micro_batches N }", stages="1")
    assert (d.message, d.help) == ("F could mean 0 stages of rank 0: none", "rank 0 has no stage: list nothing there")
    assert first_finding("F p[2]", pipes=TWO_PIPES).message == "there is no pipe p[2]"
    assert first_finding("F q", pipes=TWO_PIPES).code == "E201"
    assert first_finding("F main[0]").code == "E202"
    assert first_finding("F(0, 2 .. 1)").message == "rank 0 lists F of main s0, micro-batch none; it has 0 .. 2"
    assert first_finding("F(0, 0 - 1)").message == "rank 0 lists F of main s0, micro-batch -1; it has 0 .. 2"
    d = first_finding("F(0, 1 .. 3)")
    assert d.message == "rank 0 lists F of main s0, micro-batch 1 .. 3; it has 0 .. 2"
    assert d.help == "micro-batches are numbered from 0 in their pipe, and a range includes both ends"


def test_a_loop_or_a_range_that_is_huge_is_refused() -> None:
    assert first_finding("repeat 1000000000000 { }").code == "E306"
    assert first_finding("repeat i in 0 .. 1000000000000 { repeat 10 { } }").code == "E306"
    assert first_finding("F(0, 0 .. 1000000000000)").code == "E306"


# --- overlapped pairs -------------------------------------------------------------------------------------------------

PAIRED = [(name, parameters) for name in ("dualpipe", "dualpipev") for parameters in SMALL[name]]


@pytest.mark.parametrize(("name", "parameters"), PAIRED)
@pytest.mark.parametrize("width", [1, 2])
def test_nothing_is_between_the_tasks_of_a_pair_and_a_send_follows_its_task(
    name: str, parameters: dict[str, int], width: int
) -> None:
    p = program(name, width, **parameters)
    pairs = 0
    for g in range(p.world):
        stream = p.stream(g)
        for a, b in pairwise(stream):
            if isinstance(a, Task) and a.overlap:
                assert isinstance(b, Task) and not b.overlap
                pairs += 1
        for k, i in enumerate(stream):
            if isinstance(i, Send):  # of the tasks of its micro-batch before it, the last one has computed the value
                maker = next(x for x in reversed(stream[:k]) if isinstance(x, Task) and x.micro_batches == i.micro_batches)
                assert maker.stage == i.stage + (1 if i.value == "grad" else -1)  # the stage of a SEND is that of the reader
    assert pairs


CROSSED = """if r == 0 { repeat N { F p[0] }  repeat N { F p[1] }  B p[1]  B p[1] & B p[0]  repeat N - 1 { B p[0] } }
    else { repeat N { F p[1] }  repeat N { F p[0] }  B p[0]  B p[0] & B p[1]  repeat N - 1 { B p[1] } }"""


@pytest.mark.parametrize("window", [0, 1, 2])
@pytest.mark.parametrize("sync", ["sync at end", "sync eager", "sync eager where idle"])
def test_receives_come_before_a_pair_and_sends_and_all_reduces_after_it(window: int, sync: str) -> None:
    """The last weight gradient of stage 1 is in the first task of a pair: its all-reduce comes after the second task."""
    p = listing(CROSSED, pipes=TWO_PIPES, D=2, N=2, extra=f"window {window} {sync}")
    for g in range(2):
        stream = p.stream(g)
        first = next(k for k, i in enumerate(stream) if isinstance(i, Task) and i.overlap)
        second = first + 1
        assert stream[second].op == "BWD"
        after = stream[second + 1]
        assert isinstance(after, Send) and after.value == "grad" and after.micro_batches == stream[first].micro_batches
        received = [i for i in stream[:first] if isinstance(i, Recv)]
        assert {i.micro_batches for i in received if i.value == "grad"} >= {stream[second].micro_batches}
        all_reduces = [k for k, i in enumerate(stream) if isinstance(i, AllReduce) and i.stage == 1]
        assert len(all_reduces) == 1 and all_reduces[0] > second
        assert sync != "sync eager" or all_reduces[0] == second + 2  # right after the SEND


def test_a_pair_takes_the_time_of_both_from_when_both_can_start() -> None:
    alone = "if r == 0 { F p[0] F p[1] B p[1] B p[0] } else { F p[1] F p[0] B p[0] B p[1] }"
    together = "if r == 0 { F p[0] F p[1] B p[1] & B p[0] } else { F p[1] F p[0] B p[0] B p[1] }"
    unpaired, paired = (listing(body, pipes=TWO_PIPES, D=2, N=1) for body in (alone, together))
    #   alone     rank 0  F0 F1 B1-- B0--         together  rank 0  F0 F1 .... B1&B0---
    #             rank 1  F1 F0 B0-- B1--                   rank 1  F1 F0 B0-- ........ B1--
    assert (simulate(unpaired).makespan, makespan(unpaired)) == (6, 6)
    assert (simulate(paired).makespan, makespan(paired)) == (10, 10)
    assert simulate(paired).busy == (6, 6)
    assert peaks(paired).activations == (2, 2)


def test_pairs_of_named_tasks_in_a_loop_and_misplaced_ampersands() -> None:
    p = listing("F  repeat i in 1 .. N - 1 { F(0, i) & B(0, i - 1) }  B")
    assert tasks_of(p, 0) == "F0 F1 B0 F2 B1 B2"
    assert [i.overlap for i in tasks(p.stream(0))] == [False, True, False, True, False, False]
    for body in ("& F", "F &", "F & repeat 2 { B }", "F & F & F", "F & & F", "F let x = 1 & F"):
        assert first_finding(body).code in ("E102", "E101"), body


# --- findings, and the effort of long listings ------------------------------------------------------------------------


def test_a_full_backward_beside_half_of_a_split_one_is_one_finding() -> None:
    for body in ("F B W(0, 0)", "F B I(0, 0)"):
        assert [d.code for d in findings_of_call(listing, body, N=1)] == ["E302"]


def test_a_task_that_is_listed_again_is_named_at_its_second_place() -> None:
    for body in ("F(0, 0) F(0, 0) B", "repeat 3 { F(0, 0) } B"):
        assert first_finding(body, N=1).message == "rank 0 lists F of main s0, micro-batch 0 a second time"


def test_the_names_of_an_action_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A formula may be long, and an action may be repeated a million times."""
    searched = []

    def names_in(e: n.Expr) -> list[str]:
        searched.append(e)
        return walk.names_in(e)

    monkeypatch.setattr(listing_module, "names_in", names_in)
    p = listing("repeat i in 0 .. N - 1 { F(if 0 == 0 then 0 else i, i) } repeat N { B(0) }", N=20)
    assert tasks_of(p, 0).startswith("F0 F1 F2 F3")
    assert len(searched) == 2, "once for each action"


def test_pairs_that_wait_for_each_other_are_named_as_pairs() -> None:
    d = first_finding(
        "F p[r] & F p[1 - r]  B p[1 - r]  B p[r]",
        pipes="pipe p[i in 0 .. 1] { stage s on rank (i + s) % 2   micro_batches 1 }",
        D=2,
    )
    pairs = "FWD p[0] s0 m0 & FWD p[1] s1 m1", "FWD p[1] s0 m1 & FWD p[0] s1 m0"
    expected = {f"rank {r} runs {pairs[r]}, which {pairs[1 - r]} needs" for r in (0, 1)}
    assert d.code == "E304" and set(d.notes[0].splitlines()) == expected


def test_a_long_cycle_of_waits_is_shown_in_part() -> None:
    """Every rank waits for the next one: of 14 ranks and waits, the finding names 12 and counts the others."""
    d = first_finding(
        "repeat k in 0 .. D-1 { F p[(r - (D-1-k)) % D](D-1-k) }  repeat k in 0 .. D-1 { B p[(r - k) % D](k) }",
        pipes="pipe p[i in 0 .. D-1] { stage s on rank (s + i) % D   micro_batches 1 }",
        D=14,
    )
    first = ", ".join(map(str, range(12)))
    assert d.message == f"the order deadlocks: ranks {first} and 2 more wait for each other in a cycle"
    *waits, more = d.notes[0].splitlines()
    assert len(waits) == 12 and more == "... and 2 more waits"
    drawn = d.notes[-1].splitlines()[1:]
    assert len(drawn) == 12
    assert {line.index("|") for line in drawn} == {len("rank 11 ")}, "all lines of the drawing begin in one column"


def test_the_lines_of_a_long_cycle_are_shown_in_part() -> None:
    source = Source("x", "".join(f"line {k}\n" for k in range(20)))
    notes = order_notes(Span(source, k, 1, end_line=k, end_column=2) for k in range(1, 21))
    assert notes[11] == "ordered by x:12: line 11" and notes[12:] == ["... and 8 more lines"]
