"""Can the program get stuck? (E440) One question for each machine of docs/semantics.md.

Every wait of a stream is for something that a definite other instruction does: nothing is decided at run time. So a
program either ends under every interleaving or under none, and one run decides it. On `posted`, `window` and
`rendezvous` an instruction waits only for instructions of other ranks, and running the ranks in turn takes one look at
every wait. On `paired` and `serial` transfers also wait for each other: there completions are executed like
instructions, each as soon as nothing it waits for is left.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.machines import MACHINES, Machine, open_sends
from chimerac.chimera_ir.program import Ints
from chimerac.compiler.verify.matching import channels
from chimerac.compiler.verify.view import View
from chimerac.compiler.verify.waits import COLLECTIVES, END, POST, QUEUE, READ, WINDOW, Hang, Waits


def check_progress(view: View) -> list[Diagnostic]:
    """Return the circle of waits if the program cannot end on the machine that its header names."""
    hang = hang_on(view, view.header.machine)
    if hang is None:
        return []
    from chimerac.compiler.diagnose.hang import (
        explain_hang,  # it draws and tries changes, which a right program needs not wait for
    )

    return [explain_hang(view, hang)]


def machines(view: View) -> dict[Machine, bool]:
    """Return for every machine whether the program ends on it. The window is the program's own."""
    return {machine: hang_on(view, machine) is None for machine in MACHINES}


def hang_on(view: View, machine: Machine) -> Hang | None:
    """Return how far the program gets on a machine on which it cannot end; None where it ends."""
    waits = waits_on(view, machine)
    done = executed(view, machine, waits)
    return None if done.all() else Hang(machine, waits, done)


def waits_on(view: View, machine: Machine) -> Waits:
    """Return the waits of a program on a machine."""
    if machine in ("paired", "serial"):
        return _queued(view, machine)
    return _direct(view, open_sends(machine, view.header.window))


def executed(view: View, machine: Machine, waits: Waits) -> npt.NDArray[np.bool_]:
    """Return by node of these waits, the machine's own or some of them, whether it is ever executed."""
    return _one_by_one(view, waits) if machine in ("paired", "serial") else _in_turn(view, waits)


def _reads(view: View) -> tuple[Ints, Ints]:
    """Return (reader row, RECV row) for every received value: the wait of the first instruction that reads it."""
    pairs = []
    for value in Value:
        rows, keys = view.transfers[Op.RECV, value]
        pairs.append((view.reader(value)[keys], rows))
    return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])


def _full(channel: Ints, window: int) -> tuple[Ints, Ints]:
    """Return (message that waits, message it waits for): number i + window of a channel for number i."""
    earlier = np.arange(len(channel)) - window
    late = np.flatnonzero(earlier >= 0)
    late = late[channel[earlier[late]] == channel[late]]
    return late, earlier[late]


def _direct(view: View, window: int | None) -> Waits:
    """Return the waits of the machine whose channels hold `window` sends; None holds any number."""
    channel, send, receive = channels(view)
    sent = np.full(len(view.program), -1, np.int64)
    sent[receive] = send
    reader, received = _reads(view)
    parts = [(reader, sent[received], READ)]
    if window is not None:
        late, earlier = _full(channel, window)
        parts.append((send[late], receive[earlier], POST))
    return Waits.of(len(view.program), parts)


def _in_turn(view: View, waits: Waits) -> npt.NDArray[np.bool_]:
    """Run each rank as far as it gets, whenever what it waits for has been executed; return what is executed."""
    p = view.program
    target, source = waits.target.tolist(), waits.source.tolist()
    partner = view.rank[waits.source].tolist()
    bounds = np.searchsorted(waits.target, p.offsets).tolist()
    place, last = bounds[:-1], bounds[1:]  # each rank's next wait
    stops = p.offsets[1:].tolist()
    reached = p.offsets[:-1].tolist()  # rows before it are executed
    sleeping: list[list[tuple[int, int]]] = [[] for _ in range(p.world)]  # rank -> heap of (row of it, rank that waits for it)
    ready = list(range(p.world))
    while ready:
        rank = ready.pop()
        w, end = place[rank], last[rank]
        while w < end and source[w] < reached[partner[w]]:
            w += 1
        place[rank] = w
        if w < end:
            heappush(sleeping[partner[w]], (source[w], rank))
        row = target[w] if w < end else stops[rank]
        if row > reached[rank]:
            reached[rank] = row
            waiting = sleeping[rank]
            while waiting and waiting[0][0] < row:
                ready.append(heappop(waiting)[1])
    return np.arange(len(p)) < np.array(reached)[view.rank]


def _queued(view: View, machine: Machine) -> Waits:
    """Return the waits of a machine whose transfers queue: instructions and, numbered after them, completions.

    A transfer or collective completes when all its members have posted it and the one before it in each of its queues
    is complete; `paired` has a queue per unordered pair of ranks, `serial` one per rank for everything.
    """
    p = view.program
    channel, send, receive = channels(view)
    number = np.full(len(p), -1, np.int64)  # row of an end -> what completes
    number[send] = number[receive] = len(p) + np.arange(len(send))
    sums = view.rows(*COLLECTIVES) if machine == "serial" else view.rows()
    number[sums] = len(p) + len(send) + p.table.batch[sums]
    ends = np.flatnonzero(number >= 0)
    queue = view.rank[ends] * (p.world + 1) + (p.table.peer[ends] if machine == "paired" else p.world)
    ends = ends[np.argsort(queue, kind="stable")]
    follows = np.flatnonzero(np.diff(np.sort(queue, kind="stable")) == 0)
    reader, received = _reads(view)
    late, earlier = _full(channel, view.header.window)
    blocked = send[late]
    if view.header.window == 0:  # a SEND posts, and then waits for its own completion
        stays = blocked + 1 < p.offsets[view.rank[blocked] + 1]
        blocked, earlier = blocked[stays] + 1, earlier[stays]
    parts = [
        (number[ends], ends, END),
        (number[ends[follows + 1]], number[ends[follows]], QUEUE),
        (reader, number[received], READ),
        (blocked, len(p) + earlier, WINDOW),
    ]
    return Waits.of(len(p) + len(send) + len(p.collectives), parts)


def _one_by_one(view: View, waits: Waits) -> npt.NDArray[np.bool_]:
    """Execute instructions and completions as long as one waits for nothing; return what is executed."""
    following = np.flatnonzero(np.diff(view.rank) == 0)
    source, target = np.concatenate([waits.source, following]), np.concatenate([waits.target, following + 1])
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(waits.nodes + 1)).tolist()
    after = target[order].tolist()
    open_waits = np.bincount(target, minlength=waits.nodes)
    ready = np.flatnonzero(open_waits == 0).tolist()
    left = open_waits.tolist()
    while ready:
        node = ready.pop()
        for other in after[first[node] : first[node + 1]]:
            left[other] -= 1
            if not left[other]:
                ready.append(other)
    done: npt.NDArray[np.bool_] = np.array(left) == 0
    return done
