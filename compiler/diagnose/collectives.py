"""Explain collectives that have no common order: a short cycle of them, and a change that was tried (E453)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.compiler.diagnose.cycle import consecutive_pairs, shown
from chimerac.compiler.verify import findings
from chimerac.compiler.verify.collectives import RowsByRank, check_gradient_sync, cycle_of_groups
from chimerac.compiler.verify.index import ProgramIndex

NOTHING_FOUND = "no move of one of these collectives was found that gives all of them one order"
MAX_TRIED = 2_000_000  # instructions verified in all trials; each verifies the whole program, and at least one is made
MAX_SHORTENED = 60  # groups of a cycle; in a longer one no shorter cycle is searched for


def explain_collectives(finding: Diagnostic, index: ProgramIndex) -> Diagnostic:
    """Return the finding E453 with a cycle of collectives as its notes, and with help."""
    pairs = shortest(cycle_of_groups(index))
    notes = [f"rank {index.rank[x]}: {index.program.text(x)} before {index.program.text(y)}" for x, y in pairs]
    moves = [(y, x, "before") for x, y in pairs] + [(x, y, "after") for x, y in pairs]
    tried = moves[: max(1, MAX_TRIED // len(index.program))]
    help = next((found for move in tried if (found := _move_help(index, *move))), NOTHING_FOUND)
    about = tuple(x for pair in pairs for x in pair)
    return replace(finding, notes=tuple(shown(notes, "pairs")), help=help, about=about)


def shortest(rows: RowsByRank) -> list[tuple[int, int]]:
    """Return the shortest cycle of these groups as pairs of rows: on some rank the first row of a pair comes before the second.

    Args:
        rows: the groups of a cycle, in its order, as `cycle_of_groups` returns them.

    The program may have a shorter cycle of other groups. A cycle of more than MAX_SHORTENED groups is not shortened.
    """
    import networkx as nx  # start-up: 117 ms, and few findings need it

    groups = list(rows)
    graph: nx.DiGraph[str] = nx.DiGraph()  # an edge: on some rank the first group comes before the second
    is_short = len(groups) <= MAX_SHORTENED
    for group, next_group in consecutive_pairs(groups):
        for later in groups if is_short else (next_group,):
            pairs = ((row, rows[later][rank]) for rank, row in rows[group].items() if rows[later].get(rank, -1) > row)
            if pair := next(pairs, None):
                graph.add_edge(group, later, pair=pair)
    best = groups
    for group, later in graph.edges if is_short else ():
        # There is a path back, since the groups of a cycle reach each other.
        best = min(best, nx.shortest_path(graph, later, group), key=len)
    return [graph.edges[group, later]["pair"] for group, later in consecutive_pairs(best)]


def _move_help(index: ProgramIndex, moved: int, other: int, side: str) -> str:
    """Return the help to move a row right before or right after another row; '' if the check of collectives still fails then.

    Args:
        side: 'before' or 'after'.
    """
    p = index.program
    rest = np.delete(np.arange(len(p)), moved)
    place = int(np.searchsorted(rest, other))
    order = np.insert(rest, place + 1 if side == "after" else place, moved)
    changed = replace(p, table=p.table.take(order))
    if check_gradient_sync(ProgramIndex(changed)):
        return ""
    result = "the collectives have one order, but the program has other findings" if findings(changed) else "every check holds"
    return f"move {p.place(moved)}, right {side} {p.text(other)}; tried: then {result}"
