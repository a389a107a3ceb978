"""When everything runs, by the costs: a discrete-event simulation of a final program on the `window` machine.

A task takes its cost; a transfer takes `hop` from the moment when both its SEND and its RECV are posted; a SEND waits
until the one `window` before it in its channel is complete. Posting and collectives take no time yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from chimera_ir import limits
from chimera_ir.diagnostics import refuse
from chimera_ir.instructions import Op, Value, stage_group
from chimera_ir.program import Costs, Program
from compiler.tasks import Edges, TaskIndex, Timing, data_edges, earliest, expand, task_costs


@dataclass(frozen=True, slots=True)
class Simulation:
    """Times and `costs` are integers in units of 1 / `scale` of a cost; per global rank where plural.

    busy: time spent computing; wall_bubbles: makespan - busy, what the optimizer step sees; own_bubbles: last end -
    first start - busy, what the zero-bubble papers count; synced: when the last copy of each stage has its gradient.
    """

    program: Program
    costs: Costs
    timing: Timing
    scale: int
    makespan: int
    busy: tuple[int, ...]
    wall_bubbles: tuple[int, ...]
    own_bubbles: tuple[int, ...]
    synced: Mapping[str, int]

    @property
    def bubble_ratio(self) -> float:
        """Return the idle share of all ranks' time, in [0, 1): idle over total, as in Chimera (SC'21, table 2)."""
        return sum(self.wall_bubbles) / (len(self.busy) * self.makespan) if self.makespan else 0.0

    def time(self, units: int) -> str:
        """Return a time as a number in the costs' unit."""
        value = Fraction(units, self.scale)
        return str(value.numerator) if value.denominator == 1 else f"{float(value):.4g}"


def simulate(program: Program, costs: Mapping[str, Fraction | int] | None = None) -> Simulation:
    """Return the times of a verified program. costs: F, B, I, W and hop instead of the program's own."""
    own, scale = _scaled(program.header.costs, costs or {}, program.header.stages)
    if own.total(program.header.micro_batches) > limits.TIME:
        message = f"in units of 1/{scale} of a cost, times exceed {limits.TIME}: they could not be added up exactly"
        raise refuse("E002", message, help="give smaller costs, or costs with fewer digits")
    costed = program.with_header(costs=own)
    index = TaskIndex.of(program)
    timing = earliest(costed, task_costs(costed), Edges.concatenate(*_edges(costed, index, own.hop)))
    assert not timing.stuck, "a verified program ends"
    ends = np.flatnonzero(program.table.op <= Op.BWD_WEIGHT)
    makespan = int(timing.end[ends].max(initial=0))
    length = np.where(program.table.op <= Op.BWD_WEIGHT, timing.end - timing.start, 0)
    busy, own_bubbles = [], []
    for a, b in zip(program.offsets.tolist(), program.offsets[1:].tolist(), strict=False):
        rows = np.arange(a, b)[length[a:b] > 0]
        busy.append(int(length[a:b].sum()))
        own_bubbles.append(int(timing.end[rows].max() - timing.start[rows].min()) - busy[-1] if len(rows) else 0)
    weight = np.flatnonzero((program.table.op == Op.BWD) | (program.table.op == Op.BWD_WEIGHT))
    synced = np.zeros(program.header.stages, np.int64)
    np.maximum.at(synced, program.table.stage[weight], timing.end[weight])
    return Simulation(
        program,
        own,
        timing,
        scale,
        makespan,
        tuple(busy),
        tuple(makespan - x for x in busy),
        tuple(own_bubbles),
        {stage_group(s): t for s, t in enumerate(synced.tolist())},
    )


def _scaled(own: Costs, given: Mapping[str, Fraction | int], stages: int) -> tuple[Costs, int]:
    """Return integer costs and what they were multiplied by. B is I + W where only its halves are given."""
    scale = lcm(*(Fraction(v).denominator for v in given.values()))
    fields = {"F": own.FWD, "B": own.BWD, "I": own.BWD_INPUT, "W": own.BWD_WEIGHT}
    values = {k: tuple(x * scale for x in v) for k, v in fields.items()}
    values |= {k: (int(v * scale),) * stages for k, v in given.items() if k != "hop"}
    if "B" not in given and ("I" in given or "W" in given):
        values["B"] = tuple(i + w for i, w in zip(values["I"], values["W"], strict=True))
    hop = int(given["hop"] * scale) if "hop" in given else own.hop * scale
    return Costs(values["F"], values["B"], values["I"], values["W"], hop), scale


def _edges(program: Program, index: TaskIndex, hop: int) -> list[Edges]:
    """Return every wait: data that stays on its rank, values that arrive, and sends whose window is full."""
    t, h = program.table, program.header
    local = data_edges(program, index, hop)
    stays = program.rank_of[local.source] == program.rank_of[local.target]
    edges = [Edges(local.source[stays], local.target[stays], local.delay[stays])]
    send, receive = np.flatnonzero(t.op == Op.SEND), np.flatnonzero(t.op == Op.RECV)
    if not len(send):
        return edges
    channel = program.rank_of[send] * program.world + t.peer[send]
    send = send[np.argsort(channel, kind="stable")]
    receive = receive[np.argsort(t.peer[receive] * program.world + program.rank_of[receive], kind="stable")]
    channel = np.sort(channel)
    position, ids = expand(program, receive)
    keys = (program.rank_of[receive] // h.ranks * h.stages + t.stage[receive])[position] * h.micro_batches + ids
    reader = np.where(t.value[receive[position]] == Value.act, index.forward[keys], index.backward[keys])
    earlier = np.arange(len(send)) - h.window
    full = np.flatnonzero(earlier >= 0)
    full = full[channel[earlier[full]] == channel[full]]
    hops = np.full(len(reader), hop)
    if h.window == 0:  # a send blocks until its receive is posted
        edges.append(Edges(receive, send, np.zeros(len(send), np.int64)))
    else:
        for ends in (send, receive):
            edges.append(Edges(ends[earlier[full]], send[full], np.full(len(full), hop)))
    for ends in (send, receive):
        edges.append(Edges(ends[position], reader, hops))
    return edges
