"""Simulation of a final program on the machine of its header: the times of all rows, by the costs.

A task takes its cost. A transfer takes `hop` from the moment when its SEND and its RECV are posted and it is first in
its queues, if there are any; docs/semantics.md, "Times", defines the rules (compiler/analyze/machines.py). Posting and
collectives take no time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from math import lcm

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import Op, stage_group
from chimerac.chimera_ir.program import Costs, Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.analyze.machines import waits
from chimerac.compiler.given import costs_from
from chimerac.compiler.tasks import earliest, task_costs


@dataclass(frozen=True, slots=True)
class Simulation:
    """Times and `costs` are integers in units of 1 / `scale` of a cost. Tuples have one entry per global rank.

    timeline: a bar for every row of the program, in their order;
    busy: time spent computing; wall_bubbles: makespan - busy, idle time up to the optimizer step; own_bubbles: last end -
    first start - busy, as the zero-bubble papers count; synced: when the last copy of each stage has its gradient.
    """

    program: Program
    costs: Costs
    timeline: Timeline
    makespan: int
    busy: tuple[int, ...]
    wall_bubbles: tuple[int, ...]
    own_bubbles: tuple[int, ...]
    synced: Mapping[str, int]

    @property
    def scale(self) -> int:
        """Return how many integers of time make one unit of cost."""
        return self.timeline.scale

    @property
    def bubble_ratio(self) -> float:
        """Return the idle share of all ranks' time, in [0, 1): idle over total, as in Chimera (SC'21, table 2)."""
        return sum(self.wall_bubbles) / (len(self.busy) * self.makespan) if self.makespan else 0.0

    def time(self, units: int) -> str:
        """Return a time as a number in the costs' unit."""
        value = Fraction(units, self.scale)
        return str(value.numerator) if value.denominator == 1 else f"{float(value):.4g}"


def simulate(program: Program, costs: Mapping[str, Fraction | Decimal | float] | None = None) -> Simulation:
    """Return the times of a verified program on its machine. costs: F, B, I, W, R and hop instead of the program's own.

    A float is durations as its decimal text: 0.1 is 1/10. Raises ChimeraError E002 for an invalid cost.
    """
    h = program.header
    costs_used, scale = _scaled(program.costs, {} if costs is None else costs_from(costs), h.stages)
    # Replicas wait for each other only if their collectives and transfers share a queue.
    if costs_used.total(h.micro_batches) * (h.width if h.machine == "serial" else 1) > limits.TIME:
        unit = scale if scale <= limits.TIME else f"{scale:.1e}"
        message = f"in units of 1/{unit} of a cost, times exceed {limits.TIME}: they could not be added up exactly"
        raise refuse("E002", message, help="give smaller costs, or costs with fewer digits")
    with_costs = replace(program, costs=costs_used)
    edges, durations = waits(with_costs, costs_used.hop)
    timing = earliest(with_costs, np.concatenate([task_costs(with_costs), durations]), edges)
    assert not timing.stuck, "a verified program terminates"
    timeline, is_task = timing.timeline(program, scale), program.table.is_task
    makespan = int(timeline.end[is_task].max(initial=0))
    length = np.where(is_task, timeline.end - timeline.start, 0)
    busy, own_bubbles = [], []
    for a, b in pairwise(program.offsets.tolist()):
        rows = np.arange(a, b)[length[a:b] > 0]
        busy.append(int(length[a:b].sum()))
        own_bubbles.append(int(timeline.end[rows].max() - timeline.start[rows].min()) - busy[-1] if len(rows) else 0)
    weight = np.flatnonzero((program.table.op == Op.BWD) | (program.table.op == Op.BWD_WEIGHT))
    synced = np.zeros(program.header.stages, np.int64)
    np.maximum.at(synced, program.table.stage[weight], timeline.end[weight])
    return Simulation(
        program,
        costs_used,
        timeline,
        makespan,
        tuple(busy),
        tuple(makespan - x for x in busy),
        tuple(own_bubbles),
        {stage_group(s): t for s, t in enumerate(synced.tolist())},
    )


def _scaled(own: Costs, given: Mapping[str, Fraction], stages: int) -> tuple[Costs, int]:
    """Return integer costs and what they were multiplied by. B is I + W where only its halves are given, and R is F where
    no cost of R is given."""
    scale = lcm(*(v.denominator for v in given.values()))
    fields = {"F": own.FWD, "B": own.BWD, "I": own.BWD_INPUT, "W": own.BWD_WEIGHT, "R": own.RECOMPUTE}
    values = {k: tuple(x * scale for x in v) for k, v in fields.items()}
    values |= {k: (int(v * scale),) * stages for k, v in given.items() if k != "hop"}
    if "B" not in given and ("I" in given or "W" in given):
        values["B"] = tuple(i + w for i, w in zip(values["I"], values["W"], strict=True))
    hop = int(given["hop"] * scale) if "hop" in given else own.hop * scale
    return Costs(values["F"], values["B"], values["I"], values["W"], hop, RECOMPUTE=values["R"]), scale
