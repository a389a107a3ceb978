"""A model checker for programs, written from docs/semantics.md alone. It shares no code with the verifier or loopback.

A state consists of the position of every rank and of the set of complete operations. Operations are collectives and, on
the machines with queues (`paired`, `serial`), transfers. An action is an instruction of a rank, or a part of one. A
transition executes one action or completes one operation; an operation need not complete as soon as it can. `explore`
visits all reachable states, up to a limit, and `ends_on` follows one run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, Fwd, Instruction, Recv, Send
from chimerac.chimera_ir.program import Program


@dataclass(frozen=True, slots=True)
class Explored:
    """The result of exploring interleavings.

    Attributes:
        states: how many were found.
        finals: for each final state that was visited, whether all ranks ended correctly.
    """

    states: int
    finals: tuple[bool, ...]


@dataclass(slots=True)
class Transition:
    """A transition. It is enabled if each rank in `positions` has reached its position and all `operations` are complete."""

    positions: list[tuple[int, int]] = field(default_factory=list)  # (rank, how many actions it must have executed)
    operations: int = 0  # those that must be complete, one bit for each


def explore(program: Program, machine: str, limit: int = 10**6) -> Explored:
    """Visit every reachable state, but stop when there are more than `limit`.

    A channel must have as many SENDs as RECVs, a task must read a value of every message after its RECV, and all members of a
    collective must launch it.
    """
    ranks, operations = transitions_of(program, machine)
    lengths, all_complete = [len(actions) for actions in ranks], (1 << len(operations)) - 1
    start = ((0,) * len(ranks), 0)
    seen, pending, finals = {start}, [start], []
    while pending and len(seen) <= limit:
        positions, complete = state = pending.pop()
        moves = []
        for g, actions in enumerate(ranks):
            if positions[g] < lengths[g] and is_enabled(actions[positions[g]], positions, complete):
                moves.append(((*positions[:g], positions[g] + 1, *positions[g + 1 :]), complete))
        moves += [
            (positions, complete | 1 << k)
            for k, operation in enumerate(operations)
            if not complete >> k & 1 and is_enabled(operation, positions, complete)
        ]
        for move in moves:
            if move not in seen:
                seen.add(move)
                pending.append(move)
        if not moves:
            finals.append(state == (tuple(lengths), all_complete))
    return Explored(len(seen), tuple(finals))


def ends_on(program: Program, machine: str) -> bool:
    """Return whether the program ends in one run, which takes transitions as long as any is enabled."""
    ranks, operations = transitions_of(program, machine)
    positions, complete, pending = [0] * len(ranks), 0, [*enumerate(operations)]
    moved = True
    while moved:
        moved = False
        for g, actions in enumerate(ranks):
            while positions[g] < len(actions) and is_enabled(actions[positions[g]], positions, complete):
                positions[g], moved = positions[g] + 1, True
        incomplete = []
        for k, operation in pending:
            if is_enabled(operation, positions, complete):
                complete, moved = complete | 1 << k, True
            else:
                incomplete.append((k, operation))
        pending = incomplete
    return not pending and all(n == len(actions) for n, actions in zip(positions, ranks, strict=True))


def is_enabled(transition: Transition, positions: Sequence[int], complete: int) -> bool:
    """Return whether a transition is enabled.

    Args:
        positions: how many actions each rank has executed.
        complete: the operations that are complete, one bit for each.
    """
    return transition.operations & ~complete == 0 and all(positions[g] >= n for g, n in transition.positions)


def transitions_of(program: Program, machine: str) -> tuple[list[list[Transition]], list[Transition]]:
    """Return the actions of every rank, and the completions of operations.

    FREEs, and tasks that wait for no message, are left out: they wait for no other rank, and no other rank waits for them.
    """
    h = program.header
    window = {"posted": None, "rendezvous": 0}.get(machine, h.window)  # None: a SEND never waits
    queued = machine in ("paired", "serial")
    streams = [program.stream(g) for g in range(program.world)]
    actions: list[list[Transition]] = [[] for _ in streams]
    # By channel, for each message: (rank, how many actions the rank has executed when its SEND or RECV is posted).
    sends: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    receives: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    # (action, what of the message it waits for: "send", "receive" or "transfer", channel, number of the message)
    waits: list[tuple[Transition, str, tuple[int, int], int]] = []
    # By queue, in order: (channel, number of the transfer) or (collective, 0).
    queues: dict[tuple[object, ...], list[tuple[object, ...]]] = defaultdict(list)
    # By collective, for each member: (rank, how many actions the rank has executed when it has launched the collective).
    launched: dict[AllReduce, list[tuple[int, int]]] = defaultdict(list)

    for g, stream in enumerate(streams):
        readers = first_readers(g, stream)
        for n, i in enumerate(stream):
            action = Transition()
            own = actions[g]
            if isinstance(i, Send | Recv):
                channel = (g, i.peer) if isinstance(i, Send) else (i.peer, g)
                ends_posted = sends[channel] if isinstance(i, Send) else receives[channel]
                number = len(ends_posted)
                own.append(action)
                ends_posted.append((g, len(own)))
                queues[queue_of(machine, g, i)].append((channel, number))
                if isinstance(i, Send) and window is not None:
                    if queued and window == 0:  # a SEND posts its transfer and then waits for it
                        action = Transition()
                        own.append(action)
                    if number - window >= 0:
                        waits.append((action, "transfer" if queued else "receive", channel, number - window))
            elif isinstance(i, AllReduce):
                own.append(action)
                launched[i].append((g, len(own)))
                queues[queue_of(machine, g, i)].append((i, 0))
            elif n in readers:
                own.append(action)
                waits += [(action, "transfer" if queued else "send", channel, number) for channel, number in readers[n]]

    # The operations, by their entries in the queues. On a machine without queues for transfers, instructions wait only
    # for ends of transfers, so the completion of a transfer is no transition.
    operations: dict[tuple[object, ...], Transition] = {}
    if queued:
        operations = {(c, n): Transition([sends[c][n], receives[c][n]]) for c in sends for n in range(len(sends[c]))}
    operations |= {(i, 0): Transition(positions) for i, positions in launched.items()}
    bit = {operation: 1 << n for n, operation in enumerate(operations)}
    for queue in queues.values():
        for before, after in pairwise(queue):
            if before in operations and after in operations:
                operations[after].operations |= bit[before]
    for action, awaited, channel, number in waits:
        match awaited:
            case "send":
                action.positions.append(sends[channel][number])
            case "receive":
                action.positions.append(receives[channel][number])
            case _:
                action.operations |= bit[channel, number]
    return actions, list(operations.values())


def queue_of(machine: str, g: int, i: Send | Recv | AllReduce) -> tuple[object, ...]:
    """Return the queue of a transfer or a collective on rank g."""
    if machine == "serial":
        return (g,)
    return (g, "collectives") if isinstance(i, AllReduce) else (g, i.peer)


def first_readers(g: int, stream: tuple[Instruction, ...]) -> dict[int, list[tuple[tuple[int, int], int]]]:
    """Return, by position in the stream, the messages (channel, number) whose first reader is there."""
    counts: dict[int, int] = defaultdict(int)
    readers: dict[int, list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for n, i in enumerate(stream):
        if isinstance(i, Recv):
            first = next(k for k in range(n, len(stream)) if set(values_read(stream[k])) & set(values_of(i)))
            readers[first].append(((i.peer, g), counts[i.peer]))
            counts[i.peer] += 1
    return readers


def values_of(i: Recv) -> Iterator[tuple[str, int, int, int]]:
    """Return the values that a RECV receives: (act or grad, pipe, stage, micro-batch)."""
    return ((i.value, i.pipe, i.stage, m) for m in i.micro_batches)


def values_read(i: Instruction) -> Iterator[tuple[str, int, int, int]]:
    """Yield the values that a task may have to wait for.

    A backward or a RECOMPUTE may also read an act. The forward has waited for it before.
    """
    if isinstance(i, Fwd | Bwd | BwdInput):
        value = "act" if isinstance(i, Fwd) else "grad"
        yield from ((value, i.pipe, i.stage, m) for m in i.micro_batches)
