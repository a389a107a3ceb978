"""Durations and what follows: makespans and idle times computed by hand, the closed equation, bytes over time, and profiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.profile import AllReduceTime, LayerTimes, Link, Profile, SizeTimes, layer_bytes
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import compile_schedule, compile_text
from chimerac.compiler.analyze.causes import critical_path, idle_times, path_sums
from chimerac.compiler.analyze.durations import Durations, Network, cost_durations, measured_durations, profiled_durations
from chimerac.compiler.analyze.formula import closed_equation
from chimerac.compiler.analyze.memory import held_bytes, memory
from chimerac.compiler.analyze.report import path_text
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.pipeline import verify_program
from tests.helpers import replaced
from tests.helpers_by_hand import three

MS = 10**6  # nanoseconds


def same_samples(samples: int) -> int:
    """Return `samples`, for `find_model`: without `size` in the schedule, micro-batches have the size that the run is given."""
    return samples


def task_times(*by_stage: float) -> dict[Op, list[float]]:
    """Return the same seconds by stage for every kind of task."""
    return {op: list(by_stage) for op in (Op.FWD, Op.BWD, Op.BWD_INPUT, Op.BWD_WEIGHT, Op.RECOMPUTE)}


def timed(p: Program, latency_ms: float = 0, occupied_ms: float = 0, all_reduce_ms: float = 0) -> Simulation:
    """Return the simulation where every task takes 1 ms, and messages and all-reduces as long as is given."""
    tasks = task_times(*[0.001] * p.header.stages)
    link = Link(latency_ms / 1e3, bytes_per_s=1000.0)  # a byte occupies the channel for 1 ms
    network = Network(link, all_reduce_s=lambda ranks, size: all_reduce_ms / 1e3)
    durations = measured_durations(p, tasks, network, message_bytes=lambda *_: round(occupied_ms), reduced_bytes=lambda _: 0)
    return simulate(p, durations=durations)


@pytest.mark.parametrize(
    ("machine", "window", "latency", "occupied", "expected"),
    [
        # In the program `three`, rank 0 sends three acts, and rank 1 three grads.
        # Acts are sent at 1, 2, 3 and arrive at 5, 9, 13, since each occupies the channel for 4. On `window` the third is sent
        # at 5, and arrives at 13 too. Grads are sent at 7, 11, 15, and arrive at 11, 15, 19.
        ("posted", 2, 0, 4, 20),
        ("window", 2, 0, 4, 20),
        # A latency does not occupy the channel: acts arrive at 5, 6, 7. Grads are sent at 7, 9, 11 and arrive at 11, 13, 15.
        ("posted", 2, 4, 0, 16),
        # Each message occupies the channel for 1 and arrives 3 later. Acts leave the channel at 2, 3, 4 and arrive at 5, 6, 7.
        # Grads leave it at 8, 10, 12 and arrive at 11, 13, 15.
        ("posted", 2, 3, 1, 16),
        # A SEND waits until the message before it has arrived: acts are sent at 1, 5, 9. The RECVs of the grads are posted at
        # 9, and the grads are on their way from 9 to 13, from 13 to 17 and from 17 to 21.
        ("window", 1, 1, 3, 22),
        ("paired", 2, 2, 2, 26),  # in a queue a transfer lasts until it has arrived, as with a hop of 4
    ],
)
def test_makespans_with_messages_are_those_computed_by_hand(
    machine: str, window: int, latency: float, occupied: float, expected: int
) -> None:
    p = three(machine, window)
    assert timed(p, latency, occupied).makespan == expected * MS


def test_all_reduces_overlap_with_tasks_and_end_the_iteration() -> None:
    """Two replicas of one pipeline of two ranks. Stage 1 is done at 3 and stage 0 at 4; each all-reduce takes 3."""
    p = compile_schedule("1f1b", {"D": 2, "N": 1}, width=2).program
    simulation = timed(p, all_reduce_ms=3)
    assert simulation.makespan == 7 * MS and max(simulation.busy) == 2 * MS
    began, ended = simulation.collective_times
    assert dict(zip((c.stage for c in p.collectives), zip(began.tolist(), ended.tolist(), strict=True), strict=True)) == {
        1: (3 * MS, 6 * MS),
        0: (4 * MS, 7 * MS),
    }
    idle = idle_times(simulation)
    assert [(x.all_reduce, x.drain) for x in idle] == [(3 * MS, 0), (3 * MS, 1 * MS)] * 2
    assert path_sums(simulation, critical_path(simulation)) == {
        "FWD": (2, 2 * MS),
        "BWD": (2, 2 * MS),
        "all-reduces": (1, 3 * MS),
    }
    assert "ALLREDUCE s0" in path_text(simulation).splitlines()[-1]
    assert timed(p).makespan == 4 * MS


def test_the_all_reduces_of_a_rank_run_one_at_a_time() -> None:
    p = compile_schedule("chimera", {"D": 2, "N": 2}).program
    simulation = timed(p, all_reduce_ms=5)
    began, ended = simulation.collective_times
    assert len(began) == 2 and sorted(began)[1] == sorted(ended)[0]
    assert simulation.makespan == sorted(ended)[1] == sorted(began)[0] + 10 * MS


def test_idle_times_are_those_computed_by_hand() -> None:
    """1f1b on two ranks, one micro-batch, a latency of 2.

    Rank 0 runs F from 0 to 1, and its message arrives at 3. Rank 1 runs F from 3 to 4 and B from 4 to 5, and its message
    arrives at 7. Rank 0 runs B from 7 to 8.
    """
    first, second = idle_times(timed(compile_schedule("1f1b", {"D": 2, "N": 1}).program, latency_ms=2))
    assert (first.fill, first.value, first.transfer, first.drain) == (0, 4 * MS, 2 * MS, 0)
    assert (second.fill, second.value, second.transfer, second.drain) == (1 * MS, 0, 2 * MS, 3 * MS)
    assert first.exposed == second.exposed == 2 * MS


def test_a_full_window_is_a_cause_of_idle_time() -> None:
    p = three("window", 1)
    assert idle_times(timed(p, latency_ms=4))[0].window == 6 * MS  # SENDs wait from 2 to 5 and from 6 to 9


@pytest.mark.parametrize(("depth", "forwards", "backwards"), [(4, 4, 6), (6, 6, 10), (8, 8, 14)])
def test_the_closed_equation_has_the_counts_of_the_paper(depth: int, forwards: int, backwards: int) -> None:
    """Chimera at N = D: C_f = D and C_b = 2 D - 2, 6 and 10 in the paper's example of D = 6."""
    p = compile_schedule("chimera", {"D": depth, "N": depth}).program
    equation = closed_equation(p, cost_durations(p, {"F": 1, "B": 1.7, "hop": 0.5}))
    assert (equation.forwards, equation.backwards) == (forwards, backwards)
    assert equation.total == 10 * forwards + 17 * backwards + 5 * (forwards + backwards)  # in tenths of the unit of the costs


