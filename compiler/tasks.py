"""The tasks of a program by key, what they wait for, and their earliest times.

The verifier (compiler/verify/) has an independent implementation of what tasks wait for, so that each finds bugs of the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.chimera_ir.program import OVERLAP, RECOMPUTE, Ints, Program
from chimerac.chimera_ir.timeline import Timeline


def expand(program: Program, rows: Ints) -> tuple[Ints, Ints]:
    """Return, for each micro-batch of each of these rows, the row's position in `rows` and the micro-batch."""
    operand = program.table.operand[rows]
    if (operand < program.header.micro_batches).all():  # no groups: list m is (m,)
        return np.arange(len(rows)), operand
    sizes = np.array([len(ids) for ids in program.micro_batch_lists], np.int64)
    ids = np.concatenate([np.array(x, np.int64) for x in program.micro_batch_lists])
    starts = np.cumsum(sizes) - sizes
    count = sizes[operand]
    position = np.repeat(np.arange(len(rows)), count)
    # The place of each micro-batch in its list.
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    return position, ids[starts[operand][position] + offset]


@dataclass(frozen=True, slots=True)
class TaskIndex:
    """Rows of tasks by key = (replica x stages + stage) x micro-batches + micro-batch; -1 where there is none.

    Attributes:
        backward: the row that computes the input gradient (BWD or BWD_INPUT).
        weight: the weight gradient (BWD or BWD_WEIGHT).
        recompute: the RECOMPUTE.
        rows, keys: each row of a task, once for each of its micro-batches, and its key.
    """

    forward: Ints
    backward: Ints
    weight: Ints
    recompute: Ints
    rows: Ints
    keys: Ints

    @staticmethod
    def of(program: Program) -> TaskIndex:
        """Return the index of a program's tasks."""
        h, t = program.header, program.table
        rows = np.flatnonzero(t.is_task)
        position, ids = expand(program, rows)
        rows = rows[position]
        keys = (program.rank_of[rows] // h.ranks * h.stages + t.stage[rows]) * h.micro_batches + ids
        op = t.op[rows]

        def rows_by_key(*ops: Op) -> Ints:
            """Return the row with one of these operations, by key."""
            result = np.full(h.width * h.stages * h.micro_batches, -1, np.int64)
            mask = np.logical_or.reduce([op == x for x in ops])
            result[keys[mask]] = rows[mask]
            return result

        backward, weight = rows_by_key(Op.BWD, Op.BWD_INPUT), rows_by_key(Op.BWD, Op.BWD_WEIGHT)
        return TaskIndex(rows_by_key(Op.FWD), backward, weight, rows_by_key(Op.RECOMPUTE), rows, keys)


@dataclass(frozen=True, slots=True)
class Edges:
    """Waits: node `target` starts no earlier than `delay` after node `source` ends.

    Nodes are the rows of a program and, numbered after them, transfers and collectives (compiler/analyze/machines.py). A source
    of -1 never ends.
    """

    source: Ints
    target: Ints
    delay: Ints

    @staticmethod
    def concatenate(*edges: Edges) -> Edges:
        """Return all these waits."""
        return Edges(
            np.concatenate([e.source for e in edges]),
            np.concatenate([e.target for e in edges]),
            np.concatenate([e.delay for e in edges]),
        )


def data_edges(program: Program, index: TaskIndex, hop: int) -> Edges:
    """Return what every task waits for, `hop` later where the value comes from another rank.

    A FWD waits for the forward of the stage before. A RECOMPUTE waits for its forward, and a BWD_WEIGHT for its BWD_INPUT. A
    BWD or BWD_INPUT waits for its forward, for its RECOMPUTE if there is one, and for the backward of the stage after.
    """
    h, op = program.header, program.table.op[index.rows]
    stage = program.table.stage[index.rows]
    backward = (op == Op.BWD) | (op == Op.BWD_INPUT)
    pairs = []
    for mask, row_of, stage_offset in (
        ((op == Op.FWD) & (stage > 0), index.forward, -1),
        (backward, index.forward, 0),
        (backward & (stage < h.stages - 1), index.backward, 1),
        (op == Op.BWD_WEIGHT, index.backward, 0),
        (op == Op.RECOMPUTE, index.forward, 0),
        (backward & (index.recompute[index.keys] >= 0), index.recompute, 0),
    ):
        source = row_of[index.keys[mask] + stage_offset * h.micro_batches]
        pairs.append((source, index.rows[mask]))
    source = np.concatenate([s for s, _ in pairs])
    target = np.concatenate([t for _, t in pairs])
    delay = np.where(program.rank_of[source] != program.rank_of[target], hop, 0)
    return Edges(source, target, delay)


def task_costs(program: Program) -> Ints:
    """Return what every row costs: a task over k micro-batches k times its stage's cost, every other row 0.

    A backward that runs its forward again costs the RECOMPUTE of its stage in addition.
    """
    t, costs = program.table, program.costs
    by_op = np.array([costs.of(form.op) for form in FORMS if form.letter], np.int64)
    task = t.is_task
    count = np.array([len(ids) for ids in program.micro_batch_lists], np.int64)
    result = np.zeros(len(t), np.int64)
    result[task] = by_op[t.op[task], t.stage[task]] * count[t.operand[task]]
    recomputed = (t.flags & RECOMPUTE).astype(bool) & (t.op == Op.FWD)
    if recomputed.any():  # without a RECOMPUTE the forward runs once more in its backward
        index = TaskIndex.of(program)
        runs_forward = recomputed[index.forward[index.keys]] & (index.recompute[index.keys] < 0)
        backward = np.isin(t.op[index.rows], (Op.BWD, Op.BWD_INPUT)) & runs_forward
        np.add.at(result, index.rows[backward], by_op[Op.RECOMPUTE, t.stage[index.rows[backward]]])
    return result


@dataclass(frozen=True, slots=True)
class Timing:
    """When each node runs.

    Attributes:
        sequence: the nodes that run, in an order that every stream and every wait agrees with.
        stuck: of each stream that does not end, the first node that never starts. Its times, and those of all later nodes of
            the stream, are -1.
    """

    start: Ints
    end: Ints
    sequence: Ints
    stuck: tuple[int, ...]

    def timeline(self, program: Program, scale: int = 1, unit: str = "") -> Timeline:
        """Return the bars of the rows that run.

        Args:
            scale: the integer that stands for one unit of time.
            unit: the name of this unit, '' for the unit of costs.
        """
        rows = np.flatnonzero(self.end[: len(program)] >= 0)
        return Timeline(program.rank_of[rows], rows, self.start[rows], self.end[rows], scale, unit)


def _with_fused_pairs(program: Program, cost: Ints, edges: Edges) -> tuple[Ints, Edges]:
    """Return costs and waits under which an overlapped pair of tasks runs as one task, in its first row."""
    pairs = np.flatnonzero(program.table.flags & OVERLAP)
    if not len(pairs):
        return cost, edges
    cost = cost.copy()
    cost[pairs] += cost[pairs + 1]
    cost[pairs + 1] = 0
    second = np.zeros(len(cost), np.int64)
    second[pairs + 1] = 1
    return cost, Edges(edges.source, edges.target - second[edges.target], edges.delay)


def total_order(program: Program, timing: Timing) -> tuple[Ints, Ints]:
    """Return the place of every row in a total order of the rows, and the row's sort key: rank x number of rows + place.

    Rows are ordered by the times at which they end, then as in `Timing.sequence`. Every stream and every wait agrees with this
    order. So the sort keys ascend from row to row.

    Args:
        timing: of a program of tasks, all of which run.
    """
    place_in_sequence = np.empty(len(program), np.int64)
    place_in_sequence[timing.sequence] = np.arange(len(program))
    place = np.empty(len(program), np.int64)
    place[np.lexsort((place_in_sequence, timing.end))] = np.arange(len(program))
    return place, program.rank_of * len(program) + place


def earliest(program: Program, cost: Ints, edges: Edges, offsets: Ints | None = None) -> Timing:
    """Return the earliest times of all nodes: each stream runs in order, each of its nodes as soon as its waits allow.

    Args:
        cost: by node.
        offsets: the first node of each stream, and the number of nodes; by default those of the ranks.

    An overlapped pair runs as one task: it starts when both could, and ends after both costs.
    """
    cost, edges = _with_fused_pairs(program, cost, edges)
    offsets = program.offsets if offsets is None else offsets
    stream_of = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    # Waits without delay for earlier nodes of the same stream are fulfilled by the order of the stream.
    of_other_stream, of_later_node = stream_of[edges.source] != stream_of[edges.target], edges.source >= edges.target
    waits = np.flatnonzero(of_other_stream | of_later_node | (edges.source < 0) | (edges.delay > 0))
    waits = waits[np.argsort(edges.target[waits], kind="stable")]
    first_wait = np.searchsorted(edges.target[waits], np.arange(len(cost) + 1)).tolist()  # of each node
    source, delay = edges.source[waits].tolist(), edges.delay[waits].tolist()
    costs, position, stops = cost.tolist(), offsets[:-1].tolist(), offsets[1:].tolist()
    clock = [0] * len(position)
    start, end = [-1] * len(cost), [-1] * (len(cost) + 1)  # the last one is that of source -1, which never ends
    waiting_streams: dict[int, list[int]] = {}  # node -> streams that wait for it to end
    ready = list(range(len(position)))[::-1]
    sequence: list[int] = []
    while ready:
        stream = ready.pop()
        now, node, stop = clock[stream], position[stream], stops[stream]
        wait = first_wait[node]
        while node < stop:
            end_of_waits = first_wait[node + 1]
            while wait < end_of_waits:
                source_end = end[source[wait]]
                if source_end < 0:
                    waiting_streams.setdefault(source[wait], []).append(stream)
                    break
                source_end += delay[wait]
                if source_end > now:
                    now = source_end
                wait += 1
            else:
                start[node] = now
                now += costs[node]
                end[node] = now
                sequence.append(node)
                if node in waiting_streams:
                    ready += waiting_streams.pop(node)
                node += 1
                continue
            break
        clock[stream], position[stream] = now, node
    stuck = tuple(node for node, stop in zip(position, stops, strict=True) if node < stop)
    return Timing(np.array(start, np.int64), np.array(end[:-1], np.int64), np.array(sequence, np.int64), stuck)


def task_times(program: Program) -> Timing:
    """Return the earliest times of a program's rows. A value from another rank arrives after the hop cost.

    Only tasks take time here, and only tasks wait: for what `data_edges` returns.
    """
    return earliest(program, task_costs(program), data_edges(program, TaskIndex.of(program), program.costs.hop))


def checked_times(tasks: Program) -> Timing:
    """Return the earliest times of a program of tasks. Raises ChimeraError E304 where tasks wait for each other."""
    timing = task_times(tasks)
    if timing.stuck:
        message = f"the order deadlocks: {len(timing.stuck)} of {tasks.world} ranks never reach the end of their tasks"
        raise refuse("E304", message)
    return timing
