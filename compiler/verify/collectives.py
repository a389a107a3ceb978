"""Is every gradient summed once over all copies of its parameters? (E450 to E453)"""

from __future__ import annotations

import graphlib
from collections.abc import Iterator
from itertools import islice

import numpy as np

from chimerac.chimera_ir.counts import times_text
from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op, stage_group
from chimerac.compiler.verify.index import MAX_FOUND, WEIGHT_GRADIENT, ProgramIndex

RowsByRank = dict[str, dict[int, int]]  # group -> global rank -> the row of its ALLREDUCE


def check_gradient_sync(index: ProgramIndex) -> list[Diagnostic]:
    """Return findings about all-reduces with wrong members (E450), that a rank joins several times (E451) or too early (E452).

    If there are none of these, look for collectives without a common order (E453).
    """
    if index.header.kind != "training":
        return []
    found = _findings_of_groups(index)
    cycle = [] if found else _cycle(index)
    if cycle:
        names = ", ".join(cycle[:MAX_FOUND]) + (", ..." if len(cycle) > MAX_FOUND else "")
        note = f"each of these comes before the next on some rank, and the last before the first: {names}"
        found.append(Diagnostic("E453", "no single order of the collectives agrees with every stream", notes=(note,)))
    return found


def cycle_of_groups(index: ProgramIndex) -> RowsByRank:
    """Return a cycle of groups, with the rows of their ALLREDUCEs: each group comes before the next one on some rank, and
    the last one before the first. Return {} if there is no cycle. The program must have no finding E450 to E452."""
    cycle, rows = _cycle(index), _rows_by_group(index)
    return {name: {int(index.rank[row]): row for row in rows[name]} for name in cycle}


def _allreduces(index: ProgramIndex) -> Iterator[tuple[int, str]]:
    """Yield every ALLREDUCE: its row and its group."""
    rows = index.rows(Op.ALLREDUCE)
    for row, collective in zip(rows.tolist(), index.program.table.operand[rows].tolist(), strict=True):
        yield row, index.program.collectives[collective].group


def _rows_by_group(index: ProgramIndex) -> dict[str, list[int]]:
    """Return the rows of the ALLREDUCEs of each group, ascending."""
    by_group: dict[str, list[int]] = {}
    for row, name in _allreduces(index):
        by_group.setdefault(name, []).append(row)
    return by_group


def _findings_of_groups(index: ProgramIndex) -> list[Diagnostic]:
    """Return the findings E450 to E452, at most MAX_FOUND. Each is about the all-reduce of one group."""
    h = index.header
    groups = {stage_group(s): (s,) for s in range(h.stages)} | {t.name: t.stages for t in h.tied}
    by_group = _rows_by_group(index)
    found: list[Diagnostic] = []
    last = _last_weight_gradients(index)
    for name, stages in groups.items():
        rows = by_group.get(name, [])
        wrong_members = [*islice(_membership_findings(index, name, h.holders(stages), rows), MAX_FOUND)]
        found += wrong_members or islice(_launch_findings(index, name, stages, rows, last), MAX_FOUND)
        if len(found) >= MAX_FOUND:
            break
    return found[:MAX_FOUND]


def _comma_separated(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks))


def _membership_findings(index: ProgramIndex, name: str, holders: tuple[int, ...], rows: list[int]) -> Iterator[Diagnostic]:
    """Yield what is wrong with the members of a group's all-reduce.

    Args:
        name: of the group.
        rows: of its ALLREDUCEs.

    The caller takes only the first few findings, since each may name all holders.
    """
    p = index.program
    ranks = index.rank[rows].tolist()
    members = set(ranks)
    if len(holders) == 1:
        message = "the group has one copy and needs no all-reduce"
        yield from (Diagnostic("E450", f"{p.place(row)}: {message}", help="remove it") for row in rows)
        return
    over = f"over {','.join(map(str, holders))}"
    for rank in holders:
        if rank not in members:
            message = f"rank {rank} holds a copy of '{name}' but never joins its all-reduce"
            yield Diagnostic("E450", message, help=f"add its ALLREDUCE {over}")
    numbers = p.table.operand[rows].tolist()
    wrong_collectives = {c for c in set(numbers) if p.collectives[c].ranks != holders}
    for row, c in zip(rows, numbers, strict=True):
        if c in wrong_collectives:
            message = f"{p.place(row)}: the copies of '{name}' are on ranks {_comma_separated(holders)}"
            yield Diagnostic("E450", message, help=f"write: {over}")
    rows_of: dict[int, list[int]] = {}
    for row, rank in zip(rows, ranks, strict=True):
        rows_of.setdefault(rank, []).append(row)
    for own in rows_of.values():
        if len(own) > 1:
            message = f"{p.place(own[1])}: this rank joins the all-reduce of '{name}' {times_text(len(own))}"
            yield Diagnostic("E451", message, help="keep the last one")


def _last_weight_gradients(index: ProgramIndex) -> dict[int, int]:
    """Return {rank x stages + stage: the row of the last weight gradient of this stage on this rank}."""
    rows, _ = index.tasks[WEIGHT_GRADIENT]
    copies = index.rank[rows] * index.header.stages + index.program.table.stage[rows]
    distinct, where = np.unique(copies[::-1], return_index=True)  # where: the first of each in reversed order
    return dict(zip(distinct.tolist(), rows[::-1][where].tolist(), strict=True))


def _launch_findings(
    index: ProgramIndex, name: str, stages: tuple[int, ...], rows: list[int], last: dict[int, int]
) -> Iterator[Diagnostic]:
    """Yield findings for the ALLREDUCEs of a group that come before the group's last weight gradient on their rank.

    Args:
        name: of the group.
        rows: of its ALLREDUCEs.
        last: what `_last_weight_gradients` returns.
    """
    h, p = index.header, index.program
    last_of_group: dict[int, int] = {}  # rank -> the row of the group's last weight gradient
    for stage in stages:
        for rank in h.holders((stage,)):
            last_of_group[rank] = max(last_of_group.get(rank, -1), last.get(rank * h.stages + stage, -1))
    for row in rows:
        latest = last_of_group.get(int(index.rank[row]), -1)
        if row < latest:
            message = f"{p.place(row)}: gradients of '{name}' are still added after it"
            yield Diagnostic("E452", message, notes=(f"the last is {p.place(latest)}",), help="launch it after that")


def _cycle(index: ProgramIndex) -> list[str]:
    """Return a cycle of groups; [] if there is none.

    Each group comes before the next one on some rank, and the last one before the first. No other ALLREDUCE of that rank is in
    between. It is not enough that every two ranks agree: three ranks whose orders are A B, B C and C A have no common order.
    """
    graph: graphlib.TopologicalSorter[str] = graphlib.TopologicalSorter()
    before: dict[int, str] = {}  # rank -> the group of its last ALLREDUCE
    for row, name in _allreduces(index):
        rank = int(index.rank[row])
        graph.add(name, *([before[rank]] if rank in before else []))
        before[rank] = name
    try:
        graph.prepare()
    except graphlib.CycleError as error:
        cycle: list[str] = error.args[1][:-1]  # the last one is the first again
        return cycle
    return []
