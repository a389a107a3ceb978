"""Does the program terminate on a machine of docs/semantics.md, or does it hang? (E440)

What an instruction or a completion waits for is known before the run; nothing is chosen at run time. So a program terminates
under every interleaving of its ranks or under none, and one simulated run decides it. On `posted`, `window` and `rendezvous` an
instruction waits only for instructions of other ranks. There each rank runs until it must wait, and every wait is examined at
most twice. On `paired` and `serial` transfers also wait for each other. There the completion of a transfer or a collective is a
node like an instruction, and is executed when all that it waits for has been executed.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import assert_never

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.machines import MACHINES, Machine, machine_name, max_incomplete_sends
from chimerac.chimera_ir.program import Ints
from chimerac.compiler.verify.index import MAX_FOUND, ProgramIndex
from chimerac.compiler.verify.matching import channels
from chimerac.compiler.verify.waits import COLLECTIVES, CONDITIONS, END, POST, QUEUE, READ, WINDOW, Hang, Waits


def check_progress(index: ProgramIndex) -> list[Diagnostic]:
    """Return a finding if the program cannot terminate on the machine that its header names."""
    hang = hang_on(index, index.header.machine)
    if hang is None:
        return []
    p, machine = index.program, machine_name(hang.machine, index.header.window)
    done = hang.done[: len(p)]
    message = f"deadlock on the {machine} machine: {np.count_nonzero(~done)} of {len(p)} instructions can never run"
    # A stream runs in order, so the first instruction of a rank that does not run is the one at which the rank stops.
    stops = np.flatnonzero(~done & (np.append(True, done[:-1]) | np.append(True, np.diff(index.rank) > 0)))
    notes = tuple(f"a rank stops here: {p.place(row)}" for row in stops[:MAX_FOUND].tolist())
    return [Diagnostic("E440", message, notes=notes, about=tuple(stops.tolist()))]


def machines(index: ProgramIndex) -> dict[Machine, bool]:
    """Return for every machine whether the program terminates on it. The window is the program's own."""
    return {machine: hang_on(index, machine) is None for machine in MACHINES}


def hang_on(index: ProgramIndex, machine: Machine) -> Hang | None:
    """Return the state in which the program hangs on a machine; None if it terminates."""
    waits = waits_on(index, machine)
    done = executed(index, machine, waits)
    return None if done.all() else Hang(machine, waits, done)


def waits_on(index: ProgramIndex, machine: Machine) -> Waits:
    """Return the waits of a program on a machine."""
    if machine in ("paired", "serial"):
        return _waits_with_queues(index, machine)
    return _waits_without_queues(index, max_incomplete_sends(machine, index.header.window))


def executed(index: ProgramIndex, machine: Machine, waits: Waits) -> npt.NDArray[np.bool_]:
    """Return for each node whether it is ever executed.

    Args:
        waits: those of the machine, or some of them.
    """
    return _run_nodes(index, waits) if machine in ("paired", "serial") else _run_ranks(index, waits)


def _readers_and_receives(index: ProgramIndex) -> tuple[Ints, Ints]:
    """Return (row of the first reader, row of the RECV) for every received value."""
    readers, receives = [], []
    for value in Value:
        rows, keys = index.value_instructions[Op.RECV, value]
        readers.append(index.reader(value)[keys])
        receives.append(rows)
    return np.concatenate(readers), np.concatenate(receives)


def _window_waits(channel: Ints, window: int) -> tuple[Ints, Ints]:
    """Return (message that waits, message that it waits for): in each channel, message i + window waits for message i.

    Args:
        channel: of every message, sorted.

    The messages are returned as indices into it.
    """
    earlier = np.arange(len(channel)) - window
    waiting = np.flatnonzero(earlier >= 0)
    waiting = waiting[channel[earlier[waiting]] == channel[waiting]]
    return waiting, earlier[waiting]


def _waits_without_queues(index: ProgramIndex, window: int | None) -> Waits:
    """Return the waits of a machine without queues.

    Args:
        window: how many sends of a channel may be incomplete; None: any number.
    """
    channel, send, receive = channels(index)
    send_of = np.full(len(index.program), -1, np.int64)  # by row of a RECV: the row of its SEND
    send_of[receive] = send
    parts: list[tuple[Ints, Ints, int]] = []
    for condition in CONDITIONS:
        match condition:
            case "values":
                reader, received = _readers_and_receives(index)
                parts.append((reader, send_of[received], READ))
            case "window":
                # No channel has as many messages as the program has rows, so a window of this size is never full.
                waiting, earlier = _window_waits(channel, len(index.program) if window is None else window)
                parts.append((send[waiting], receive[earlier], POST))
            case _:
                assert_never(condition)
    return Waits.of(len(index.program), parts)


