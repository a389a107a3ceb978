"""When a rank's instructions ran: measured in every iteration, for the price of one clock reading each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Times:
    """One iteration of one rank, by instruction number, in nanoseconds of time.perf_counter_ns.

    waited: the part of an instruction that it waited for other ranks, in the first reader of a received value or before
    a SEND whose window was full. task: which instructions compute. finish: when the sends and sums had been awaited.
    An instruction starts when the one before it ends.
    """

    start: Nanoseconds
    end: Nanoseconds
    waited: Nanoseconds
    task: npt.NDArray[np.bool_]
    finish: int

    def timeline(self, program: Program, rank: int) -> Timeline:
        """Return a bar for every instruction of this rank, without the time that it waited; in milliseconds."""
        rows = np.arange(program.offsets[rank], program.offsets[rank + 1])
        return Timeline(np.full(len(rows), rank), rows, self.start + self.waited, self.end, scale=10**6, unit="ms")

    @property
    def busy(self) -> Nanoseconds:
        """Return how long each instruction took without its waiting."""
        return self.end - self.start - self.waited

    @property
    def busy_ns(self) -> int:
        """Return how long this rank was not waiting for others, from its first instruction to its last."""
        return int(self.busy.sum())

    @property
    def task_ns(self) -> int:
        """Return how long this rank computed."""
        return int(self.busy[self.task].sum())


def times_of(stamps: Sequence[int], waits: Sequence[int], task: npt.NDArray[np.bool_]) -> Times:
    """Return the times of an iteration.

    stamps: the clock before the first instruction, after each, and after the epilogue; waits: what the rank had waited
    in all, at the same moments.
    """
    clock, waited = np.array(stamps, np.int64), np.array(waits, np.int64)
    return Times(clock[:-2], clock[1:-1], waited[1:-1] - waited[:-2], task, int(clock[-1]))