def test_the_closed_equation_of_other_schedules_is_their_makespan_without_communication() -> None:
    for name in ("gpipe", "1f1b", "interleaved", "zb_h1"):
        p = compile_schedule(name, {"D": 4, "N": 8}).program
        assert closed_equation(p, cost_durations(p)).total == simulate(p).makespan, name


def test_the_closed_equation_counts_the_end_of_all_reduces() -> None:
    p = compile_schedule("1f1b", {"D": 2, "N": 1}, width=2).program
    simulation = timed(p, all_reduce_ms=3)
    assert closed_equation(p, simulation.durations).unoverlapped == 3 * MS


def test_bytes_over_time_have_the_peak_of_the_memory() -> None:
    p, model = compile_schedule("chimera", {"D": 2, "N": 4}).program, find_model("gpt-small", same_samples)
    found = held_bytes(p, model)
    assert found.ranks == memory(p, model)
    for g, rank in enumerate(found.ranks):
        own = found.held[p.offsets[g] : p.offsets[g + 1]]
        assert own.max() == rank.peak == found.held[found.peaks[g]]
        assert found.peaks[g] == int(p.offsets[g]) + int(np.argmax(own))


def example_profile() -> Profile:
    """Return a profile of gpt-nano, whose layers take 1, 2, 3 and 4 ms for a forward."""
    model = find_model("gpt-nano", same_samples)
    times = tuple(
        LayerTimes(
            forward_s=ms / 1e3,
            backward_s=2 * ms / 1e3,
            input_s=ms / 1e3,
            weight_s=ms / 1e3,
            recompute_s=ms / 1e3,
            activation_bytes=0,
        )
        for ms in (1, 2, 3, 4)
    )
    return Profile(
        model="gpt-nano",
        hardware="none",
        source="a test",
        layers=layer_bytes(model, optimizer_bytes=2),
        sizes=(SizeTimes(samples=4, layers=times),),
        point_to_point=Link(latency_s=0.001, bytes_per_s=1e6),
        all_reduce=tuple(AllReduceTime(ranks, latency_s, bytes_per_s=1e9) for ranks, latency_s in ((2, 0.002), (4, 0.008))),
    )