def _run_ranks(index: ProgramIndex, waits: Waits) -> npt.NDArray[np.bool_]:
    """Run each rank until it must wait, and again when its wait is over; return for each row whether it is executed."""
    p = index.program
    target, source = waits.target.tolist(), waits.source.tolist()
    source_rank = index.rank[waits.source].tolist()
    bounds = np.searchsorted(waits.target, p.offsets).tolist()
    next_wait, end_of_waits = bounds[:-1], bounds[1:]  # by rank: the next wait to examine, and the end of its waits
    end_of_stream = p.offsets[1:].tolist()
    reached = p.offsets[:-1].tolist()  # by rank: its rows before this one are executed
    # By rank: a heap of (row of this rank, rank that waits for the row).
    blocked_on: list[list[tuple[int, int]]] = [[] for _ in range(p.world)]
    ready = list(range(p.world))
    while ready:
        rank = ready.pop()
        w, end = next_wait[rank], end_of_waits[rank]
        while w < end and source[w] < reached[source_rank[w]]:
            w += 1
        next_wait[rank] = w
        if w < end:
            heappush(blocked_on[source_rank[w]], (source[w], rank))
        row = target[w] if w < end else end_of_stream[rank]
        if row > reached[rank]:
            reached[rank] = row
            waiting = blocked_on[rank]
            while waiting and waiting[0][0] < row:
                ready.append(heappop(waiting)[1])
    return np.arange(len(p)) < np.array(reached)[index.rank]


def _waits_with_queues(index: ProgramIndex, machine: Machine) -> Waits:
    """Return the waits of a machine whose transfers queue. Nodes are instructions and, numbered after them, completions.

    A transfer or collective completes when all its ends have been posted and the one before it in each of its queues is
    complete. On `paired` each rank has one queue per peer for both directions, and its collectives do not interact with these
    transfers: here they have no waits. On `serial` each rank has one queue for all its transfers and collectives.
    """
    p = index.program
    channel, send, receive = channels(index)
    completion = np.full(len(p), -1, np.int64)  # by row of an end: the node of its completion, -1 for other rows
    completion[send] = completion[receive] = len(p) + np.arange(len(send))
    collectives = index.rows(*(COLLECTIVES if machine == "serial" else ()))
    completion[collectives] = len(p) + len(send) + p.table.operand[collectives]  # operand: the number of the collective
    ends = np.flatnonzero(completion >= 0)
    # The number of the queue of each end. A rank has one number for each peer, and a last one for its only queue on `serial`.
    queue = index.rank[ends] * (p.world + 1) + (p.table.peer[ends] if machine == "paired" else p.world)
    by_queue = np.argsort(queue, kind="stable")
    ends, queue = ends[by_queue], queue[by_queue]
    with_next = np.flatnonzero(np.diff(queue) == 0)  # the ends with another end behind them in the same queue
    parts: list[tuple[Ints, Ints, int]] = [
        (completion[ends], ends, END),
        (completion[ends[with_next + 1]], completion[ends[with_next]], QUEUE),
    ]
    for condition in CONDITIONS:
        match condition:
            case "values":
                reader, received = _readers_and_receives(index)
                parts.append((reader, completion[received], READ))
            case "window":
                waiting, earlier = _window_waits(channel, index.header.window)
                blocked = send[waiting]
                if index.header.window == 0:  # a SEND posts first, so the next instruction waits for its completion
                    has_next = blocked + 1 < p.offsets[index.rank[blocked] + 1]
                    blocked, earlier = blocked[has_next] + 1, earlier[has_next]
                parts.append((blocked, len(p) + earlier, WINDOW))
            case _:
                assert_never(condition)
    return Waits.of(len(p) + len(send) + len(p.collectives), parts)


def _run_nodes(index: ProgramIndex, waits: Waits) -> npt.NDArray[np.bool_]:
    """Execute every instruction and completion that has no wait left, until there are none; return which are executed."""
    # Every instruction also waits for the one before it in its stream.
    with_next = np.flatnonzero(np.diff(index.rank) == 0)
    source, target = np.concatenate([waits.source, with_next]), np.concatenate([waits.target, with_next + 1])
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(waits.nodes + 1)).tolist()
    after = target[order].tolist()
    wait_counts = np.bincount(target, minlength=waits.nodes)
    ready = np.flatnonzero(wait_counts == 0).tolist()
    waits_left = wait_counts.tolist()
    while ready:
        node = ready.pop()
        for other in after[first[node] : first[node + 1]]:
            waits_left[other] -= 1
            if not waits_left[other]:
                ready.append(other)
    done: npt.NDArray[np.bool_] = np.array(waits_left) == 0
    return done
