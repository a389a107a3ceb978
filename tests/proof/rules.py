"""What docs/semantics.md demands of a program and no run shows: a header that makes sense, instructions that name what
exists and stand where they belong, limits. An opinion of its own, sharing nothing with the verifier."""

from __future__ import annotations

from collections.abc import Iterator

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, BwdWeight, Free, Fwd, Instruction, Recv, Send
from chimerac.chimera_ir.program import Header, Program

KNOWN = ("activations", "receive_buffers", "weight_copies")


def broken(program: Program) -> str:
    """Return which rule a program breaks, or nothing."""
    streams = [program.stream(g) for g in range(program.world)]
    for rules in (of_header(program.header, len(streams)), of_costs(program), of_instructions(program.header, streams)):
        for rule in rules:
            return rule
    return next(of_limits(program.header, streams), "")


def of_header(h: Header, world: int) -> Iterator[str]:
    if world != h.width * h.ranks:
        yield "not one stream for each rank of each replica"
    if sorted(m for p in h.pipes for m in p.micro_batches) != list(range(h.micro_batches)):
        yield "not every micro-batch in one pipe"
    if any(len(p.placement) != h.stages or not {*p.placement} <= {*range(h.ranks)} for p in h.pipes):
        yield "a placement is not of S local ranks"
    for names in ([p.name for p in h.pipes], [t.name for t in h.tied]):
        if len({*names}) < len(names):
            yield "two have one name"
    if not {s for t in h.tied for s in t.stages} <= {*range(h.stages)}:
        yield "tied parameters of a stage that there is not"
    if not {*h.limits} <= {*KNOWN}:
        yield "an unknown limit"


def of_costs(program: Program) -> Iterator[str]:
    c = program.costs
    if any(len(costs) != program.header.stages for costs in (c.FWD, c.BWD, c.BWD_INPUT, c.BWD_WEIGHT)):
        yield "not a cost for each stage"


def of_instructions(h: Header, streams: list[tuple[Instruction, ...]]) -> Iterator[str]:
    groups = {f"stage {s}": s for s in range(h.stages)} | {t.name: min(t.stages) for t in h.tied}
    for g, stream in enumerate(streams):
        first = g // h.ranks * h.ranks  # rank of this replica
        for i in stream:
            if h.kind == "evaluation" and not (isinstance(i, Fwd) or getattr(i, "value", "") == "act"):
                yield f"{i} in an evaluation"
            if isinstance(i, AllReduce):
                if groups.get(i.group) != i.stage:
                    yield f"{i}: no such group"
                continue
            if i.stage >= h.stages or i.pipe >= len(h.pipes):
                yield f"{i}: no such stage or pipe"
                continue
            pipe = h.pipes[i.pipe]
            if len({*i.micro_batches}) < len(i.micro_batches) or not {*i.micro_batches} <= {*pipe.micro_batches}:
                yield f"{i}: not micro-batches of its pipe, each once"
            if not isinstance(i, Send | Recv | Free):
                if first + pipe.placement[i.stage] != g:
                    yield f"{i} on rank {g}, where its stage does not live"
                continue
            maker = i.stage - 1 if i.value == "act" else i.stage + 1
            if not 0 <= maker < h.stages:
                yield f"{i}: nobody makes it"
                continue
            source, target = (first + pipe.placement[s] for s in (maker, i.stage))
            ends = {"SEND": (g, getattr(i, "peer", g)), "RECV": (getattr(i, "peer", g), g)}.get(i.op, (source, g))
            if source == target or ends != (source, target):
                yield f"{i} on rank {g}: it goes from rank {source} to rank {target}"


def of_limits(h: Header, streams: list[tuple[Instruction, ...]]) -> Iterator[str]:
    for g, stream in enumerate(streams):
        stages = {s for p in h.pipes for s, r in enumerate(p.placement) if r == g % h.ranks}
        counts = {"weight_copies": len(stages), **dict(zip(KNOWN, most(h, stream), strict=False))}
        for name, limit in h.limits.items():
            if counts[name] > limit:
                yield f"rank {g} holds {counts[name]} {name}"


def most(h: Header, stream: tuple[Instruction, ...]) -> tuple[int, int]:
    """Return how many activations and how many received values a stream holds at its worst moment."""
    alive: set[object] = set()
    held: set[object] = set()
    given_back = {key for i in stream if isinstance(i, Free) for key in keys(i.value, i)}
    activations = buffers = 0
    for i in stream:
        ended: set[object] = set()
        match i:
            case Recv():
                held |= keys(i.value, i)
            case Fwd():
                alive |= keys("act", i)
                ended = keys("act", i) if h.kind == "evaluation" else set()
            case Bwd():
                ended = keys("act", i) | keys("grad", i)
            case BwdInput():
                ended = keys("grad", i)
            case BwdWeight():
                ended = keys("act", i)
            case _:
                pass
        activations, buffers = max(activations, len(alive)), max(buffers, len(held))
        alive -= ended
        held -= ended - given_back
        if isinstance(i, Free):
            held -= keys(i.value, i)
    return activations, buffers


def keys(value: str, i: Fwd | Bwd | BwdInput | BwdWeight | Recv | Free) -> set[object]:
    return {(value, i.pipe, i.stage, m) for m in i.micro_batches}
