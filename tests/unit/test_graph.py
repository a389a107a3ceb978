"""The dependency DAG: its critical path is as long as the makespan, and networkx reads the same graph from its GraphML."""

from __future__ import annotations

from itertools import pairwise

import networkx as nx
import numpy as np
import pytest

from chimerac.chimera_ir.program import Ints, Program
from chimerac.compiler.analyze.causes import critical_path
from chimerac.compiler.analyze.graph import dependency_graph, dot, graphml, task_names
from chimerac.compiler.analyze.simulate import simulate
from tests.helpers import CASES, library_program, program
from tests.helpers import tasks as tasks_in
from tests.helpers_events import makespan
from tests.helpers_text import small

RIGHT = program("chimera", width=2, D=2)


def graph_of(p: Program) -> nx.DiGraph[str]:
    """Return the graph that networkx reads from the GraphML."""
    return nx.parse_graphml(graphml(dependency_graph(p)))


def path_of(p: Program) -> tuple[Ints, int]:
    """Return the rows of the tasks of the critical path, and its length. Checks that only tasks are on it."""
    path = critical_path(simulate(p))
    assert all(part.kind == "task" for part in path)
    return np.array([part.row for part in path]), path[-1].end


@pytest.mark.parametrize(("schedule", "parameters"), CASES)
def test_the_critical_path_is_as_long_as_the_makespan(schedule: str, parameters: tuple[tuple[str, int], ...]) -> None:
    """All these programs have hop 0: only tasks take time, so all ways to compute the makespan must agree."""
    p = library_program(schedule, parameters)
    graph = graph_of(p)
    assert nx.is_directed_acyclic_graph(graph)
    path, length = path_of(p)
    node_names = task_names(p, path)
    assert length == simulate(p).makespan == makespan(p) == longest_path(graph)
    assert sum(graph.nodes[node]["cost"] for node in node_names) == length
    assert all(graph.has_edge(a, b) for a, b in pairwise(node_names))
    cells = p.header.stages * p.header.micro_batches  # pairs of a stage and a micro-batch
    assert len(graph) == sum(1 for g in range(p.world) for _ in tasks_in(p.stream(g)))
    if len(graph) == 2 * cells:  # no groups, no split backwards, no RECOMPUTE
        # For each micro-batch S - 1 activations, S - 1 gradients, and S edges from a forward to its backward.
        assert sum(kind == "data" for *_, kind in graph.edges(data="kind")) == 3 * cells - 2 * p.header.micro_batches


def longest_path(graph: nx.DiGraph[str]) -> int:
    """Return the length of the longest path: the costs of its tasks and the delays of its edges."""
    end: dict[str, int] = {}
    for node in nx.topological_sort(graph):
        begin = max((end[source] + delay for source, _, delay in graph.in_edges(node, data="delay")), default=0)
        end[node] = begin + graph.nodes[node]["cost"]
    return max(end.values())


def test_a_pair_that_reads_from_a_pair_begins_when_the_other_pair_ends() -> None:
    """A pair of rank 0 computes two values. A pair of rank 1 reads the second in its first task, the first in its second."""
    order = "if r == 0 { F(0, 0) & F(0, 1) B(0) B(0) } else { F(1, 1) & F(1, 0) B(1) B(1) }"
    p = small({"N": 2}, order=f"order listing for rank r {{ {order} ", rule1="", rule2="")  # `small` adds the last }
    path, length = path_of(p)
    assert length == longest_path(graph_of(p)) == simulate(p).makespan == makespan(p)
    assert [name.removesuffix(" overlap") for name in task_names(p, path)[:4]] == [
        f"FWD main s{s} m{m}" for s, m in ((0, 0), (0, 1), (1, 1), (1, 0))
    ]


def test_graphml_and_dot_have_the_tasks_and_the_edges_of_the_graph() -> None:
    graph = dependency_graph(RIGHT)
    reread = graph_of(RIGHT)
    assert list(reread) == graph.names and len(reread.edges) == len(graph.source)
    assert reread.nodes["FWD down[0] s0 m0 of replica 1"] == {
        "row": int(graph.rows[graph.names.index("FWD down[0] s0 m0 of replica 1")]),
        "rank": 2,
        "op": "FWD",
        "pipe": "down[0]",
        "stage": 0,
        "micro_batches": "0",
        "cost": 1,
    }
    assert dot(graph).count(" -> ") == len(graph.source)
    assert dot(graph).count("[style=dotted]") == sum(kind == "order" for *_, kind in reread.edges(data="kind"))
    assert dot(graph).count("subgraph") == 4, "one for each rank"
