"""Explain an order that cannot run: the shortest cycle, who ordered it, and how far the ranks get (E304)."""

from __future__ import annotations

import networkx as nx
import numpy as np

from chimera_ir.diagnostics import ChimeraError, Diagnostic, refuse
from compiler.draw.timeline import draw_timeline
from compiler.graph import dependency_graph, shortest_cycle
from compiler.order.ordered import Ordered
from compiler.tasks import Timing

MAX_SHOWN = 12


def explain_deadlock(ordered: Ordered, timing: Timing) -> ChimeraError:
    """Return the finding for a program of tasks whose streams wait for each other in a circle."""
    program = ordered.program
    graph = dependency_graph(program)
    for node in nx.nodes_with_selfloops(graph):
        message = f"the order deadlocks: an overlapped pair cannot need its own result, as {node} does"
        help = "overlap two tasks of which neither needs the other"
        return refuse("E304", message, ordered.span(graph.nodes[node]["row"]), "begins the pair", help=help)
    by_row = {row: node for node, row in graph.nodes(data="row")}
    cycle = shortest_cycle(graph, [by_row[row] for row in timing.stuck])
    at = next(k for k in range(len(cycle)) if graph.edges[cycle[k - 1], cycle[k]]["kind"] == "data")
    cycle = cycle[at:] + cycle[:at]  # begins with a task that waits for a value
    notes, ranks, first = [], [], cycle[0]
    for k, node in enumerate(cycle):
        following = cycle[(k + 1) % len(cycle)]
        if graph.edges[node, following]["kind"] == "order":
            continue
        rank = graph.nodes[node]["rank"]
        ranks.append(rank)
        text = f"rank {rank} runs {first} before {node}" if first != node else f"rank {rank} runs {node}"
        notes.append(f"{text}, which {following} needs")
        first = following
    start = cycle[0]
    span = ordered.span(graph.nodes[start]["row"])
    places = dict.fromkeys(ordered.span(graph.nodes[node]["row"]) for node in cycle)
    lines = [f"ordered by {s.source.name}:{s.line}: {s.source.line(s.line).strip()}" for s in places]
    who = f"rank {ranks[0]} waits for itself"
    if len(set(ranks)) > 1:
        who = f"ranks {', '.join(map(str, sorted(set(ranks))))} wait for each other in a circle"
    concerned = sorted(set(ranks))[:MAX_SHOWN]
    far = "none of these ranks can start anything"
    if (timing.end[np.isin(program.rank_of, concerned)] >= 0).any():
        far = f"as far as the ranks get:\n{draw_timeline(program, timing, 1, ranks=concerned, columns=120).rstrip()}"
    return ChimeraError(
        [
            Diagnostic(
                "E304",
                f"the order deadlocks: {who}",
                span,
                f"orders {start}",
                ("\n".join(notes[:MAX_SHOWN]), *lines, far),
                "on one of these ranks, let the task that is needed come first",
            )
        ]
    )
