"""The verifier: changes to correct programs, with the findings that refuse them, and unusual programs that are accepted.

test_verify_collectives.py has most tests of all-reduces, and test_recompute.py those of recomputations.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import (
    AllReduce,
    Bwd,
    BwdInput,
    BwdWeight,
    Free,
    Fwd,
    Instruction,
    Recv,
    Send,
    stage_group,
)
from chimerac.chimera_ir.program import Machine, Program, Tied
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import evaluation_of, verify
from chimerac.compiler.verify import peaks
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines
from tests.helpers import findings_of_call, program, replaced, streams, with_streams
from tests.helpers_reference import find_error

# Instructions are written here as Fwd(pipe, stage, micro-batches) and Send(value, pipe, stage, micro-batches, peer).
RIGHT = program("1f1b", D=2, N=2)
TEXT = program_to_text(RIGHT)


def findings_of(p: Program) -> list[Diagnostic]:
    return findings_of_call(verify, p)


def changed(*replacements: tuple[str, str], text: str = TEXT) -> Program:
    """Return the program of a text after these replacements."""
    return program_from_text(replaced(text, *replacements))


SPLIT_PIPES = """chimera-program 1
schedule split_pipes
sizes width=1 ranks=2 stages=2 micro_batches=4 window=2 machine=window kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe a on 0 0 micro_batches 0 1
pipe b on 0 0 micro_batches 2 3

rank 0:
  FWD a s0 m0,1
  FWD a s1 m0
  FWD a s1 m1
  BWD a s1 m0,1
  BWD_INPUT a s0 m1
  BWD a s0 m0
  BWD_WEIGHT a s0 m1
  FWD b s0 m2,3
  FWD b s1 m2,3
  BWD b s1 m3
  BWD b s1 m2
  BWD b s0 m2,3
