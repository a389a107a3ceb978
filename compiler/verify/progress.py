"""Can the program get stuck? (E440) One question for each machine of docs/semantics.md.

Every wait is for one known instruction; nothing is chosen at run time. So a program terminates under every interleaving or
under none, and one simulated run decides it. On `posted`, `window` and `rendezvous` an instruction waits only for instructions
of other ranks. There each rank runs until it must wait, and every wait is examined once. On `paired` and `serial` transfers
also wait for each other. There completions are executed like instructions, each when all that it waits for is done.
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
    notes = tuple(f"a rank stops at {p.place(row)}" for row in stops[:MAX_FOUND].tolist())
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
    """Return for each node whether it is ever executed. waits: those of the machine, or some of them."""
    return _run_nodes(index, waits) if machine in ("paired", "serial") else _run_ranks(index, waits)


def _readers_and_receives(index: ProgramIndex) -> tuple[Ints, Ints]:
    """Return (row of the first reader, row of the RECV) for every received value."""
    pairs = []
    for value in Value:
        rows, keys = index.value_instructions[Op.RECV, value]
        pairs.append((index.reader(value)[keys], rows))
    return np.concatenate([p[0] for p in pairs]), np.concatenate([p[1] for p in pairs])


def _window_waits(channel: Ints, window: int) -> tuple[Ints, Ints]:
    """Return (message that waits, message that it waits for): in each channel, message i + window waits for message i."""
    earlier = np.arange(len(channel)) - window
    waiting = np.flatnonzero(earlier >= 0)
    waiting = waiting[channel[earlier[waiting]] == channel[waiting]]
    return waiting, earlier[waiting]


def _waits_without_queues(index: ProgramIndex, window: int | None) -> Waits:
    """Return the waits of a machine on which a channel holds at most `window` sends. None: any number of sends."""
    channel, send, receive = channels(index)
    sent = np.full(len(index.program), -1, np.int64)
    sent[receive] = send
    parts: list[tuple[Ints, Ints, int]] = []
    for condition in CONDITIONS:
        match condition:
            case "values":
                reader, received = _readers_and_receives(index)
                parts.append((reader, sent[received], READ))
            case "window":
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
    next_wait, last_wait = bounds[:-1], bounds[1:]  # by rank; the last one is not included
    stops = p.offsets[1:].tolist()
    reached = p.offsets[:-1].tolist()  # by rank: rows before this one are executed
    # By rank: a heap of (row of this rank, rank that waits for the row).
    blocked_on: list[list[tuple[int, int]]] = [[] for _ in range(p.world)]
    ready = list(range(p.world))
    while ready:
        rank = ready.pop()
        w, end = next_wait[rank], last_wait[rank]
        while w < end and source[w] < reached[source_rank[w]]:
            w += 1
        next_wait[rank] = w
        if w < end:
            heappush(blocked_on[source_rank[w]], (source[w], rank))
        row = target[w] if w < end else stops[rank]
        if row > reached[rank]:
            reached[rank] = row
            waiting = blocked_on[rank]
            while waiting and waiting[0][0] < row:
                ready.append(heappop(waiting)[1])
    return np.arange(len(p)) < np.array(reached)[index.rank]


def _waits_with_queues(index: ProgramIndex, machine: Machine) -> Waits:
    """Return the waits of a machine whose transfers queue. Nodes are instructions and, numbered after them, completions.

    A transfer or collective completes when all its members have posted it and the one before it in each of its queues is
    complete. On `paired` each rank has one queue per peer for both directions, on `serial` one for everything.
    """
    p = index.program
    channel, send, receive = channels(index)
    completion = np.full(len(p), -1, np.int64)  # by row of an end: the node of its completion, -1 for other rows
    completion[send] = completion[receive] = len(p) + np.arange(len(send))
    collectives = index.rows(*COLLECTIVES) if machine == "serial" else index.rows()
    completion[collectives] = len(p) + len(send) + p.table.operand[collectives]
    ends = np.flatnonzero(completion >= 0)
    queue = index.rank[ends] * (p.world + 1) + (p.table.peer[ends] if machine == "paired" else p.world)
    ends = ends[np.argsort(queue, kind="stable")]
    follows = np.flatnonzero(np.diff(np.sort(queue, kind="stable")) == 0)
    parts: list[tuple[Ints, Ints, int]] = [
        (completion[ends], ends, END),
        (completion[ends[follows + 1]], completion[ends[follows]], QUEUE),
    ]
    for condition in CONDITIONS:
        match condition:
            case "values":
                reader, received = _readers_and_receives(index)
                parts.append((reader, completion[received], READ))
            case "window":
                waiting, earlier = _window_waits(channel, index.header.window)
                blocked = send[waiting]
                if index.header.window == 0:  # a SEND posts, and then waits for its own completion
                    has_next = blocked + 1 < p.offsets[index.rank[blocked] + 1]
                    blocked, earlier = blocked[has_next] + 1, earlier[has_next]
                parts.append((blocked, len(p) + earlier, WINDOW))
            case _:
                assert_never(condition)
    return Waits.of(len(p) + len(send) + len(p.collectives), parts)


def _run_nodes(index: ProgramIndex, waits: Waits) -> npt.NDArray[np.bool_]:
    """Execute every instruction and completion that has no wait left, until there are none; return which are executed."""
    following = np.flatnonzero(np.diff(index.rank) == 0)
    source, target = np.concatenate([waits.source, following]), np.concatenate([waits.target, following + 1])
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(waits.nodes + 1)).tolist()
    after = target[order].tolist()
    counts = np.bincount(target, minlength=waits.nodes)
    ready = np.flatnonzero(counts == 0).tolist()
    open_counts = counts.tolist()
    while ready:
        node = ready.pop()
        for other in after[first[node] : first[node + 1]]:
            open_counts[other] -= 1
            if not open_counts[other]:
                ready.append(other)
    done: npt.NDArray[np.bool_] = np.array(open_counts) == 0
    return done
