"""Is every gradient summed once over all copies of its parameters? (E450 to E454)"""

from __future__ import annotations

import graphlib
from collections.abc import Iterator
from itertools import islice

import numpy as np

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op, stage_group
from chimerac.compiler.verify.view import MAX_FOUND, WEIGHT, View

Rows = dict[str, dict[int, int]]  # group -> global rank -> the row of its ALLREDUCE


def check_gradient_sync(view: View) -> list[Diagnostic]:
    """Return findings about groups not covered (E450), joined twice (E451) or too early (E452), and collectives without a
    common order (E453)."""
    if view.header.kind != "training":
        return []
    found = _single_groups(view)
    cycle = [] if found else _cycle(view)
    if cycle:
        names = ", ".join(cycle[:MAX_FOUND]) + (", ..." if len(cycle) > MAX_FOUND else "")
        note = f"on some rank each of these comes before the next, and the last before the first: {names}"
        found.append(Diagnostic("E453", "no single order of the collectives agrees with every stream", notes=(note,)))
    return found


def cycle_of_groups(view: View) -> Rows:
    """Return groups of which each comes before the next on some rank, and the last before the first; {} if there
    are none. The collectives of single groups must be correct."""
    cycle, rows = _cycle(view), _rows_by_group(view)
    return {name: {int(view.rank[row]): row for row in rows[name]} for name in cycle}


def _allreduces(view: View) -> Iterator[tuple[int, str]]:
    """Yield every ALLREDUCE: its row and its group."""
    rows = view.rows(Op.ALLREDUCE)
    for row, collective in zip(rows.tolist(), view.program.table.batch[rows].tolist(), strict=True):
        yield row, view.program.collectives[collective].group


def _rows_by_group(view: View) -> dict[str, list[int]]:
    by_group: dict[str, list[int]] = {}
    for row, name in _allreduces(view):
        by_group.setdefault(name, []).append(row)
    return by_group


def _single_groups(view: View) -> list[Diagnostic]:
    """Return what is wrong with the collectives of single groups."""
    h = view.header
    groups = {stage_group(s): (s,) for s in range(h.stages)} | {t.name: t.stages for t in h.tied}
    by_group = _rows_by_group(view)
    found: list[Diagnostic] = []
    last = _last_weight_gradients(view)
    for name, stages in groups.items():
        rows = by_group.get(name, [])
        wrong = [*islice(_covered(view, name, h.holders(stages), rows), MAX_FOUND)]
        found += wrong or islice(_late_enough(view, name, stages, rows, last), MAX_FOUND)
        if len(found) >= MAX_FOUND:
            break
    return found[:MAX_FOUND]


def _list(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


def _covered(view: View, name: str, holders: tuple[int, ...], rows: list[int]) -> Iterator[Diagnostic]:
    """Yield what is wrong with the members of a group's all-reduce. The caller takes few: each may name all holders."""
    p = view.program
    ranks = view.rank[rows].tolist()
    joined = set(ranks)
    if len(holders) == 1:
        message = "the group has one copy and needs no all-reduce"
        yield from (Diagnostic("E450", f"{p.place(row)}: {message}", help="remove it") for row in rows)
        return
    over = f"over {','.join(map(str, holders))}"
    for rank in holders:
        if rank not in joined:
            message = f"rank {rank} holds a copy of '{name}' but never joins its all-reduce"
            yield Diagnostic("E450", message, help=f"add its ALLREDUCE {over}")
    spans = p.table.batch[rows].tolist()
    wrong = {c for c in set(spans) if p.collectives[c].ranks != holders}
    for row, c in zip(rows, spans, strict=True):
        if c in wrong:
            message = f"{p.place(row)}: the copies of '{name}' are on ranks {_list(holders)}"
            yield Diagnostic("E450", message, help=f"write: {over}")
    first = dict(zip(reversed(ranks), reversed(rows), strict=True))
    message = f"this rank joins the all-reduce of '{name}' a second time"
    for row, rank in zip(rows, ranks, strict=True):
        if row != first[rank]:
            yield Diagnostic("E451", f"{p.place(row)}: {message}", help="keep the later one")


def _last_weight_gradients(view: View) -> dict[int, int]:
    """Return the row of the last weight gradient of each cell that has one. cell: rank x stages + stage."""
    rows, _ = view.tasks[WEIGHT]
    cells = view.rank[rows] * view.header.stages + view.program.table.stage[rows]
    last, where = np.unique(cells[::-1], return_index=True)
    return dict(zip(last.tolist(), rows[::-1][where].tolist(), strict=True))


def _late_enough(view: View, name: str, stages: tuple[int, ...], rows: list[int], last: dict[int, int]) -> Iterator[Diagnostic]:
    """Yield findings for the members of a group's all-reduce that run before the group's last gradient on their rank."""
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


def _cycle(view: View) -> list[str]:
    """Return groups of which each comes right before the next on some rank, and the last before the first; else [].

    Agreement pair by pair is not enough: three ranks with orders 02 01, 01 12, 12 02 hang if collectives run
    one at a time.
    """
    graph: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    before: dict[int, str] = {}  # rank -> the group of its last ALLREDUCE
    for row, name in _allreduces(view):
        rank = int(view.rank[row])
        graph.add(name, *([before[rank]] if rank in before else []))
        before[rank] = name
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1][:-1]
        return cycle
    return []
