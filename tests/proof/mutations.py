"""What can go wrong with one instruction of a right program: the classes of mutants, and mutants of each."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from chimera_ir.diagnostics import ChimeraError
from chimera_ir.instructions import AllReduce, Free, Instruction, Recv, Send, Task, stage_group
from chimera_ir.program import Program
from compiler.verify import verify
from tests.helpers import Streams, moved, streams, with_streams

Place = tuple[int, int]  # rank, number of the instruction
Mutation = Callable[[Program, Streams, Place, random.Random], bool]  # changes the streams, or returns False


def drop(_: Program, s: Streams, at: Place, __: random.Random) -> bool:
    del s[at[0]][at[1]]
    return True


def duplicate(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    stream = s[at[0]]
    stream.insert(rng.choice([at[1], rng.randrange(len(stream) + 1)]), stream[at[1]])
    return True


def swap_neighbours(_: Program, s: Streams, at: Place, __: random.Random) -> bool:
    return swap(s[at[0]], at[1], at[1] + 1)


def swap_far(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    return swap(s[at[0]], at[1], rng.randrange(len(s[at[0]])))


def redirect_peer(p: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    if not isinstance(i, Send | Recv):
        return False
    first = at[0] - at[0] % p.header.ranks
    likely = [g for g in range(first, first + p.header.ranks) if g != at[0]]
    return put(s, at, replace(i, peer=other(rng, p.world + 1, i.peer, likely)))


def change_stage(p: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    likely = [x.stage for x in s[at[0]] if isinstance(x, Recv if isinstance(i, Free) else type(i))]
    stage = other(rng, p.header.stages + 1, i.stage, likely)
    return put(s, at, replace(i, stage=stage, **({"group": stage_group(stage)} if isinstance(i, AllReduce) else {})))


def change_micro_batch(p: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    if isinstance(i, AllReduce):
        return False
    n = rng.randrange(len(i.micro_batches))
    changed = other(rng, p.header.micro_batches + 1, i.micro_batches[n], p.header.pipes[i.pipe].micro_batches)
    return put(s, at, replace(i, micro_batches=(*i.micro_batches[:n], changed, *i.micro_batches[n + 1 :])))


def change_pipe(p: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    return not isinstance(i, AllReduce) and put(s, at, replace(i, pipe=other(rng, len(p.header.pipes) + 1, i.pipe)))


def sum_earlier(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    if not isinstance(s[at[0]][at[1]], AllReduce) or at[1] == 0:
        return False
    s[at[0]][:] = moved(s[at[0]], at[1], rng.randrange(at[1]))
    return True


def sum_without_one(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    """Drop one ALLREDUCE, or one rank from its members."""
    i = s[at[0]][at[1]]
    if not isinstance(i, AllReduce):
        return False
    if rng.random() < 0.5:
        del s[at[0]][at[1]]
        return True
    gone = rng.choice(i.ranks)
    return put(s, at, replace(i, ranks=tuple(r for r in i.ranks if r != gone)))


def swap_sums(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    return swap_alike(s, at, rng, lambda i: isinstance(i, AllReduce))


def swap_receives(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    i = s[at[0]][at[1]]
    return isinstance(i, Recv) and swap_alike(s, at, rng, lambda x: isinstance(x, Recv) and x.peer == i.peer)


def delay_send(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    """Move a SEND past the next task, at least."""
    stream = s[at[0]]
    task = next((n for n in range(at[1], len(stream)) if isinstance(stream[n], Task)), len(stream))
    if not isinstance(stream[at[1]], Send) or task == len(stream):
        return False
    stream[:] = moved(stream, at[1], rng.choice([task, rng.randrange(task, len(stream))]))
    return True


def pair_with_next(_: Program, s: Streams, at: Place, __: random.Random) -> bool:
    i = s[at[0]][at[1]]
    return isinstance(i, Task) and put(s, at, replace(i, overlap=not i.overlap))


def give_back(_: Program, s: Streams, at: Place, rng: random.Random) -> bool:
    """Insert a FREE of something that this rank receives."""
    i = s[at[0]][at[1]]
    if not isinstance(i, Recv):
        return False
    s[at[0]].insert(rng.randrange(len(s[at[0]]) + 1), Free(i.value, i.pipe, i.stage, i.micro_batches))
    return True


def put(s: Streams, at: Place, i: Instruction) -> bool:
    s[at[0]][at[1]] = i
    return True


def swap(stream: list[Instruction], a: int, b: int) -> bool:
    if b >= len(stream) or stream[a] == stream[b]:
        return False
    stream[a], stream[b] = stream[b], stream[a]
    return True


def swap_alike(s: Streams, at: Place, rng: random.Random, alike: Callable[[Instruction], bool]) -> bool:
    stream = s[at[0]]
    others = [n for n, i in enumerate(stream) if alike(i) and n != at[1]]
    return alike(stream[at[1]]) and bool(others) and swap(stream, at[1], rng.choice(others))


def other(rng: random.Random, bound: int, than: int, likely: Sequence[int] = ()) -> int:
    """Return another number: mostly one that could be meant, or any below `bound`, the last of which is one too many."""
    meant = [x for x in likely if x != than]
    return rng.choice(meant if meant and rng.random() < 0.8 else [x for x in range(bound) if x != than])


# Every class, in words, and why none of its mutants can be right, where that is so.
MUTATIONS: dict[Mutation, tuple[str, str]] = {
    drop: ("drop an instruction", ""),
    duplicate: ("duplicate an instruction", "every instruction is there once"),
    swap_neighbours: ("swap neighbours", ""),
    swap_far: ("swap two instructions of a rank", ""),
    redirect_peer: ("redirect a peer", "a value has one maker, and its reader one rank"),
    change_stage: ("change a stage", ""),
    change_micro_batch: ("change a micro-batch", ""),
    change_pipe: ("change a pipe", "a micro-batch is of one pipe"),
    sum_earlier: ("move an ALLREDUCE early", ""),
    sum_without_one: ("drop one member of a sum", "every holder has a part of the gradient"),
    swap_sums: ("swap two collectives on one member", ""),
    swap_receives: ("swap two RECVs of one channel", "a channel is first in, first out"),
    delay_send: ("delay a SEND past a task", ""),
    pair_with_next: ("begin or end an overlapped pair", ""),
    give_back: ("give a buffer back somewhere", ""),
}


def mutants(p: Program, mutation: Mutation, count: int, seed: str) -> Iterator[Program]:
    """Yield up to `count` different mutants, at places drawn at random."""
    rng = random.Random(seed)
    places = [(g, k) for g in range(p.world) for k in range(int(p.offsets[g + 1] - p.offsets[g]))]
    rng.shuffle(places)
    seen = {p.digest}
    for at in places:
        if len(seen) > count:
            return
        changed = streams(p)
        if mutation(p, changed, at, rng):
            mutant = with_streams(p, changed)
            if mutant.digest not in seen:
                seen.add(mutant.digest)
                yield mutant


def codes(p: Program) -> set[str]:
    """Return the codes of the verifier's findings, none if it accepts. Any other exception is a failure."""
    try:
        verify(p)
    except ChimeraError as error:
        assert all(d.code.startswith("E4") and d.message for d in error.diagnostics)
        return {d.code for d in error.diagnostics}
    return set()
