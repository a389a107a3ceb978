"""The dependency DAG as a networkx graph: built on demand, for the critical path and drawings of others.

Nodes are tasks, named by their text. An edge `data` carries a value, with the hop it costs; an edge `order` joins a task
with the next one of its rank. The passes over whole programs use plain arrays instead (compiler/tasks.py).
"""

from __future__ import annotations

import io

import networkx as nx
import numpy as np

from chimera_ir.instructions import Op
from chimera_ir.program import OVERLAP, Program
from compiler.tasks import TaskIndex, data_edges, task_costs


def dependency_graph(program: Program) -> nx.DiGraph[str]:
    """Return the graph of a program's tasks, with data and order edges."""
    index = TaskIndex.of(program)
    rows = np.flatnonzero(program.table.op <= Op.BWD_WEIGHT)
    cost = task_costs(program)
    names: dict[int, str] = {}
    graph: nx.DiGraph[str] = nx.DiGraph()
    replica = program.header.ranks
    for row, i in zip(rows.tolist(), program.instructions(rows.tolist()), strict=True):
        rank = int(program.rank_of[row])
        suffix = f" of replica {rank // replica}" if program.header.width > 1 else ""
        names[row] = program.text(row) + suffix
        graph.add_node(
            names[row],
            row=row,
            rank=rank,
            op=i.op,
            pipe=program.pipe_names[i.pipe],  # type: ignore[union-attr]
            stage=i.stage,
            micro_batches=",".join(map(str, i.micro_batches)),  # type: ignore[union-attr]
            cost=int(cost[row]),
        )
    pairs = set(np.flatnonzero(program.table.flags & OVERLAP).tolist())
    same_rank = np.flatnonzero(np.diff(program.rank_of[rows]) == 0)
    for k in same_rank.tolist():
        graph.add_edge(names[int(rows[k])], names[int(rows[k + 1])], kind="order", delay=0)
    edges = data_edges(program, index, program.header.costs.hop)
    for source, target, delay in zip(edges.source.tolist(), edges.target.tolist(), edges.delay.tolist(), strict=True):
        if source < 0:
            continue
        graph.add_edge(names[source], names[target], kind="data", delay=delay)
        # An overlapped pair starts and ends as one: its first task waits for what the second reads, and the other way
        # round for those who read from the first.
        if target - 1 in pairs:
            graph.add_edge(names[source], names[target - 1], kind="data", delay=delay)
        if source in pairs and target != source + 1:
            graph.add_edge(names[source + 1], names[target], kind="data", delay=delay)
    return graph


def critical_path(graph: nx.DiGraph[str]) -> tuple[list[str], int]:
    """Return the longest path of an acyclic graph and its length: costs and hops, in the program's units."""
    length: dict[str, int] = {}
    before: dict[str, str] = {}
    for node in nx.topological_sort(graph):
        start = 0
        for source, _, delay in graph.in_edges(node, data="delay"):
            if length[source] + delay >= start:
                start, before[node] = length[source] + delay, source
        length[node] = start + graph.nodes[node]["cost"]
    if not length:
        return [], 0
    path = [max(length, key=lambda node: length[node])]
    while path[-1] in before:
        path.append(before[path[-1]])
    return path[::-1], length[path[0]]


def graphml(graph: nx.DiGraph[str]) -> str:
    """Return the graph as GraphML."""
    buffer = io.BytesIO()
    nx.write_graphml_xml(graph, buffer)
    return buffer.getvalue().decode() + "\n"


def dot(graph: nx.DiGraph[str]) -> str:
    """Return the graph for Graphviz: a box per rank, order edges dotted."""
    lines = ["digraph schedule {", "  rankdir=LR; node [shape=box];"]
    ranks: dict[int, list[str]] = {}
    for node, rank in graph.nodes(data="rank"):
        ranks.setdefault(rank, []).append(node)
    for rank, nodes in ranks.items():
        inside = " ".join(f'"{node}";' for node in nodes)
        lines.append(f'  subgraph "cluster_{rank}" {{ label="rank {rank}"; {inside} }}')
    for source, target, kind in graph.edges(data="kind"):
        style = " [style=dotted]" if kind == "order" else ""
        lines.append(f'  "{source}" -> "{target}"{style};')
    return "\n".join([*lines, "}"]) + "\n"
