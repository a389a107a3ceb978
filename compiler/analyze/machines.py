"""What each instruction waits for on a machine of docs/semantics.md, as edges with delays.

Nodes are the rows of the program and, after them, transfers and collectives. There is a node for every message where transfers
queue or occupy their channels, and one for every collective where collectives queue or take time. Without queues, the messages
that occupy a channel are a stream: one runs after another. `paired` has one queue per rank and peer, for both directions;
`serial` has one queue per rank. The verifier has an independent implementation of these waits (compiler/verify/waits.py and
progress.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, assert_never

import numpy as np

from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.machines import max_incomplete_sends
from chimerac.chimera_ir.program import Ints, Program
from chimerac.compiler.analyze.durations import Durations
from chimerac.compiler.tasks import Edges, TaskIndex, data_edges, expand


@dataclass(frozen=True, slots=True)
class Waits:
    """Every wait of a program on its machine.

    Attributes:
        offsets: the first node of each stream, and the number of nodes. The streams of the ranks come first, then those of the
            other nodes.
        durations: of the nodes after the rows.
        send, receive: the SEND and the RECV of every message, sorted by channel; the messages of a channel are in the order in
            which they are sent. The number of a message is its place in these columns.
        message, consumer: columns with an entry for each value of each message: the number of the message, and the first row
            that reads the value.
        transfer: the node of each message; empty where messages have no nodes.
        collective: the first node of the collectives; None where they have no nodes.
        delay: of each message, from the end of its node to its arrival; where messages have no nodes, from the moment when its
            SEND and its RECV are both posted.
    """

    edges: Edges
    offsets: Ints
    durations: Ints
    send: Ints
    receive: Ints
    message: Ints
    consumer: Ints
    transfer: Ints
    collective: int | None
    delay: Ints


def waits(program: Program, durations: Durations) -> Waits:
    """Return every wait of a verified program on the machine of its header."""
    index, machine = TaskIndex.of(program), program.header.machine
    data = data_edges(program, index, hop=0)
    on_one_rank = program.rank_of[data.source] == program.rank_of[data.target]
    edges = [Edges(data.source[on_one_rank], data.target[on_one_rank], data.delay[on_one_rank])]
    send, receive, channel = _messages(program)
    message, consumer = _consumers(program, index, receive)
    latency, occupied = durations.latency[send], durations.occupied[send]
    has_queues, row_count, empty = machine in ("paired", "serial"), len(program), np.zeros(0, np.int64)
    messages_have_nodes = has_queues or bool(occupied.any())
    transfer = row_count + np.arange(len(send)) if messages_have_nodes else empty
    if has_queues:  # a transfer stays in its queues until it is complete
        lengths, delay = latency + occupied, np.zeros_like(latency)
    else:  # only the bytes of a message occupy its channel
        lengths, delay = occupied if messages_have_nodes else empty, latency
    collectives_take_time = bool(durations.collectives.any())
    collective = row_count + len(lengths) if machine == "serial" or collectives_take_time else None
    if collective is not None:
        lengths = np.concatenate([lengths, durations.collectives])
        if machine != "serial":
            edges += _collective_edges(program, collective)
    begins = transfer  # the first node of each stream of transfers: in queues each transfer is a stream of its own
    if has_queues:
        edges += _queue_edges(program, _nodes_of_rows(program, send, receive, transfer, collective))
    elif messages_have_nodes:
        edges += [_edges(send, transfer), _edges(receive, transfer)]
        begins = transfer[np.flatnonzero(np.diff(channel, prepend=-1))]
    for condition in dict.fromkeys(map(_blocks, Op)):  # each condition once
        match condition:
            case "values" if messages_have_nodes:
                edges.append(Edges(transfer[message], consumer, delay[message]))
            case "values":
                edges += [Edges(ends[message], consumer, delay[message]) for ends in (send, receive)]
            case "window" if has_queues:
                edges.append(_window_of_queues(program, transfer, send, channel))
            case "window":
                edges += _window(program, send, receive, channel, transfer if messages_have_nodes else None, delay)
            case None:
                pass
            case _:
                assert_never(condition)
    nodes = row_count + len(lengths)  # each collective is a stream of its own, too
    offsets = np.concatenate([program.offsets[:-1], begins, np.arange(row_count + len(transfer), nodes + 1)])
    return Waits(Edges.concatenate(*edges), offsets, lengths, send, receive, message, consumer, transfer, collective, delay)


def _blocks(op: Op) -> Literal["values", "window"] | None:
    """Return what a rank waits for at an instruction: values that it receives, the window of a channel, or nothing (None)."""
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
    """Return whether an instruction joins a collective, which waits in the queues of `serial`."""
    match op:
        case Op.ALLREDUCE:
            return True
        case Op.FWD | Op.BWD | Op.BWD_INPUT | Op.BWD_WEIGHT | Op.RECOMPUTE | Op.SEND | Op.RECV | Op.FREE:
            return False
        case _:
            assert_never(op)


def _edges(source: Ints, target: Ints) -> Edges:
    """Return these edges with a delay of 0."""
    return Edges(source, target, np.zeros(len(source), np.int64))


def _messages(program: Program) -> tuple[Ints, Ints, Ints]:
    """Return the SEND, the RECV and the channel of every message, sorted by channel; within a channel they keep their order."""
    t, rank = program.table, program.rank_of
    send, receive = np.flatnonzero(t.op == Op.SEND), np.flatnonzero(t.op == Op.RECV)
    channel = rank[send] * program.world + t.peer[send]
    order = np.argsort(channel, kind="stable")
    return send[order], receive[np.argsort(t.peer[receive] * program.world + rank[receive], kind="stable")], channel[order]


def _consumers(program: Program, index: TaskIndex, receive: Ints) -> tuple[Ints, Ints]:
    """Return (number of the message, first row that reads the value), one entry for every value of every message."""
    h, t = program.header, program.table
    message, ids = expand(program, receive)
    row = receive[message]
    keys = (program.rank_of[row] // h.ranks * h.stages + t.stage[row]) * h.micro_batches + ids
    return message, np.where(t.value[row] == Value.act, index.forward[keys], index.backward[keys])


def _window_pairs(channel: Ints, window: int) -> tuple[Ints, Ints]:
    """Return (message whose SEND waits, message that it waits for): the second is `window` messages earlier in the channel."""
    earlier = np.arange(len(channel)) - window
    waiting = np.flatnonzero(earlier >= 0)
    waiting = waiting[channel[earlier[waiting]] == channel[waiting]]
    return waiting, earlier[waiting]


def _window(program: Program, send: Ints, receive: Ints, channel: Ints, transfer: Ints | None, delay: Ints) -> list[Edges]:
    """Return the waits of SENDs on the machines whose transfers do not queue.

    With window 0 a SEND waits until its RECV is posted, but not until the message has arrived.

    Args:
        transfer: the node of each message; None where messages have no nodes.
    """
    window = max_incomplete_sends(program.header.machine, program.header.window)
    if window is None:
        return []
    if window == 0:
        return [_edges(receive, send)]
    waiting, earlier = _window_pairs(channel, window)
    ends = (send[earlier], receive[earlier]) if transfer is None else (transfer[earlier],)
    return [Edges(end, send[waiting], delay[earlier]) for end in ends]


def _collective_rows(program: Program) -> Ints:
    """Return the rows of all instructions that join a collective."""
    return np.flatnonzero(np.isin(program.table.op, [op for op in Op if _queues_with_transfers(op)]))


def _collective_edges(program: Program, first: int) -> list[Edges]:
    """Return the waits of collectives: for their launches on all members, and for the collective before them in each stream.

    Args:
        first: the node of the first collective.
    """
    rows = _collective_rows(program)
    node, rank = first + program.table.operand[rows], program.rank_of[rows]
    follows = np.flatnonzero(rank[1:] == rank[:-1]) + 1
    return [_edges(rows, node), _edges(node[follows - 1], node[follows])]


def _nodes_of_rows(program: Program, send: Ints, receive: Ints, transfer: Ints, collective: int | None) -> Ints:
    """Return by row the node in the queues that a SEND, a RECV or, on `serial`, the launch of a collective posts; else -1."""
    node = np.full(len(program), -1, np.int64)
    node[send] = node[receive] = transfer
    if program.header.machine == "serial" and collective is not None:
        rows = _collective_rows(program)
        node[rows] = collective + program.table.operand[rows]
    return node


def _queue_edges(program: Program, node: Ints) -> list[Edges]:
    """Return the waits of transfers and collectives in queues: for the rows that post them, and for the one before in a queue.

    Args:
        node: by row, as `_nodes_of_rows` returns it.
    """
    rank, posts = program.rank_of, np.flatnonzero(node >= 0)
    if program.header.machine == "paired":
        queue = rank[posts] * program.world + program.table.peer[posts]
        posts, queue = posts[np.argsort(queue, kind="stable")], np.sort(queue, kind="stable")
    else:
        queue = rank[posts]
    behind = np.flatnonzero(queue[1:] == queue[:-1]) + 1
    return [_edges(posts, node[posts]), _edges(node[posts[behind - 1]], node[posts[behind]])]


def _window_of_queues(program: Program, transfer: Ints, send: Ints, channel: Ints) -> Edges:
    """Return the waits for the window of a channel on the machines whose transfers queue."""
    rank, window = program.rank_of, program.header.window
    waiting, earlier = _window_pairs(channel, window)
    blocked = send[waiting]
    if window == 0:  # a SEND is posted at once, and the next row of its stream waits for its transfer
        follows = np.append(rank, -1)[blocked + 1] == rank[blocked]
        blocked, earlier = blocked[follows] + 1, earlier[follows]
    return _edges(transfer[earlier], blocked)
