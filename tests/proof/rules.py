"""Rules of docs/semantics.md that are checked without a run.

They are: the header and the costs are consistent, an evaluation has only instructions that it may have, instructions name
existing things and are on the right rank, and limits hold.
Neither the rank of an ALLREDUCE nor the ranks that it names are checked here.
This file shares no code with the verifier.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, BwdWeight, Free, Fwd, Instruction, Recv, Send
from chimerac.chimera_ir.program import Header, Program

LIMITS = ("activations", "receive_buffers", "weight_copies")  # the names that the limits of a header may have


def first_error(program: Program) -> str:
    """Return which of these rules a program breaks first; an empty string if it breaks none."""
    h, streams = program.header, [program.stream(g) for g in range(program.world)]
    # A generator runs only if those before it yield nothing. So the later rules can rely on the earlier ones.
    errors = chain(
        header_errors(h, len(streams)), cost_errors(program), instruction_errors(h, streams), limit_errors(h, streams)
    )
    return next(errors, "")


def header_errors(h: Header, world: int) -> Iterator[str]:
    """Yield the rules that a header breaks.

    Args:
        world: the number of streams.
    """
    if world != h.width * h.ranks:
        yield "not one stream for each rank of each replica"
    if sorted(m for p in h.pipes for m in p.micro_batches) != list(range(h.micro_batches)):
        yield "not every micro-batch in one pipe"
    if any(len(p.placement) != h.stages or not {*p.placement} <= {*range(h.ranks)} for p in h.pipes):
        yield "a placement is not of S local ranks"
    for names in ([p.name for p in h.pipes], [t.name for t in h.tied]):
        if len({*names}) < len(names):
            yield "two pipes or two tied sets have the same name"
    if not {s for t in h.tied for s in t.stages} <= {*range(h.stages)}:
        yield "a tied set of a stage that does not exist"
    if not {*h.limits} <= {*LIMITS}:
        yield "an unknown limit"


def cost_errors(program: Program) -> Iterator[str]:
    """Yield the rules that the costs of a program break."""
    c = program.costs
    if any(len(costs) != program.header.stages for costs in (c.FWD, c.BWD, c.BWD_INPUT, c.BWD_WEIGHT)):
        yield "not a cost for each stage"
    if len(c.RECOMPUTE) not in (0, program.header.stages):
        yield "not a cost of recomputation for each stage"


def instruction_errors(h: Header, streams: list[tuple[Instruction, ...]]) -> Iterator[str]:
    """Yield the rules that single instructions break. The header must be consistent."""
    # By name of a group: the stage that an ALLREDUCE of the group must name.
    groups = {f"stage {s}": s for s in range(h.stages)} | {t.name: min(t.stages) for t in h.tied}
    for g, stream in enumerate(streams):
        first = g // h.ranks * h.ranks  # the first rank of this replica
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
                    yield f"{i} on rank {g}, which does not hold its stage"
                continue
            producer = i.stage - 1 if i.value == "act" else i.stage + 1
            if not 0 <= producer < h.stages:
                yield f"{i}: no stage computes this value"
                continue
            source, target = (first + pipe.placement[s] for s in (producer, i.stage))
            # (sender, receiver) as the instruction names them; a FREE names none, and is on the rank that received the value
            ends = {"SEND": (g, getattr(i, "peer", g)), "RECV": (getattr(i, "peer", g), g)}.get(i.op, (source, g))
            if source == target or ends != (source, target):
                yield f"{i} on rank {g}: its value goes from rank {source} to rank {target}"


def limit_errors(h: Header, streams: list[tuple[Instruction, ...]]) -> Iterator[str]:
    """Yield the limits of the header that a rank exceeds."""
    for g, stream in enumerate(streams):
        stages = {s for p in h.pipes for s, r in enumerate(p.placement) if r == g % h.ranks}
        activations, buffers = peaks(h, stream)
        counts = {"activations": activations, "receive_buffers": buffers, "weight_copies": len(stages)}
        for name, limit in h.limits.items():
            if counts[name] > limit:
                yield f"rank {g} holds {counts[name]} {name}"


def peaks(h: Header, stream: tuple[Instruction, ...]) -> tuple[int, int]:
    """Return two peaks of a stream: the number of activations, and the number of values in the held receive buffers."""
    alive: set[object] = set()
    held: list[tuple[int, set[object]]] = []  # for each message whose buffer is held: its number of values, those not yet freed
    freed = {key for i in stream if isinstance(i, Free) for key in keys(i.value, i)}  # values for which there is a FREE
    activations = buffers = 0
    for i in stream:
        ended: set[object] = set()  # activations that end here, and received values whose last reader this is
        match i:
            case Recv():
                received = keys(i.value, i)
                held.append((len(received), received))
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
        activations, buffers = max(activations, len(alive)), max(buffers, sum(count for count, _ in held))
        alive -= ended
        freed_here = keys(i.value, i) if isinstance(i, Free) else ended - freed
        held = [(count, remaining - freed_here) for count, remaining in held if remaining - freed_here]
    return activations, buffers


def keys(value: str, i: Fwd | Bwd | BwdInput | BwdWeight | Recv | Free) -> set[object]:
    """Return a key for each micro-batch of an instruction.

    Args:
        value: 'act' or 'grad'.
    """
    return {(value, i.pipe, i.stage, m) for m in i.micro_batches}
