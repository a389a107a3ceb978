"""hypothesis strategies: schedules of the order forms `greedy` and `listing`, some with what must hold of their programs."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from chimerac.chimera_ir.program import Program
from tests.helpers import LETTERS, tasks

PipeStage = tuple[int, int]  # the numbers of a pipe and of a stage
Node = tuple[str, PipeStage, tuple[int, ...]]  # kind, pipe and stage, micro-batches within the pipe


def task_orders(p: Program) -> list[list[tuple[Node, bool]]]:
    """Return, for every rank of one replica, its tasks in order. The flag of a task: it overlaps with the next task."""
    ids = [{m: k for k, m in enumerate(pipe.micro_batches)} for pipe in p.header.pipes]
    return [
        [((LETTERS[i.op], (i.pipe, i.stage), tuple(ids[i.pipe][m] for m in i.micro_batches)), i.overlap)
         for i in tasks(p.stream(g))]
        for g in range(p.header.ranks)
    ]  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Pipes p0, p1, ... and their placements: the rank of every stage, by pipe.

    Attributes:
        counts: numbers of micro-batches, by pipe.
        sync: a statement or an empty text.
        recompute: the end of each stage clause, empty if no stage recomputes.
    """

    ranks: int
    stages: int
    placements: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    window: int
    sync: str
    recompute: str

    def text(self, order: str, statements: str = "") -> str:
        """Return the text of a schedule with this order block and these additional statements."""
        lines = [f"schedule drawn  ranks {self.ranks}  stages {self.stages}  window {self.window}", self.sync, statements]
        for p, (ranks, count) in enumerate(zip(self.placements, self.counts, strict=True)):
            chain = "".join(f"if k == {s} then {r} else " for s, r in enumerate(ranks[:-1])) + str(ranks[-1])
            lines.append(f"pipe p{p} {{ stage k on rank {chain}{self.recompute}  micro_batches {count} }}")
        return "\n".join([line for line in lines if line] + [order]) + "\n"

    def recomputes(self, stage: int) -> bool:
        """Return whether the forwards of a stage are run again."""
        # The only condition that `shapes` draws is "when k % 2 == 0".
        return bool(self.recompute) and ("when" not in self.recompute or stage % 2 == 0)

    def stages_of(self, rank: int) -> list[PipeStage]:
        """Return the stages on a rank, with their pipes."""
        return [(p, s) for p, ranks in enumerate(self.placements) for s, r in enumerate(ranks) if r == rank]


@st.composite
def shapes(draw: DrawFn) -> Shape:
    """Draw any placements: a rank may have several stages and pipes, or none."""
    ranks, stages = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    counts = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3).filter(any)))
    place = st.tuples(*[st.integers(0, ranks - 1)] * stages)
    return Shape(
        ranks,
        stages,
        placements=tuple(draw(place) for _ in counts),
        counts=counts,
        window=draw(st.integers(0, 3)),
        sync=draw(st.sampled_from(["", "sync at end", "sync eager", "sync eager where idle"])),
        recompute=draw(st.sampled_from(["", "", " recompute", " recompute when k % 2 == 0"])),
    )


# --- greedy -----------------------------------------------------------------------------------------------------------

# Expressions by which `order greedy` chooses among tasks of one kind.
KEYS = ["m", "s", "p", "r", "m - s", "s*m % 3", "min(s, m)", "if s > m then p else -m", "2*m + s - r"]


@dataclass(frozen=True)
class Limit:
    """A limit of `order greedy`.

    Attributes:
        signs: +1 or -1 by kind of task.
        scope: whether it counts per rank, stage or pipe.
        values: the most, by rank.

    If `signs` has R, only micro-batches that have an R on the stage are counted.
    """

    signs: dict[str, int]
    scope: str
    values: tuple[int, ...]

    def text(self) -> str:
        """Return the limit as a statement of the order block."""
        counted = " ".join(("+ " if sign > 0 else "- ") + kind for kind, sign in self.signs.items()).removeprefix("+ ")
        chain = "".join(f"if r == {r} then {v} else " for r, v in enumerate(self.values[:-1])) + str(self.values[-1])
        return f"limit {counted} <= ({chain})" + ("" if self.scope == "rank" else f" per {self.scope}")


@dataclass(frozen=True)
class GreedyCase:
    """A schedule with `order greedy`, and the limits that its streams must keep.

    Attributes:
        group: how many forwards are one task; the last task of a pipe and stage may have fewer.
    """

    text: str
    limits: list[Limit] = field(default_factory=list)
    group: int = 1

    def check(self, p: Program) -> None:
        """Check that no prefix of a stream exceeds a limit, that only forwards are grouped, and that no tasks overlap."""
        for rank, order in enumerate(task_orders(p)):
            recomputed = {(stage, m) for (kind, stage, ids), _ in order for m in ids if kind == "R"}
            for limit in self.limits:
                counts: dict[object, int] = {}
                for (kind, (pipe, stage), ids), _ in order:
                    scope = {"rank": 0, "stage": stage, "pipe": pipe}[limit.scope]
                    counted = sum("R" not in limit.signs or ((pipe, stage), m) in recomputed for m in ids)
                    counts[scope] = counts.get(scope, 0) + limit.signs.get(kind, 0) * counted
                    assert limit.signs.get(kind, 0) <= 0 or counts[scope] <= limit.values[rank]
            for (kind, (pipe, _), ids), overlap in order:
                count = len(p.header.pipes[pipe].micro_batches)
                assert ids[0] % self.group == 0 or kind != "F"
                assert len(ids) == (min(self.group, count - ids[0]) if kind == "F" else 1)
                assert not overlap


