"""More mutations of a correct program: added instructions, other values, recomputation, exchanged streams, other groups."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

from chimerac.chimera_ir.instructions import (
    AllReduce,
    Bwd,
    BwdInput,
    BwdWeight,
    Free,
    Fwd,
    Instruction,
    Recompute,
    Recv,
    Send,
    Task,
    stage_group,
)
from tests.proof.draft import Draft, Mutation, Place


def operands(d: Draft, at: Place, rng: random.Random) -> tuple[int, int, tuple[int, ...]]:
    """Return pipe, stage and micro-batches for a new instruction: usually those of the one at this place.

    An ALLREDUCE has only a stage. The pipe is then drawn, and the micro-batch is its first one, or 0 if it has none.
    """
    i = d.at(at)
    if isinstance(i, AllReduce):
        p = rng.randrange(len(d.header.pipes))
        return p, i.stage, d.header.pipes[p].micro_batches[:1] or (0,)
    stage = i.stage if rng.random() < 0.7 else rng.randrange(d.header.stages)
    return i.pipe, stage, i.micro_batches


def add_transfer(d: Draft, at: Place, rng: random.Random) -> bool:
    """Insert both ends of one more transfer."""
    if d.world == 1:
        return False
    source, target = rng.sample(range(d.world), 2)
    value = "act" if rng.random() < 0.6 else "grad"
    fields = operands(d, at, rng)
    d.insert(rng, source, Send(value, *fields, target))  # type: ignore[arg-type]
    d.insert(rng, target, Recv(value, *fields, source))  # type: ignore[arg-type]
    return True


def add_instruction(d: Draft, at: Place, rng: random.Random) -> bool:
    """Insert one more instruction of any kind on the same rank."""
    pipe, stage, micro_batches = operands(d, at, rng)
    value, peer = rng.choice(["act", "grad"]), rng.randrange(d.world)
    holders = d.header.holders([stage]) if stage < d.header.stages else (at[0],)
    new: list[Instruction] = [
        *(task(pipe, stage, micro_batches) for task in (Fwd, Bwd, BwdInput, BwdWeight, Recompute)),
        Send(value, pipe, stage, micro_batches, peer),  # type: ignore[arg-type]
        Recv(value, pipe, stage, micro_batches, peer),  # type: ignore[arg-type]
        Free(value, pipe, stage, micro_batches),  # type: ignore[arg-type]
        AllReduce(stage_group(stage), stage, holders),
    ]
    d.insert(rng, at[0], rng.choice(new))
    return True


def change_value(d: Draft, at: Place, _: random.Random) -> bool:
    """Replace an act by a grad, or a grad by an act."""
    i = d.at(at)
    return isinstance(i, Send | Recv | Free) and d.put(at, replace(i, value="grad" if i.value == "act" else "act"))


def toggle_recompute(d: Draft, at: Place, _: random.Random) -> bool:
    """Let a forward be run again for its backward, or no longer."""
    i = d.at(at)
    return i.op == "FWD" and d.put(at, replace(i, recompute=not i.recompute))


def permute_streams(d: Draft, at: Place, rng: random.Random) -> bool:
    """Exchange the streams of two ranks or of all, in each replica.

    The ranks that instructions name may be renumbered too, and with them the placements.
    """
    h = d.header
    if h.ranks == 1:
        return False
    source = list(range(h.ranks))  # local rank -> the rank whose stream it gets
    if rng.random() < 0.5:
        rng.shuffle(source)
    else:
        a, b = rng.sample(source, 2)
        source[a], source[b] = b, a
    new = {old: k for k, old in enumerate(source)}
    renumbered = rng.choice(["nothing", "peers", "placements"])
    streams = [d.streams[g - g % h.ranks + source[g % h.ranks]] for g in range(d.world)]
    if renumbered != "nothing":
        streams = [[renamed(i, h.ranks, new) for i in stream] for stream in streams]
    if renumbered == "placements":
        d.header = replace(h, pipes=tuple(replace(p, placement=tuple(new[r] for r in p.placement)) for p in h.pipes))
    d.streams[:] = streams
    return True


def renamed(i: Instruction, ranks: int, new: dict[int, int]) -> Instruction:
    """Return an instruction with other numbers for the ranks that it names.

    Args:
        new: the new local rank, by the old one.
    """

    def of(g: int) -> int:
        return g - g % ranks + new[g % ranks]

    match i:
        case Send() | Recv():
            return replace(i, peer=of(i.peer))
        case AllReduce():
            return replace(i, ranks=tuple(sorted(map(of, i.ranks))))
        case _:
            return i


def other_end(d: Draft, at: Place) -> Place | None:
    """Return the place of a transfer's other end; None if it does not exist, or if this is no transfer."""
    i = d.at(at)
    if not isinstance(i, Send | Recv) or i.peer >= d.world:
        return None
    end = (Recv if isinstance(i, Send) else Send)(i.value, i.pipe, i.stage, i.micro_batches, at[0])
    return (i.peer, d.streams[i.peer].index(end)) if end in d.streams[i.peer] else None


