"""hypothesis strategies: schedules of the order forms `greedy` and `listing`, with the expected result of compiling them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from chimerac.chimera_ir.program import Program
from tests.helpers import tasks

Cell = tuple[int, int]  # pipe, stage
Node = tuple[str, Cell, tuple[int, ...]]  # kind, cell, micro-batches within the pipe
LETTERS = {"FWD": "F", "BWD": "B", "BWD_INPUT": "I", "BWD_WEIGHT": "W"}


def computed(p: Program) -> list[list[tuple[Node, bool]]]:
    """Return the tasks of every rank of one replica, in order, each with whether it overlaps with the next task."""
    ids = [{m: k for k, m in enumerate(pipe.micro_batches)} for pipe in p.header.pipes]
    return [
        [((LETTERS[i.op], (i.pipe, i.stage), tuple(ids[i.pipe][m] for m in i.micro_batches)), i.overlap)
         for i in tasks(p.stream(g))]
        for g in range(p.header.ranks)
    ]  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Pipes p0, p1, ... and where their stages are. on: the rank by pipe and stage; counts: micro-batches by pipe."""

    ranks: int
    stages: int
    on: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    window: int
    sync: str
    again: str

    def text(self, order: str, more: str = "") -> str:
        """Return the schedule with this order block. more: additional statements."""
        lines = [f"schedule drawn  ranks {self.ranks}  stages {self.stages}  window {self.window}", self.sync, more]
        for p, (on, count) in enumerate(zip(self.on, self.counts, strict=True)):
            rank = "".join(f"if k == {s} then {r} else " for s, r in enumerate(on[:-1])) + str(on[-1])
            lines.append(f"pipe p{p} {{ stage k on rank {rank}{self.again}  micro_batches {count} }}")
        return "\n".join([line for line in lines if line] + [order]) + "\n"

    def cells(self, rank: int) -> list[Cell]:
        return [(p, s) for p, on in enumerate(self.on) for s, r in enumerate(on) if r == rank]


@st.composite
def shapes(draw: DrawFn) -> Shape:
    """Draw placements: looped, in waves, several stages and pipes on one rank, ranks without stages."""
    ranks, stages = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    counts = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any)))
    place = st.tuples(*[st.integers(0, ranks - 1)] * stages)
    return Shape(
        ranks,
        stages,
        tuple(draw(place) for _ in counts),
        counts,
        draw(st.integers(0, 3)),
        draw(st.sampled_from(["", "sync at end", "sync eager", "sync eager where idle"])),
        draw(st.sampled_from(["", "", " recompute", " recompute when k % 2 == 0"])),
    )


# --- greedy -----------------------------------------------------------------------------------------------------------

KEYS = ["m", "s", "p", "r", "m - s", "s*m % 3", "min(s, m)", "if s > m then p else -m", "2*m + s - r"]


@dataclass(frozen=True)
class Bound:
    """A limit. signs: +1 or -1 by kind of task; scope: counted per rank, stage or pipe; values: the bound by rank."""

    signs: dict[str, int]
    scope: str
    values: tuple[int, ...]

    def text(self) -> str:
        sides = " ".join(("+ " if sign > 0 else "- ") + kind for kind, sign in self.signs.items()).removeprefix("+ ")
        chain = "".join(f"if r == {r} then {v} else " for r, v in enumerate(self.values[:-1])) + str(self.values[-1])
        return f"limit {sides} <= ({chain})" + ("" if self.scope == "rank" else f" per {self.scope}")


@dataclass(frozen=True)
class GreedyCase:
    text: str
    bounds: list[Bound] = field(default_factory=list)
    group: int = 1

    def check(self, p: Program) -> None:
        """Check that no prefix of a stream exceeds a limit, and that forwards are grouped."""
        for rank, order in enumerate(computed(p)):
            for bound in self.bounds:
                counts: dict[object, int] = {}
                for (kind, (pipe, stage), ids), _ in order:
                    scope = {"rank": 0, "stage": stage, "pipe": pipe}[bound.scope]
                    counts[scope] = counts.get(scope, 0) + bound.signs.get(kind, 0) * len(ids)
                    assert bound.signs.get(kind, 0) <= 0 or counts[scope] <= bound.values[rank]
            for (kind, (pipe, _), ids), overlap in order:
                count = len(p.header.pipes[pipe].micro_batches)
                assert ids[0] % self.group == 0 or kind != "F"
                assert len(ids) == (min(self.group, count - ids[0]) if kind == "F" else 1)
                assert not overlap