@st.composite
def greedy_schedules(draw: DrawFn, never_stuck: bool) -> GreedyCase:
    """Draw a schedule with `order greedy`.

    Args:
        never_stuck: every limit that counts forwards allows a group of them on each stage that it counts, so that the
            scheduler cannot get stuck.
    """
    shape, group = draw(shapes()), draw(st.sampled_from([1, 1, 2, 3]))
    split = draw(st.booleans())
    kinds = draw(st.permutations(("FIW" if split else "FB") + draw(st.sampled_from(["", "R"]))))
    last_kind = "W" if split else "B"  # the task that frees an activation
    limits = []
    for _ in range(draw(st.integers(0, 2))):
        scope = draw(st.sampled_from(["rank", "rank", "stage", "pipe"]))
        values, signs = [], {"F": 1, last_kind: -1}
        for rank in range(shape.ranks):
            stages: dict[object, int] = {}  # by rank, stage or pipe, as the scope says: the number of stages with tasks
            for p, s in shape.stages_of(rank):
                key = {"rank": 0, "stage": s, "pipe": p}[scope]
                stages[key] = stages.get(key, 0) + (shape.counts[p] > 0)
            least = max(stages.values(), default=0) * group
            values.append(least + draw(st.sampled_from([0, 0, 1, 4])) if never_stuck else draw(st.integers(0, 5)))
        if not never_stuck:
            freed_by_first_half = {"F": 1, "I" if split else "B": -1}
            only_added = {"F": 1} | ({} if kinds[0] in "FR" else {kinds[0]: 1})
            signs = draw(st.sampled_from([signs, signs, {"F": 1}, freed_by_first_half, only_added]))
        limits.append(Limit(signs, scope, tuple(values)))
    if "R" in kinds and draw(st.booleans()):
        # No task waits for an R, so the scheduler cannot get stuck, however small this limit is.
        values = draw(st.lists(st.integers(0, 2), min_size=shape.ranks, max_size=shape.ranks))
        signs = {"R": 1, draw(st.sampled_from([x for x in kinds if x not in "FR"])): -1}
        limits.append(Limit(signs, draw(st.sampled_from(["rank", "stage", "pipe"])), tuple(values)))
    keys = draw(
        st.lists(st.tuples(st.sampled_from(["smaller", "larger", "earlier", "later"]), st.sampled_from(KEYS)), max_size=3)
    )
    costs = draw(st.lists(st.integers(0, 3), min_size=5, max_size=5))
    lines = [f"cost F(k) = {costs[0]} + k % 2, B = {costs[1]}, I = {costs[2]}, W = {costs[3]}, hop = {costs[4]}"]
    lines += draw(st.sampled_from([[], ["cost R(k) = 2 - k % 3"]]))
    lines += [f"prefer {', '.join(kinds)}"] + ([f"then {', '.join(f'{word} {key}' for word, key in keys)}"] if keys else [])
    if group > 1:
        lines.append(f"group F by {group}")
    lines += [limit.text() for limit in limits]
    order = "order greedy {\n" + "".join(f"    {line}\n" for line in draw(st.permutations(lines))) + "}"
    return GreedyCase(shape.text(order), limits, group)


# --- listing ----------------------------------------------------------------------------------------------------------


