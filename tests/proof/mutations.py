"""Mutations of a correct program, one function for each class of mutants: `MUTATIONS` has all of them.

Those of this file drop, repeat, change or move an instruction, swap two of a rank, or insert a FREE, and one makes two changes
of any classes. mutations_streams.py and mutations_header.py have the others. The name of a function is part of the seed of its
mutants: under another name it makes other mutants (kills.py).
"""

from __future__ import annotations

import random
from dataclasses import replace

from chimerac.chimera_ir.instructions import AllReduce, Free, Recompute, Recv, Send, Task, stage_group
from tests.helpers import with_move
from tests.proof.draft import Draft, Mutation, Place, codes, different_number, mutants, swap, swap_with_same_kind
from tests.proof.mutations_header import HEADER
from tests.proof.mutations_streams import STREAMS

__all__ = ["INSTRUCTIONS", "MUTATIONS", "Mutation", "codes", "mutants"]


def drop(d: Draft, at: Place, __: random.Random) -> bool:
    del d.streams[at[0]][at[1]]
    return True


def duplicate(d: Draft, at: Place, rng: random.Random) -> bool:
    stream = d.streams[at[0]]
    stream.insert(rng.choice([at[1], rng.randrange(len(stream) + 1)]), stream[at[1]])
    return True


def swap_neighbours(d: Draft, at: Place, __: random.Random) -> bool:
    return swap(d.streams[at[0]], at[1], at[1] + 1)


def swap_far(d: Draft, at: Place, rng: random.Random) -> bool:
    return swap(d.streams[at[0]], at[1], rng.randrange(len(d.streams[at[0]])))


def redirect_peer(d: Draft, at: Place, rng: random.Random) -> bool:
    i = d.at(at)
    if not isinstance(i, Send | Recv):
        return False
    first = at[0] - at[0] % d.header.ranks
    likely = [g for g in range(first, first + d.header.ranks) if g != at[0]]
    return d.put(at, replace(i, peer=different_number(rng, d.world + 1, i.peer, likely)))


def change_stage(d: Draft, at: Place, rng: random.Random) -> bool:
    i = d.at(at)
    # The stages of the rank's instructions of the same kind; for a FREE, those of its RECVs.
    likely = [x.stage for x in d.streams[at[0]] if isinstance(x, Recv if isinstance(i, Free) else type(i))]
    stage = different_number(rng, d.header.stages + 1, i.stage, likely)
    return d.put(at, replace(i, stage=stage, **({"group": stage_group(stage)} if isinstance(i, AllReduce) else {})))


def change_micro_batch(d: Draft, at: Place, rng: random.Random) -> bool:
    i = d.at(at)
    if isinstance(i, AllReduce) or i.pipe >= len(d.header.pipes):
        return False
    n = rng.randrange(len(i.micro_batches))
    changed = different_number(rng, d.header.micro_batches + 1, i.micro_batches[n], d.header.pipes[i.pipe].micro_batches)
    return d.put(at, replace(i, micro_batches=(*i.micro_batches[:n], changed, *i.micro_batches[n + 1 :])))


def change_pipe(d: Draft, at: Place, rng: random.Random) -> bool:
    i = d.at(at)
    return not isinstance(i, AllReduce) and d.put(at, replace(i, pipe=different_number(rng, len(d.header.pipes) + 1, i.pipe)))


def sum_earlier(d: Draft, at: Place, rng: random.Random) -> bool:
    """Move an ALLREDUCE to an earlier place of its stream."""
    if not isinstance(d.at(at), AllReduce) or at[1] == 0:
        return False
    d.streams[at[0]][:] = with_move(d.streams[at[0]], at[1], rng.randrange(at[1]))
    return True


