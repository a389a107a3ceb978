"""Recomputation: the stages that a text names, and R as a task of its own in every order form, in programs, times, memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Bwd, Fwd, Instruction, Op, Recompute
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import compile_text, evaluation_of
from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.analyze.report import report
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.verify import findings, peaks
from tests.helpers import findings_of_call, program, streams, with_streams
from tests.helpers_by_hand import TOY, memory_of
from tests.helpers_events import makespan
from tests.helpers_reference import find_error
from tests.helpers_text import findings_of, small, tasks_of

# --- the shipped schedule -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("N", "early", "expected"), [(8, 0, 39), (8, 1, 36), (16, 0, 75), (16, 1, 68)])
def test_recomputing_early_is_faster_than_in_the_backward(N: int, early: int, expected: int) -> None:  # noqa: N803
    """The makespans are those in the header of schedules/chimera_recompute.sched, for D = 4, F = 1 and B = 2.

    Every stage but the last recomputes. A rank holds at most D + 1 activations. At any time, at most `early` of its
    micro-batches have run an R and not yet their backward.
    """
    p = program("chimera_recompute", D=4, N=N, early=early)
    assert simulate(p).makespan == makespan(p) == expected
    assert max(peaks(p).activations) == 5
    for rank in range(4):
        alive: set[tuple[int, int]] = set()
        recomputed: set[tuple[int, int]] = set()
        for i in p.stream(rank):
            of_task = {(i.stage, m) for m in i.micro_batches} if isinstance(i, Fwd | Bwd | Recompute) else set()
            match i:
                case Fwd():
                    assert i.recompute == (i.stage < 3)
                    alive |= of_task
                case Recompute():
                    recomputed |= of_task
                case Bwd():
                    alive, recomputed = alive - of_task, recomputed - of_task
                case _:
                    pass
            assert len(alive) <= 5 and len(recomputed) <= early


def test_the_scheduler_and_the_simulator_agree_on_recomputation() -> None:
    """At a hop cost of 0 they have the same makespan, also where backwards without an R run their forward again."""
    text = """
        schedule agree  param early = 1  ranks 3  stages 6
        pipe main { stage s on rank s % 3 recompute when s != 4   micro_batches 5 }
        order greedy { cost F(s) = 2 + s % 2, B = 5, R = 3  prefer B, F, R  then smaller m  limit F - B <= 6
                       limit R - B <= early per stage }"""
    for early in range(3):
        compiled = compile_text(text, {"early": early})
        assert int(compiled.timing.end.max()) == simulate(compiled.program).makespan == makespan(compiled.program)


# --- the stages that recompute -----------------------------------------------------------------------------------------


def recomputing_stages(p: Program) -> set[tuple[int, int]]:
    """Return (pipe, stage) of the forwards that keep only their input."""
    return {(i.pipe, i.stage) for stream in streams(p) for i in stream if isinstance(i, Fwd) and i.recompute}


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        ("stage s on rank s recompute", {(0, 0), (0, 1), (1, 0), (1, 1)}),
        ("stage s on rank s", set()),
        ("stage s on rank s recompute when s == 0", {(0, 0), (1, 0)}),
        ("stage s on rank s recompute when i == 1", {(1, 0), (1, 1)}),
        ("stage s on rank s recompute when s == i and D == 2", {(0, 0), (1, 1)}),
        ("stage s on rank s recompute when N > 100", set()),
        ("stage s in 0 .. 0 on rank s   stage t in 1 .. D - 1 on rank t recompute", {(0, 1), (1, 1)}),
    ],
)
def test_recomputation_by_stage_and_by_pipe(clause: str, expected: set[tuple[int, int]]) -> None:
    p = small(
        pipe=f"pipe a[i in 0 .. 1] {{ {clause}   micro_batches N }}",
        rule1="F a[j](s, m) at 20*j + s + 2*m",
        rule2="B a[j](s, m) at 90 + 20*j + 2*D - 1 - s + 2*m",
    )
    assert recomputing_stages(p) == expected
    # Each rank runs one stage of each pipe, for three micro-batches. In a stage that recomputes, each backward takes longer by
    # the cost of a forward, which is 1.
    without = 2 * 3 * (1 + 2)
    assert simulate(p).busy == tuple(without + 3 * len([s for _, s in expected if s == rank]) for rank in range(2))
    assert simulate(p).makespan == makespan(p)
    assert not recomputing_stages(evaluation_of(p))


def test_the_condition_of_recompute_is_checked() -> None:
    assert findings_of(pipe="pipe main { stage s on rank s recompute when 3 micro_batches N }")[0].code == "E202"
    assert findings_of(pipe="pipe main { stage s on rank s recompute when m == 0 micro_batches N }")[0].code == "E201"


def test_the_input_gradient_of_a_split_backward_runs_the_forward_again() -> None:
    split = "I(s, m) at 90 + 2*D - 1 - s + 2*m   W(s, m) at 190 + m"
    pipe = "pipe main { stage s on rank s recompute micro_batches N }"
    p = small(pipe=pipe, rule2=split)
    timeline = simulate(p).timeline
    assert set((timeline.end - timeline.start)[p.table.op == Op.BWD_INPUT].tolist()) == {1 + 1}  # F + I
    assert simulate(p).makespan == makespan(p)


# --- orders ---------------------------------------------------------------------------------------------------------------

HEAD = "schedule r  ranks 2  stages 2  pipe main { stage s on rank s recompute when s == 0   micro_batches 3 }\n"
LISTING = "order listing for rank r {{ if r == 1 {{ repeat 3 {{ F  B }} }} else {{ {} }} }}"


def order_of(actions: str) -> str:
    """Return the tasks of rank 0 if a listing gives it these actions."""
    return tasks_of(compile_text(HEAD + LISTING.format(actions)).program, 0)


@pytest.mark.parametrize(
    ("actions", "tasks"),
    [
        ("repeat 3 { F } repeat 3 { R  B }", "F0 F1 F2 R0 B0 R1 B1 R2 B2"),
        ("repeat 3 { F } R repeat 2 { R  B } B", "F0 F1 F2 R0 R1 B0 R2 B1 B2"),
        ("repeat 3 { F } B  R  B  R  B", "F0 F1 F2 B0 R1 B1 R2 B2"),  # after its backward a micro-batch needs no R
        ("repeat 3 { F } R(0, 1) B  R(0)  B  B", "F0 F1 F2 R1 B0 R2 B1 B2"),
        ("repeat 3 { F } R main(0, 0 .. 1)  repeat 3 { B }", "F0 F1 F2 R0 B0 B1 B2"),
        ("repeat 3 { F } R  I  W  R & B(0, 2)  B", "F0 F1 F2 R0 I0 W0 R1 B2 B1"),
    ],
)
def test_a_listing_may_recompute_some_micro_batches(actions: str, tasks: str) -> None:
    assert order_of(actions) == tasks


def test_a_backward_without_an_r_before_it_takes_longer_by_the_cost_of_an_r() -> None:
    for count in range(4):  # how many of the three micro-batches have an R
        recomputations = "".join(f"R(0, {m}) " for m in range(count))
        order = LISTING.format(f"repeat 3 {{ F }} {recomputations} repeat 3 {{ B }}")
        p = compile_text(f"{HEAD} cost F = 10, B = 100, R = 7 {order}").program
        s = simulate(p)
        assert s.busy[0] == 3 * (10 + 100 + 7)
        length = s.timeline.end - s.timeline.start
        assert sorted(length[(p.table.op == Op.BWD) & (p.rank_of == 0)].tolist()) == [100] * count + [107] * (3 - count)
        assert s.makespan == makespan(p) and not find_error(p)


@pytest.mark.parametrize(
    ("order", "code", "words"),
    [
        (LISTING.format("F F F R B B R B B"), "E306", "main s0, micro-batch 3; it has 0 .. 2"),
        (LISTING.format("F F F R(0, 0) R(0, 0) B B B"), "E302", "lists R of main s0, micro-batch 0 a second time"),
        (LISTING.format("F R(0, 1) F F B B B"), "E304", "rank 0 waits for itself"),
        (LISTING.format("F F F B R(0, 0) B B"), "E304", "rank 0 waits for itself"),
        (LISTING.format("F F F R & B R B R B"), "E304", "cannot need its own result"),
        ("order listing for rank r { repeat 3 { F } repeat 3 { R B } }", "E307", "RECOMPUTE main s1 m0"),
        ("order ticks { F(s, m) at s + 2*m  B(s, m) at 9 - s + 2*m  R(s, m) when m == 0 at 8 - s }", "E307", "stage 1"),
        ("order ticks { F(s, m) at s + 2*m  B(s, m) at 9 - s + 2*m  R(0, m) at 4 }", "E102", ""),
        ("order greedy { prefer R, F }", "E202", "prefer names R, F"),
        ("order greedy { prefer B, F  limit R - B <= 1 }", "E202", "the limit counts R"),
        ("order greedy { prefer B, F, R  limit F - R <= 1 }", "E202", "a limit counts F or R"),
    ],
)  # fmt: skip
def test_a_wrong_use_of_r_is_refused(order: str, code: str, words: str) -> None:
    d = findings_of_call(compile_text, HEAD + order)[0]
    assert d.code == code and words in d.message and (d.help or d.notes)


def test_r_has_no_effect_on_an_order_where_no_stage_recomputes() -> None:
    head = HEAD.replace("recompute when s == 0", "recompute when s > 9")
    plain, named = (compile_text(f"{head}order greedy {{ prefer B, F{more} }}").program for more in ("", ", R"))
    assert plain == named


# --- programs -----------------------------------------------------------------------------------------------------------

EARLY = compile_text(HEAD + LISTING.format("repeat 3 { F } repeat 3 { R  B }")).program


def codes_of(p: Program) -> list[str]:
    return [d.code for d in findings(p)]


def moved(m: int, before: Instruction | None) -> Program:
    """Return EARLY with the RECOMPUTE of micro-batch m moved right before the task `before`; None: to the end of the stream."""
    changed, recompute = streams(EARLY), Recompute(pipe=0, stage=0, micro_batches=(m,))
    changed[0].remove(recompute)
    changed[0].insert(changed[0].index(before) if before else len(changed[0]), recompute)
    return with_streams(EARLY, changed)


def test_a_recomputation_comes_between_its_forward_and_its_backward() -> None:
    forward, backward = Fwd(0, 0, (1,), recompute=True), Bwd(0, 0, (1,))  # rank 0: F0 F1 F2 R0 B0 R1 B1 R2 B2
    for right in (EARLY, moved(1, backward), moved(0, forward), moved(2, Bwd(0, 0, (0,)))):
        assert codes_of(right) == [] and not find_error(right)
    for wrong in (moved(1, forward), moved(2, forward), moved(0, backward), moved(1, None)):
        assert codes_of(wrong) == ["E420"] and find_error(wrong)


def test_a_recomputation_may_be_left_out() -> None:
    """Its backward then runs the forward again."""
    changed = streams(EARLY)
    changed[0].remove(Recompute(0, 0, (0,)))
    p = with_streams(EARLY, changed)
    assert codes_of(p) == [] and not find_error(p)


def test_a_second_recomputation_is_refused() -> None:
    changed, first = streams(EARLY), Recompute(0, 0, (0,))
    changed[0].insert(changed[0].index(first), first)
    p = with_streams(EARLY, changed)
    assert codes_of(p) == ["E411"] and find_error(p)


def test_a_recomputation_on_a_rank_without_its_stage_is_refused() -> None:
    changed, first = streams(EARLY), Recompute(0, 0, (0,))
    changed[0].remove(first)
    changed[1].append(first)
    assert codes_of(with_streams(EARLY, changed)) == ["E412"]


def test_a_recomputation_of_a_forward_that_kept_everything_is_refused() -> None:
    changed = streams(EARLY)
    changed[0] = [replace(i, recompute=False) if isinstance(i, Fwd) else i for i in changed[0]]
    p = with_streams(EARLY, changed)
    assert codes_of(p) == ["E413"] * 3 and find_error(p)


def test_an_evaluation_has_no_recomputation() -> None:
    evaluation = evaluation_of(EARLY)
    assert not (evaluation.table.op == Op.RECOMPUTE).any()
    changed = streams(evaluation)
    changed[0].append(Recompute(0, 0, (0,)))
    assert codes_of(with_streams(evaluation, changed)) == ["E401"]


def test_a_cost_of_recomputation_is_written_only_if_it_is_given_and_checked_when_read() -> None:
    given = compile_text(HEAD + "cost R = 3 " + LISTING.format("repeat 3 { F } repeat 3 { R  B }")).program
    assert given == EARLY and given.digest == EARLY.digest  # neither depends on costs
    for write, read in ((program_to_text, program_from_text), (program_to_json, program_from_json)):
        assert "RECOMPUTE=" not in write(EARLY).split("pipe")[0] and '"RECOMPUTE"' not in write(EARLY).split("streams")[0]
        assert read(write(given)).costs == given.costs and given.costs.of(Op.RECOMPUTE) == (3, 3)
        assert read(write(EARLY)).costs == EARLY.costs and EARLY.costs.of(Op.RECOMPUTE) == (1, 1)
    assert "BWD_WEIGHT=1 RECOMPUTE=3 hop=0" in program_to_text(given)
    with pytest.raises(ChimeraError, match="RECOMPUTE"):
        program_from_json(program_to_json(given).replace('"RECOMPUTE": [3, 3]', '"RECOMPUTE": []'))
    wrong = program_from_json(program_to_json(given).replace('"RECOMPUTE": [3, 3]', '"RECOMPUTE": [3]'))
    assert codes_of(wrong) == ["E401"]


@pytest.mark.parametrize(("given", "expected"), [({}, 1), ({"F": 4}, 4), ({"R": 6}, 6), ({"F": 4, "R": 0.5}, 0.5)])
def test_a_given_cost_of_f_is_also_that_of_r_unless_r_has_its_own(given: dict[str, float], expected: float) -> None:
    s = simulate(EARLY, given)
    length = (s.timeline.end - s.timeline.start)[EARLY.table.op == Op.RECOMPUTE] / s.scale
    assert set(length.tolist()) == {expected}
    assert f"R={expected}" in report(EARLY, s)


# --- memory ---------------------------------------------------------------------------------------------------------------


def test_a_recomputation_keeps_what_a_forward_keeps() -> None:
    """For a micro-batch, stage 0 keeps 50 bytes and stage 1 keeps 7 (TOY in tests/helpers_by_hand.py)."""
    forwards = ("FWD main s0 m0,1 recompute", "FWD main s1 m0,1 recompute")
    # r01, b01: the RECOMPUTE and the BWD of stage 0 and micro-batch 1
    r00, r01, r10, r11 = (f"RECOMPUTE main s{s} m{m}" for s in (0, 1) for m in (0, 1))
    b00, b01, b10, b11 = (f"BWD main s{s} m{m}" for s in (0, 1) for m in (0, 1))
    assert memory_of(*forwards, r00, r01, r10, r11, b10, b11, b00, b01).activations == 2 * 50 + 2 * 7
    assert memory_of(*forwards, "RECOMPUTE main s0 m0,1", b10, b11, b00, b01).activations == 2 * 50 + 7
    assert memory_of(*forwards, r10, b10, r00, b11, b00, r01, b01).activations == 50 + 7
    assert memory_of(*forwards, r10, b10, r11, b11, r00, b00, r01, b01).activations == 50
    # Of a split backward, stage 0 keeps 20 bytes and stage 1 keeps 3 until the weight gradient.
    i1, i0, w1, w0 = (f"{op} main s{s} m0,1" for op in ("BWD_INPUT", "BWD_WEIGHT") for s in (1, 0))
    assert memory_of(*forwards, r10, r11, i1, r00, r01, i0, w1, w0).activations == 2 * 3 + 2 * 50


@pytest.mark.parametrize("N", [8, 16])
def test_one_micro_batch_recomputed_early_needs_no_more_memory(N: int) -> None:  # noqa: N803
    """A rank keeps everything of only one micro-batch at a time.

    It keeps it during the backward, or from the R to the end of the backward. The last stage does not recompute: there it
    keeps it from the forward to the end of the backward. With early = 2 a rank keeps everything of two micro-batches at once.
    """
    first, last = TOY.layers
    four = replace(TOY, layers=(*(replace(first, name=f"layer {k}") for k in range(3)), last))
    for early, kept in ((0, 50), (1, 50), (2, 2 * 50)):
        p = program("chimera_recompute", D=4, N=N, early=early)
        assert [m.activations for m in memory(p, four)] == [kept] * 4


def test_doubling_with_recomputation_keeps_only_inputs() -> None:
    """The inputs of stages do not count as activations. During its backward a micro-batch keeps all 50 bytes."""
    model = ModelDescription("four", 2, tuple(TOY.layers[0] for _ in range(4)))
    for p, kept in ((program("chimera_doubling", D=4, N=8), 50), (program("chimera_doubling", D=4, N=8, again=1), 0)):
        for alive, m in zip(peaks(p).activations, memory(p, model), strict=True):
            assert m.activations == max(alive * kept, 50)
