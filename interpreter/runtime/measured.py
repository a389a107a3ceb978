"""Measurements of an iteration: of one rank, and of all ranks together."""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Self

import torch

from chimerac.interpreter.runtime.times import IterationTimes, Times, bubbles, computed_and_elapsed_s


@dataclass(frozen=True, slots=True)
class Figures:
    """The measurements of one iteration on one rank.

    Attributes:
        computed_s: how long its tasks took, without their waits.
        elapsed_s: the time from its first instruction to the end of its last task.
        recompute_s: the part of `computed_s` in which forwards ran again.
        value_wait_s, send_wait_s, all_reduce_wait_s, peak_memory_bytes: as in `MeasuredTimes`, for this rank. A wait for a
            value also contains the time until another rank has computed it.
    """

    computed_s: float
    elapsed_s: float
    recompute_s: float
    value_wait_s: float
    send_wait_s: float
    all_reduce_wait_s: float
    peak_memory_bytes: float

    @classmethod
    def of(cls, times: Times, device: torch.device) -> Self:
        """Return the figures of this rank for an iteration.

        Args:
            device: where its stages are.
        """
        waits = (times.value_wait_ns / 1e9, times.send_wait_ns / 1e9, times.all_reduce_wait_ns / 1e9)
        return cls(*computed_and_elapsed_s(times), times.recompute_ns / 1e9, *waits, peak_memory_bytes(device))

    def row(self) -> tuple[float, ...]:
        """Return the figures as a row of numbers, which ranks exchange. `MeasuredTimes.of` reads the rows."""
        return astuple(self)


@dataclass(frozen=True, slots=True)
class MeasuredTimes(IterationTimes):
    """One measured iteration on all ranks. Each field except `last_task_end` has a value for each rank.

    Attributes:
        recompute_s: how long the rank's tasks ran forwards again, in seconds.
        value_waits_s: how long they waited for values of other ranks.
        send_waits_s: how long its SENDs, and the end of the iteration, waited until sends were complete.
        all_reduce_waits_s: how long the end of the iteration waited for all-reduces after that.
        peak_memory_bytes: as the function of this name returns it.
    """

    recompute_s: tuple[float, ...]
    value_waits_s: tuple[float, ...]
    send_waits_s: tuple[float, ...]
    all_reduce_waits_s: tuple[float, ...]
    peak_memory_bytes: tuple[int, ...]

    @classmethod
    def of(cls, rows: Sequence[Sequence[float]]) -> Self:
        """Return the iteration with these figures.

        Args:
            rows: of each rank, as from `Figures.row`.
        """
        computed_s, elapsed_s, recompute_s, for_values, for_sends, for_all_reduces, peaks = map(tuple, zip(*rows, strict=True))
        idle, peak_memory = tuple(bubbles(computed_s, elapsed_s)), tuple(int(peak) for peak in peaks)
        return cls(max(elapsed_s), idle, recompute_s, for_values, for_sends, for_all_reduces, peak_memory)


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most bytes that this process has held so far: as tensors on its GPU, or on the CPU as its resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB
