"""The clock of a rank's stream: that of the processor, or on a GPU events, which the GPU reaches after the work before them.

On a GPU an instruction only launches kernels, so the processor's clock does not tell how long they run. Recording an event does
not wait for the GPU. The times of the events are read after the run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import torch


class Clock(Protocol):
    """A clock that is read between instructions."""

    def begin(self) -> None:
        """Forget all readings, at the start of a run."""

    def read(self) -> int:
        """Read the clock, and return the reading."""

    def times_ns(self, readings: Sequence[int]) -> Sequence[int]:
        """Return readings since the last `begin` in nanoseconds of time.perf_counter_ns; on a GPU, wait for them."""


class ProcessorClock:
    """The clock time.perf_counter_ns. A reading is its time."""

    def __init__(self) -> None:
        self.read = time.perf_counter_ns

    def begin(self) -> None:
        """Do nothing: no reading is kept."""

    def times_ns(self, readings: Sequence[int]) -> Sequence[int]:
        """Return the readings."""
        return readings


class CudaClock:
    """Events on the current CUDA stream of a device. A reading is the number of its event. A new run uses the events again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []
        self._used = 0

    def begin(self) -> None:
        """Forget all readings."""
        self._used = 0

    def read(self) -> int:
        """Record an event, and return its number."""
        number = self._used
        if number == len(self._events):
            self._events.append(_event())
        self._events[number].record(torch.cuda.current_stream(self._device))
        self._used = number + 1
        return number

    def times_ns(self, readings: Sequence[int]) -> Sequence[int]:
        """Wait for these events, and return their times in nanoseconds of time.perf_counter_ns; zeros before the first run."""
        if not self._used:
            return [0] * len(readings)
        first, now = self._events[readings[0]], _event()
        self._events[max(readings)].synchronize()
        now.record(torch.cuda.current_stream(self._device))
        now.synchronize()
        begin = time.perf_counter_ns() - _elapsed_ns(first, now)
        return [begin + _elapsed_ns(first, self._events[number]) for number in readings]


def clock_of(device: torch.device) -> Clock:
    """Return a new clock for a rank whose stages are on this device."""
    return CudaClock(device) if device.type == "cuda" else ProcessorClock()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _elapsed_ns(begin: torch.cuda.Event, end: torch.cuda.Event) -> int:
    elapsed_ms: float = begin.elapsed_time(end)
    return round(elapsed_ms * 1e6)
