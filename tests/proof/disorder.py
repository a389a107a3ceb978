"""Programs in which every rank has an order of its own, so that many of them hang: what the check of progress is for."""

from __future__ import annotations

import random
from dataclasses import replace

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdWeight, Fwd, Instruction, Recv, Send, Task, stage_group
from chimerac.chimera_ir.program import Header, Program
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler.lower.width import widen
from tests.helpers import Streams
from tests.proof.drawn import one_order, reads_first

Transfer = tuple[int, int]  # the rank that sends, number of it on the channel
TRIES = 40  # to draw orders in which each two ranks get along
Group = tuple[tuple[int, ...], str]  # stages whose gradients are summed together, name


def disorderly(r: random.Random, tasks: Program, width: int = 2) -> Program:
    """Return a program of these tasks in which every rank has an order of its own, and each channel one at both ends.

    Its values flow as they should. Whether it ends is another question. In half of them each two ranks can and do post
    what is between them in one order, so that no queue of two ranks is what the program hangs on.
    """
    h = tasks.header
    groups = [((s,), stage_group(s)) for s in range(h.stages)] + [(t.stages, t.name) for t in h.tied]
    if r.random() < 0.4:
        r.shuffle(groups)
    pairs = [(a, b) for a in range(h.ranks) for b in range(a + 1, h.ranks)]
    agreed: dict[tuple[int, int], list[Transfer] | None] = {}
    for _ in range(r.choice([1, TRIES])):
        lines = [line_of(r, h, g, tasks, groups if r.random() < 0.9 else groups[::-1]) for g in range(h.ranks)]
        agreed = {(a, b): order_between(r, lines, a, b) for a, b in pairs}
        if None not in agreed.values():
            break
    drawn = program_of(h, [received(r, g, lines, agreed) for g in range(h.ranks)], tasks.costs)
    return widen(drawn, r.choice([1, 1, 1, width])).with_header(window=r.choice([h.window, 0, 1]))


def line_of(r: random.Random, h: Header, g: int, tasks: Program, groups: list[Group]) -> list[Instruction]:
    """Return a rank's tasks in an order that suits itself, with its SENDs, and the ALLREDUCEs in the order of the groups."""
    own = [replace(i, overlap=False) for i in tasks.stream(g) if isinstance(i, Task)]
    line: list[Instruction] = [*one_order(r, own, h.stages)]
    for n in reversed(range(len(line))):
        if (i := sent(h, g, line[n])) is not None:  # type: ignore[arg-type]
            line.insert(min(len(line), n + 1 + r.choice([0, 0, 0, 1, 2, 4])), i)
    place = 0
    for stages, name in groups:
        holders = h.holders(stages)
        if g in holders:
            last = max(n for n, i in enumerate(line) if isinstance(i, Bwd | BwdWeight) and i.stage in stages)
            place = r.randint(max(last + 1, place), len(line))
            line.insert(place, AllReduce(name, min(stages), holders))
            place += 1
    return line


def sent(h: Header, g: int, i: Task) -> Send | None:
    """Return the SEND of what a task makes, if another rank reads it."""
    forward = isinstance(i, Fwd)
    stage = i.stage + 1 if forward else i.stage - 1
    if isinstance(i, BwdWeight) or not 0 <= stage < h.stages or h.pipes[i.pipe].placement[stage] == g:
        return None
    return Send("act" if forward else "grad", i.pipe, stage, i.micro_batches, h.pipes[i.pipe].placement[stage])


def sends(lines: Streams, a: int, b: int) -> list[int]:
    """Return where in its line rank a sends to rank b."""
    return [n for n, i in enumerate(lines[a]) if isinstance(i, Send) and i.peer == b]


def readers(lines: Streams, a: int, b: int) -> list[int]:
    """Return where in its line rank b first reads each value that rank a sends to it."""
    found = []
    for n in sends(lines, a, b):
        i = lines[a][n]
        assert isinstance(i, Send)
        found.append(next(n for n, x in enumerate(lines[b]) if reads_first(x, i)))
    return found


def order_between(r: random.Random, lines: Streams, a: int, b: int) -> list[Transfer] | None:
    """Return one order in which two ranks can post all transfers between them; None where there is no such order."""
    before: dict[Transfer, set[Transfer]] = {}
    for here, there in ((a, b), (b, a)):
        for k, place in enumerate(sends(lines, here, there)):
            read = readers(lines, there, here)
            before[here, k] = {(there, n) for n in range(len(read)) if read[n] < place} | ({(here, k - 1)} if k else set())
    order: list[Transfer] = []
    while len(order) < len(before):
        free = [x for x in before if x not in order and before[x] <= {*order}]
        if not free:
            return None
        order.append(r.choice(free))
    return order


def received(
    r: random.Random, g: int, lines: Streams, agreed: dict[tuple[int, int], list[Transfer] | None]
) -> list[Instruction]:
    """Return a rank's line with its RECVs, in the order of the SENDs of each channel and before their readers."""
    places: list[tuple[int, int, float, Recv]] = []
    late = r.random() < 0.5
    for peer in range(len(lines)):
        own, first = sends(lines, g, peer), readers(lines, peer, g)
        order = agreed.get((min(g, peer), max(g, peer)))
        place = 0
        for number, n in enumerate(sends(lines, peer, g)):
            i = lines[peer][n]
            assert isinstance(i, Send)
            latest = min(first[number:])
            if order:
                earlier = sum(sender == g for sender, _ in order[: order.index((peer, number))])  # own SENDs to that rank
                place = max([place, *(n + 1 for n in own[:earlier])])
                latest = min([latest, *own[earlier:]])
            place = max(place, latest if late else r.randint(0, latest))
            places.append((place, number, r.random(), Recv(i.value, i.pipe, i.stage, i.micro_batches, peer)))
    line = list(lines[g])
    for place, _, _, i in sorted(places, key=lambda x: x[:3], reverse=True):
        line.insert(place, i)
    return line
