"""Programs in which every rank orders its tasks independently of the others. Many of them deadlock."""

from __future__ import annotations

import random
from dataclasses import replace

from chimerac.chimera_ir.instructions import (
    AllReduce,
    Bwd,
    BwdWeight,
    Fwd,
    Instruction,
    Recompute,
    Recv,
    Send,
    Task,
    stage_group,
)
from chimerac.chimera_ir.program import Header, Program
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler.lower.width import widen
from tests.helpers import Streams
from tests.proof.drawn import random_order, reads_first

Transfer = tuple[int, int]  # of a pair of ranks: the rank that sends, and the number of the message on its channel
ATTEMPTS = 40  # orders are drawn at most this many times, until each pair of ranks has a common order of transfers
Group = tuple[tuple[int, ...], str]  # a group of parameters: the stages whose gradients are summed together, and its name


def with_own_orders(r: random.Random, tasks: Program, width: int = 2) -> Program:
    """Return a program of these tasks in which every rank has a random order. Each channel keeps the order of its messages.

    Every value reaches its readers, but the program may deadlock. If two ranks can post the transfers between them in a common
    order, they do so. Then the queue of this pair does not deadlock on its own. For half of the programs orders are drawn up to
    ATTEMPTS times, until every pair has a common order. Ranks may launch their collectives in different orders, and the window
    is drawn.

    Args:
        width: how many replicas one program in four has; the others have one.
    """
    h = tasks.header
    groups = [((s,), stage_group(s)) for s in range(h.stages)] + [(t.stages, t.name) for t in h.tied]
    if r.random() < 0.4:
        r.shuffle(groups)
    pairs = [(a, b) for a in range(h.ranks) for b in range(a + 1, h.ranks)]
    common: dict[tuple[int, int], list[Transfer] | None] = {}
    for _ in range(r.choice([1, ATTEMPTS])):
        streams = [own_order(r, h, g, tasks, groups if r.random() < 0.9 else groups[::-1]) for g in range(h.ranks)]
        common = {(a, b): common_order(r, streams, a, b) for a, b in pairs}
        if None not in common.values():
            break
    drawn = program_of(h, [with_receives(r, g, streams, common) for g in range(h.ranks)], tasks.costs)
    return widen(drawn, r.choice([1, 1, 1, width])).with_header(window=r.choice([h.window, 0, 1]))


def own_order(r: random.Random, h: Header, g: int, tasks: Program, groups: list[Group]) -> list[Instruction]:
    """Return a rank's tasks, SENDs and ALLREDUCEs. The order is random, but respects the dependencies on this rank.

    Args:
        g: the rank.
        groups: of parameters, in the order of the rank's ALLREDUCEs.
    """
    own = [replace(i, overlap=False) for i in tasks.stream(g) if isinstance(i, Task)]
    stream: list[Instruction] = [*random_order(r, own, h.stages)]
    for n in reversed(range(len(stream))):
        if (i := send_of(h, g, stream[n])) is not None:  # type: ignore[arg-type]
            stream.insert(min(len(stream), n + 1 + r.choice([0, 0, 0, 1, 2, 4])), i)
    position = 0
    for stages, name in groups:
        holders = h.holders(stages)
        if g in holders:
            last = max(n for n, i in enumerate(stream) if isinstance(i, Bwd | BwdWeight) and i.stage in stages)
            position = r.randint(max(last + 1, position), len(stream))
            stream.insert(position, AllReduce(name, min(stages), holders))
            position += 1
    return stream


def send_of(h: Header, g: int, i: Task) -> Send | None:
    """Return the SEND of the output of a task; None if no other rank reads the output.

    Args:
        g: the rank of the task.
    """
    forward = isinstance(i, Fwd)
    stage = i.stage + 1 if forward else i.stage - 1
    if isinstance(i, BwdWeight | Recompute) or not 0 <= stage < h.stages or h.pipes[i.pipe].placement[stage] == g:
        return None
    return Send("act" if forward else "grad", i.pipe, stage, i.micro_batches, h.pipes[i.pipe].placement[stage])


def send_positions(streams: Streams, a: int, b: int) -> list[int]:
    """Return the positions in the stream of rank a of its SENDs to rank b."""
    return [n for n, i in enumerate(streams[a]) if isinstance(i, Send) and i.peer == b]


def first_reads(streams: Streams, a: int, b: int) -> list[int]:
    """Return, for each SEND of rank a to rank b, the position of its first reader in the stream of rank b."""
    positions = []
    for n in send_positions(streams, a, b):
        i = streams[a][n]
        assert isinstance(i, Send)
        positions.append(next(k for k, x in enumerate(streams[b]) if reads_first(x, i)))
    return positions


def common_order(r: random.Random, streams: Streams, a: int, b: int) -> list[Transfer] | None:
    """Return an order in which two ranks can post all transfers between them; None if there is none."""
    before: dict[Transfer, set[Transfer]] = {}  # by transfer: those that must be posted before it
    for sender, receiver in ((a, b), (b, a)):
        read_at = first_reads(streams, receiver, sender)  # in the stream of the sender
        for k, position in enumerate(send_positions(streams, sender, receiver)):
            before[sender, k] = {(receiver, n) for n in range(len(read_at)) if read_at[n] < position}
            before[sender, k] |= {(sender, k - 1)} if k else set()
    order: list[Transfer] = []
    while len(order) < len(before):
        available = [x for x in before if x not in order and before[x] <= {*order}]
        if not available:
            return None
        order.append(r.choice(available))
    return order


def with_receives(
    r: random.Random, g: int, streams: Streams, common: dict[tuple[int, int], list[Transfer] | None]
) -> list[Instruction]:
    """Return a rank's stream with its RECVs: in the order of the SENDs of each channel, and before their readers.

    Args:
        g: the rank.
        common: by pair of ranks, the common order of the transfers between them, None if there is none.
    """
    receives: list[tuple[int, int, float, Recv]] = []  # (position, number of the message, tie breaker, the RECV)
    late = r.random() < 0.5
    for peer in range(len(streams)):
        own_sends, read_at = send_positions(streams, g, peer), first_reads(streams, peer, g)
        order = common.get((min(g, peer), max(g, peer)))
        position = 0
        for number, n in enumerate(send_positions(streams, peer, g)):
            i = streams[peer][n]
            assert isinstance(i, Send)
            latest = min(read_at[number:])
            if order:
                # How many of the own SENDs to the peer come before this RECV in the common order.
                earlier = sum(sender == g for sender, _ in order[: order.index((peer, number))])
                position = max([position, *(n + 1 for n in own_sends[:earlier])])
                latest = min([latest, *own_sends[earlier:]])
            position = max(position, latest if late else r.randint(0, latest))
            receives.append((position, number, r.random(), Recv(i.value, i.pipe, i.stage, i.micro_batches, peer)))
    stream = list(streams[g])
    for position, _, _, i in sorted(receives, key=lambda x: x[:3], reverse=True):
        stream.insert(position, i)
    return stream
