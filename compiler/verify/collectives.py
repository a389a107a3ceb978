"""Is every gradient summed once over all copies of its parameters? (E450 to E454)"""

from __future__ import annotations

import graphlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op, stage_group
from chimerac.chimera_ir.program import Ints
from chimerac.compiler.verify.view import MAX_FOUND, WEIGHT, View

MAX_TRIED = 2_000_000  # instructions verified for the sake of a suggestion
MAX_SHORTENED = 60  # collectives of a cycle among which a shorter one is looked for


Where = dict[str, dict[int, int]]  # group -> global rank -> the row of its ALLREDUCE


def check_gradient_sync(view: View) -> list[Diagnostic]:
    """Return findings about groups not covered (E450), joined twice (E451) or too early (E452), and orders that cannot
    be one (E453)."""
    found, cycle = _judge(view)
    return found or (_no_order(view, cycle) if cycle else [])


def _judge(view: View) -> tuple[list[Diagnostic], Where]:
    """Return what is wrong with single groups; or, as far as that goes, groups of which each stands before the next."""
    if view.header.kind != "training":
        return [], {}
    h = view.header
    groups = {stage_group(s): (s,) for s in range(h.stages)} | {t.name: t.stages for t in h.tied}
    rows = view.rows(Op.ALLREDUCE)
    names = [view.program.collectives[b].group for b in view.program.table.batch[rows].tolist()]
    by_group: dict[str, list[int]] = {}
    for row, name in zip(rows.tolist(), names, strict=True):
        by_group.setdefault(name, []).append(row)
    found: list[Diagnostic] = []
    last = _last_weight_gradients(view)
    for name, stages in groups.items():
        mine = by_group.get(name, [])
        wrong = [*islice(_covered(view, name, h.holders(stages), mine), MAX_FOUND)]
        found += wrong or islice(_late_enough(view, name, stages, mine, last), MAX_FOUND)
        if len(found) >= MAX_FOUND:
            break
    if found:
        return found[:MAX_FOUND], {}
    return [], {name: {int(view.rank[row]): row for row in by_group[name]} for name in _cycle(view, rows, names)}


def _list(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


def _covered(view: View, name: str, holders: tuple[int, ...], rows: list[int]) -> Iterator[Diagnostic]:
    """Yield what is wrong with the members of a group's sum. Each finding may name all holders: few are needed."""
    p = view.program
    ranks = view.rank[rows].tolist()
    joined = set(ranks)
    if len(holders) == 1:
        message = "the group lives once and needs no sum"
        yield from (Diagnostic("E450", f"{p.place(row)}: {message}", help="remove it") for row in rows)
        return
    over = f"over {','.join(map(str, holders))}"
    for rank in holders:
        if rank not in joined:
            message = f"rank {rank} holds a copy of '{name}' but never joins its sum"
            yield Diagnostic("E450", message, help=f"add its ALLREDUCE {over}")
    spans = p.table.batch[rows].tolist()
    wrong = {c for c in set(spans) if p.collectives[c].ranks != holders}
    for row, c in zip(rows, spans, strict=True):
        if c in wrong:
            message = f"{p.place(row)}: the copies of '{name}' live on ranks {_list(holders)}"
            yield Diagnostic("E450", message, help=f"write: {over}")
    first = dict(zip(reversed(ranks), reversed(rows), strict=True))
    message = f"this rank joins the sum of '{name}' a second time"
    for row, rank in zip(rows, ranks, strict=True):
        if row != first[rank]:
            yield Diagnostic("E451", f"{p.place(row)}: {message}", help="keep the later one")


def _last_weight_gradients(view: View) -> dict[int, int]:
    """Return the row of the last weight gradient by rank x stages + stage, where there is one."""
    rows, _ = view.tasks[WEIGHT]
    cells = view.rank[rows] * view.header.stages + view.program.table.stage[rows]
    last, where = np.unique(cells[::-1], return_index=True)
    return dict(zip(last.tolist(), rows[::-1][where].tolist(), strict=True))


def _late_enough(view: View, name: str, stages: tuple[int, ...], rows: list[int], last: dict[int, int]) -> Iterator[Diagnostic]:
    """Yield the members of a group's sum that stand before a gradient of it, on every rank that holds one of its stages."""
    h, p = view.header, view.program
    after: dict[int, int] = {}  # rank -> the last gradient there
    for stage in stages:
        for rank in h.holders((stage,)):
            after[rank] = max(after.get(rank, -1), last.get(rank * h.stages + stage, -1))
    for row in rows:
        latest = after.get(int(view.rank[row]), -1)
        if row < latest:
            message = f"{p.place(row)}: gradients of '{name}' are still added after it"
            yield Diagnostic("E452", message, notes=(f"the last is {p.place(latest)}",), help="launch it after that")


def _cycle(view: View, rows: Ints, names: list[str]) -> list[str]:
    """Return groups of which each stands right before the next on some rank, and the last before the first, if there are any.

    Agreement pair by pair is not enough: three ranks with orders 02 01, 01 12, 12 02 hang when collectives are serial.
    """
    graph: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    before: dict[int, str] = {}
    for rank, name in zip(view.rank[rows].tolist(), names, strict=True):
        graph.add(name, *([before[rank]] if rank in before else []))
        before[rank] = name
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1][:-1]
        return cycle
    return []


def _no_order(view: View, cycle: Where) -> list[Diagnostic]:
    pairs = _shortest(cycle)
    notes = [f"rank {view.rank[x]}: {view.program.text(x)} before {view.program.text(y)}" for x, y in pairs]
    tried = pairs[: max(1, MAX_TRIED // len(view.program))]
    help = next((said for x, y in tried if (said := _turned(view, x, y))), "turn one of these pairs round")
    message = "no one order of the collectives agrees with every stream"
    return [Diagnostic("E453", message, notes=tuple(notes), help=help, about=tuple(x for pair in pairs for x in pair))]


def _shortest(where: Where) -> list[tuple[int, int]]:
    """Return the shortest cycle as pairs of rows, of which the first stands before the second on its rank.

    where: groups that are a cycle, in its order. A long one is not shortened.
    """
    import networkx as nx  # a right program needs not wait for it

    names = list(where)
    graph: nx.DiGraph[str] = nx.DiGraph()
    for k, a in enumerate(names):
        for b in names if len(names) <= MAX_SHORTENED else (names[(k + 1) % len(names)],):
            pair = next(((x, where[b][rank]) for rank, x in where[a].items() if where[b].get(rank, -1) > x), None)
            if pair:
                graph.add_edge(a, b, pair=pair)
    best = names
    for a, b in graph.edges if len(names) <= MAX_SHORTENED else ():
        if nx.has_path(graph, b, a):
            best = min(best, nx.shortest_path(graph, b, a), key=len)
    return [graph.edges[a, b]["pair"] for a, b in pairwise([*best, best[0]])]


def _turned(view: View, first: int, second: int) -> str:
    """Return the change that puts `second` right before `first`, if then every check of sums holds; or nothing."""
    p = view.program
    order = np.insert(np.delete(np.arange(len(p)), second), first, second)
    changed = replace(p, table=p.table.take(order))
    if _judge(View(changed)) != ([], {}):
        return ""
    from chimerac.compiler.diagnose.hang import remaining

    rest = "it is right" if remaining(changed) is None else "there is one order, and something else is left"
    return f"move {p.place(second)}, right before {p.text(first)}; tried: then {rest}"
