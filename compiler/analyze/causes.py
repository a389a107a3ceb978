"""Why a simulated iteration takes as long as it does: its critical path, and for what each rank waits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal

import numpy as np

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import OVERLAP, Ints
from chimerac.compiler.analyze.simulate import Simulation


@dataclass(frozen=True, slots=True)
class Step:
    """A part of the critical path, in the units of the simulation.

    row: of a task; of a message, its SEND; of an all-reduce, the ALLREDUCE of one member.
    """

    kind: Literal["task", "message", "all-reduce"]
    row: int
    start: int
    end: int


def critical_path(s: Simulation) -> list[Step]:
    """Return the steps from the beginning of the iteration to its end, each of which begins when the one before it ends.

    Where several paths are equally long, it stays on a rank for as long as this rank does not wait.
    """
    p = s.program
    start, end = (np.concatenate(x) for x in ((s.timeline.start, s.node_start), (s.timeline.end, s.node_end)))
    before = _binding(s, start, end)
    node = _last(s, end)
    if node is None:
        return []
    message_of = dict(zip(s.waits.transfer.tolist(), s.waits.send.tolist(), strict=False))
    message_of |= dict(zip(s.waits.receive.tolist(), s.waits.send.tolist(), strict=True))
    member_of = dict(zip(p.table.operand[_sums(s)].tolist(), _sums(s).tolist(), strict=True))
    path: list[Step] = []
    while node >= 0:
        begin, stop = int(start[node]), int(end[node])
        if stop > begin:
            if node < len(p):
                path += _tasks(s, node, begin, stop)[::-1]
            elif node in message_of:
                path.append(Step("message", message_of[node], begin, stop))
            else:
                assert s.waits.collective is not None, "a node is a row, a transfer or a collective"
                path.append(Step("all-reduce", member_of[node - s.waits.collective], begin, stop))
        source = int(before[node])
        if source >= 0 and int(end[source]) < begin:  # the latency of a message
            path.append(Step("message", message_of.get(source, source), int(end[source]), begin))
        node = source
    return _merged(path[::-1])


def _merged(path: Sequence[Step]) -> list[Step]:
    """Return the steps with the parts of a message, its bytes in the channel and its latency, as one step."""
    found: list[Step] = []
    for step in path:
        if found and step.kind == found[-1].kind == "message" and step.row == found[-1].row:
            step = replace(step, start=found.pop().start)
        found.append(step)
    return found


def _tasks(s: Simulation, row: int, begin: int, end: int) -> list[Step]:
    """Return the step of a task, or the steps of both tasks of an overlapped pair, without those that take no time."""
    middle = end
    if s.program.table.flags[row] & OVERLAP:
        middle = begin + int(s.lengths[row])
    path = (Step("task", row, begin, middle), Step("task", row + 1, middle, end))
    return [step for step in path if step.end > step.start]


def _sums(s: Simulation) -> Ints:
    """Return the rows of all ALLREDUCEs."""
    return np.flatnonzero(s.program.table.op == Op.ALLREDUCE)


def _last(s: Simulation, end: Ints) -> int | None:
    """Return the node at which the iteration ends: a task or an all-reduce, None where there is neither."""
    p = s.program
    nodes = np.flatnonzero(p.table.is_task)
    if s.waits.collective is not None:
        nodes = np.concatenate([nodes, np.arange(s.waits.collective, len(end))])
    return int(nodes[np.argmax(end[nodes])]) if len(nodes) else None


def _binding(s: Simulation, start: Ints, end: Ints) -> Ints:
    """Return for each node the node whose end decided when it started, -1 at the beginning of the iteration."""
    edges = s.waits.edges
    before = np.full(len(start), -1, np.int64)
    # The second task of an overlapped pair starts with the first, which then waits for what it reads.
    target = edges.target - _is_second(s, len(start))[edges.target]
    tight = (end[edges.source] + edges.delay == start[target]) & (start[target] > 0) & (edges.source != target)
    before[target[tight]] = edges.source[tight]
    later = np.setdiff1d(np.arange(len(start)), s.waits.offsets)  # not the first node of their stream
    next_in_stream = later[(end[later - 1] == start[later]) & (start[later] > 0)]
    before[next_in_stream] = next_in_stream - 1
    return before


def _is_second(s: Simulation, nodes: int) -> Ints:
    """Return for each node 1 if it is the second task of an overlapped pair, else 0."""
    second = np.zeros(nodes, np.int64)
    second[np.flatnonzero(s.program.table.flags & OVERLAP) + 1] = 1
    return second


@dataclass(frozen=True, slots=True)
class Idle:
    """For what a rank waits, in the units of the simulation. The sum of all is its wall bubble.

    fill: until the value for its first task is computed. value: until a value for a later task is computed. transfer: for a
    value that is computed and on its way. window: in a SEND, for an earlier message of its channel. all_reduce: after its last
    instruction, for an all-reduce that is running. drain: the rest, until the iteration ends.
    """

    fill: int
    value: int
    transfer: int
    window: int
    all_reduce: int
    drain: int

    @property
    def exposed(self) -> int:
        """Return the exposed communication: what a rank waits for although it is computed."""
        return self.transfer + self.window + self.all_reduce


CAUSES = tuple(f.name for f in fields(Idle))


def idle_times(s: Simulation) -> tuple[Idle, ...]:
    """Return for each global rank for what it waits."""
    p, t, w = s.program, s.program.table, s.waits
    start, end, rank = s.timeline.start, s.timeline.end, p.rank_of
    gap = start.copy()
    gap[1:] -= np.where(rank[1:] == rank[:-1], end[:-1], 0)
    sums = {name: np.zeros(p.world, np.int64) for name in CAUSES}
    # When the last value that a task waits for was sent; a task that waits for none waits for its own window (`paired`, K = 0).
    sent = np.full(len(p), -1, np.int64)
    consumer = w.consumer - _is_second(s, len(p))[w.consumer]
    binding = s.arrivals[w.message] == start[consumer]
    np.maximum.at(sent, consumer[binding], end[w.send[w.message[binding]]])
    waits_for_value = sent >= 0
    moving = np.where(waits_for_value, np.minimum(start - sent, gap), 0)
    first = np.zeros(len(p), bool)
    tasks = np.flatnonzero(t.is_task)
    first[tasks[np.unique(rank[tasks], return_index=True)[1]]] = True
    for name, amount in (
        ("transfer", moving),
        ("fill", np.where(waits_for_value & first, gap - moving, 0)),
        ("value", np.where(waits_for_value & ~first, gap - moving, 0)),
        ("window", np.where(waits_for_value, 0, gap)),
    ):
        np.add.at(sums[name], rank, amount)
    last = np.zeros(p.world, np.int64)
    np.maximum.at(last, rank, end)
    began, ended = s.collective_times
    rows = _sums(s)
    k, g = t.operand[rows], rank[rows]
    np.add.at(sums["all_reduce"], g, np.maximum(ended[k] - np.maximum(began[k], last[g]), 0))
    sums["drain"] = s.makespan - last - sums["all_reduce"]
    return tuple(Idle(*row) for row in np.stack([sums[name] for name in CAUSES], axis=1).tolist())


def path_sums(s: Simulation, path: Iterable[Step]) -> dict[str, tuple[int, int]]:
    """Return what the critical path consists of: by the name of an operation, `messages` or `all-reduces`, the number of steps
    and their time."""
    found: dict[str, tuple[int, int]] = {}
    for step in path:
        name = Op(int(s.program.table.op[step.row])).name if step.kind == "task" else f"{step.kind}s"
        count, time = found.get(name, (0, 0))
        found[name] = (count + 1, time + step.end - step.start)
    return found