@st.composite
def greedy_schedules(draw: DrawFn, roomy: bool) -> GreedyCase:
    """Draw a schedule with `order greedy`. roomy: its limits satisfy the condition under which it is never stuck."""
    shape, group = draw(shapes()), draw(st.sampled_from([1, 1, 2, 3]))
    split = draw(st.booleans())
    kinds = draw(st.permutations("FIW" if split else "FB"))
    back = "W" if split else "B"
    bounds = []
    for _ in range(draw(st.integers(0, 2))):
        scope = draw(st.sampled_from(["rank", "rank", "stage", "pipe"]))
        values, signs = [], {"F": 1, back: -1}
        for rank in range(shape.ranks):
            places: dict[object, int] = {}
            for p, s in shape.cells(rank):
                key = {"rank": 0, "stage": s, "pipe": p}[scope]
                places[key] = places.get(key, 0) + (shape.counts[p] > 0)
            least = max(places.values(), default=0) * group
            values.append(least + draw(st.sampled_from([0, 0, 1, 4])) if roomy else draw(st.integers(0, 5)))
        if not roomy:
            others = [{"F": 1}, {"F": 1, "IB"[not split]: -1}, {"F": 1, kinds[0]: 1} if kinds[0] != "F" else {"F": 1}]
            signs = draw(st.sampled_from([signs, signs, *others]))
        bounds.append(Bound(signs, scope, tuple(values)))
    keys = draw(
        st.lists(st.tuples(st.sampled_from(["smaller", "larger", "earlier", "later"]), st.sampled_from(KEYS)), max_size=3)
    )
    costs = draw(st.lists(st.integers(0, 3), min_size=5, max_size=5))
    lines = [f"cost F(k) = {costs[0]} + k % 2, B = {costs[1]}, I = {costs[2]}, W = {costs[3]}, hop = {costs[4]}"]
    lines += [f"prefer {', '.join(kinds)}"] + ([f"then {', '.join(f'{a} {b}' for a, b in keys)}"] if keys else [])
    lines += [f"group F by {group}"] * (group > 1) + [b.text() for b in bounds]
    order = "order greedy {\n" + "".join(f"    {line}\n" for line in draw(st.permutations(lines))) + "}"
    return GreedyCase(shape.text(order), bounds, group)


# --- listing ----------------------------------------------------------------------------------------------------------


@dataclass
class ListingCase:
    """A listing with its expected result.

    orders: the expected tasks of every rank, each with whether it overlaps with the next. choose: selects the name by which
    a task is written.
    """

    shape: Shape
    orders: list[list[tuple[Node, bool]]]
    choose: Callable[[list[str]], str]

    def text(self, more: str = "") -> str:
        """Return the schedule. more: additional statements."""
        blocks = [f"    if r == {r} {{ {self.rank(r)} }}\n" for r in range(self.shape.ranks)]
        return self.shape.text("order listing for rank r {\n" + "".join(blocks) + "}", more)

    def rank(self, r: int) -> str:
        """Return the tasks of a rank as text, each by its full name or by a shorter one that means the same task there."""
        parts: list[str] = []
        listed: set[tuple[str, Cell, int]] = set()  # B and I are both the backward, "B"
        pending: list[tuple[Cell, int]] = []
        for (kind, cell, ids), overlap in self.orders[r]:
            turn = "B" if kind == "I" else kind
            following = next((m for m in range(ids[-1] + 1) if (turn, cell, m) not in listed), None)
            parts.append(self.choose(self.names(r, (kind, cell, ids), following, pending)) + (" &" if overlap else ""))
            listed |= {(turn, cell, m) for m in ids}
            pending += [(cell, m) for m in ids] if kind == "I" else []
            pending = [x for x in pending if kind != "W" or x[0] != cell or x[1] not in ids]
        return " ".join(parts)

    def names(self, r: int, node: Node, following: int | None, pending: list[tuple[Cell, int]]) -> list[str]:
        """Return the names that mean a task at this place, the full one first."""
        kind, (p, s), ids = node
        names = [f"{kind} p{p}({s}, {ids[0]} .. {ids[-1]})" if len(ids) > 1 else f"{kind} p{p}({s}, {ids[0]})"]
        cells = self.shape.cells(r)
        for text, meant in (
            (f"{kind} p{p}({s})", [(p, s)]),
            (f"{kind}({s})", [c for c in cells if c[1] == s]),
            (f"{kind} p{p}", [c for c in cells if c[0] == p]),
            (kind, cells),
        ):
            oldest = next((x for x in pending if x[0] in meant), None)
            if len(ids) == 1 and (oldest == ((p, s), ids[0]) if kind == "W" else meant == [(p, s)] and following == ids[0]):
                names.append(text)
        return names


