"""The clock of a stream on a GPU, with fake events: each is at the next millisecond of a fake GPU."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

from chimerac.interpreter.runtime.device_clock import CudaClock, ProcessorClock, clock_of
from chimerac.interpreter.transport.gpu_waits import GpuWaits


class Event:
    """An event of the fake GPU."""

    now_ms = 0.0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at_ms = float("nan")

    def record(self, stream: str) -> None:
        assert stream == "the current stream of cuda:1"
        Event.now_ms += 1
        self.at_ms = Event.now_ms

    def synchronize(self) -> None:
        """Return at once."""

    def elapsed_time(self, end: Any) -> float:
        elapsed_ms: float = end.at_ms - self.at_ms
        return elapsed_ms


@pytest.fixture(autouse=True)
def fake_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"the current stream of {device}")
    monkeypatch.setattr(Event, "now_ms", 0.0)


def test_on_a_cpu_a_reading_is_its_time() -> None:
    clock = clock_of(torch.device("cpu"))
    assert isinstance(clock, ProcessorClock)
    before, reading, after = time.perf_counter_ns(), clock.read(), time.perf_counter_ns()
    assert before <= reading <= after and clock.times_ns([reading]) == [reading]


def test_on_a_gpu_the_readings_are_events_whose_times_are_read_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter_ns", lambda: 100_000_000)
    clock = clock_of(torch.device("cuda", 1))
    assert isinstance(clock, CudaClock)
    assert clock.times_ns([0, 0]) == [0, 0], "before the first run there are no times, as on the CPU"
    for _ in range(2):  # the events are used again
        clock.begin()
        readings = [clock.read() for _ in range(3)]
        # Another event is now, at 100 ms of the processor's clock; the three were 3, 2 and 1 ms before.
        assert list(clock.times_ns(readings)) == [97_000_000, 98_000_000, 99_000_000]


def test_the_waits_of_a_gpu_are_added_up_by_instruction() -> None:
    waits = GpuWaits(torch.device("cuda", 1))
    waits.measure(0, lambda: None)
    waits.begin()
    made: list[str] = []
    waits.measure(1, lambda: made.append("a wait"))
    waits.measure(1, lambda: made.append("another one"))
    waits.measure(3, lambda: made.append("the end of the iteration"))
    assert len(made) == 3
    assert waits.totals_ns(readings=5) == [0, 0, 2_000_000, 2_000_000, 3_000_000]