def test_a_profile_gives_every_stage_the_sum_of_its_layers_and_every_message_its_bytes() -> None:
    model = find_model("gpt-nano", same_samples)
    p = compile_schedule("1f1b", {"D": 2, "N": 2}, width=2).program
    d = profiled_durations(p, model, example_profile())
    layers = model.stage_sums((range(2), range(2, 4)))
    assert d.costs.FWD == (3 * MS, 7 * MS) and d.costs.BWD == (6 * MS, 14 * MS)
    sends = p.table.op == Op.SEND
    act_bytes = 4 * 128 * 32 * 4  # samples, positions, features, bytes of a number; a byte takes 1,000 ns
    assert set(d.latency[sends].tolist()) == {1 * MS} and set(d.occupied[sends].tolist()) == {act_bytes * 1000}
    expected = {c.stage: 2 * MS + layers[c.stage].gradient_bytes for c in p.collectives}  # a byte takes 1 ns
    assert {c.stage: t for c, t in zip(p.collectives, d.collectives.tolist(), strict=True)} == expected


def test_an_all_reduce_over_a_number_of_ranks_that_was_not_measured_has_the_link_of_the_nearest() -> None:
    profile = example_profile()
    assert profile.all_reduce_s(ranks=2, size=10**9) == pytest.approx(1.002)
    assert profile.all_reduce_s(ranks=4, size=0) == pytest.approx(0.008)
    assert profile.all_reduce_s(ranks=16, size=0) == pytest.approx(0.016)  # 2 log2(16) latencies of 0.008 / (2 log2(4))
    # Over r ranks an all-reduce moves 2 (r - 1) / r times its bytes. Over 4 ranks, 10**9 bytes take 1 s beside the latencies.
    assert profile.all_reduce_s(ranks=16, size=10**9) == pytest.approx(0.016 + (2 * 15 / 16) / (2 * 3 / 4))
    unmeasured = replace(profile, all_reduce=())
    assert unmeasured.all_reduce_s(ranks=2, size=10**6) == pytest.approx(2 * 0.001 + 1)  # on the link between two ranks


def test_times_between_two_sizes_are_interpolated_and_others_are_refused() -> None:
    profile, zero = example_profile(), LayerTimes(0, 0, 0, 0, 0, 0)
    twice = tuple(zero.between(layer, 2) for layer in profile.sizes[0].layers)  # twice as long
    both = replace(profile, sizes=(profile.sizes[0], SizeTimes(samples=8, layers=twice)))
    assert both.times(6)[0].forward_s == pytest.approx(0.0015)
    assert both.times(8) == twice
    for samples in (3, 9):
        with pytest.raises(ChimeraError, match=f"E715: .* of {samples} samples: it has 4 to 8"):
            both.times(samples)
    with pytest.raises(ChimeraError, match=r"E715: .* it has 4"):
        profile.times(2)


def test_a_profile_of_another_model_is_refused() -> None:
    profile, program = example_profile(), compile_schedule("1f1b", {"D": 2}).program
    with pytest.raises(ChimeraError, match="E714: the profile is one of gpt-nano, and the model is gpt-micro"):
        profiled_durations(program, find_model("gpt-micro", same_samples), profile)
    with pytest.raises(ChimeraError, match="E714: the profile has 4 layers, and gpt-nano/3 has 5"):
        profiled_durations(program, find_model("gpt-nano/3", same_samples), replace(profile, model="gpt-nano/3"))
    with pytest.raises(ChimeraError, match=r"E714: the profile gives layer 0 \(embedding\) 12,288 parameters"):
        profiled_durations(program, find_model("gpt-nano", same_samples, seq_len=64), profile)


