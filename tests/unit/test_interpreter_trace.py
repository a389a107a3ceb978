"""Traces and timelines of an iteration, the offsets of the ranks' clocks, and the ranges of torch's profiler."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from torch.profiler import ProfilerActivity, profile

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.chimera_ir.timeline_form import timeline_from_json
from chimerac.compiler import compile_schedule
from chimerac.interpreter.runtime.clocks import Reading, clock_offsets, offset_of
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.runtime.times import Times
from chimerac.interpreter.runtime.trace import trace_text
from chimerac.interpreter.training.settings import Settings, samples_per_micro_batch
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.distributed.alone import Alone
from tests.distributed.integers import IntegerSamples, integer_model
from tests.distributed.programs import ONE_RANK
from tests.helpers_trace import check_trace, phase, slice_at

SETTINGS = Settings(iterations=2, seed=3, micro_batch=2, rate=1e-2)
PROGRAMS = [
    ("chimera", {"D": 4, "N": 4}, 1),
    ("chimera", {"D": 2, "N": 2}, 2),
    ("chimera_doubling", {"D": 4, "N": 4}, 1),
    ("zb_v", {"D": 2, "N": 4}, 1),
]


def trainer_of(program: Program, transport: Transport, profile_ranges: bool = False) -> Trainer:
    model = integer_model(middle=program.header.stages - 2)
    size = samples_per_micro_batch(program, SETTINGS.micro_batch)
    parts = partitioned(program, model, describe(model, size))
    return Trainer(program, parts, IntegerSamples(), transport, SETTINGS, profile_ranges=profile_ranges)


def write_trace(program: Program, path: Path) -> None:
    """Write the trace of the second of two iterations of a program in loopback."""

    def rank(transport: Transport) -> None:
        trainer = trainer_of(program, transport)
        for iteration in range(2):
            trainer.update(iteration, trainer.gradients(iteration))
        trainer.pipeline.trace(path)

    run_in_loopback(program, rank)


@pytest.mark.parametrize(("name", "parameters", "width"), PROGRAMS)
def test_a_trace_has_every_instruction_once_and_an_arrow_for_each_message(
    name: str, parameters: dict[str, int], width: int, tmp_path: Path
) -> None:
    program = compile_schedule(name, parameters, width).program
    write_trace(program, tmp_path / "trace.json")
    events = check_trace(tmp_path / "trace.json", program)
    ends = {e["id"]: e for e in phase(events, "f")}
    for start in phase(events, "s"):
        end = ends[start["id"]]
        send, reader = slice_at(events, start), slice_at(events, end)
        assert start["ts"] < end["ts"], "one process has one clock"
        value, place, peer = re.fullmatch(r"SEND (act|grad) (.*) -> (\d+)", send["name"]).groups()
        assert int(peer) == end["pid"]
        pipe, stage, sent = place.split()  # such as "main", "s1" and "m0,1"
        op, reader_pipe, reader_stage, read = reader["name"].split()[:4]
        assert op in {"act": ("FWD",), "grad": ("BWD", "BWD_INPUT")}[value]
        assert (reader_pipe, reader_stage) == (pipe, stage)
        assert set(read[1:].split(",")) & set(sent[1:].split(",")), "it reads at least one of the micro-batches that are sent"
    for rank in range(program.world):
        not_yet_read = [e["args"]["messages"] for e in phase(events, "C") if e["pid"] == rank]
        assert not_yet_read[-1] == 0 and min(not_yet_read) == 0 and max(not_yet_read) >= 1


def test_a_wait_is_a_slice_of_its_own_that_says_for_what(tmp_path: Path) -> None:
    program = compile_schedule("gpipe", {"D": 2, "N": 1}).program
    texts = [[program.text(row) for row in range(program.offsets[r], program.offsets[r + 1])] for r in (0, 1)]
    begin, times = 10**9, []  # in nanoseconds: each instruction takes 5000, and waits 2000 of them
    for count in map(len, texts):
        start = begin + np.arange(count) * 5000
        waited = np.full(count, 2000)
        last = begin + count * 5000
        times.append(Times(start, start + 5000, waited, np.ones(count, bool), sent=last + 3000, finish=last + 4000))
    path = tmp_path / "trace.json"
    path.write_text(trace_text(program, times))
    events = check_trace(path, program)
    names = {(e["pid"], e["args"].get("number")): e["name"] for e in phase(events, "X") if e["cat"] == "wait"}
    assert names[0, texts[0].index("SEND act main s1 m0 -> 1")] == "waits for its sends to rank 1"
    assert names[0, texts[0].index("BWD main s0 m0")] == "waits for grad main s0 m0 <- 1"
    assert names[1, texts[1].index("FWD main s1 m0")] == "waits for act main s1 m0 <- 0"
    at_the_end = [(e["name"], e["dur"]) for e in phase(events, "X") if e["cat"] == "wait" and not e["args"]]
    assert at_the_end == [("waits for the last sends", 3.0), ("waits for the all-reduces", 1.0)] * 2
    assert min(e["ts"] for e in phase(events, "X")) == 0


def test_the_timelines_of_every_rank_and_of_the_file_have_the_same_ends(tmp_path: Path) -> None:
    program = compile_schedule("chimera", {"D": 4, "N": 4}).program

    def rank(transport: Transport) -> Timeline:
        trainer = trainer_of(program, transport)
        with pytest.raises(ValueError, match="nothing to measure before the first step"):
            trainer.pipeline.timeline()
        trainer.gradients(0)
        trainer.pipeline.write_timeline(tmp_path / "times.json")
        return trainer.pipeline.timeline()

    timelines = run_in_loopback(program, rank)
    of_file = timeline_from_json((tmp_path / "times.json").read_text()).of(program)
    for t in (*timelines, of_file):
        assert (t.unit, t.scale) == ("ms", 10**6) and (t.row == np.arange(len(program))).all()
        assert t.start.min() >= 0 and t.makespan >= t.end.max() and (t.end[1:] >= t.end[:-1])[np.diff(t.rank) == 0].all()
    assert all((t.end == of_file.end).all() for t in timelines), "one process has one clock"


def test_the_predicted_timeline_has_the_form_of_the_measured_one() -> None:
    program = compile_schedule("chimera", {"D": 2, "N": 2}).program

    def rank(transport: Transport) -> tuple[Timeline, Timeline, float]:
        trainer = trainer_of(program, transport)
        predicted = trainer.pipeline.predicted_timeline()  # there is one before the first step too
        trainer.gradients(0)
        return predicted, trainer.pipeline.timeline(), trainer.pipeline.predicted().last_task_end

    # Each rank has two forwards of 1 and two backwards of 2, and is never idle.
    for predicted, measured, last_task_end in run_in_loopback(program, rank):
        assert (predicted.row == measured.row).all() and (predicted.rank == measured.rank).all()
        assert predicted.finish / predicted.scale == predicted.makespan / predicted.scale == last_task_end == 6


def test_a_trace_that_cannot_be_written_is_refused_on_every_rank(tmp_path: Path) -> None:
    program = compile_schedule("gpipe", {"D": 2, "N": 1}).program

    def rank(transport: Transport) -> str:
        trainer = trainer_of(program, transport)
        with pytest.raises(ValueError, match="nothing to trace before the first step"):
            trainer.pipeline.trace(tmp_path / "trace.json")
        trainer.gradients(0)
        with pytest.raises(ChimeraError, match=r"E811: the trace .*gone.*cannot be written") as caught:
            trainer.pipeline.trace(tmp_path / "gone" / "trace.json")
        trainer.gradients(0)  # the pipeline goes on
        return str(caught.value)

    first, second = run_in_loopback(program, rank)
    assert first == second and not list(tmp_path.iterdir())


def test_times_by_another_clock_are_the_same_but_shifted() -> None:
    times = Times(np.array([1, 5]), np.array([5, 9]), np.array([0, 2]), np.array([True, False]), sent=11, finish=12)
    moved = Times.from_json(times.to_json()).shifted(-100)
    assert (moved.start.tolist(), moved.end.tolist(), moved.sent, moved.finish) == ([-99, -95], [-95, -91], -89, -88)
    # The SEND waits 2 ns for its window; after it the sends take 2 ns more, and the all-reduces 1 ns more.
    assert moved.waited.tolist() == [0, 2] and (moved.value_wait_ns, moved.send_wait_ns, moved.all_reduce_wait_ns) == (0, 4, 1)


@pytest.mark.parametrize("offset", [-(10**15), -7_000_000, 5_000, 7_000_000, 10**12])
def test_the_offset_of_two_clocks_is_found_within_the_bounds_of_all_rounds(offset: int) -> None:
    """Two ranks read their clocks before and after all-reduces that take random times.

    Args:
        offset: to add to the second clock.
    """
    random_numbers = random.Random(1)
    first: list[Reading] = []
    other: list[Reading] = []
    lower, upper = [], []
    now = 0
    for _ in range(16):
        begins = [now + random_numbers.randrange(50_000) for _ in range(2)]
        ends = [max(begins) + 20_000 + random_numbers.randrange(300_000) for _ in range(2)]
        first.append((begins[0], ends[0]))
        other.append((begins[1] - offset, ends[1] - offset))
        lower.append(begins[0] - ends[1])
        upper.append(ends[0] - begins[1])
        now = max(ends)
    distance = min(upper) - max(lower)
    # An all-reduce takes at least 20,000 ns. So if the offset is smaller, 0 lies within the bounds of every round. The other
    # offsets are longer than any of these all-reduces, so 0 lies outside the bounds of every round.
    is_zero = abs(offset) < 20_000
    assert (offset_of(first, other) == 0) == is_zero
    rounding = 1  # to a whole number of nanoseconds
    assert abs(offset_of(first, other) - offset) <= (distance if is_zero else distance / 2 + rounding)
    assert offset_of(first, first) == 0


def test_clocks_of_one_process_have_no_offset() -> None:
    program = compile_schedule("gpipe", {"D": 3, "N": 1}).program
    assert run_in_loopback(program, clock_offsets) == [[0, 0, 0]] * 3


def test_one_rank_alone_has_a_trace_without_arrows(tmp_path: Path) -> None:
    trainer = trainer_of(ONE_RANK, Alone())
    trainer.gradients(0)
    trainer.pipeline.trace(tmp_path / "trace.json")
    assert not phase(check_trace(tmp_path / "trace.json", ONE_RANK), "s")


def test_an_evaluation_after_an_iteration_does_not_change_its_times() -> None:
    trainer = trainer_of(ONE_RANK, Alone())
    trainer.gradients(0)
    before = trainer.pipeline.times.to_json()
    trainer.pipeline.evaluate_batch(trainer.batches(iteration=0, replica=0)[0])
    assert trainer.pipeline.times.to_json() == before


def test_each_instruction_is_a_range_of_torchs_profiler_only_with_profile_ranges() -> None:
    texts = Counter(ONE_RANK.text(row) for row in range(len(ONE_RANK)))
    for profile_ranges in (True, False):
        trainer = trainer_of(ONE_RANK, Alone(), profile_ranges)
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            trainer.gradients(0)
        events = profiler.events()
        assert events is not None
        ranges = Counter(e.name for e in events if e.name in texts or e.name == "epilogue")
        assert ranges == (texts + Counter(epilogue=1) if profile_ranges else Counter())
        forward = [e for e in events if e.name.startswith("FWD")]
        assert all(any("aten::" in child.name for child in e.cpu_children) for e in forward), "operators are in their range"
        # Without profile_ranges, no call is wrapped.
        assert all(("_in_range" in repr(call)) == profile_ranges for call in trainer.pipeline.executor.calls)