def drop_sum_member(d: Draft, at: Place, rng: random.Random) -> bool:
    """Drop an ALLREDUCE of one rank, or drop one of the ranks that this ALLREDUCE names."""
    i = d.at(at)
    if not isinstance(i, AllReduce):
        return False
    if rng.random() < 0.5 or len(i.ranks) == 1:
        del d.streams[at[0]][at[1]]
        return True
    removed = rng.choice(i.ranks)
    return d.put(at, replace(i, ranks=tuple(r for r in i.ranks if r != removed)))


def swap_sums(d: Draft, at: Place, rng: random.Random) -> bool:
    """Swap two ALLREDUCEs of a stream."""
    return swap_with_same_kind(d, at, rng, lambda i: isinstance(i, AllReduce))


def swap_receives(d: Draft, at: Place, rng: random.Random) -> bool:
    i = d.at(at)
    return isinstance(i, Recv) and swap_with_same_kind(d, at, rng, lambda x: isinstance(x, Recv) and x.peer == i.peer)


def delay_send(d: Draft, at: Place, rng: random.Random) -> bool:
    """Move a SEND past the next task, or further."""
    stream = d.streams[at[0]]
    task = next((n for n in range(at[1], len(stream)) if isinstance(stream[n], Task)), len(stream))
    if not isinstance(stream[at[1]], Send) or task == len(stream):
        return False
    stream[:] = with_move(stream, at[1], rng.choice([task, rng.randrange(task, len(stream))]))
    return True


def pair_with_next(d: Draft, at: Place, __: random.Random) -> bool:
    """Begin an overlapped pair at a task, or undo the pair that begins there."""
    i = d.at(at)
    return isinstance(i, Task) and d.put(at, replace(i, overlap=not i.overlap))


def move_recompute(d: Draft, at: Place, rng: random.Random) -> bool:
    """Move a RECOMPUTE to another place of its stream."""
    stream = d.streams[at[0]]
    if not isinstance(stream[at[1]], Recompute):
        return False
    stream[:] = with_move(stream, at[1], rng.randrange(len(stream)))
    return True


def insert_free(d: Draft, at: Place, rng: random.Random) -> bool:
    """Insert a FREE of the values of a RECV of this rank, at a random position."""
    i = d.at(at)
    if not isinstance(i, Recv):
        return False
    d.streams[at[0]].insert(rng.randrange(len(d.streams[at[0]]) + 1), Free(i.value, i.pipe, i.stage, i.micro_batches))
    return True


def two_changes(d: Draft, at: Place, rng: random.Random) -> bool:
    """Make two changes of any classes. A change of a stream reads the header, so it is made before a change of the header."""
    classes = [*INSTRUCTIONS, *STREAMS, *HEADER]
    first, second = sorted(rng.choices(classes, k=2), key=classes.index)
    return first(d, at, rng) and any(d.streams) and second(d, d.place(rng), rng)


# By class: its name, and the reason if all of its mutants are wrong or all are correct, else ''.
INSTRUCTIONS: dict[Mutation, tuple[str, str]] = {
    drop: ("drop an instruction", ""),
    duplicate: ("duplicate an instruction", "every instruction must occur exactly once"),
    swap_neighbours: ("swap neighbours", ""),
    swap_far: ("swap two instructions of a rank", ""),
    redirect_peer: ("redirect a peer", "one rank computes a value, and one rank reads it"),
    change_stage: ("change a stage", ""),
    change_micro_batch: ("change a micro-batch", ""),
    change_pipe: ("change a pipe", "a micro-batch belongs to one pipe"),
    sum_earlier: ("move an ALLREDUCE early", ""),
    drop_sum_member: ("drop one member of a collective", "every holder has a part of the gradient"),
    swap_sums: ("swap two collectives on one member", ""),
    swap_receives: ("swap two RECVs of one channel", "a channel is first in, first out"),
    delay_send: ("delay a SEND past a task", ""),
    pair_with_next: ("begin or end an overlapped pair", ""),
    move_recompute: ("move a RECOMPUTE", ""),
    insert_free: ("insert a FREE", ""),
}
MUTATIONS = INSTRUCTIONS | STREAMS | {two_changes: ("two changes at once", "")} | HEADER
