"""The dependency DAG of a program's tasks, and its text for other tools.

Nodes are tasks, with the names of `task_names`. An edge `data` is a wait for the result of a task, delayed by the cost of a hop
if that task is on another rank. An edge `order` joins a task with the next one of its rank, unless an edge `data` does. An
overlapped pair starts and ends as one: a task that waits for the first task of the pair also waits for the second, and the
first waits for everything that the second waits for. These waits are edges `data` too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from chimerac.chimera_ir.instructions import Task
from chimerac.chimera_ir.program import OVERLAP, Ints, Program
from chimerac.chimera_ir.textline import instruction_text
from chimerac.compiler.tasks import Edges, TaskIndex, data_edges, task_costs


@dataclass(frozen=True)
class Graph:
    """The DAG as columns.

    Attributes:
        rows: of the tasks, ascending.
        cost: of each task, in units of cost.
        source, target: of each edge, as positions in `rows`; no pair occurs twice.
        is_data: 1 for `data`, 0 for `order`.
        delay: in units of cost.
    """

    program: Program
    rows: Ints
    cost: Ints
    source: Ints
    target: Ints
    is_data: Ints
    delay: Ints

    @cached_property
    def names(self) -> list[str]:
        """Return the name of every task."""
        return task_names(self.program, self.rows)

    def edges(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (source, target, is_data, delay), by source."""
        order = np.argsort(self.source, kind="stable")
        return zip(*(x[order].tolist() for x in (self.source, self.target, self.is_data, self.delay)), strict=True)


def task_names(program: Program, rows: Ints) -> list[str]:
    """Return the names of these tasks: their texts, and their replicas where there are several."""
    h, pipes = program.header, program.pipe_names
    texts = [instruction_text(i, pipes) for i in program.instructions(rows.tolist())]
    if h.width == 1:
        return texts
    return [f"{x} of replica {g // h.ranks}" for x, g in zip(texts, program.rank_of[rows].tolist(), strict=True)]


def dependency_graph(program: Program) -> Graph:
    """Return the graph of a verified program's tasks."""
    rows = np.flatnonzero(program.table.is_task)
    node = np.full(len(program), -1, np.int64)
    node[rows] = np.arange(len(rows))
    data = _with_edges_of_pairs(program, data_edges(program, TaskIndex.of(program), program.costs.hop))
    follows = np.flatnonzero(np.diff(program.rank_of[rows]) == 0)
    source, target = np.concatenate([follows, node[data.source]]), np.concatenate([follows + 1, node[data.target]])
    delay = np.concatenate([np.zeros(len(follows), np.int64), data.delay])
    # At most one edge joins two tasks. If one follows the other on its rank and also waits for its result, the edge is `data`.
    _, first, number = np.unique(source * len(rows) + target, return_index=True, return_inverse=True)
    is_data = np.zeros(len(first), np.int64)
    is_data[number[len(follows) :]] = 1
    order = np.argsort(first)
    kept = first[order]
    return Graph(program, rows, task_costs(program)[rows], source[kept], target[kept], is_data[order], delay[kept])


def _with_edges_of_pairs(program: Program, edges: Edges) -> Edges:
    """Return the edges and those that overlapped pairs add to them; an edge may be repeated.

    An edge from the first task of a pair is added from the second, too, and an edge to the second is added to the first, too.
    """
    is_first = (program.table.flags & OVERLAP > 0).astype(np.int64)
    if not is_first.any():
        return edges
    is_second = np.concatenate([[0], is_first[:-1]])
    end = edges.source + is_first[edges.source]
    begin = edges.target - is_second[edges.target]
    source = np.column_stack([edges.source, edges.source, end, end])
    target = np.column_stack([edges.target, begin, edges.target, begin])
    return Edges(source.ravel(), target.ravel(), np.repeat(edges.delay, 4))


def graphml(graph: Graph) -> str:
    """Return the graph as GraphML. Names contain no character that XML must escape."""
    return "".join(_graphml(graph))


def _graphml(graph: Graph) -> Iterator[str]:
    names, p = graph.names, graph.program
    yield _HEAD
    for name, task, row, rank, cost in zip(
        names,
        p.instructions(graph.rows.tolist()),
        graph.rows.tolist(),
        p.rank_of[graph.rows].tolist(),
        graph.cost.tolist(),
        strict=True,
    ):
        assert isinstance(task, Task)
        ids = ",".join(map(str, task.micro_batches))
        values = (row, rank, task.op, p.pipe_names[task.pipe], task.stage, ids, cost)  # the keys d0 to d6 of _HEAD
        yield f'    <node id="{name}">\n'
        yield "".join(f'      <data key="d{k}">{value}</data>\n' for k, value in enumerate(values))
        yield "    </node>\n"
    for source, target, is_data, delay in graph.edges():
        yield f'    <edge source="{names[source]}" target="{names[target]}">\n'
        yield f'      <data key="d7">{_KINDS[is_data]}</data>\n      <data key="d8">{delay}</data>\n    </edge>\n'
    yield "  </graph>\n</graphml>\n"


_KINDS = ("order", "data")  # by is_data
_HEAD = """<?xml version='1.0' encoding='utf-8'?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" \
xsi:schemaLocation="http://graphml.graphdrawing.org/xmlns http://graphml.graphdrawing.org/xmlns/1.0/graphml.xsd">
  <key id="d8" for="edge" attr.name="delay" attr.type="long" />
  <key id="d7" for="edge" attr.name="kind" attr.type="string" />
  <key id="d6" for="node" attr.name="cost" attr.type="long" />
  <key id="d5" for="node" attr.name="micro_batches" attr.type="string" />
  <key id="d4" for="node" attr.name="stage" attr.type="long" />
  <key id="d3" for="node" attr.name="pipe" attr.type="string" />
  <key id="d2" for="node" attr.name="op" attr.type="string" />
  <key id="d1" for="node" attr.name="rank" attr.type="long" />
  <key id="d0" for="node" attr.name="row" attr.type="long" />
  <graph edgedefault="directed">
"""


def dot(graph: Graph) -> str:
    """Return the graph for Graphviz: a frame around the tasks of each rank, order edges dotted."""
    return "\n".join(_dot(graph)) + "\n"


def _dot(graph: Graph) -> Iterator[str]:
    names = graph.names
    yield "digraph schedule {"
    yield "  rankdir=LR; node [shape=box];"
    ranks, first = np.unique(graph.program.rank_of[graph.rows], return_index=True)
    for rank, begin, end in zip(ranks.tolist(), first.tolist(), [*first[1:].tolist(), len(names)], strict=True):
        inside = " ".join(f'"{name}";' for name in names[begin:end])
        yield f'  subgraph "cluster_{rank}" {{ label="rank {rank}"; {inside} }}'
    for source, target, is_data, _ in graph.edges():
        yield f'  "{names[source]}" -> "{names[target]}"{"" if is_data else " [style=dotted]"};'
    yield "}"