@dataclass
class ListingCase:
    """A listing with its expected result.

    Attributes:
        orders: for every rank, its expected tasks in order. The flag of a task: it overlaps with the next task.
        choose: selects one of the texts by which a task can be written.
    """

    shape: Shape
    orders: list[list[tuple[Node, bool]]]
    choose: Callable[[list[str]], str]

    def text(self, statements: str = "") -> str:
        """Return the text of the schedule with these additional statements."""
        blocks = [f"    if r == {r} {{ {self.rank_text(r)} }}\n" for r in range(self.shape.ranks)]
        return self.shape.text("order listing for rank r {\n" + "".join(blocks) + "}", statements)

    def rank_text(self, r: int) -> str:
        """Return the tasks of a rank as text: each in full, or in a shorter form that means the same task at this point."""
        parts: list[str] = []
        # The tasks so far. B and I both count as "B", and also as "R": after its backward a micro-batch needs no R.
        listed: set[tuple[str, PipeStage, int]] = set()
        pending: list[tuple[PipeStage, int]] = []  # the weight gradients whose I is listed and whose W is not
        for (kind, stage, ids), overlap in self.orders[r]:
            listed_kind = "B" if kind == "I" else kind
            next_id = next((m for m in range(ids[-1] + 1) if (listed_kind, stage, m) not in listed), None)
            parts.append(self.choose(self.texts(r, (kind, stage, ids), next_id, pending)) + (" &" if overlap else ""))
            listed |= {(k, stage, m) for m in ids for k in ("BR" if listed_kind == "B" else listed_kind)}
            if kind == "I":
                pending += [(stage, m) for m in ids]
            pending = [x for x in pending if kind != "W" or x[0] != stage or x[1] not in ids]
        return " ".join(parts)

    def texts(self, r: int, node: Node, next_id: int | None, pending: list[tuple[PipeStage, int]]) -> list[str]:
        """Return the texts that mean a task at this point of the listing, the full one first.

        Args:
            next_id: of a kind other than W, the micro-batch of a task that names none; it is None if that would be a later one
                than those of `node`.
            pending: as in `rank_text`.
        """
        kind, (p, s), ids = node
        texts = [f"{kind} p{p}({s}, {ids[0]} .. {ids[-1]})" if len(ids) > 1 else f"{kind} p{p}({s}, {ids[0]})"]
        stages = self.shape.stages_of(r)
        for text, matching in (
            (f"{kind} p{p}({s})", [(p, s)]),
            (f"{kind}({s})", [x for x in stages if x[1] == s]),
            (f"{kind} p{p}", [x for x in stages if x[0] == p]),
            (kind, stages),
        ):
            # A W without a micro-batch means the oldest pending one of the matching stages. For another kind exactly one
            # stage must match, and its next micro-batch is meant.
            oldest = next((weight for weight in pending if weight[0] in matching), None)
            if len(ids) == 1 and (oldest == ((p, s), ids[0]) if kind == "W" else matching == [(p, s)] and next_id == ids[0]):
                texts.append(text)
        return texts


@st.composite
def listings(draw: DrawFn) -> ListingCase:
    """Draw a listing that cannot deadlock: tasks are listed when their inputs exist, one by one or as a pair that overlaps."""
    shape = draw(shapes())
    rng: random.Random = draw(st.randoms(use_true_random=False))
    nodes: list[Node] = []
    for p, count in enumerate(shape.counts):
        for s in range(shape.stages):
            nodes += [("F", (p, s), ids) for ids in _parts(rng, count)]
            for ids in _parts(rng, count):
                split = rng.random() < 0.5
                nodes += [("I", (p, s), ids), ("W", (p, s), ids)] if split else [("B", (p, s), ids)]
            if shape.recomputes(s):
                nodes += [("R", (p, s), ids) for ids in _parts(rng, count) if rng.random() < 0.7]
    recomputed = {("R", stage, m) for kind, stage, ids in nodes if kind == "R" for m in ids}
    done: set[tuple[str, PipeStage, int]] = set()  # of the tasks so far; B and I are both "back"

    def rank_of(node: Node) -> int:
        _, (p, s), _ = node
        return shape.placements[p][s]

    def ready(node: Node) -> bool:
        kind, (p, s), ids = node
        if kind == "W":
            needs = [("back", (p, s), m) for m in ids]
        elif kind == "F":
            needs = [("F", (p, s - 1), m) for m in ids if s > 0]
        elif kind == "R":
            needs = [("F", (p, s), m) for m in ids]
        else:
            needs = [("F", (p, s), m) for m in ids] + [("back", (p, s + 1), m) for m in ids if s < shape.stages - 1]
            needs += recomputed & {("R", (p, s), m) for m in ids}
        return done.issuperset(needs)

    orders: list[list[tuple[Node, bool]]] = [[] for _ in range(shape.ranks)]
    while nodes:
        available = [node for node in nodes if ready(node)]
        first = rng.choice(available)
        rank = rank_of(first)
        others = [node for node in available if node != first and rank_of(node) == rank]
        pair = [rng.choice(others)] if others and rng.random() < 0.3 else []
        for node in [first, *pair]:
            nodes.remove(node)
            orders[rank].append((node, bool(pair) and node == first))
            kind, stage, ids = node
            done |= {("back" if kind in "BI" else kind, stage, m) for m in ids}
    return ListingCase(shape, orders, rng.choice)


@st.composite
def costed_listings(draw: DrawFn) -> str:
    """Draw a listing that cannot deadlock, with costs, and with up to two sets of tied parameters if it has several stages.

    In some draws all costs are 0, in the others about half of them. So several tasks start at the same time.
    """
    case = draw(listings())
    cost_values = st.sampled_from(draw(st.sampled_from([(0,), (0, 0, 1, 2)])))
    costs = [f"{kind}(k) = if k % 2 == 0 then {draw(cost_values)} else {draw(cost_values)}" for kind in "FBIWR"]
    lines = [f"cost {', '.join(costs)}, hop = {draw(cost_values)}"]
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
            index = rng.randrange(len(order))
            match rng.choice(["swap", "swap", "drop", "repeat", "move"]):
                case "swap":
                    second = rng.randrange(len(order))
                    order[index], order[second] = order[second], order[index]
                case "drop":
                    del order[index]
                case "repeat":
                    order.insert(rng.randrange(len(order)), order[index])
                case _:
                    rng.choice(orders).append(order.pop(index))
    case.orders, case.choose = orders, lambda texts: texts[0]
    return case.text()
