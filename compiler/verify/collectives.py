"""Is every gradient summed once over all copies of its parameters? (E450 to E454)"""

from __future__ import annotations

import graphlib
from itertools import pairwise

import numpy as np

from chimera_ir.diagnostics import Diagnostic
from chimera_ir.instructions import Op, stage_group
from chimera_ir.program import Ints
from compiler.verify.view import MAX_FOUND, WEIGHT, View


def check_gradient_sync(view: View) -> list[Diagnostic]:
    """Return findings about groups not covered (E450), joined twice (E451) or too early (E452), and orders that cannot
    be one (E453)."""
    if view.header.kind != "training":
        return []
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
        found += _covered(view, name, h.holders(stages), mine) or _late_enough(view, name, stages, mine, last)
    return (found or _one_order(view, rows, names))[:MAX_FOUND]


def _list(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


def _covered(view: View, name: str, holders: tuple[int, ...], rows: list[int]) -> list[Diagnostic]:
    p = view.program
    ranks = view.rank[rows].tolist()
    joined = set(ranks)
    if len(holders) == 1:
        message = "the group lives once and needs no sum"
        return [Diagnostic("E450", f"{p.place(row)}: {message}", help="remove it") for row in rows]
    over = f"over {','.join(map(str, holders))}"
    found = [
        Diagnostic("E450", f"rank {rank} holds a copy of '{name}' but never joins its sum", help=f"add its ALLREDUCE {over}")
        for rank in holders
        if rank not in joined
    ]
    spans = p.table.batch[rows].tolist()
    wrong = {c for c in set(spans) if p.collectives[c].ranks != holders}
    found += [
        Diagnostic("E450", f"{p.place(row)}: the copies of '{name}' live on ranks {_list(holders)}", help=f"write: {over}")
        for row, c in zip(rows, spans, strict=True)
        if c in wrong
    ]
    first = dict(zip(reversed(ranks), reversed(rows), strict=True))
    twice = [row for row, rank in zip(rows, ranks, strict=True) if row != first[rank]]
    message = f"this rank joins the sum of '{name}' a second time"
    return found + [Diagnostic("E451", f"{p.place(row)}: {message}", help="keep the later one") for row in twice]


def _last_weight_gradients(view: View) -> dict[int, int]:
    """Return the row of the last weight gradient by rank x stages + stage, where there is one."""
    rows, _ = view.tasks[WEIGHT]
    cells = view.rank[rows] * view.header.stages + view.program.table.stage[rows]
    last, where = np.unique(cells[::-1], return_index=True)
    return dict(zip(last.tolist(), rows[::-1][where].tolist(), strict=True))


def _late_enough(view: View, name: str, stages: tuple[int, ...], rows: list[int], last: dict[int, int]) -> list[Diagnostic]:
    p = view.program
    found = []
    for row in rows:
        after = max(last.get(int(view.rank[row]) * view.header.stages + s, -1) for s in stages)
        if row < after:
            message = f"{p.place(row)}: gradients of '{name}' are still added after it"
            found.append(Diagnostic("E452", message, notes=(f"the last is {p.place(after)}",), help="launch it after that"))
    return found


def _one_order(view: View, rows: Ints, names: list[str]) -> list[Diagnostic]:
    """Return the cycle of collectives if no total order agrees with every stream.

    Agreement pair by pair is not enough: three ranks with orders 02 01, 01 12, 12 02 hang when collectives are serial.
    """
    graph: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    before: dict[int, str] = {}
    for row, name in zip(rows.tolist(), names, strict=True):
        rank = int(view.rank[row])
        graph.add(name, *([before[rank]] if rank in before else []))
        before[rank] = name
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        cycle = error.args[1]  # each stands right before the next on some rank
        notes = []
        for first, second in pairwise(cycle):
            a = [r for r, name in zip(rows.tolist(), names, strict=True) if name == first]
            b = [r for r, name in zip(rows.tolist(), names, strict=True) if name == second]
            x, y = next((x, y) for x in a for y in b if view.rank[x] == view.rank[y] and x < y)
            notes.append(f"rank {view.rank[x]}: {view.program.text(x)} before {view.program.text(y)}")
        message, help = "no one order of the collectives agrees with every stream", "turn one of these pairs round"
        return [Diagnostic("E453", message, notes=tuple(notes), help=help)]
    return []
