"""The memory of ranks: bytes counted by hand on a toy model, limits, sums that are large, workspaces, and memory over time."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from fractions import Fraction
from math import prod

import pytest

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.instructions import Free, Fwd
from chimerac.chimera_ir.lifetimes import held, lifetimes, received, sizes
from chimerac.chimera_ir.model import Layer, ModelDescription, Shared, Tensor, TiedLayers
from chimerac.chimera_ir.partition import balanced, partition_for
from chimerac.chimera_ir.program import LIMITS, RECOMPUTE, Program
from chimerac.chimera_ir.textform import program_from_text
from chimerac.chimera_ir.workspace import Peaks, Run
from chimerac.compiler import compile_text, evaluation_of
from chimerac.compiler.analyze.memory import RankMemory, check_memory, memory, memory_over_time
from chimerac.compiler.analyze.report import memory_text, report
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.given import stage_choice
from chimerac.compiler.library import find
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.verify import peaks, verify
from tests.helpers import SMALL, findings_of_call, program, replaced, streams, with_streams
from tests.helpers_by_hand import BETWEEN, TOY, memory_of
from tests.helpers_text import on_one_rank


def test_1f1b_on_two_ranks() -> None:
    # The peaks, in bytes:
    #   rank 0  F0 F1 B0 F2 B1 B2   2 activations of 50; 2 receive buffers of 16, for grads
    #   rank 1  F0 B0 F1 B1 F2 B2   1 activation of 7; while B0 runs, 3 receive buffers of 32, for the acts of 0, 1 and 2
    p = program("1f1b", D=2, N=3)
    assert peaks(p).activations == (2, 1)
    assert peaks(p).receive_buffers == (2, 3)
    first, second = memory(p, TOY)
    # An act of two tensors, 16 and 8 bytes, is copied to a message of 16 + 16 bytes. Three messages count while the third SEND
    # runs, because it waits until the first is complete. A grad of one tensor is sent without a copy.
    assert first == RankMemory(
        weights=400, gradients=400, activations=2 * 50, buffers=2 * 16, values=24, sends=3 * 32, peak=1052
    )
    assert first.peak == 800 + 2 * 50 + 2 * 16 + 24 + 3 * 32
    assert second == RankMemory(
        weights=40, gradients=40, activations=7, buffers=3 * 32, values=16, sends=3 * 16, peak=80 + 7 + 3 * 32 + 16
    )


def test_with_two_pipes_every_rank_holds_both_stages() -> None:
    p = program("chimera", width=2, D=2)
    assert [m.weights for m in memory(p, TOY)] == [440] * 4


FORWARDS = ("FWD main s0 m0,1", "FWD main s1 m0,1")  # of both stages, each over both micro-batches


def test_a_group_keeps_one_activation_per_micro_batch() -> None:
    assert memory_of(*FORWARDS, "BWD main s1 m0,1", "BWD main s0 m0,1").activations == 2 * 50 + 2 * 7


def test_a_split_backward_keeps_the_operands_of_the_weight_gradient() -> None:
    first = ["BWD_INPUT main s1 m0", "BWD_INPUT main s0 m0"]
    second = ["BWD_INPUT main s1 m1", "BWD_INPUT main s0 m1"]
    weights = ["BWD_WEIGHT main s1 m0,1", "BWD_WEIGHT main s0 m0,1"]
    # After all input gradients 2 * (20 + 3) bytes are left. The peak is before the first input gradient ends.
    assert memory_of(*FORWARDS, *first, *second, *weights).activations == 2 * 50 + 2 * 7
    one_by_one = memory_of("FWD main s0 m0", "FWD main s1 m0", *first, "FWD main s0 m1", "FWD main s1 m1", *second, *weights)
    assert one_by_one.activations == (20 + 3) + 50 + 7


def test_recomputation_keeps_a_stage_s_input() -> None:
    recompute = ("FWD main s0 m0,1 recompute", "FWD main s1 m0,1 recompute")
    backward = ("BWD main s1 m0", "BWD main s1 m1", "BWD main s0 m0", "BWD main s0 m1")
    # Inputs: those of stage 0 are the data, which do not count. Those of stage 1 are the outputs of stage 0, 24 bytes for each
    # micro-batch. A backward recomputes one micro-batch. A backward of stage 1 also computes a grad of 16 bytes. The peak is at
    # the first backward of stage 1, or at the first of stage 0.
    m = memory_of(*recompute, *backward)
    assert (m.activations, m.values, m.peak) == (50, 2 * 24 + 16, 880 + max(7 + 2 * 24 + 16, 50 + 2 * 16))
    assert memory_of(*recompute, "BWD main s1 m0,1", "BWD main s0 m0,1").activations == 50, (
        "one micro-batch is recomputed after the other"
    )


def test_a_buffer_is_held_until_it_is_freed() -> None:
    p = program("1f1b", D=2, N=5)
    late = streams(p)
    late[1] += [Free("act", 0, 1, (m,)) for m in range(5)]
    freed_late = verify(with_streams(p, late))
    assert (peaks(p).receive_buffers[1], peaks(freed_late).receive_buffers[1]) == (3, 5)
    assert (memory(p, TOY)[1].buffers, memory(freed_late, TOY)[1].buffers) == (3 * 32, 5 * 32)  # 16 + 8 bytes, padded


def test_an_evaluation_has_no_gradients_and_recomputes_nothing() -> None:
    p = evaluation_of(program("1f1b", D=2, N=3))
    recompute = with_streams(p, [[replace(i, recompute=True) if isinstance(i, Fwd) else i for i in s] for s in streams(p)])
    assert memory(verify(recompute), TOY) == memory(p, TOY)
    first, _ = memory(p, TOY)
    assert (first.weights, first.gradients, first.peak) == (400, 0, 400 + 24 + 3 * 32)  # the output, and the open messages


def test_an_activation_counts_until_its_last_task_has_run() -> None:
    one_by_one = [f"{task} m{m}" for m in range(2) for task in ("FWD main s0", "FWD main s1", "BWD main s1", "BWD main s0")]
    assert memory_of(*one_by_one).activations == 50 + 7


@pytest.mark.parametrize("name", SMALL)
def test_a_limit_applies_to_the_peak(name: str) -> None:
    nouns = {"activations": "activation", "receive_buffers": "receive buffer", "weight_copies": "weight copy"}
    p = program(name, **SMALL[name][1])
    largest = {limit: max(getattr(peaks(p), limit)) for limit in LIMITS}
    assert verify(p.with_header(limits=largest))
    for limit, most in largest.items():
        [found] = findings_of_call(verify, p.with_header(limits=largest | {limit: most - 1}))
        assert (found.code, found.about) == ("E460", (f"limits.{limit}",))
        assert f"holds {count_text(most, nouns[limit])} at" in found.message and f"needs {most}" in found.help


@pytest.mark.parametrize(("limit", "change"), [("activations", "split a forward"), ("receive_buffers", "move receives later")])
def test_the_help_for_a_limit_of_an_evaluation_program_names_no_backward(limit: str, change: str) -> None:
    p = evaluation_of(program("chimera_doubling", D=2))
    [found] = findings_of_call(verify, p.with_header(limits={limit: max(getattr(peaks(p), limit)) - 1}))
    assert found.help.startswith(change) and "backward" not in found.help


GPIPE_ON_ONE_RANK = on_one_rank("F(s, m) at s*N + m   B(s, m) at 4*N - s*N + m")


def test_values_that_stay_on_their_rank_grow_with_the_micro_batches() -> None:
    for n in (1, 4, 256):
        (m,) = memory(compile_text(GPIPE_ON_ONE_RANK, {"N": n}).program, TOY)
        assert (m.activations, m.buffers, m.values, m.sends) == (57 * n, 0, 24 * n + 16, 0)
        assert m.peak == 880 + 57 * n + 24 * n + 16


TWO_RANKS = """chimera-program 1
schedule two
sizes width=1 ranks=2 stages=2 micro_batches=2 window={window} machine={machine} kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe main on 0 1 micro_batches 0 1

