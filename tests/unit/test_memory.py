"""Bytes per rank, counted by hand on a toy model."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest

from chimera_ir.diagnostics import ChimeraError, Source
from chimera_ir.instructions import Free, Fwd
from chimera_ir.model import Layer, ModelDescription, Tensor
from chimera_ir.program import LIMITS, RECOMPUTE, Program
from chimera_ir.textform import program_from_text
from compiler import compile_text, evaluation_of
from compiler.library import find
from compiler.memory import RankMemory, check_memory, memory
from compiler.pipeline import compile_source
from compiler.verify import peaks, verify
from tests.helpers import SMALL, program, streams, with_streams

# Two layers, so two stages. An act between them has 24 bytes, of which a gradient travels back for 16.
BETWEEN = (Tensor((4,), "float32", True), Tensor((1,), "int64", False))
TOY = ModelDescription(
    "toy",
    2,
    (
        Layer("first", 100, 400, kept_bytes=50, weight_kept_bytes=20, boundary=BETWEEN, cost=1),
        Layer("second", 10, 40, kept_bytes=7, weight_kept_bytes=3, boundary=(Tensor((1,), "float32", True),), cost=1),
    ),
)


def test_1f1b_on_two_ranks() -> None:
    #   rank 0  F0 F1 B0 F2 B1 B2   at most 2 activations of 50; two gradients of 16 posted ahead
    #   rank 1  F0 B0 F1 B1 F2 B2   at most 1 activation of 7; while B0 runs, the acts of 0, 1 and 2, of 24 each
    p = program("1f1b", D=2, N=3)
    assert peaks(p).activations == (2, 1)
    assert peaks(p).receive_buffers == (2, 3)
    first, second = memory(p, TOY)
    assert (first.weights, first.gradients, first.activations, first.buffers) == (400, 400, 2 * 50, 2 * 16)
    assert first.peak == 800 + 2 * 50 + 2 * 16
    assert (second.weights, second.gradients, second.activations, second.buffers) == (40, 40, 7, 3 * 24)
    assert second.peak == 80 + 7 + 3 * 24


def test_two_pipes_hold_both_stages() -> None:
    p = program("chimera", width=2, D=2)
    assert [m.weights for m in memory(p, TOY)] == [440] * 4


ONE_RANK = """chimera-program 1
schedule one
sizes width=1 ranks=1 stages=2 micro_batches=2 window=2 machine=window kind=training micro_batch_size=1/1
costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
pipe main on 0 0 micro_batches 0 1

