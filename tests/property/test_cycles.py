"""Random waits that deadlock: the cycle that explains the deadlock has as few waits as possible."""

from __future__ import annotations

import random

import networkx as nx
import numpy as np

from chimerac.chimera_ir.program import Ints
from chimerac.compiler.diagnose.cycle import consecutive_pairs, shortest_cycle


def random_waits(r: random.Random) -> tuple[Ints, Ints, Ints]:
    """Draw waits; return the targets and the sources of those that can never be satisfied, and the lane of each node.

    The nodes of a lane run in order, like the instructions of a stream. The target of a wait cannot run before its source.
    """
    lane = np.repeat(np.arange(5), [r.randint(1, 5) for _ in range(5)])
    waits = [(r.randrange(len(lane)), r.randrange(len(lane))) for _ in range(r.randint(1, 9))]  # (target, source)
    done: set[int] = set()
    while True:
        ready = {
            v
            for v in set(range(len(lane))) - done
            if (v == 0 or lane[v - 1] != lane[v] or v - 1 in done) and all(s in done for t, s in waits if t == v)
        }
        if not ready:
            break
        done |= ready
    unsatisfied = [(t, s) for t, s in waits if s not in done]
    return np.array([t for t, _ in unsatisfied], np.int64), np.array([s for _, s in unsatisfied], np.int64), lane


def fewest_waits(target: Ints, source: Ints, lane: Ints) -> int:
    """Return the number of waits of the shortest cycle, by Dijkstra's algorithm from every node.

    The length of a path is its number of waits. Steps from a node to the next one of its lane do not count.
    """
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_weighted_edges_from((int(s), int(t), 1) for t, s in zip(target, source, strict=True))
    graph.add_weighted_edges_from((v, v + 1, 0) for v in range(len(lane) - 1) if lane[v] == lane[v + 1])
    lengths = dict(nx.all_pairs_dijkstra_path_length(graph))
    return min(1 + lengths[int(t)][int(s)] for t, s in zip(target, source, strict=True) if int(s) in lengths[int(t)])


def test_no_cycle_of_waits_is_shorter_than_the_one_that_is_found() -> None:
    lengths = []
    for seed in range(3000):
        target, source, lane = random_waits(random.Random(seed))
        if not len(target):  # no deadlock
            continue
        cycle = shortest_cycle(target, source, lane)
        # The source of a wait is in the lane of the next wait's target, and not before this target.
        for wait, next_wait in consecutive_pairs(cycle):
            assert lane[source[wait]] == lane[target[next_wait]] and target[next_wait] <= source[wait]
        assert len(cycle) == fewest_waits(target, source, lane)
        lengths.append(len(cycle))
    assert {1, 2, 3} <= set(lengths)
