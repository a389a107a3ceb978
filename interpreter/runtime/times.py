"""The times of a rank's instructions, measured in every iteration, and the bubbles of all ranks that follow from them.

The clock is read before the first instruction and after each instruction. In the epilogue it is read twice more: when all sends
are complete, and when all all-reduces are complete too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline

Nanoseconds = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Times:
    """One iteration of one rank, by instruction number, in nanoseconds of time.perf_counter_ns.

    Attributes:
        waited: how long the instruction waited for other ranks: a task for a value, a SEND as the window of its channel
            requires.
        is_task: which instructions compute.
        sent: when all sends were complete, after the last instruction.
        finish: when all all-reduces were complete too.
        recompute_ns: how long tasks ran forwards again.

    An instruction starts when the one before it ends.
    """

    start: Nanoseconds
    end: Nanoseconds
    waited: Nanoseconds
    is_task: npt.NDArray[np.bool_]
    sent: int
    finish: int
    recompute_ns: int = 0

    def timeline(self, program: Program, rank: int) -> Timeline:
        """Return a bar for every instruction of this rank, without the time that it waited; in milliseconds."""
        rows = np.arange(program.offsets[rank], program.offsets[rank + 1])
        return Timeline(np.full(len(rows), rank), rows, self.start + self.waited, self.end, scale=10**6, unit="ms")

    def shifted(self, offset: int) -> Times:
        """Return these times by another clock.

        Args:
            offset: what to add to them, in nanoseconds.
        """
        shifted = {name: getattr(self, name) + offset for name in ("start", "end", "sent", "finish")}
        return replace(self, **shifted)

    def to_json(self) -> str:
        """Return these times as text for another rank."""
        columns = [column.tolist() for column in (self.start, self.end, self.waited, self.is_task)]
        return json.dumps([*columns, self.sent, self.finish, self.recompute_ns])

    @staticmethod
    def from_json(text: str) -> Times:
        """Return the times of which this is the text."""
        start, end, waited, is_task, *others = json.loads(text)
        start, end, waited = (np.array(column, np.int64) for column in (start, end, waited))
        return Times(start, end, waited, np.array(is_task, bool), *others)

    @property
    def busy(self) -> Nanoseconds:
        """Return how long each instruction took without its waiting."""
        return self.end - self.start - self.waited

    @property
    def task_ns(self) -> int:
        """Return how long this rank computed."""
        return int(self.busy[self.is_task].sum())

    @property
    def value_wait_ns(self) -> int:
        """Return how long the tasks waited for values of other ranks."""
        return int(self.waited[self.is_task].sum())

    @property
    def send_wait_ns(self) -> int:
        """Return how long this rank waited until sends were complete: in its SENDs, and after the last instruction."""
        at_the_end = self.sent - int(self.end[-1]) if len(self.end) else 0
        return int(self.waited[~self.is_task].sum()) + at_the_end

    @property
    def all_reduce_wait_ns(self) -> int:
        """Return how long the end of the iteration waited for all-reduces, after all sends were complete."""
        return self.finish - self.sent


def times_of(
    stamps: Sequence[int], waits: Sequence[int], is_task: npt.NDArray[np.bool_], sent: int, recompute_ns: int = 0
) -> Times:
    """Return the times of an iteration.

    Args:
        stamps: the clock before the first instruction, after each, and after the sends and all-reduces are complete.
        waits: how long the rank had waited in total at the same moments.
        is_task, sent, recompute_ns: as in `Times`.
    """
    clock, total_waited = np.array(stamps, np.int64), np.array(waits, np.int64)
    start, end = clock[:-2], clock[1:-1]
    # The first task of an overlapped pair may wait on its own CUDA stream for longer than it takes on the main one.
    waited = np.minimum(total_waited[1:-1] - total_waited[:-2], end - start)
    return Times(start, end, waited, is_task, sent, int(clock[-1]), recompute_ns)


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """How long one iteration of all ranks takes, predicted or measured.

    Attributes:
        last_task_end: until the last task ends; in seconds if measured, and if predicted in the unit of the costs, unless a
            caller has converted it. All-reduces that end later are not counted, so a makespan may be longer.
        bubbles: the share of this time in which each rank did not compute.
    """

    last_task_end: float
    bubbles: tuple[float, ...]

    @property
    def bubble_ratio(self) -> float:
        """Return the share of the time of all ranks in which they did not compute."""
        return sum(self.bubbles) / len(self.bubbles)


def computed_and_elapsed_s(times: Times) -> tuple[float, float]:
    """Return how long a rank computed, and the time from its first instruction to the end of its last task, in seconds."""
    if not len(times.start):
        return 0.0, 0.0
    begin = int(times.start[0])
    last = int(times.end[times.is_task].max(initial=begin))
    return times.task_ns / 1e9, (last - begin) / 1e9


def bubbles(computed_s: Sequence[float], elapsed_s: Sequence[float]) -> list[float]:
    """Return the share of the time until the last task ends in which each rank did not compute.

    Args:
        computed_s: how long each rank computed.
        elapsed_s: of each rank, from its start to the end of its last task. The longest of these times counts for all ranks.
    """
    last_task_end = max(elapsed_s, default=0.0)
    return [1 - computed / last_task_end if last_task_end else 0.0 for computed in computed_s]
