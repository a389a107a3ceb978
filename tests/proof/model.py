"""A model checker for programs, written from docs/semantics.md alone: no code of the verifier, none of loopback's.

A state is how far every rank is, and which transfers and collectives are complete. Completing is a move of its own:
nobody promises that a transfer completes as soon as it can. All states that can be reached are visited.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, Fwd, Instruction, Recv, Send
from chimerac.chimera_ir.program import Program


@dataclass(frozen=True, slots=True)
class Found:
    """What all interleavings come to. finals: how the maximal runs end: at the end of every stream, and right, or not."""

    states: int
    finals: tuple[bool, ...]


@dataclass(slots=True)
class Act:
    """What a rank does at once, when others have got to `places` and everything of `deeds` is complete."""

    places: list[tuple[int, int]] = field(default_factory=list)  # (rank, how many acts it must have done)
    deeds: int = 0  # one bit each


def explore(program: Program, machine: str, limit: int = 10**6) -> Found:
    """Visit every state of a program whose channels have as many SENDs as RECVs; give up after `limit` of them."""
    ranks, deeds = acts_of(program, machine)
    ends, every = [len(acts) for acts in ranks], (1 << len(deeds)) - 1
    start = ((0,) * len(ranks), 0)
    seen, todo, finals = {start}, [start], []
    while todo and len(seen) <= limit:
        at, complete = state = todo.pop()
        moves = []
        for g, acts in enumerate(ranks):
            if at[g] < ends[g] and is_due(acts[at[g]], at, complete):
                moves.append(((*at[:g], at[g] + 1, *at[g + 1 :]), complete))
        moves += [
            (at, complete | 1 << d) for d, deed in enumerate(deeds) if not complete >> d & 1 and is_due(deed, at, complete)
        ]
        for move in moves:
            if move not in seen:
                seen.add(move)
                todo.append(move)
        if not moves:
            finals.append(state == (tuple(ends), every))
    return Found(len(seen), tuple(finals))


def ends_on(program: Program, machine: str) -> bool:
    """Return whether one run of such a program, in which everything is done as soon as it can, comes to its end."""
    ranks, deeds = acts_of(program, machine)
    at, complete, todo = [0] * len(ranks), 0, [*enumerate(deeds)]
    moved = True
    while moved:
        moved = False
        for g, acts in enumerate(ranks):
            while at[g] < len(acts) and is_due(acts[at[g]], at, complete):
                at[g], moved = at[g] + 1, True
        left = []
        for d, deed in todo:
            if is_due(deed, at, complete):
                complete, moved = complete | 1 << d, True
            else:
                left.append((d, deed))
        todo = left
    return not todo and all(n == len(acts) for n, acts in zip(at, ranks, strict=True))


def is_due(act: Act, at: Sequence[int], complete: int) -> bool:
    return act.deeds & ~complete == 0 and all(at[g] >= n for g, n in act.places)


def acts_of(program: Program, machine: str) -> tuple[list[list[Act]], list[Act]]:
    """Return what every rank does, and what completes by itself.

    Tasks that wait for nothing are left out: nobody waits for them, so nobody can tell when they run.
    """
    h = program.header
    window = {"posted": None, "rendezvous": 0}.get(machine, h.window)
    queued = machine in ("paired", "serial")
    streams = [program.stream(g) for g in range(program.world)]
    acts: list[list[Act]] = [[] for _ in streams]
    sends: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)  # channel -> (rank, acts until it is posted)
    receives: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    waits: list[tuple[Act, str, tuple[int, int], int]] = []  # an act, and what it waits for: to be filled in below
    queues: dict[tuple[object, ...], list[tuple[object, ...]]] = defaultdict(list)  # what stands in it, in order
    launched: dict[AllReduce, list[tuple[int, int]]] = defaultdict(list)

    for g, stream in enumerate(streams):
        readers = first_readers(g, stream)
        for n, i in enumerate(stream):
            act = Act()
            mine = acts[g]
            if isinstance(i, Send | Recv):
                channel = (g, i.peer) if isinstance(i, Send) else (i.peer, g)
                line = sends[channel] if isinstance(i, Send) else receives[channel]
                number = len(line)
                mine.append(act)
                line.append((g, len(mine)))
                queues[queue_of(machine, g, i)].append((channel, number))
                if isinstance(i, Send) and window is not None:
                    if queued and window == 0:  # it posts first and then waits for its own
                        act = Act()
                        mine.append(act)
                    if number - window >= 0:
                        waits.append((act, "transfer" if queued else "receive", channel, number - window))
            elif isinstance(i, AllReduce):
                mine.append(act)
                launched[i].append((g, len(mine)))
                queues[queue_of(machine, g, i)].append((i, 0))
            elif n in readers:
                mine.append(act)
                waits += [(act, "transfer" if queued else "send", channel, number) for channel, number in readers[n]]

    # On the first three machines a transfer is no more than its two ends.
    transfers = {(c, n): Act([sends[c][n], receives[c][n]]) for c in sends for n in range(len(sends[c]))} if queued else {}
    deeds: dict[tuple[object, ...], Act] = {**transfers, **{(i, 0): Act(places) for i, places in launched.items()}}
    bit = {deed: 1 << n for n, deed in enumerate(deeds)}
    for line_up in queues.values():
        for before, after in pairwise(line_up):
            if before in deeds and after in deeds:
                deeds[after].deeds |= bit[before]
    for act, what, channel, number in waits:
        match what:
            case "send":
                act.places.append(sends[channel][number])
            case "receive":
                act.places.append(receives[channel][number])
            case _:
                act.deeds |= bit[channel, number]
    return acts, list(deeds.values())


def queue_of(machine: str, g: int, i: Send | Recv | AllReduce) -> tuple[object, ...]:
    """Return the queue in which a transfer or a collective stands on this rank: its own where they do not meet."""
    if machine == "serial":
        return (g,)
    return (g, "collectives") if isinstance(i, AllReduce) else (g, i.peer)


def first_readers(g: int, stream: tuple[Instruction, ...]) -> dict[int, list[tuple[tuple[int, int], int]]]:
    """Return, by place in the stream, the messages (channel, number) that an instruction is the first to read."""
    counts: dict[int, int] = defaultdict(int)
    found: dict[int, list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for n, i in enumerate(stream):
        if isinstance(i, Recv):
            first = next(k for k in range(n, len(stream)) if set(values_read(stream[k])) & set(values_of(i)))
            found[first].append(((i.peer, g), counts[i.peer]))
            counts[i.peer] += 1
    return found


def values_of(i: Recv) -> Iterator[tuple[str, int, int, int]]:
    return ((i.value, i.pipe, i.stage, m) for m in i.micro_batches)


def values_read(i: Instruction) -> Iterator[tuple[str, int, int, int]]:
    """Yield what a task takes of what may have been received. A backward needs the act again, which is there by then."""
    if isinstance(i, Fwd | Bwd | BwdInput):
        value = "act" if isinstance(i, Fwd) else "grad"
        yield from ((value, i.pipe, i.stage, m) for m in i.micro_batches)