rank 0:
  FWD main s0 m0; SEND act main s1 m0 -> 1
  FWD main s0 m1; SEND act main s1 m1 -> 1; RECV grad main s0 m0 <- 1; RECV grad main s0 m1 <- 1
  BWD main s0 m0; BWD main s0 m1
rank 1:
  RECV act main s1 m0 <- 0; RECV act main s1 m1 <- 0
  FWD main s1 m0; FWD main s1 m1
  BWD main s1 m0; SEND grad main s0 m0 -> 0
  BWD main s1 m1; SEND grad main s0 m1 -> 0
"""


def two_ranks(window: int = 2, machine: str = "window", *changes: tuple[str, str]) -> Program:
    """Return the program TWO_RANKS.

    Args:
        changes: texts in it, and what replaces them.
    """
    return verify(program_from_text(replaced(TWO_RANKS.format(window=window, machine=machine), *changes)))


@pytest.mark.parametrize(
    ("window", "machine", "open_acts", "open_grads"),
    [(0, "window", 1, 1), (3, "rendezvous", 1, 1), (1, "window", 2, 2), (2, "window", 2, 2), (0, "posted", 2, 2)],
)
def test_a_message_is_held_until_its_send_is_known_to_be_complete(
    window: int, machine: str, open_acts: int, open_grads: int
) -> None:
    first, second = memory(two_ranks(window, machine), TOY)
    assert (first.sends, second.sends) == (32 * open_acts, 16 * open_grads)
    # A grad of one tensor is sent without a copy: until its SEND it counts as a value, and from there on as a message.
    assert second.values == 16


def test_a_message_of_several_values_has_one_buffer_until_the_last_is_freed() -> None:
    grouped = two_ranks(
        2,
        "window",
        ("FWD main s0 m0; SEND act main s1 m0 -> 1\n", ""),
        ("FWD main s0 m1; SEND act main s1 m1 -> 1;", "FWD main s0 m0,1; SEND act main s1 m0,1 -> 1;"),
        ("RECV act main s1 m0 <- 0; RECV act main s1 m1 <- 0", "RECV act main s1 m0,1 <- 0"),
    )
    for p, left in ((two_ranks(), 1), (grouped, 2)):
        assert peaks(p).receive_buffers == (2, 2) and memory(p, TOY)[1].buffers == 2 * 32
        assert buffers_at_the_last_backward(p) == (left, 32 * left)


def buffers_at_the_last_backward(p: Program) -> tuple[int, int]:
    """Return how many values the receive buffers of rank 1 have while it runs its last BWD, and the bytes of the buffers."""
    lives = received(p)
    (row,) = (n for n in range(len(p)) if p.text(n) == "BWD main s1 m1")
    buffer_bytes = sizes(lives, TOY.stage_sums(balanced(TOY, 2).layers))
    return int(held(p, lives, lives.count)[row]), int(held(p, lives, buffer_bytes)[row])


def test_a_late_free_holds_a_buffer_longer_in_counts_and_in_bytes() -> None:
    late = two_ranks(2, "window", ("BWD main s1 m1; SEND", "BWD main s1 m1; FREE act main s1 m0; SEND"))
    assert buffers_at_the_last_backward(two_ranks()) == (1, 32)
    assert buffers_at_the_last_backward(late) == (2, 2 * 32)


def huge(shape: tuple[int, ...], amount: int = 2**53) -> ModelDescription:
    """Return a model of two layers. Each has `amount` bytes of weights, and keeps as many for B and as many for W.

    Args:
        shape: of the tensor that a layer passes on.
    """
    boundary = (Tensor(shape, "float64", gradient=True),)
    return ModelDescription("huge", 1, tuple(Layer(n, 1, amount, amount, amount, boundary, cost=1) for n in ("a", "b")))


@pytest.mark.parametrize("shape", [(2**31, 2**30), (2**31, 2**31), (2**31, 2**31, 7), (2**31,) * 16])
def test_bytes_of_large_models_are_exact(shape: tuple[int, ...]) -> None:
    p, model, tensor_bytes = program("1f1b", D=2, N=3), huge(shape), 8 * prod(shape)
    first, second = memory(p, model)
    # Both ranks: weights and gradients. Rank 0: two activations; two receive buffers, and the messages of three acts. Rank 1:
    # one activation; three receive buffers, and one grad.
    assert first.peak == 2 * 2**53 + 2 * 2**53 + (2 + 3) * tensor_bytes
    assert second.peak == 2 * 2**53 + 2**53 + (3 + 1) * tensor_bytes
    check_memory(p, model, first.peak)
    with pytest.raises(ChimeraError, match=rf"E461: rank 0 needs {first.peak:,} bytes of huge"):
        check_memory(p, model, 1000)
    assert f"{first.peak:,}" in report(p, simulate(p), model)


def test_a_need_of_two_to_the_sixty_fourth_bytes_does_not_overflow() -> None:
    boundary = (Tensor((2**31, 2**29), "float64", gradient=True),)  # 2^63 bytes
    model = ModelDescription("even", 1, (Layer("a", 0, 0, 0, 0, boundary, cost=1),) * 2)
    assert [m.peak for m in memory(two_ranks(0), model)] == [2**64, 3 * 2**63]
    with pytest.raises(ChimeraError, match="E461"):
        check_memory(two_ranks(0), model, 1000)


def test_tensors_that_layers_share_are_counted_once_and_an_input_is_a_value() -> None:
    shared = (
        Shared(bytes=8, made=0, kept=(1, 2)),
        Shared(bytes=4, made=None, weight_kept=(0, 1)),
        Shared(bytes=2, made=1, split_kept=(2,)),
    )
    layers = tuple(Layer(f"l{k}", 1, 4, kept_bytes=100, weight_kept_bytes=10, boundary=BETWEEN, cost=1) for k in range(3))
    model = ModelDescription("three", 1, layers, (), shared)
    (whole,) = model.stage_sums(balanced(model, 1).layers)
    assert (whole.kept_bytes, whole.split_kept_bytes, whole.weight_kept_bytes) == (300 + 8, 300 + 2, 30 + 4)
    # Each layer as a stage: what the first layer has made is part of the input of the others, and does not count there. What no
    # layer has made (made=None) counts in each stage that keeps it.
    assert [s.kept_bytes for s in model.stage_sums(balanced(model, 3).layers)] == [100, 100, 100]
    assert [s.weight_kept_bytes for s in model.stage_sums(balanced(model, 3).layers)] == [14, 14, 10]


def test_tied_parameters_are_held_once_by_a_rank() -> None:
    text = GPIPE_ON_ONE_RANK.replace("stages 2\n", "stages 2\ntied table on stages 0, 1\n")
    tied = replace(TOY, tied=(TiedLayers("table", (0, 1), parameters=10, weight_bytes=40, gradient_bytes=30),))
    for description, expected in ((TOY, (440, 440)), (tied, (400, 410))):
        (m,) = memory(compile_text(text, {"N": 1}).program, description)
        assert (m.weights, m.gradients) == expected


def test_a_limit_in_bytes_applies_to_the_peak_of_a_rank() -> None:
    p = program("1f1b", D=2, N=3)
    needed = max(m.peak for m in memory(p, TOY))
    check_memory(p, TOY, needed)
    message = f"E461: rank 0 needs {needed:,} bytes of toy at its peak, and has {needed - 1:,} bytes"
    with pytest.raises(ChimeraError, match=message):
        check_memory(p, TOY, needed - 1)


def test_recomputation_is_suggested_only_if_the_memory_then_suffices() -> None:
    # Rank 0 holds 8 activations of 50 bytes. With recomputation it holds one activation, and inputs, which are data and do not
    # count.
    p = program("gpipe", D=2, N=8)
    recompute = compile_text(find("gpipe").text.replace("on rank s", "on rank s recompute"), {"D": 2, "N": 8}).program
    recomputed_peak = max(m.peak for m in memory(recompute, TOY))
    helps = []

    def recomputing() -> Program:
        return compile_source(find("gpipe"), {"D": 2, "N": 8}, recompute=stage_choice("all")).program

    for limit, call in ((recomputed_peak, recomputing), (recomputed_peak - 1, recomputing), (recomputed_peak, None)):
        helps.append(findings_of_call(check_memory, p, TOY, limit, call)[0].help)
    assert "--recompute all" in helps[0] and f"needs {recomputed_peak:,} bytes" in helps[0]
    assert "recompute" not in helps[1] + helps[2]


@pytest.mark.parametrize("name", [name for name in SMALL if " recompute" not in find(name).text])
def test_recomputing_everywhere_equals_compiling_the_text_with_recompute(name: str) -> None:
    text = re.sub(r"(\bon rank .*?)(\s+(?:micro_batches|stage)\b)", r"\1 recompute\2", find(name).text)
    for machine in ("window", "serial"):
        from_text, from_option = (
            compile_source(Source(name, t), SMALL[name][1], machine=machine, arrange=True, recompute=recompute).program
            for t, recompute in ((text, None), (find(name).text, stage_choice("all")))
        )
        assert from_text == from_option and (from_text.table.flags & RECOMPUTE).any()


def tensor(size: int) -> Tensor:
    return Tensor((size,), "uint8", gradient=True)


# A stage of two layers, between a boundary of 3 bytes and one of 5. Between its layers: 8 bytes, which no layer keeps.
#              kept for B, for I, for W
# first layer       10      14      6
# second layer      20      22     12
# both              30      36     18   (activations)
# Below, each number is the most that is held at one moment, less what is no workspace: the activations of the stage (except in
# NO_GRAPH), its output of 5 bytes (in FORWARD, SPLIT_FORWARD and NO_GRAPH), and the grad of its input, of 3 bytes (in BACKWARD,
# INPUT, RECOMPUTED_BACKWARD and RECOMPUTED_INPUT).
# The second layer's peaks: forward 40, no_graph 35, backward 24, input 21, weight 19.
@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (
            Peaks(forward=30, no_graph=25, backward=20, input=18, weight=16),  # with these the second layer needs most
            {
                Run.FORWARD: (10 + 8 + 40) - 30 - 5,
                Run.SPLIT_FORWARD: (14 + 8 + 40) - 36 - 5,
                Run.NO_GRAPH: (8 + 35) - 5,
                Run.RECOMPUTE: (10 + 8 + 40) - 30,
                Run.SPLIT_RECOMPUTE: (14 + 8 + 40) - 36,
                Run.BACKWARD: (30 + 24) - 30 - 3,
                Run.RECOMPUTED_BACKWARD: (10 + 8 + 40) - 30 - 3,  # at the forward; the backward itself holds only 54
                Run.INPUT: (36 + 21) - 36 - 3,
                Run.RECOMPUTED_INPUT: (14 + 8 + 40) - 36 - 3,  # at the forward; the backward itself holds only 57
                Run.WEIGHT: (18 + 19) - 18,
            },
        ),
        (
            Peaks(100, 100, 100, 100, 100),  # with these the first layer needs most
            {
                Run.FORWARD: 100 - 30 - 5,
                Run.SPLIT_FORWARD: 100 - 36 - 5,
                Run.NO_GRAPH: 100 - 5,
                Run.RECOMPUTE: 100 - 30,
                Run.SPLIT_RECOMPUTE: 100 - 36,
                Run.BACKWARD: (10 + 100 + 8) - 30 - 3,  # 8: the gradient that the second layer has made
                Run.RECOMPUTED_BACKWARD: (10 + 100 + 8) - 30 - 3,
                Run.INPUT: (14 + 12 + 100 + 8) - 36 - 3,  # 12: what the second layer has left for W
                Run.RECOMPUTED_INPUT: (14 + 12 + 100 + 8) - 36 - 3,
                Run.WEIGHT: (6 + 100) - 18,
            },
        ),
    ],
)
def test_the_workspace_of_every_run(first: Peaks, expected: dict[Run, int]) -> None:
    second = Peaks(forward=40, no_graph=35, backward=24, input=21, weight=19)
    empty = Layer("layer", 0, 0, kept_bytes=0, weight_kept_bytes=0, boundary=(tensor(3),), cost=1)
    layers = (
        empty,
        replace(empty, kept_bytes=10, split_kept_bytes=14, weight_kept_bytes=6, boundary=(tensor(8),), peaks=first),
        replace(empty, kept_bytes=20, split_kept_bytes=22, weight_kept_bytes=12, boundary=(tensor(5),), peaks=second),
        replace(empty, boundary=(tensor(1),)),
    )
    workspace = ModelDescription("m", 1, layers).stage_sums((range(1), range(1, 3), range(3, 4)))[1].workspace
    assert dict(zip(Run, workspace, strict=True)) == expected


@pytest.mark.parametrize("name", ["1f1b", "chimera_zb", "chimera_recompute", "interleaved", "chimera_doubling"])
def test_memory_over_time_reaches_the_peaks_of_the_report(name: str) -> None:
    """With a model, the bytes that are left after each instruction are also summed from the lifetimes."""
    p = program(name, D=4, N=8)
    model = replace(TOY, layers=TOY.layers * 4)
    p = p.with_partition(partition_for(None, model, p.header.stages))
    s = simulate(p, {"hop": Fraction(1, 3)})
    for described, expected in ((None, peaks(p).activations), (model, [m.peak for m in memory(p, model)])):
        lines = list(csv.reader(memory_text(s, described).splitlines()))
        assert lines[0] == ["rank", "time", "activations" if described is None else "bytes", "instruction"]
        for rank in range(4):
            of_rank = [line for line in lines[1:] if int(line[0]) == rank]
            assert max(int(line[2]) for line in of_rank) == expected[rank]
            assert [line[3] for line in of_rank if line[3]] == [p.text(k) for k in range(*p.offsets[rank : rank + 2].tolist())]
            times = [float(line[1]) for line in of_rank]
            assert times == sorted(times)
    fixed = [m.weights + m.gradients for m in memory(p, model)]
    over_time, lives = memory_over_time(p, s.timeline, model), lifetimes(p)
    amounts = sizes(lives, model.stage_sums(p.partition.layers if p.partition else ()))
    for row in range(len(p)):
        is_of_rank = p.rank_of[lives.allocated] == p.rank_of[row]
        is_left = is_of_rank & (lives.allocated <= row) & (lives.freed > row)
        # Each instruction has two entries, at its start and at its end.
        assert over_time.amount[2 * row + 1] == fixed[p.rank_of[row]] + amounts[is_left].sum()
