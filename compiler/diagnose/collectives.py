"""Explain collectives that have no common order: the shortest cycle of them, and a change that was tried (E453)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.compiler.verify import findings
from chimerac.compiler.verify.collectives import Rows, check_gradient_sync, cycle_of_groups
from chimerac.compiler.verify.index import ProgramIndex

MAX_TRIED = 2_000_000  # instructions verified in the search for a suggestion
MAX_SHORTENED = 60  # collectives of a cycle among which a shorter one is searched for


def explain_collectives(index: ProgramIndex) -> Diagnostic:
    """Return the finding for a program whose collectives have no single order that agrees with every stream."""
    pairs = shortest(cycle_of_groups(index))
    notes = [f"rank {index.rank[x]}: {index.program.text(x)} before {index.program.text(y)}" for x, y in pairs]
    tried = pairs[: max(1, MAX_TRIED // len(index.program))]
    help = next(
        (found for x, y in tried if (found := _swap_help(index, x, y))), "swap the two collectives of one of these pairs"
    )
    message = "no single order of the collectives agrees with every stream"
    return Diagnostic("E453", message, notes=tuple(notes), help=help, about=tuple(x for pair in pairs for x in pair))


def shortest(rows: Rows) -> list[tuple[int, int]]:
    """Return the shortest cycle as pairs of rows, of which the first comes before the second on its rank.

    rows: those of the groups of a cycle, in its order. A cycle of more than MAX_SHORTENED groups is not shortened.
    """
    import networkx as nx  # start-up: 117 ms, and few findings need it

    names = list(rows)
    graph: nx.DiGraph[str] = nx.DiGraph()
    for k, a in enumerate(names):
        for b in names if len(names) <= MAX_SHORTENED else (names[(k + 1) % len(names)],):
            pair = next(((x, rows[b][rank]) for rank, x in rows[a].items() if rows[b].get(rank, -1) > x), None)
            if pair:
                graph.add_edge(a, b, pair=pair)
    best = names
    for a, b in graph.edges if len(names) <= MAX_SHORTENED else ():
        if nx.has_path(graph, b, a):
            best = min(best, nx.shortest_path(graph, b, a), key=len)
    return [graph.edges[a, b]["pair"] for a, b in pairwise([*best, best[0]])]


def _swap_help(index: ProgramIndex, first: int, second: int) -> str:
    """Return the help that moves `second` right before `first`, if every check of collectives then holds; else ''."""
    p = index.program
    order = np.insert(np.delete(np.arange(len(p)), second), first, second)
    changed = replace(p, table=p.table.take(order))
    if check_gradient_sync(ProgramIndex(changed)):
        return ""
    result = "the collectives have one order, but other findings remain" if findings(changed) else "every check holds"
    return f"move {p.place(second)}, right before {p.text(first)}; tried: then {result}"
