"""How long everything in a program takes: its tasks, its messages and its all-reduces, as integers in one unit.

Durations from costs are exact: a program's costs are integers, and a caller may give fractions. Durations from times in
seconds, such as those of a profile, are rounded to nanoseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from math import lcm
from typing import Any

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import Collective, Op, Value, stage_group
from chimerac.chimera_ir.lifetimes import Kind, boundary_of, value_bytes
from chimerac.chimera_ir.model import ModelDescription, StageSum, gradient_bytes
from chimerac.chimera_ir.partition import partition_for
from chimerac.chimera_ir.profile import TIMES, Link, Profile
from chimerac.chimera_ir.program import Costs, Ints, Program
from chimerac.compiler.given import costs_from
from chimerac.compiler.tasks import task_costs

UNIT = "ms"  # of durations that come from times in seconds
PER_SECOND, PER_MILLISECOND = 10**9, 10**6  # nanoseconds


@dataclass(frozen=True, slots=True)
class Durations:
    """Integers in units of 1 / `scale` of `unit`, which is '' for the unit of costs.

    Attributes:
        costs: of the tasks.
        latency, occupied: by row, read only at SENDs: a message arrives latency + occupied after it began, and its channel is
            free for the next one after `occupied`. On `paired` and `serial` the next one begins only after it has arrived.
        collectives: how long each of `Program.collectives` takes.
    """

    costs: Costs
    latency: Ints
    occupied: Ints
    collectives: Ints
    scale: int = 1
    unit: str = ""

    def of_rows(self, program: Program) -> Ints:
        """Return how long each row of the program takes: a task its cost, every other instruction 0."""
        return task_costs(replace(program, costs=self.costs))


@dataclass(frozen=True)
class Network:
    """The links between the ranks, in seconds and bytes.

    Attributes:
        link: between any two ranks that are not in `others`.
        others: links by (sender, receiver), which are global ranks.
        all_reduce_s: the function from the numbers of ranks and bytes of an all-reduce to its time; None for the time of
            Rabenseifner's algorithm on `link`.
    """

    link: Link
    others: Mapping[tuple[int, int], Link] = field(default_factory=dict)
    all_reduce_s: Callable[[int, int], float] | None = None


def cost_durations(program: Program, given: Mapping[str, Fraction | Decimal | float] | None = None) -> Durations:
    """Return the durations by the costs of the program.

    Args:
        given: any of F, B, I, W, R and hop, in place of its own; may be None.

    A message takes `hop` and does not occupy its channel. An all-reduce takes no time. Raises ChimeraError E002 for an invalid
    cost, and for costs that could not be added up exactly.
    """
    h = program.header
    costs, scale = _scaled(program.costs, {} if given is None else costs_from(given), h.stages)
    # Costs.total is at least the makespan of one replica. Where collectives and transfers share a queue, a task can wait for a
    # task of another replica, so the tasks of all replicas may run one after another.
    _check_total(costs.total(h.micro_batches) * (h.width if h.machine == "serial" else 1), scale)
    zero = np.zeros(len(program), np.int64)
    return Durations(costs, np.full(len(program), costs.hop), zero, np.zeros(len(program.collectives), np.int64), scale)


def measured_durations(
    program: Program,
    tasks: Mapping[Op, Sequence[float]],
    network: Network,
    message_bytes: Callable[[Value, int, int], int],
    reduced_bytes: Callable[[Collective], int],
) -> Durations:
    """Return the durations by times in seconds; their unit is a millisecond, and they are rounded to nanoseconds.

    Args:
        tasks: for FWD, BWD, BWD_INPUT, BWD_WEIGHT and RECOMPUTE, how long a task of one micro-batch takes on each stage.
        message_bytes: the function from a value, the stage that reads it and the number of micro-batches to the bytes of a
            message.
        reduced_bytes: the function from an all-reduce to its bytes.

    Raises ChimeraError E002 for a task's time that is negative or not finite, and for times that could not be added up exactly.
    """
    named: dict[str, Any] = {}
    for op in TIMES:
        wrong = next((x for x in tasks[op] if not 0 <= x < float("inf")), None)
        if wrong is not None:
            raise refuse("E002", f"the time of {op.name} of a stage is {wrong} s: expected a finite number, 0 or more")
        named[op.name] = tuple(nanoseconds(x) for x in tasks[op])
    costs = Costs(**named)
    latency, occupied, all_messages = _message_durations(program, network, message_bytes)
    all_reduce_s = network.all_reduce_s or network.link.all_reduce_s
    all_reduces = [nanoseconds(all_reduce_s(len(c.ranks), reduced_bytes(c))) for c in program.collectives]
    total = costs.total(program.header.micro_batches) * program.header.width + all_messages + sum(all_reduces)
    if total > limits.TIME:
        message = f"tasks, messages and all-reduces take more than {limits.TIME / PER_SECOND:.2g} s one after another"
        raise refuse("E002", f"{message}: they could not be added up exactly", help="give shorter times and faster links")
    return Durations(costs, latency, occupied, np.array(all_reduces, np.int64), PER_MILLISECOND, UNIT)


def profiled_durations(
    program: Program, model: ModelDescription, profile: Profile, network: Network | None = None
) -> Durations:
    """Return the durations of a program by a profile.

    Args:
        network: None for the links and all-reduces of the profile.

    Raises ChimeraError: E002 for times that could not be added up exactly; E705, E706 as `partition_for`; E714 for a profile of
    another model; E715 for micro-batches of a size for which the profile has no times.
    """
    profile.check_fits(model)
    layers = partition_for(program.partition, model, program.header.stages).layers
    tasks, stages = stage_seconds(profile, model.samples, layers), model.stage_sums(layers)
    if network is None:
        network = Network(profile.point_to_point, all_reduce_s=profile.all_reduce_s)
    return measured_durations(program, tasks, network, message_sizes(stages), reduced_sizes(program, model, stages))


def stage_seconds(profile: Profile, samples: int, layers: Sequence[range]) -> dict[Op, list[float]]:
    """Return by operation how long a task of each stage takes for one micro-batch, in seconds. Raises ChimeraError E715.

    Args:
        samples: of a micro-batch.
        layers: of each stage.
    """
    times = profile.times(samples)
    return {
        op: [getattr(profile.overhead, name) + sum(getattr(times[k], name) for k in ids) for ids in layers]
        for op, name in TIMES.items()
    }


def message_sizes(stages: Sequence[StageSum]) -> Callable[[Value, int, int], int]:
    """Return the function from a value, the stage that reads it and its number of micro-batches to the bytes of a message."""
    return lambda value, stage, count: value_bytes(Kind.SENT, value, stages[boundary_of(value, stage)].boundary, count)


def reduced_sizes(program: Program, model: ModelDescription, stages: Sequence[StageSum]) -> Callable[[Collective], int]:
    """Return the function from an all-reduce to its bytes.

    An all-reduce is over the gradients of a stage or of a set of tied parameters. Those of a stage do not include its tied
    parameters if the program has a set of them. For a set without parameters in the model the function returns 0.
    """
    stage_of = {k: s for s, stage in enumerate(stages) for k in stage.layers}
    by_group = {stage_group(s): stage.gradient_bytes for s, stage in enumerate(stages)}
    sets = {tied.stages: tied.name for tied in program.header.tied}
    for tied in model.tied:
        tied_stages = tuple(sorted({stage_of[k] for k in tied.layers}))
        if tied_stages in sets:
            by_group[sets[tied_stages]] = by_group.get(sets[tied_stages], 0) + gradient_bytes(tied)
            for s in tied_stages:
                by_group[stage_group(s)] -= gradient_bytes(tied)
    return lambda collective: by_group.get(collective.group, 0)


def nanoseconds(seconds: float) -> int:
    """Return a time in nanoseconds.

    Args:
        seconds: may be infinite.

    If even the seconds exceed limits.TIME, the result is limits.TIME seconds in nanoseconds. That still exceeds limits.TIME
    nanoseconds, the most that times may add up to.
    """
    return round(min(seconds, limits.TIME) * PER_SECOND)


def _message_durations(
    program: Program, network: Network, message_bytes: Callable[[Value, int, int], int]
) -> tuple[Ints, Ints, int]:
    """Return the latency of each message, how long it occupies its channel, and the sum over all messages, in nanoseconds.

    The first two are by row, at the SENDs. They are all 0 if the sum exceeds limits.TIME.
    """
    t, by_row = program.table, np.zeros((2, len(program)), np.int64)
    rows = np.flatnonzero(t.op == Op.SEND)
    counts = np.array([len(ids) for ids in program.micro_batch_lists], np.int64)
    # Messages of one kind take the same time.
    columns = [t.value[rows].astype(np.int64), t.stage[rows], counts[t.operand[rows]]]
    if network.others:
        columns += [program.rank_of[rows], t.peer[rows]]
    combined = np.ravel_multi_index(columns, [int(column.max(initial=0)) + 1 for column in columns])
    _, first, kind, messages_of_kind = np.unique(combined, return_index=True, return_inverse=True, return_counts=True)
    times, total = [], 0
    for row, messages in zip(rows[first].tolist(), messages_of_kind.tolist(), strict=True):
        value, stage = Value(t.value[row]), int(t.stage[row])
        size = message_bytes(value, stage, int(counts[t.operand[row]]))
        link = network.others.get((int(program.rank_of[row]), int(t.peer[row])), network.link)
        times.append((nanoseconds(link.latency_s), nanoseconds(size / link.bytes_per_s)))
        total += messages * sum(times[-1])
    if times and total <= limits.TIME:
        by_row[:, rows] = np.array(times, np.int64)[kind].T
    return by_row[0], by_row[1], total


def _check_total(total: int, scale: int) -> None:
    """Raise ChimeraError E002 if times could not be added up exactly in 64 bits."""
    if total > limits.TIME:
        shown_scale = scale if scale <= limits.TIME else f"{scale:.1e}"
        message = f"as multiples of 1/{shown_scale}, times exceed {limits.TIME}: they could not be added up exactly"
        raise refuse("E002", message, help="give smaller costs, or costs with fewer digits")


def _scaled(own: Costs, given: Mapping[str, Fraction], stages: int) -> tuple[Costs, int]:
    """Return integer costs and the factor by which they were multiplied.

    Args:
        own: the program's.
        given: those that replace them.

    Where I or W is given and B is not, B is I + W. If neither the program nor `given` has R, it is F (`Costs.of`).
    """
    scale = lcm(*(v.denominator for v in given.values()))
    fields = {"F": own.FWD, "B": own.BWD, "I": own.BWD_INPUT, "W": own.BWD_WEIGHT, "R": own.RECOMPUTE}
    values = {k: tuple(x * scale for x in v) for k, v in fields.items()}
    values |= {k: (int(v * scale),) * stages for k, v in given.items() if k != "hop"}
    if "B" not in given and ("I" in given or "W" in given):
        values["B"] = tuple(i + w for i, w in zip(values["I"], values["W"], strict=True))
    hop = int(given["hop"] * scale) if "hop" in given else own.hop * scale
    return Costs(values["F"], values["B"], values["I"], values["W"], hop, RECOMPUTE=values["R"]), scale
