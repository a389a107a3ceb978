"""The simulated iteration, and a measured one, as a Chrome trace that Perfetto opens (chimera_ir/trace_events.py).

A task is a slice of its rank. A message of the simulation is a slice of the sender's communication, from when it is on its way
until it has arrived. An all-reduce of the simulation is a slice of every member.

In a measured iteration only instructions have times. So its slices of communication are the instructions that are no tasks, and
not the messages and all-reduces themselves. One more slice of each rank leads from its last instruction to the end of the
iteration. In both iterations an arrow leads from the slice of a message or its SEND to the first task that reads one of its
values, if there is one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappush, heapreplace

import numpy as np

from chimerac.chimera_ir.instructions import Op, Task
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.chimera_ir.trace_events import (
    COMMUNICATION,
    TASKS,
    Event,
    Message,
    arrow_events,
    category,
    messages,
    rank_names,
    slice_event,
    trace_document,
)
from chimerac.compiler.analyze.beside import SECONDS, beside
from chimerac.compiler.analyze.simulate import Simulation

US_OF = {unit: float(10**6 * seconds) for unit, seconds in SECONDS.items()}  # microseconds, by unit of time
US_OF_COST = 1e3  # a unit of cost is drawn as a millisecond


@dataclass(frozen=True, slots=True)
class _Bar:
    """A slice of a rank's communication, in integers of time.

    Attributes:
        message: of a message or its SEND, the index of the message in `messages(program)`; -1 for other slices.
    """

    begin: int
    end: int
    name: str
    category: str
    message: int = -1


def trace_json(s: Simulation, measured: Timeline | None = None) -> str:
    """Return the trace of a simulation.

    Args:
        measured: drawn below it as further processes, on the same time axis.

    A unit of cost is drawn as one millisecond. But if only one of the two iterations is in a unit of time, the times of the
    simulation are scaled so that all tasks together take as long as measured. If its times are costs, `otherData` says how
    long a unit of cost is.
    """
    program, all_messages = s.program, messages(s.program)
    unit_us = US_OF.get(s.unit, US_OF_COST)
    if measured is not None:
        measured_us = US_OF.get(measured.unit, US_OF_COST)
        unit_of_cost = beside(s, measured).unit_of_cost
        unit_us = unit_us if unit_of_cost is None else unit_of_cost * measured_us
    about = {} if s.unit else {"unit_of_cost_us": unit_us}
    events = _predicted(s, all_messages, unit_us / s.scale, "" if measured is None else " predicted")
    if measured is None:
        return trace_document(program, events, **about)
    both = [*events, *_measured(program, all_messages, measured, measured_us / measured.scale)]
    return trace_document(program, both, **about)


def _predicted(s: Simulation, all_messages: Sequence[Message], us: float, suffix: str) -> Iterator[Event]:
    """Yield the events of a simulation.

    Args:
        us: the microseconds of one integer of time.
        suffix: it follows the ranks' names.
    """
    p, t, w = s.program, s.program.table, s.waits
    start, end = s.separate_bars
    times = dict(zip(w.send.tolist(), zip(s.departures.tolist(), s.arrivals.tolist(), strict=True), strict=True))
    bars: dict[int, list[_Bar]] = defaultdict(list)
    for number, m in enumerate(all_messages):
        begin, arrival = times[m.send]
        bars[m.sender].append(_Bar(begin, arrival, p.text(m.send), "message", number))
    began, ended = (x.tolist() for x in s.collective_times)
    rows = np.flatnonzero(t.op == Op.ALLREDUCE)
    for row, k, rank in zip(rows.tolist(), t.operand[rows].tolist(), p.rank_of[rows].tolist(), strict=True):
        bars[rank].append(_Bar(began[k], ended[k], p.text(row), "all-reduce"))
    yield from _ranks(p, all_messages, start.tolist(), end.tolist(), bars, us, first=0, suffix=suffix)


def _measured(program: Program, all_messages: Sequence[Message], measured: Timeline, us: float) -> Iterator[Event]:
    """Yield the events of a measured iteration, whose processes follow those of the simulation.

    Args:
        us: as in `_predicted`.
    """
    start, end = measured.start.tolist(), measured.end.tolist()
    number_of = {m.send: number for number, m in enumerate(all_messages)}
    bars: dict[int, list[_Bar]] = defaultdict(list)
    others = np.flatnonzero(~program.table.is_task)
    for row, i in zip(others.tolist(), program.instructions(others), strict=True):
        rank = int(program.rank_of[row])
        bars[rank].append(_Bar(start[row], end[row], program.text(row), category(i), number_of.get(row, -1)))
    for rank in range(program.world):
        own = measured.end[program.offsets[rank] : program.offsets[rank + 1]]
        bars[rank].append(_Bar(int(own.max(initial=0)), measured.makespan, "until the iteration ends", "end"))
    yield from _ranks(program, all_messages, start, end, bars, us, first=program.world, suffix=" measured")


def _ranks(
    p: Program,
    all_messages: Sequence[Message],
    start: Sequence[int],
    end: Sequence[int],
    bars: dict[int, list[_Bar]],
    us: float,
    first: int,
    suffix: str,
) -> Iterator[Event]:
    """Yield the tracks, slices and arrows of all ranks.

    Args:
        start, end: by row.
        bars: the communication of each rank.
        first: the process of rank 0.
        us, suffix: as in `_predicted`.
    """
    begins: dict[int, tuple[int, int, float]] = {}  # by message: process, track and begin of its slice
    is_task = p.table.is_task
    for rank in range(p.world):
        process, lanes = first + rank, _lanes(bars[rank])
        yield from rank_names(process, f"rank {rank}{suffix}", max(len(lanes), 1))
        rows = np.arange(p.offsets[rank], p.offsets[rank + 1])
        rows = rows[is_task[rows]]
        for row, i in zip(rows.tolist(), p.instructions(rows), strict=True):
            assert isinstance(i, Task)
            args = {"number": row - int(p.offsets[rank]), "micro_batches": i.micro_batches}
            yield slice_event(process, TASKS, start[row] * us, (end[row] - start[row]) * us, p.text(row), "task", args)
        for track, lane in enumerate(lanes, COMMUNICATION):
            for bar in lane:
                if bar.message >= 0:
                    begins[bar.message] = (process, track, bar.begin * us)
                yield slice_event(process, track, bar.begin * us, (bar.end - bar.begin) * us, bar.name, bar.category, {})
    for number, m in enumerate(all_messages):
        if is_task[m.reader]:
            reader = (first + m.receiver, TASKS, start[m.reader] * us)
            arrow = first * len(all_messages) + number  # the measured iteration needs other ids than the predicted one
            value = m.text.split(" <-")[0]  # without the sender
            yield from arrow_events(arrow, value, begins[number], reader)


def _lanes(bars: Sequence[_Bar]) -> list[list[_Bar]]:
    """Return the bars in as few lanes as possible. The bars of a lane do not overlap."""
    lanes: list[list[_Bar]] = []
    free: list[tuple[int, int]] = []  # a heap: when the last bar of each lane ends, and the lane
    for bar in sorted(bars, key=lambda b: (b.begin, b.end)):
        if free and free[0][0] <= bar.begin:
            lane = free[0][1]
            heapreplace(free, (bar.end, lane))
        else:
            lane = len(lanes)
            lanes.append([])
            heappush(free, (bar.end, lane))
        lanes[lane].append(bar)
    return lanes