@st.composite
def listings(draw: DrawFn) -> ListingCase:
    """Draw an order that cannot deadlock: ready tasks are started one by one, or two at a time, until none is left."""
    shape = draw(shapes())
    rng: random.Random = draw(st.randoms(use_true_random=False))
    nodes: list[Node] = []
    for p, count in enumerate(shape.counts):
        for s in range(shape.stages):
            nodes += [("F", (p, s), ids) for ids in _parts(rng, count)]
            for ids in _parts(rng, count):
                split = rng.random() < 0.5
                nodes.append(("I" if split else "B", (p, s), ids))
                nodes += [("W", (p, s), ids)] if split else []
    done: set[tuple[str, Cell, int]] = set()

    def ready(node: Node) -> bool:
        kind, (p, s), ids = node
        if kind == "W":
            needs = [("back", (p, s), m) for m in ids]
        elif kind == "F":
            needs = [("F", (p, s - 1), m) for m in ids if s > 0]
        else:
            needs = [("F", (p, s), m) for m in ids] + [("back", (p, s + 1), m) for m in ids if s < shape.stages - 1]
        return done.issuperset(needs)

    orders: list[list[tuple[Node, bool]]] = [[] for _ in range(shape.ranks)]
    while nodes:
        available = [node for node in nodes if ready(node)]
        first = rng.choice(available)
        rank = shape.on[first[1][0]][first[1][1]]
        others = [node for node in available if node != first and shape.on[node[1][0]][node[1][1]] == rank]
        pair = [rng.choice(others)] if others and rng.random() < 0.3 else []
        for node in [first, *pair]:
            nodes.remove(node)
            orders[rank].append((node, bool(pair) and node == first))
            kind = {"F": "F", "W": "W"}.get(node[0], "back")
            done |= {(kind, node[1], m) for m in node[2]}
    return ListingCase(shape, orders, rng.choice)


@st.composite
def costed_listings(draw: DrawFn) -> str:
    """Draw such an order with tied groups and costs. Many or all costs are 0, so that many tasks take place at one time."""
    case = draw(listings())
    few = st.sampled_from(draw(st.sampled_from([(0,), (0, 0, 1, 2)])))
    costs = [f"{kind}(k) = if k % 2 == 0 then {draw(few)} else {draw(few)}" for kind in "FBIW"]
    lines = [f"cost {', '.join(costs)}, hop = {draw(few)}"]
    if case.shape.stages > 1:
        sets = st.lists(st.integers(0, case.shape.stages - 1), min_size=2, unique=True)
        for k, stages in enumerate(draw(st.lists(sets, max_size=2))):
            lines.append(f"tied shared{k} on stages {', '.join(map(str, stages))}")
    return case.text("\n".join(lines))


def _parts(rng: random.Random, count: int) -> list[tuple[int, ...]]:
    """Return 0 .. count - 1 split into runs, most of length 1."""
    parts, m = [], 0
    while m < count:
        size = min(rng.choice([1, 1, 1, 2, 3]), count - m)
        parts.append(tuple(range(m, m + size)))
        m += size
    return parts


@st.composite
def shuffled_listings(draw: DrawFn) -> str:
    """Draw a listing that is likely wrong: tasks are swapped, left out, repeated or moved to another rank."""
    case = draw(listings())
    rng: random.Random = draw(st.randoms(use_true_random=False))
    orders = [[(node, False) for node, _ in order] for order in case.orders]
    for _ in range(draw(st.integers(1, 3))):
        order = rng.choice(orders)
        if order:
            a = rng.randrange(len(order))
            match rng.choice(["swap", "swap", "drop", "twice", "elsewhere"]):
                case "swap":
                    b = rng.randrange(len(order))
                    order[a], order[b] = order[b], order[a]
                case "drop":
                    del order[a]
                case "twice":
                    order.insert(rng.randrange(len(order)), order[a])
                case _:
                    rng.choice(orders).append(order.pop(a))
    case.orders, case.choose = orders, lambda names: names[0]
    return case.text()