rank 1:
"""


def test_groups_and_split_backwards_are_accepted() -> None:
    assert verify(program_from_text(SPLIT_PIPES))


@pytest.mark.parametrize(
    ("code", "old", "new", "message"),
    [
        ("E402", "FWD a s0 m0,1", "FWD a s0 m0,2", "micro-batch 2 is not of this pipe"),
        ("E402", "FWD a s0 m0,1", "FWD a s0 m0,0", "micro-batch 0 is named twice"),
        ("E402", "FWD a s0 m0,1", "FWD b s0 m0,1", "micro-batch 0 is not of this pipe"),
        ("E402", "FWD a s0 m0,1", "FWD a s0 m0,9", "micro-batch 9 is not of this pipe"),
        ("E402", "FWD a s0 m0,1", "FWD a s2 m0,1", "stages are 0 .. 1"),
        ("E410", "FWD a s1 m0\n", "FWD a s1 m1\n", "the forward of a s1 m0 is missing"),
        ("E411", "FWD a s1 m1", "FWD a s1 m0,1", "the forward of a s1 m0 is in the program 2 times"),
        ("E410", "BWD_WEIGHT a s0 m1", "", "the weight gradient of a s0 m1 is missing"),
        ("E411", "BWD_WEIGHT a s0 m1", "BWD a s0 m1", "the input gradient of a s0 m1 is in the program 2 times"),
        ("E420", "BWD_INPUT a s0 m1\n  BWD a s0 m0\n  BWD_WEIGHT a s0 m1",
         "BWD_WEIGHT a s0 m1\n  BWD a s0 m0\n  BWD_INPUT a s0 m1",
         "the weight gradient comes before the input gradient"),
        ("E420", "  FWD b s0 m2,3\n  FWD b s1 m2,3\n", "  FWD b s1 m2,3\n  FWD b s0 m2,3\n", "is read before it is made"),
        ("E450", "BWD_WEIGHT a s0 m1", "BWD_WEIGHT a s0 m1; ALLREDUCE s0 over 0",
         "the group has one copy and needs no all-reduce"),
    ],
)  # fmt: skip
def test_an_instruction_that_is_wrong_missing_or_misplaced_is_refused(code: str, old: str, new: str, message: str) -> None:
    diagnostics = findings_of(changed((old, new), text=SPLIT_PIPES))
    assert diagnostics[0].code == code
    assert any(message in d.message for d in diagnostics)


def test_a_backward_for_a_wrong_micro_batch_is_refused_though_the_number_of_backwards_is_right() -> None:
    """On stage 0, micro-batch 1 has no backward and micro-batch 0 has two."""
    p = changed(("BWD main s0 m1", "BWD main s0 m0"))
    assert {d.code for d in findings_of(p)} == {"E410", "E411"}


def test_half_of_a_backward_does_not_replace_a_whole_one() -> None:
    s = streams(RIGHT)
    s[0][s[0].index(Bwd(0, 0, (0,)))] = BwdInput(0, 0, (0,))
    assert [d.message for d in findings_of(with_streams(RIGHT, s))] == ["the weight gradient of main s0 m0 is missing"]


@pytest.mark.parametrize(
    ("code", "replacements", "message"),
    [
        ("E423", [("SEND act main s1 m0 -> 1", "SEND act main s1 m0 -> 2")], "is sent to a rank that does not read it"),
        ("E423", [("RECV act main s1 m0 <- 0", "RECV act main s1 m0 <- 2")], "is received from a rank that does not make it"),
        ("E421", [("; SEND act main s1 m0 -> 1", "")], "is read here but never sent"),
        ("E421", [("RECV act main s1 m0 <- 0; ", "")], "is read here but never received"),
        (
            "E422",
            [("SEND act main s1 m0 -> 1", "SEND act main s1 m0 -> 1; SEND act main s1 m0 -> 1")],
            "is sent twice, but needed once",
        ),
        (
            "E422",
            [("SEND act main s1 m0 -> 1", "; ".join(["SEND act main s1 m0 -> 1"] * 3))],
            "is sent 3 times, but needed once",
        ),
    ],
)
def test_a_transfer_that_is_missing_or_repeated_or_names_a_wrong_rank_is_refused(
    code: str, replacements: list[tuple[str, str]], message: str
) -> None:
    three_ranks = program_to_text(program("1f1b", D=3, N=2))
    diagnostics = findings_of(changed(*replacements, text=three_ranks))
    assert diagnostics[0].code == code
    assert message in diagnostics[0].message


def test_a_value_that_is_sent_from_a_rank_that_does_not_make_it_is_refused() -> None:
    three_ranks = program_to_text(program("1f1b", D=3, N=2))
    p = changed(("; SEND act main s1 m0 -> 1", ""), ("rank 2:\n", "rank 2:\n  SEND act main s1 m0 -> 1\n"), text=three_ranks)
    assert findings_of(p)[0].message.endswith("act main s1 m0 is sent from a rank that does not make it")


@pytest.mark.parametrize(
    ("where", "free", "message"),
    [
        ("  FWD main s1 m0", "; FREE act main s1 m0", "the buffer is freed too early"),
        ("  BWD main s1 m0", "; FREE act main s1 m0; FREE act main s1 m0", "the buffer is freed twice"),
        ("  BWD main s1 m0", "; FREE act main s1 m0" * 3, "the buffer is freed 3 times"),
        ("  BWD main s0 m0", "; FREE act main s1 m0", "on another rank than its last reader"),
    ],
)
def test_a_buffer_that_is_freed_too_early_or_repeatedly_or_on_another_rank_is_refused(
    where: str, free: str, message: str
) -> None:
    first = findings_of(changed((where, where + free)))[0]
    assert first.code == "E426" and message in first.message


def test_buffers_may_be_freed_after_their_last_reader() -> None:
    p = changed(("  BWD main s1 m0", "  BWD main s1 m0; FREE act main s1 m0"))
    assert verify(p)
    assert peaks(p) == peaks(RIGHT)


def test_a_value_that_stays_on_its_rank_is_not_sent() -> None:
    d = findings_of(changed(("  FWD b s0 m2,3\n", "  FWD b s0 m2,3; SEND act b s1 m2 -> 1\n"), text=SPLIT_PIPES))[0]
    assert d.message.endswith("act b s1 m2 is sent, but it stays on its rank") and d.help == "remove the SEND"


def test_a_value_that_stays_on_its_rank_has_no_buffer_to_free() -> None:
    p = changed(("  FWD b s1 m2,3\n", "  FWD b s1 m2,3; FREE act b s1 m2\n"), text=SPLIT_PIPES)
    assert findings_of(p)[0].message.endswith("the buffer is freed but was never received")


def test_an_exceeded_or_unknown_limit_is_refused() -> None:
    assert verify(RIGHT.with_header(limits={"activations": 2, "receive_buffers": 2}))
    [d] = findings_of(RIGHT.with_header(limits={"activations": 1}))
    assert (d.code, d.message) == ("E460", "rank 0 holds 2 activations at its peak; the limit is 1")
    [d] = findings_of(RIGHT.with_header(limits={"activation": 1}))
    assert (d.code, d.message, d.help) == ("E401", "unknown limit 'activation'", "did you mean 'activations'?")
    # At most 100 findings are about a header, here one that has 500 unknown limits.
    assert len(findings_of(RIGHT.with_header(limits={f"limit{k}": 1 for k in range(500)}))) == 100


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 3}, "the program has 2 streams, but 3 replicas x 2 ranks = 6"),
        ({"stages": 3}, "pipe main places 2 stages, but the program has 3"),
        ({"micro_batches": 3}, "no pipe lists micro-batch 2 of 0 .. 2"),
        ({"pipes": RIGHT.header.pipes * 2}, "the pipes list micro-batch 0 twice; each belongs to one pipe"),
        ({"micro_batches": 1}, "a pipe lists micro-batch 1, but micro-batches are 0 .. 0"),
        ({"tied": (Tied("t", (0, 1)), Tied("t", (0, 1)))}, "two parameter groups have the name 't'"),
        ({"tied": (Tied("t", ()),)}, "tied t names no stage"),
        ({"tied": (Tied("t", (0, 2)),)}, "tied t names stage 2, but stages are 0 .. 1"),
        ({"kind": "evaluation"}, "an evaluation program holds only forwards, and transfers and FREEs"),
    ],
)
def test_a_wrong_header_is_refused(changes: dict[str, object], message: str) -> None:
    diagnostics = findings_of(RIGHT.with_header(**changes))
    assert {d.code for d in diagnostics} == {"E401"}
    assert any(message in d.message for d in diagnostics)


def test_a_micro_batch_that_the_pipes_omit_or_repeat_or_that_does_not_exist_is_named() -> None:
    p = program("1f1b", D=2, N=3)
    (pipe,) = p.header.pipes

    def message(*ids: int) -> str:
        """Return the message about the program if its pipe lists these micro-batches."""
        [d] = findings_of(p.with_header(pipes=(replace(pipe, micro_batches=ids),)))
        return d.message

    assert message(0, 1) == "no pipe lists micro-batch 2 of 0 .. 2"
    assert message(0, 2, 2, 2) == "the pipes list micro-batch 2 3 times; each belongs to one pipe"
    assert message(0, 7, 7) == "a pipe lists micro-batch 7, but micro-batches are 0 .. 2"
    assert message(1, 1, 7) == "the pipes list micro-batch 1 twice; each belongs to one pipe"
    assert message() == "no pipe lists micro-batch 0 of 0 .. 2"


@pytest.mark.parametrize(
    ("ids", "fact", "help"),
    [
        ("m0,0", "micro-batch 0 is named twice", "name it once"),
        ("m0,0,0", "micro-batch 0 is named 3 times", "name it once"),
        ("m9", "micro-batch 9 is not of this pipe", "the micro-batches of a: 0, 1"),
        ("m0,2", "micro-batch 2 is not of this pipe", "the micro-batches of a: 0, 1"),
    ],
)
def test_a_wrong_micro_batch_of_an_instruction_is_refused(ids: str, fact: str, help: str) -> None:
    [d] = findings_of(changed(("FWD a s0 m0,1", f"FWD a s0 {ids}"), text=SPLIT_PIPES))
    assert (d.code, d.message, d.help) == ("E402", f"rank 0, instruction 0: FWD a s0 {ids}: {fact}", help)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Fwd(-1, 0, (0,)), "rank 0, instruction 0: FWD of pipe -1: pipes are 0 .. 0"),
        (Fwd(-1, 0, (9,)), "rank 0, instruction 0: FWD of pipe -1: pipes are 0 .. 0"),
        (Fwd(0, -1, (0,)), "rank 0, instruction 0: FWD main s-1 m0: stages are 0 .. 1"),
        (Send("act", 0, 1, (0,), -1), "rank 0, instruction 0: SEND act main s1 m0 -> -1: ranks are 0 .. 1"),
        (Fwd(0, 0, ()), "rank 0, instruction 0: FWD main s0 m: it names no micro-batch"),
        (AllReduce(stage_group(0), 0, ()), "rank 0, instruction 0: ALLREDUCE s0 over : it names no rank"),
    ],
)
def test_ids_that_only_a_program_built_in_python_can_have_are_refused(wrong: Instruction, message: str) -> None:
    s = streams(RIGHT)
    s[0][0] = wrong
    [d] = findings_of(with_streams(RIGHT, s))
    assert (d.code, d.message) == ("E402", message)


EVALUATION = evaluation_of(RIGHT)


def test_forwards_and_their_transfers_are_an_evaluation_program() -> None:
    kept = [[i for i in s if isinstance(i, Fwd) or getattr(i, "value", "") == "act"] for s in streams(RIGHT)]
    p = with_streams(RIGHT, kept).with_header(kind="evaluation")
    assert verify(p) and verify(EVALUATION)
    assert peaks(p).activations == (1, 1)


@pytest.mark.parametrize(
    "more",
    [
        [[Send("grad", 0, 0, (0,), 1)], [Recv("grad", 0, 0, (0,), 0)]],
        [[Recv("grad", 0, 0, (0,), 1)], [Send("grad", 0, 0, (0,), 0)]],
        [[Free("grad", 0, 0, (0,))], []],
        [[Bwd(0, 0, (0,))], []],
        [[BwdInput(0, 0, (0,)), BwdWeight(0, 0, (0,))], []],
        [[AllReduce("stage 0", 0, (0, 1))], []],
    ],
)
def test_an_evaluation_program_with_an_instruction_about_gradients_is_refused(more: list[list[Instruction]]) -> None:
    """Such a program computes no gradient. So these instructions are refused before any other check or analysis reads them.

    Args:
        more: for each rank, the instructions that are added at the end of its stream.
    """
    for machine in get_args(Machine):
        p = with_streams(EVALUATION, [s + added for s, added in zip(streams(EVALUATION), more, strict=True)])
        [d] = findings_of(p.with_header(machine=machine))
        others = f"this one has {sum(map(len, more))} other instruction"
        assert d.code == "E401" and f"transfers and FREEs of activations; {others}" in d.message
        assert d.notes[0].startswith("rank 0, instruction 4: ") and "remove" in d.help


def test_an_evaluation_program_may_have_pairs_groups_frees_recompute_limits_and_tied_sets() -> None:
    """FREE and limits are checked as in a training program."""
    s = streams(EVALUATION)
    s[0] = [Fwd(0, 0, (0, 1), recompute=True), Send("act", 0, 1, (0, 1), 1)]
    s[1] = [
        Recv("act", 0, 1, (0, 1), 0), Fwd(0, 1, (0,), overlap=True), Fwd(0, 1, (1,)),
        Free("act", 0, 1, (0,)), Free("act", 0, 1, (1,)),
    ]  # fmt: skip
    p = with_streams(EVALUATION, s).with_header(
        tied=(Tied("shared", (0, 1)),), limits={"activations": 2, "receive_buffers": 2, "weight_copies": 1}
    )
    assert not find_error(verify(p))
    assert peaks(p).receive_buffers == (0, 2)
    assert findings_of(p.with_header(limits={"activations": 1}))[0].code == "E460"
    assert all(machines(ProgramIndex(p)).values())
    s[1] = [*s[1][:4], s[1][3]]  # the same buffer is freed twice
    assert findings_of(with_streams(p, s))[0].code == "E426"


def test_the_machines_on_which_a_program_terminates_are_found() -> None:
    assert machines(ProgramIndex(RIGHT)) == {
        "posted": True,
        "window": True,
        "rendezvous": True,
        "paired": False,
        "serial": False,
    }


def test_crossing_sends_deadlock_where_a_send_waits_for_its_recv() -> None:
    # Rank 0 sends act m1 before it posts its RECV of grad m0, and rank 1 sends grad m0 before it posts its RECV of act m1.
    crossing = changed(
        ("  RECV grad main s0 m0 <- 1; RECV grad main s0 m1 <- 1\n", ""),
        ("  BWD main s0 m0", "  RECV grad main s0 m0 <- 1; RECV grad main s0 m1 <- 1\n  BWD main s0 m0"),
        ("  RECV act main s1 m0 <- 0; RECV act main s1 m1 <- 0\n", "  RECV act main s1 m0 <- 0\n"),
        ("  FWD main s1 m1", "  RECV act main s1 m1 <- 0\n  FWD main s1 m1"),
    )
    terminates = machines(ProgramIndex(verify(crossing)))
    assert terminates["posted"] and terminates["window"] and not terminates["rendezvous"]
    assert findings_of(crossing.with_header(machine="rendezvous"))[0].code == "E440"
    assert findings_of(crossing.with_header(window=0))[0].code == "E440"


ONE_RANK = """chimera-program 1
schedule one_rank
sizes width=1 ranks=1 stages=2 micro_batches=1 window=2 machine=window kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe main on 0 0 micro_batches 0

