"""Plans a SEND and a RECV for every value that one rank needs from another.

A SEND comes right after the task whose output it sends. If this task is the first of an overlapped pair, the SEND comes right
after the pair. A RECV is posted as early as the allowance of its channel permits: at most `ahead` messages of a channel are
posted and not yet read. So a transfer overlaps with the task before its consumer:

    rank 1:  RECV m0; RECV m1 | FWD m0 | RECV m2 | FWD m1 | RECV m3 ...        ahead = 2

Where a program could then hang, a RECV is posted even earlier. With a window of K sends, SEND number i + K of a channel waits
until RECV number i is posted. There is a total order of all tasks that every stream and every wait of a task agrees with. RECV
number i is placed so that in this order it comes before the task whose output SEND number i + K sends. Then every wait is for
something earlier in the order. So the program cannot hang, if the header of the tasks names the machine `posted`, `window` or
`rendezvous`. The queues of `paired` and `serial` need `in_one_order`.

If the schedule has a cost `hop` above 0, each RECV also comes before the first task of its rank that is later, in that order,
than the task whose output is sent. A transfer begins when both its ends are posted, so it then begins with the SEND. This does
not apply to a schedule that limits its receive buffers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.program import OVERLAP, Ints, Program, Table
from chimerac.compiler.lower.insert import Insertion
from chimerac.compiler.tasks import TaskIndex, Timing, expand, total_order

AHEAD = 2  # the default allowance of a channel


@dataclass(frozen=True, slots=True)
class _Messages:
    """One entry per message, sorted by channel and, within it, by the order of sending.

    Attributes:
        stage: the consumer's.
        producer: row of the task whose output the value is.
        consumer: the first row that uses it.
        channel: source x ranks + target.
        number: place in the channel, from 0.
    """

    value: Ints
    stage: Ints
    producer: Ints
    consumer: Ints
    channel: Ints
    number: Ints


def transfers(program: Program, timing: Timing, in_one_order: bool = False, ahead: int = AHEAD) -> Insertion:
    """Return the transfers of a program of tasks.

    Args:
        timing: its `task_times` (compiler/tasks.py).
        in_one_order: every rank has its transfers in the order of the tasks that produce the values. Then they may queue behind
            each other (the machines `paired` and `serial`), but a RECV may be posted later.
        ahead: the allowance of a channel; without effect if in_one_order.
    """
    messages = _messages(program)
    pipe, operand = program.table.pipe[messages.producer], program.table.operand[messages.producer]
    source, target = np.divmod(messages.channel, program.header.ranks)
    columns = {"value": messages.value, "pipe": pipe, "stage": messages.stage, "operand": operand}
    send = Table.of(np.full(len(pipe), Op.SEND), **columns, peer=target)
    receive = Table.of(np.full(len(pipe), Op.RECV), **columns, peer=source)
    place, keys = total_order(program, timing)
    if in_one_order:
        posted = np.searchsorted(keys, target * len(program) + place[messages.producer])
        tie = 2 * place[messages.producer]
    else:
        posted = _receive_slots(program, place, keys, messages, ahead)
        tie = messages.channel * len(program) + messages.number
    # An overlapped pair stays together: what would come between its tasks is received before both and sent after both.
    is_second = np.zeros(len(program) + 1, np.int64)  # 1 for the second row of a pair
    is_second[np.flatnonzero(program.table.flags & OVERLAP) + 1] = 1
    sent = messages.producer + 1
    return Insertion(
        Table.concatenate([receive, send]),
        rank=np.concatenate([target, source]),
        slot=np.concatenate([posted - is_second[posted], sent + is_second[sent]]),
        # If not in_one_order, receives come first in a slot: another rank's SEND may wait for them.
        priority=np.repeat([0, 0 if in_one_order else 1], len(pipe)),
        tie=np.tile(tie, 2),
    )


def _messages(program: Program) -> _Messages:
    """Return the messages of a program of tasks."""
    h, t, index = program.header, program.table, TaskIndex.of(program)
    placement = np.array([p.placement for p in h.pipes], np.int64)
    rows = np.flatnonzero((t.op == Op.FWD) | (t.op == Op.BWD) | (t.op == Op.BWD_INPUT))
    forward = t.op[rows] == Op.FWD
    stage = t.stage[rows] + np.where(forward, 1, -1)  # that of the consumer
    rows, forward, stage = (x[(stage >= 0) & (stage < h.stages)] for x in (rows, forward, stage))
    source, target = program.rank_of[rows], placement[t.pipe[rows], stage]
    rows, forward, stage, source, target = (x[source != target] for x in (rows, forward, stage, source, target))
    # A message of several micro-batches may have several consumers: the first one counts.
    position, ids = expand(program, rows)
    consumer_keys = stage[position] * h.micro_batches + ids  # as in TaskIndex, for one replica
    consumer = np.full(len(rows), len(t))
    np.minimum.at(consumer, position, np.where(forward[position], index.forward[consumer_keys], index.backward[consumer_keys]))
    channel = source * h.ranks + target
    order = np.lexsort((rows, channel))
    channel = channel[order]
    number = np.arange(len(order)) - np.searchsorted(channel, channel)
    value = np.where(forward, Value.act, Value.grad)
    return _Messages(value[order], stage[order], rows[order], consumer[order], channel, number)


def _receive_slots(program: Program, place: Ints, keys: Ints, messages: _Messages, ahead: int) -> Ints:
    """Return the row before which each RECV is posted. Along a channel these never decrease: first in, first out.

    Args:
        place, keys: as `total_order` returns them (compiler/tasks.py).
        ahead: the allowance of a channel.
    """
    count, target = len(messages.channel), messages.channel % program.header.ranks
    # A RECV comes before its consumer and before the consumers of all later messages of its channel. An offset larger than
    # any row separates the channels, so that one running minimum is enough for all of them.
    channel_offset = messages.channel * (len(program) + 1)
    latest = np.minimum.accumulate((messages.consumer + channel_offset)[::-1])[::-1] - channel_offset
    # As early as the allowance permits: when all but `ahead` - 1 of the values before it have been read.
    read = messages.consumer[np.lexsort((messages.consumer, messages.channel))]
    allowed = program.offsets[target].copy()
    later = messages.number >= ahead
    allowed[later] = read[np.flatnonzero(later) - ahead] + 1
    # Early enough for the sender's window: before the first task that comes, in the total order, after the producer of message
    # i + window.
    window = 0 if program.header.machine == "rendezvous" else program.header.window
    following = np.arange(count) + window
    limited = np.flatnonzero(following < count)  # messages that have a message `window` later in their channel
    limited = limited[messages.channel[following[limited]] == messages.channel[limited]]
    limit_keys = target[limited] * len(program) + place[messages.producer[following[limited]]]
    forced = np.full(count, len(program))
    forced[limited] = np.searchsorted(keys, limit_keys)
    slots: Ints = np.minimum(np.minimum(latest, allowed), forced)
    if program.costs.hop and "receive_buffers" not in program.header.limits:  # no later than the SEND
        slots = np.minimum(slots, np.searchsorted(keys, target * len(program) + place[messages.producer]))
    return slots