def durations_of_large_messages(seconds: float, bytes_per_s: float) -> Durations:
    """Return durations where the tasks of stage 0 take these seconds, and messages and all-reduces have 2**22 bytes."""
    p = compile_schedule("1f1b", {"D": 2, "N": 2}, width=2).program
    network = Network(Link(latency_s=0.001, bytes_per_s=bytes_per_s))
    tasks = task_times(seconds, 0.0)
    return measured_durations(p, tasks, network, message_bytes=lambda *_: 2**22, reduced_bytes=lambda _: 2**22)


def test_a_byte_occupies_a_link_of_a_gigabyte_per_second_for_a_nanosecond() -> None:
    assert durations_of_large_messages(seconds=0.0, bytes_per_s=1e9).occupied.max() == 2**22


@pytest.mark.parametrize(
    ("seconds", "bytes_per_s"),
    # At 5e-324 bytes per second a message takes an infinite time.
    [(1e300, 1e9), (0.0, 1e-3), (1e300, 1e-3), (0.0, 5e-324), (1e300, 5e-324)],
)
def test_times_that_cannot_be_added_up_are_refused(seconds: float, bytes_per_s: float) -> None:
    with pytest.raises(ChimeraError, match=r"E002: tasks, messages and all-reduces take more than 2\.3e\+09 s"):
        durations_of_large_messages(seconds, bytes_per_s)


@pytest.mark.parametrize("wrong", [-1e-3, float("nan"), float("inf")])
def test_a_time_that_is_negative_or_not_finite_is_refused(wrong: float) -> None:
    p = compile_schedule("1f1b", {"D": 2}).program
    with pytest.raises(ChimeraError, match="E002: the time of FWD of a stage is"):
        network = Network(Link(latency_s=0.0, bytes_per_s=1.0))
        measured_durations(p, task_times(wrong, 0.0), network, message_bytes=lambda *_: 0, reduced_bytes=lambda _: 0)


def test_a_program_of_one_rank_has_neither_messages_nor_exposed_communication() -> None:
    simulation = timed(compile_schedule("1f1b", {"D": 1, "N": 2}).program, latency_ms=5, occupied_ms=5)
    assert (simulation.makespan, idle_times(simulation)[0].exposed, len(critical_path(simulation))) == (4 * MS, 0, 4)


def test_a_collective_begins_after_those_before_it_in_the_streams_of_its_members() -> None:
    """Rank 1 launches s0 at 32. On rank 0 s2 comes after s0, and its members launch it until 28."""
    text = """schedule three
ranks 3
stages 3
pipe a { stage s on rank s            micro_batches 4 }
pipe b { stage s on rank (s + 1) % 3  micro_batches 4 }
order greedy { prefer B, F }
sync eager
"""
    compiled = program_to_text(compile_text(text, {}).program)
    in_other_order = replaced(
        compiled,
        ("ALLREDUCE s2 over 0,2; ALLREDUCE s0 over 0,1", "ALLREDUCE s0 over 0,1; ALLREDUCE s2 over 0,2"),
        ("SEND grad a s0 m3 -> 0; ALLREDUCE s1 over 1,2", "SEND grad a s0 m3 -> 0"),
        ("BWD b s0 m7; ALLREDUCE s0 over 0,1", "BWD b s0 m7; ALLREDUCE s0 over 0,1; ALLREDUCE s1 over 1,2"),
    )
    p = verify_program(program_from_text(in_other_order))
    began, ended = simulate(p).collective_times
    assert {c.stage: (at, end) for c, at, end in zip(p.collectives, began, ended, strict=True)} == dict.fromkeys(
        range(3), (32, 32)
    )
    first = program_from_text(compiled)
    began, _ = simulate(first).collective_times
    assert dict(zip((c.stage for c in first.collectives), began.tolist(), strict=True)) == {0: 32, 1: 30, 2: 28}
