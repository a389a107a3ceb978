"""The performance model of Chimera (Li and Hoefler, SC'21, section 3.4): a closed equation, beside the simulation.

    T = (F_t + C_p2p) C_f + (B_t + C_p2p) C_b + max over ranks of C_unoverlapped

F_t and B_t are the times of a forward and a backward pass of the slowest stage, and C_f and C_b the numbers of these passes on
the critical path of the schedule. C_p2p is the time of the longest message, and C_unoverlapped the time for which all-reduces
of a rank still run after the last task of all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Costs, Program
from chimerac.compiler.analyze.causes import critical_path
from chimerac.compiler.analyze.durations import Durations
from chimerac.compiler.analyze.simulate import Simulation, simulate


@dataclass(frozen=True, slots=True)
class ClosedEquation:
    """The terms of the equation. Times are in units of 1 / `scale`, as the durations that it was computed from.

    Attributes:
        forwards, backwards: C_f and C_b. Each half of a split backward counts as a backward pass, and so does a RECOMPUTE.
        forward, backward: F_t C_f and B_t C_b, the times of all these passes.
        message: C_p2p, the time of the longest message.
        unoverlapped: C_unoverlapped of the rank with most of it.
    """

    forwards: int
    backwards: int
    forward: int
    backward: int
    message: int
    unoverlapped: int
    scale: int

    @property
    def total(self) -> int:
        """Return T."""
        return self.forward + self.backward + (self.forwards + self.backwards) * self.message + self.unoverlapped


def closed_equation(program: Program, durations: Durations) -> ClosedEquation:
    """Return the equation for a verified program.

    As in the paper, all stages take the time of the slowest one, and C_f and C_b are those of the critical path without
    communication. So the equation has neither the waits for messages on other paths nor the differences between stages.
    """
    sends = program.table.op == Op.SEND
    message = int((durations.latency + durations.occupied)[sends].max(initial=0))
    zero = np.zeros(len(program), np.int64)
    alone = replace(
        durations,
        costs=_of_slowest_stage(durations.costs),
        latency=zero,
        occupied=zero,
        collectives=np.zeros(len(program.collectives), np.int64),
    )
    s = simulate(program, durations=alone)
    path = critical_path(s)
    forward = [step.end - step.start for step in path if program.table.op[step.row] == Op.FWD]
    backward = [step.end - step.start for step in path if program.table.op[step.row] != Op.FWD]
    return ClosedEquation(
        forwards=len(forward),
        backwards=len(backward),
        forward=sum(forward),
        backward=sum(backward),
        message=message,
        unoverlapped=_unoverlapped(s, durations),
        scale=durations.scale,
    )


def _of_slowest_stage(costs: Costs) -> Costs:
    """Return costs with which a task takes on every stage what it takes on the slowest one. The cost of a hop is 0."""
    slowest: dict[str, Any] = {k: (max(v),) * len(v) for k, v in costs.given().items() if isinstance(v, tuple)}
    return Costs(**slowest)


def _unoverlapped(s: Simulation, durations: Durations) -> int:
    """Return for how long all-reduces still run after the last task of all ranks, on the rank where they end last.

    Those of a rank run one after another, none before its launch.

    Args:
        s: a simulation in which all-reduces take no time.
        durations: how long they take.
    """
    p, ends = s.program, [0] * s.program.world
    rows = np.flatnonzero(p.table.op == Op.ALLREDUCE)
    launched, lengths = s.timeline.end[rows].tolist(), durations.collectives[p.table.operand[rows]].tolist()
    for rank, begin, length in zip(p.rank_of[rows].tolist(), launched, lengths, strict=True):
        ends[rank] = max(ends[rank], begin) + length
    return max(0, *(end - s.makespan for end in ends))
