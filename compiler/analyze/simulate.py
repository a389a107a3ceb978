"""Simulation of a verified program on the machine of its header: the times of all rows, messages and all-reduces.

A task takes its cost. A message takes its latency, and the time for which its bytes occupy its channel, from the moment when
its SEND and its RECV are posted and it is the next one of its channel or its queues. An all-reduce begins when all its members
have launched it and have finished the all-reduces before it, on `serial` also the transfers before it. docs/semantics.md,
"Times", defines the rules; compiler/analyze/machines.py has the waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np

from chimerac.chimera_ir.instructions import Op, stage_group
from chimerac.chimera_ir.numbers import number_text
from chimerac.chimera_ir.program import OVERLAP, Costs, Ints, Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.analyze.durations import Durations, cost_durations
from chimerac.compiler.analyze.machines import Waits, waits
from chimerac.compiler.tasks import earliest


@dataclass(frozen=True, slots=True)
class Simulation:
    """The result of a simulation.

    Times are integers in units of 1 / `scale` of `unit`, '' for the unit of costs. Tuples have one entry per global rank.

    Attributes:
        timeline: a bar for every row of the program, in their order.
        makespan: until the last task and the last all-reduce have ended.
        busy: time spent computing.
        wall_bubbles: makespan - busy, idle time up to the optimizer step.
        own_bubbles: last end - first start - busy, as the zero-bubble papers count, over the tasks that take time; 0 for a rank
            without one.
        gradients_done: by the group of each stage, when its last weight gradient on any rank ends; 0 if it has none.
        durations: what took how long.
        lengths: of each row, 0 for all but tasks.
        waits: what waited for what.
        node_start, node_end: of transfers and collectives, which are numbered after the rows (`Waits`).
    """

    program: Program
    durations: Durations
    timeline: Timeline
    makespan: int
    busy: tuple[int, ...]
    wall_bubbles: tuple[int, ...]
    own_bubbles: tuple[int, ...]
    gradients_done: Mapping[str, int]
    lengths: Ints
    waits: Waits
    node_start: Ints
    node_end: Ints

    @property
    def costs(self) -> Costs:
        """Return the costs of the tasks as integers, in units of 1 / `scale` of `unit`."""
        return self.durations.costs

    @property
    def scale(self) -> int:
        """Return how many integers of time make one unit."""
        return self.timeline.scale

    @property
    def unit(self) -> str:
        """Return the unit of the times, '' for the unit of costs."""
        return self.timeline.unit

    @property
    def bubble_ratio(self) -> float:
        """Return the idle share of all ranks' time, in [0, 1]: idle over total, as in Chimera (SC'21, table 2)."""
        return sum(self.wall_bubbles) / (len(self.busy) * self.makespan) if self.makespan else 0.0

    @property
    def arrivals(self) -> Ints:
        """Return when each message has arrived, in the order of `waits.send`."""
        w = self.waits
        if len(w.transfer):
            return self.node_end[w.transfer - len(self.program)] + w.delay
        return np.maximum(self.timeline.end[w.send], self.timeline.end[w.receive]) + w.delay

    @property
    def departures(self) -> Ints:
        """Return from when on each message is on its way, in the order of `waits.send`.

        From then on both its ends are posted, and it is the next one of its channel or its queues.
        """
        w = self.waits
        if len(w.transfer):
            return self.node_start[w.transfer - len(self.program)]
        return np.maximum(self.timeline.end[w.send], self.timeline.end[w.receive])

    @property
    def collective_times(self) -> tuple[Ints, Ints]:
        """Return when each of `Program.collectives` began and ended.

        Where collectives have no nodes (`Waits`), they take no time.
        """
        p, first = self.program, self.waits.collective
        if first is not None:
            return self.node_start[first - len(p) :], self.node_end[first - len(p) :]
        rows = np.flatnonzero(p.table.op == Op.ALLREDUCE)
        collectives, next_ranks = p.table.operand[rows], np.flatnonzero(np.diff(p.rank_of[rows])) + 1
        begun, at_launch = np.zeros(len(p.collectives), np.int64), self.timeline.end[rows]
        while True:  # until each collective begins after its launches and after those before it in the streams of its members
            np.maximum.at(begun, collectives, at_launch)
            after_others = [np.maximum.accumulate(of_rank) for of_rank in np.split(begun[collectives], next_ranks)]
            at_launch = np.concatenate(after_others)
            if (at_launch == begun[collectives]).all():
                return begun, begun

    @property
    def separate_bars(self) -> tuple[Ints, Ints]:
        """Return when each row starts and ends. Here the tasks of an overlapped pair, which run as one, follow each other."""
        start, end = self.timeline.start.copy(), self.timeline.end.copy()
        first = np.flatnonzero(self.program.table.flags & OVERLAP)
        end[first] = start[first + 1] = start[first] + self.lengths[first]
        return start, end

    def time(self, units: int) -> str:
        """Return a time as a number in the unit of the times."""
        return number_text(Fraction(units, self.scale))


def simulate(
    program: Program,
    costs: Mapping[str, Fraction | Decimal | float] | None = None,
    durations: Durations | None = None,
) -> Simulation:
    """Return the times of a verified program on its machine.

    Args:
        costs: any of F, B, I, W, R and hop instead of the program's own; a float is read as its decimal text: 0.1 is 1/10.
        durations: in the place of all costs, such as those of a profile.

    Raises ChimeraError E002 for an invalid cost, and for costs that could not be added up exactly.
    """
    if durations is None:
        durations = cost_durations(program, costs)
    all_waits, lengths = waits(program, durations), durations.of_rows(program)
    timing = earliest(program, np.concatenate([lengths, all_waits.durations]), all_waits.edges, all_waits.offsets)
    assert not timing.stuck, "a verified program terminates"
    timeline, is_task = timing.timeline(program, durations.scale, durations.unit), program.table.is_task
    node_start, node_end = timing.start[len(program) :], timing.end[len(program) :]
    all_reduced = node_end[all_waits.collective - len(program) :] if all_waits.collective is not None else node_end[:0]
    makespan = int(max(timeline.end[is_task].max(initial=0), all_reduced.max(initial=0)))
    taken = np.where(is_task, timeline.end - timeline.start, 0)
    rank, ran = program.rank_of, np.flatnonzero(taken)
    busy, first, last = np.zeros(program.world, np.int64), np.full(program.world, makespan), np.zeros(program.world, np.int64)
    np.add.at(busy, rank, taken)
    np.minimum.at(first, rank[ran], timeline.start[ran])
    np.maximum.at(last, rank[ran], timeline.end[ran])
    weight_gradients = np.flatnonzero((program.table.op == Op.BWD) | (program.table.op == Op.BWD_WEIGHT))
    done = np.zeros(program.header.stages, np.int64)
    np.maximum.at(done, program.table.stage[weight_gradients], timeline.end[weight_gradients])
    return Simulation(
        program,
        durations,
        timeline,
        makespan,
        busy=tuple(busy.tolist()),
        wall_bubbles=tuple((makespan - busy).tolist()),
        own_bubbles=tuple(np.where(busy > 0, last - first - busy, 0).tolist()),
        gradients_done={stage_group(s): t for s, t in enumerate(done.tolist())},
        lengths=lengths,
        waits=all_waits,
        node_start=node_start,
        node_end=node_end,
    )
