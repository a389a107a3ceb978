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

    Attributes:
        row: that of the task, of the message's SEND, or of the all-reduce's ALLREDUCE on one of its ranks.
    """

    kind: Literal["task", "message", "all-reduce"]
    row: int
    start: int
    end: int


def critical_path(s: Simulation) -> list[Step]:
    """Return the steps from the beginning of the iteration to its end, each of which begins when the one before it ends.

    Where several paths are equally long, the returned one stays on a rank for as long as this rank does not wait.
    """
    p = s.program
    start, end = (np.concatenate(x) for x in ((s.timeline.start, s.node_start), (s.timeline.end, s.node_end)))
    before = _binding(s, start, end)
    node = _last(s, end)
    if node is None:
        return []
    # The SEND of each message, by the message's node and by its RECV. `transfer` is empty where messages have no nodes.
    message_of = dict(zip(s.waits.transfer.tolist(), s.waits.send.tolist(), strict=False))
    message_of |= dict(zip(s.waits.receive.tolist(), s.waits.send.tolist(), strict=True))
    members = _all_reduces(s)
    # By the number of a collective: the last of its ALLREDUCEs.
    member_of = dict(zip(p.table.operand[members].tolist(), members.tolist(), strict=True))
    path: list[Step] = []
    bars = s.separate_bars
    while node >= 0:
        begin, stop = int(start[node]), int(end[node])
        if stop > begin:
            if node < len(p):
                path += _tasks(s, node, bars)[::-1]
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


def _tasks(s: Simulation, row: int, bars: tuple[Ints, Ints]) -> list[Step]:
    """Return the step of a task, or the steps of both tasks of an overlapped pair, without those that take no time.

    Args:
        bars: `Simulation.separate_bars`.
    """
    start, end = bars
    rows = (row, row + 1) if s.program.table.flags[row] & OVERLAP else (row,)
    return [Step("task", k, int(start[k]), int(end[k])) for k in rows if end[k] > start[k]]


def _all_reduces(s: Simulation) -> Ints:
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
    """Return for each node another one, whose end, with the delay after it, decided the node's start; -1 for a start at 0."""
    edges = s.waits.edges
    before = np.full(len(start), -1, np.int64)
    # An overlapped pair runs as one task, at its first row. So the first row also waits for what the second one reads.
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
    """How long a rank waits for what, in the units of the simulation. The sum of all is its wall bubble.

    Attributes:
        fill: until the value for its first task is sent.
        value: until a value for a later task is sent.
        transfer: for a value that is sent and on its way.
        window: in a SEND, for an earlier message of its channel, or with window 0 or on `rendezvous` for its own RECV; with
            window 0 on `paired` and `serial`, in the instruction after the SEND, for the SEND's message.
        all_reduce: after its last instruction, while one of its all-reduces runs.
        drain: the rest, until the iteration ends.
    """

    fill: int
    value: int
    transfer: int
    window: int
    all_reduce: int
    drain: int

    @property
    def exposed(self) -> int:
        """Return the exposed communication: waiting time for messages on their way, for windows and for all-reduces."""
        return self.transfer + self.window + self.all_reduce


CAUSES = tuple(f.name for f in fields(Idle))


@dataclass(frozen=True, slots=True)
class IdleBars:
    """When ranks wait and for what, as columns: global rank `rank` waits from `start` to `end`, by cause `CAUSES[cause]`.

    Sorted by rank, then by time. The bars of a rank do not overlap, and their sum is its wall bubble.
    """

    rank: Ints
    start: Ints
    end: Ints
    cause: Ints


def idle_bars(s: Simulation) -> IdleBars:
    """Return when each global rank waits, and for what."""
    p, t, w = s.program, s.program.table, s.waits
    start, end, rank = s.timeline.start, s.timeline.end, p.rank_of
    before = np.zeros(len(p), np.int64)  # the end of the row before it in its stream
    before[1:] = np.where(rank[1:] == rank[:-1], end[:-1], 0)
    # When the last value that decided a row's start was sent; -1 if no value decided it. If a row with -1 waits, it is for a
    # window: it is a SEND or, with window 0 on `paired` and `serial`, the row after a SEND.
    sent = np.full(len(p), -1, np.int64)
    consumer = w.consumer - _is_second(s, len(p))[w.consumer]
    binding = s.arrivals[w.message] == start[consumer]
    np.maximum.at(sent, consumer[binding], end[w.send[w.message[binding]]])
    waits_for_value = sent >= 0
    on_its_way = np.where(waits_for_value, np.clip(sent, before, start), start)  # from when on the value is on its way
    first = np.zeros(len(p), bool)  # whether a row is the first task of its rank
    tasks = np.flatnonzero(t.is_task)
    first[tasks[np.unique(rank[tasks], return_index=True)[1]]] = True
    cause = np.where(waits_for_value, np.where(first, CAUSES.index("fill"), CAUSES.index("value")), CAUSES.index("window"))
    transfer = np.full(len(p), CAUSES.index("transfer"))
    # Columns as those of IdleBars: rank, start, end, cause.
    parts = [(rank, before, on_its_way, cause), (rank, on_its_way, start, transfer), *_after_the_last(s)]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    kept = np.flatnonzero(columns[2] > columns[1])
    order = kept[np.lexsort((columns[1][kept], columns[0][kept]))]
    return IdleBars(*(column[order] for column in columns))


def _after_the_last(s: Simulation) -> list[tuple[Ints, Ints, Ints, Ints]]:
    """Return the bars after each rank's last instruction: while one of its all-reduces runs, and for the rest of the time."""
    rank, world = s.program.rank_of, s.program.world
    last = np.zeros(world, np.int64)
    np.maximum.at(last, rank, s.timeline.end)
    began, ended = s.collective_times
    rows = _all_reduces(s)
    collective, member = s.program.table.operand[rows], rank[rows]
    begins = np.maximum(began[collective], last[member])
    running = sorted({*zip(member.tolist(), begins.tolist(), ended[collective].tolist(), strict=True)})
    bars: dict[str, list[tuple[int, int, int]]] = {"all_reduce": [], "drain": []}  # by cause: (rank, start, end)
    explained_until = last.tolist()
    for g, begin, stop in running:  # those of a rank run one after another
        if stop > begin:
            bars["drain"].append((g, explained_until[g], begin))
            bars["all_reduce"].append((g, begin, stop))
            explained_until[g] = stop
    bars["drain"] += [(g, time, s.makespan) for g, time in enumerate(explained_until)]
    found = []
    for name, of_cause in bars.items():
        columns = np.array(of_cause, np.int64).reshape(-1, 3).T
        found.append((columns[0], columns[1], columns[2], np.full(len(of_cause), CAUSES.index(name))))
    return found


def idle_times(s: Simulation) -> tuple[Idle, ...]:
    """Return for each global rank how long it waits, by cause."""
    bars = idle_bars(s)
    sums = np.zeros((s.program.world, len(CAUSES)), np.int64)
    np.add.at(sums, (bars.rank, bars.cause), bars.end - bars.start)
    return tuple(Idle(*row) for row in sums.tolist())


def path_sums(s: Simulation, path: Iterable[Step]) -> dict[str, tuple[int, int]]:
    """Return (number, time) of the critical path's steps, by kind.

    The kinds are the names of operations for tasks, such as FWD, and `messages` and `all-reduces`.
    """
    found: dict[str, tuple[int, int]] = {}
    for step in path:
        name = Op(int(s.program.table.op[step.row])).name if step.kind == "task" else f"{step.kind}s"
        count, time = found.get(name, (0, 0))
        found[name] = (count + 1, time + step.end - step.start)
    return found