def with_other_end(d: Draft, at: Place, rng: random.Random) -> Iterator[Place]:
    """Yield a place and usually, for a transfer, the place of its other end."""
    yield at
    end = other_end(d, at)
    if end is not None and rng.random() < 0.7:
        yield end


def split_group(d: Draft, at: Place, rng: random.Random) -> bool:
    """Split an instruction with several micro-batches into two instructions; for a transfer usually at both ends."""
    i = d.at(at)
    if isinstance(i, AllReduce) or len(i.micro_batches) < 2:
        return False
    size = rng.randrange(1, len(i.micro_batches))
    for g, k in [*with_other_end(d, at, rng)]:
        whole = d.streams[g][k]
        assert not isinstance(whole, AllReduce)
        group = whole.micro_batches
        d.streams[g][k : k + 1] = [replace(whole, micro_batches=group[:size]), replace(whole, micro_batches=group[size:])]
    return True


def merge_groups(d: Draft, at: Place, rng: random.Random) -> bool:
    """Merge two instructions that differ only in their micro-batches; for transfers usually at both ends."""
    i = d.at(at)
    if isinstance(i, AllReduce):
        return False
    candidates = [
        n
        for n, x in enumerate(d.streams[at[0]])
        if n != at[1] and not isinstance(x, AllReduce) and replace(x, micro_batches=i.micro_batches) == i
    ]
    if not candidates:
        return False
    nearest = min(candidates, key=lambda n: abs(n - at[1]))
    other = (at[0], nearest if rng.random() < 0.7 else rng.choice(candidates))
    pairs = [(at, other)]
    ends = other_end(d, at), other_end(d, other)
    if ends[0] is not None and ends[1] is not None and ends[0] != ends[1] and rng.random() < 0.7:
        pairs.append(ends)  # type: ignore[arg-type]
    keep_first = rng.random() < 0.5
    for first, second in pairs:
        a, b = d.at(first), d.at(second)
        assert isinstance(a, Task | Send | Recv | Free) and isinstance(b, Task | Send | Recv | Free)
        merged = replace(a, micro_batches=a.micro_batches + b.micro_batches)
        d.put(first if keep_first else second, merged)  # type: ignore[arg-type]
        removed = second if keep_first else first
        del d.streams[removed[0]][removed[1]]
    return True


# By class: its name, and the reason if all of its mutants are wrong or all are correct, else ''.
STREAMS: dict[Mutation, tuple[str, str]] = {
    add_instruction: ("add an instruction", ""),
    add_transfer: ("add a transfer", "every value that another rank reads already has its one transfer"),
    change_value: ("replace act by grad, or grad by act", ""),
    toggle_recompute: ("begin or stop recomputing a forward", ""),
    permute_streams: ("exchange the streams of ranks", ""),
    split_group: ("split a group", ""),
    merge_groups: ("merge two groups", ""),
}