rank 0:
"""


def one(*tasks: str) -> RankMemory:
    p: Program = verify(program_from_text(ONE_RANK + "".join(f"  {t}\n" for t in tasks)))
    [m] = memory(p, TOY)
    return m


BOTH = ("FWD main s0 m0,1", "FWD main s1 m0,1")


def test_a_group_keeps_one_activation_per_micro_batch() -> None:
    assert one(*BOTH, "BWD main s1 m0,1", "BWD main s0 m0,1").activations == 2 * 50 + 2 * 7


def test_a_split_backward_keeps_what_the_weight_gradient_needs() -> None:
    split = ["BWD_INPUT main s1 m0", "BWD_INPUT main s0 m0", "BWD_INPUT main s1 m1", "BWD_INPUT main s0 m1"]
    weights = ["BWD_WEIGHT main s1 m0,1", "BWD_WEIGHT main s0 m0,1"]
    # After all input gradients 2 (20 + 3) are left; the most is held before the first.
    assert one(*BOTH, *split, *weights).activations == 2 * 50 + 2 * 7
    late = one("FWD main s0 m0", "FWD main s1 m0", *split[:2], "FWD main s0 m1", "FWD main s1 m1", *split[2:], *weights)
    assert late.activations == (20 + 3) + 50 + 7


def test_recomputation_keeps_a_stage_s_input() -> None:
    again = ("FWD main s0 m0,1 recompute", "FWD main s1 m0,1 recompute")
    backward = ("BWD main s1 m0", "BWD main s1 m1", "BWD main s0 m0", "BWD main s0 m1")
    # Inputs: none for stage 0 (the data), 24 for each micro-batch of stage 1. A backward rebuilds one micro-batch.
    assert one(*again, *backward).activations == max(2 * 24 + (7 - 24), 50)


def test_a_buffer_is_held_until_its_free() -> None:
    p = program("1f1b", D=2, N=5)
    late = streams(p)
    late[1] += [Free("act", 0, 1, (m,)) for m in range(5)]
    held = verify(with_streams(p, late))
    assert (peaks(p).receive_buffers[1], peaks(held).receive_buffers[1]) == (3, 5)
    assert (memory(p, TOY)[1].buffers, memory(held, TOY)[1].buffers) == (3 * 24, 5 * 24)


def test_an_evaluation_has_no_gradients_and_runs_nothing_again() -> None:
    p = evaluation_of(program("1f1b", D=2, N=3))
    again = with_streams(p, [[replace(i, recompute=True) if isinstance(i, Fwd) else i for i in s] for s in streams(p)])
    assert memory(verify(again), TOY) == memory(p, TOY)
    first, _ = memory(p, TOY)
    assert (first.weights, first.gradients, first.peak) == (400, 0, 400 + 50)


def test_what_waits_counts_while_its_last_task_runs() -> None:
    assert one("FWD main s0 m0", "FWD main s1 m0", "BWD main s1 m0", "BWD main s0 m0", "FWD main s0 m1", "FWD main s1 m1",
               "BWD main s1 m1", "BWD main s0 m1").activations == 50 + 7  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_a_limit_is_the_most_that_is_held(name: str) -> None:
    p = program(name, **SMALL[name][1])
    held = {limit: max(getattr(peaks(p), limit)) for limit in LIMITS}
    assert verify(p.with_header(limits=held))
    for limit, most in held.items():
        with pytest.raises(ChimeraError) as error:
            verify(p.with_header(limits=held | {limit: most - 1}))
        (found,) = error.value.diagnostics
        assert (found.code, found.about) == ("E460", (f"limits.{limit}",))
        assert f"{most} {limit.replace('_', ' ')}" in found.message and f"needs {most}" in found.help


def test_bytes_are_the_most_that_a_rank_has() -> None:
    p = program("1f1b", D=2, N=3)
    need = max(m.peak for m in memory(p, TOY))
    check_memory(p, TOY, need)
    with pytest.raises(ChimeraError, match=f"E461: rank 0 needs {need} bytes of toy at its worst moment, and has {need - 1}"):
        check_memory(p, TOY, need - 1)


def test_recomputation_is_suggested_only_where_it_helps() -> None:
    p = program("gpipe", D=2, N=8)  # 8 activations of 50 on rank 0; recomputed, it keeps the inputs, of no bytes, and one of 50
    again = compile_text(find("gpipe").text.replace("on rank s", "on rank s recompute"), {"D": 2, "N": 8}).program
    least = max(m.peak for m in memory(again, TOY))
    helps = []
    recomputing = partial(compile_source, find("gpipe"), {"D": 2, "N": 8}, recompute=True)
    for limit, compiled in ((least, recomputing), (least - 1, recomputing), (least, None)):
        with pytest.raises(ChimeraError) as error:
            check_memory(p, TOY, limit, compiled)
        helps.append(error.value.diagnostics[0].help)
    assert "'recompute'" in helps[0] and f"needs {least:,} bytes" in helps[0]
    assert "'recompute'" not in helps[1] + helps[2]


@pytest.mark.parametrize("name", [name for name in SMALL if " recompute" not in find(name).text])
def test_recomputing_everywhere_is_what_the_text_would_compile_to(name: str) -> None:
    text = re.sub(r"(\bon rank .*?)(\s+(?:micro_batches|stage)\b)", r"\1 recompute\2", find(name).text)
    for machine in ("window", "serial"):
        written, said = (
            compile_source(Source(name, t), SMALL[name][1], 1, machine, True, recompute).program  # type: ignore[arg-type]
            for t, recompute in ((text, False), (find(name).text, True))
        )
        assert written == said and (written.table.flags & RECOMPUTE).any()