rank 0:
"""
TASKS = ["FWD main s0 m0", "FWD main s1 m0", "BWD_INPUT main s1 m0", "BWD_WEIGHT main s1 m0", "BWD main s0 m0"]


@pytest.mark.parametrize(("tasks", "pair"), [(TASKS, 0), (TASKS, 1), (TASKS, 2), ([*TASKS[:3], TASKS[4], TASKS[3]], 2)])
def test_the_second_task_of_an_overlapped_pair_may_not_need_the_first(tasks: list[str], pair: int) -> None:
    """pair: the index of the first task of the pair."""
    text = ONE_RANK + "".join(f"  {t}{' overlap' if k == pair else ''}\n" for k, t in enumerate(tasks))
    assert verify(program_from_text(text.replace(" overlap", "")))
    [d] = findings_of(program_from_text(text))
    assert d.code == "E420" and "overlaps with a task that it needs" in d.message


def test_an_overlapped_pair_is_two_adjacent_tasks() -> None:
    text = ONE_RANK + "".join(f"  {t}\n" for t in TASKS)
    assert verify(changed((f"{TASKS[3]}\n", f"{TASKS[3]} overlap\n"), text=text))
    assert findings_of(changed((f"{TASKS[4]}\n", f"{TASKS[4]} overlap\n"), text=text))[0].code == "E403"  # no task follows
    three = changed((f"{TASKS[2]}\n", f"{TASKS[2]} overlap\n"), (f"{TASKS[3]}\n", f"{TASKS[3]} overlap\n"), text=text)
    assert findings_of(three)[0].code == "E403"  # the task in the middle would be in two pairs
    sent = changed(("FWD main s0 m0;", "FWD main s0 m0 overlap;"))
    assert findings_of(sent)[0].code == "E403"  # a transfer is between the two tasks
