"""What each instruction waits for on a machine of docs/semantics.md, as edges with delays.

Nodes are the rows of the program. On machines whose transfers queue, completions are nodes after them: one for every
message and, on `serial`, one for every collective. `paired` has one queue per rank and peer, for both directions; `serial`
has one queue per rank. The verifier has an independent implementation of these waits (compiler/verify/progress.py).
"""

from __future__ import annotations

from typing import Literal, assert_never

import numpy as np

from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.machines import max_incomplete_sends
from chimerac.chimera_ir.program import Ints, Program
from chimerac.compiler.tasks import Edges, TaskIndex, data_edges, expand


def waits(program: Program, hop: int) -> tuple[Edges, Ints]:
    """Return every wait of a verified program on the machine of its header, and how long each completion takes."""
    index = TaskIndex.of(program)
    data = data_edges(program, index, 0)
    on_one_rank = program.rank_of[data.source] == program.rank_of[data.target]
    edges = [Edges(data.source[on_one_rank], data.target[on_one_rank], data.delay[on_one_rank])]
    send, receive, channel = _messages(program)
    message, consumer = _consumers(program, index, receive)
    queues = program.header.machine in ("paired", "serial")
    number, durations = _completions(program, send, receive, hop) if queues else (send, np.zeros(0, np.int64))
    edges += _queue_edges(program, number) if queues else []
    for condition in dict.fromkeys(map(_blocks, Op)):
        match condition:
            case "values" if queues:
                edges.append(_edges(number[receive[message]], consumer))
            case "values":
                edges += [_edges(ends[message], consumer, hop) for ends in (send, receive)]
            case "window" if queues:
                edges.append(_window_of_queues(program, number, send, channel))
            case "window":
                edges += _window(program, send, receive, channel, hop)
            case None:
                pass
            case _:
                assert_never(condition)
    return Edges.concatenate(*edges), durations


def _blocks(op: Op) -> Literal["values", "window"] | None:
    """Return what a rank waits for at an instruction: values that it receives, the window of a channel, or nothing."""
    match op:
        case Op.FWD | Op.BWD | Op.BWD_INPUT:
            return "values"
        case Op.SEND:
            return "window"
        case Op.BWD_WEIGHT | Op.RECOMPUTE | Op.RECV | Op.ALLREDUCE | Op.FREE:
            return None
        case _:
            assert_never(op)


def _queues_with_transfers(op: Op) -> bool:
    """Return whether an instruction joins a collective that waits in the queues of `serial`."""
    match op:
        case Op.ALLREDUCE:
            return True
        case Op.FWD | Op.BWD | Op.BWD_INPUT | Op.BWD_WEIGHT | Op.RECOMPUTE | Op.SEND | Op.RECV | Op.FREE:
            return False
        case _:
            assert_never(op)


def _edges(source: Ints, target: Ints, delay: int = 0) -> Edges:
    return Edges(source, target, np.full(len(source), delay, np.int64))


def _messages(program: Program) -> tuple[Ints, Ints, Ints]:
    """Return the SEND, the RECV and the channel of every message, sorted by channel and, within it, by number."""
    t, rank = program.table, program.rank_of
    send, receive = np.flatnonzero(t.op == Op.SEND), np.flatnonzero(t.op == Op.RECV)
    channel = rank[send] * program.world + t.peer[send]
    order = np.argsort(channel, kind="stable")
    return send[order], receive[np.argsort(t.peer[receive] * program.world + rank[receive], kind="stable")], channel[order]


def _consumers(program: Program, index: TaskIndex, receive: Ints) -> tuple[Ints, Ints]:
    """Return (number of the message, row that uses it), one entry for every value of every message."""
    h, t = program.header, program.table
    message, ids = expand(program, receive)
    row = receive[message]
    keys = (program.rank_of[row] // h.ranks * h.stages + t.stage[row]) * h.micro_batches + ids
    return message, np.where(t.value[row] == Value.act, index.forward[keys], index.backward[keys])


def _window_pairs(channel: Ints, window: int) -> tuple[Ints, Ints]:
    """Return (message whose SEND waits, message that it waits for), which is `window` messages earlier in its channel."""
    earlier = np.arange(len(channel)) - window
    waiting = np.flatnonzero(earlier >= 0)
    waiting = waiting[channel[earlier[waiting]] == channel[waiting]]
    return waiting, earlier[waiting]


def _window(program: Program, send: Ints, receive: Ints, channel: Ints, hop: int) -> list[Edges]:
    """Return the waits of SENDs on the machines whose transfers do not queue."""
    window = max_incomplete_sends(program.header.machine, program.header.window)
    if window is None:
        return []
    if window == 0:
        return [_edges(receive, send)]
    waiting, earlier = _window_pairs(channel, window)
    return [_edges(ends[earlier], send[waiting], hop) for ends in (send, receive)]


def _completions(program: Program, send: Ints, receive: Ints, hop: int) -> tuple[Ints, Ints]:
    """Return, by row, the completion of a SEND, a RECV or on `serial` a collective, else -1; and how long each completion
    takes."""
    t, rows, messages = program.table, len(program), len(send)
    number = np.full(rows, -1, np.int64)
    number[send] = number[receive] = rows + np.arange(messages)
    durations = np.full(messages, hop, np.int64)
    if program.header.machine == "serial":
        all_reduces = np.flatnonzero(np.isin(t.op, [op for op in Op if _queues_with_transfers(op)]))
        number[all_reduces] = rows + messages + t.operand[all_reduces]
        durations = np.concatenate([durations, np.zeros(len(program.collectives), np.int64)])
    return number, durations


def _queue_edges(program: Program, number: Ints) -> list[Edges]:
    """Return the waits of completions: for their ends, and for those before them in their queues."""
    rank, ends = program.rank_of, np.flatnonzero(number >= 0)
    if program.header.machine == "paired":
        queue = rank[ends] * program.world + program.table.peer[ends]
        ends, queue = ends[np.argsort(queue, kind="stable")], np.sort(queue, kind="stable")
    else:
        queue = rank[ends]
    behind = np.flatnonzero(queue[1:] == queue[:-1]) + 1
    return [_edges(ends, number[ends]), _edges(number[ends[behind - 1]], number[ends[behind]])]


def _window_of_queues(program: Program, number: Ints, send: Ints, channel: Ints) -> Edges:
    """Return the waits of SENDs on the machines whose transfers queue."""
    rank, window = program.rank_of, program.header.window
    waiting, earlier = _window_pairs(channel, window)
    blocked = send[waiting]
    if window == 0:  # a SEND is posted at once, and the next row of its stream waits for its transfer
        follows = np.append(rank, -1)[blocked + 1] == rank[blocked]
        blocked, earlier = blocked[follows] + 1, earlier[follows]
    return _edges(number[send[earlier]], blocked)
