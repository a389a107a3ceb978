"""Durations from times in seconds: the simulator agrees with an independent event-driven one."""

from __future__ import annotations

import random
from dataclasses import astuple, replace
from itertools import pairwise
from math import log2

from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.instructions import AllReduce, Collective, Op, Send, Value
from chimerac.chimera_ir.profile import Link
from chimerac.chimera_ir.program import Program
from chimerac.compiler import evaluation_of
from chimerac.compiler.analyze.causes import critical_path, idle_times
from chimerac.compiler.analyze.durations import Durations, Network, measured_durations
from chimerac.compiler.analyze.simulate import simulate
from tests.effort import examples
from tests.helpers import CASES, library_program
from tests.helpers_events import Network as ReferenceNetwork
from tests.helpers_events import makespan
from tests.property.test_machines import random_programs

TASKS = (Op.FWD, Op.BWD, Op.BWD_INPUT, Op.BWD_WEIGHT, Op.RECOMPUTE)


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def random_times(r: random.Random, p: Program) -> tuple[Durations, ReferenceNetwork]:
    """Return random durations, and the same times of messages and all-reduces for the reference simulator.

    A third of the pairs of ranks have links of their own. All other pairs, and all-reduces, use the common link.
    """
    scale = 10 ** r.uniform(-6, -1)  # seconds: the most that a task takes, and that 10^6 bytes occupy a link
    tasks = {op: [r.choice([0.0, r.uniform(0, scale)]) for _ in range(p.header.stages)] for op in TASKS}
    common = Link(r.choice([0.0, r.uniform(0, scale)]), r.uniform(1, 20) * 1e6 / scale)
    pairs = [(a, b) for a in range(p.world) for b in range(p.world)]
    own_links = {pair: Link(r.uniform(0, scale), r.uniform(1, 20) * 1e6 / scale) for pair in r.sample(pairs, len(pairs) // 3)}
    sizes = {(value, stage): r.randrange(10**6) for value in Value for stage in range(p.header.stages)}
    reduced = {stage: r.randrange(10**7) for stage in range(p.header.stages)}

    def message_bytes(value: Value, stage: int, count: int) -> int:
        return sizes[value, stage] * count

    def reduced_bytes(collective: Collective) -> int:
        return reduced[collective.stage]

    def message(g: int, i: Send) -> tuple[int, int]:
        link, size = own_links.get((g, i.peer), common), message_bytes(Value[i.value], i.stage, len(i.micro_batches))
        return nanoseconds(link.latency_s), nanoseconds(size / link.bytes_per_s)

    def all_reduce(i: AllReduce) -> int:
        n, size = len(i.ranks), reduced[i.stage]
        return nanoseconds(2 * log2(n) * common.latency_s + 2 * (n - 1) / n * size / common.bytes_per_s)

    durations = measured_durations(p, tasks, Network(common, own_links), message_bytes, reduced_bytes)
    assert tuple(map(nanoseconds, tasks[Op.BWD])) == durations.costs.BWD
    return durations, ReferenceNetwork(message, all_reduce)


def check(r: random.Random, p: Program) -> None:
    """Check the simulation of a program with random times: its makespan, unit, critical path, and busy and idle times."""
    durations, network = random_times(r, p)
    s = simulate(p, durations=durations)
    assert s.makespan == makespan(replace(p, costs=durations.costs), network=network)
    assert (s.unit, s.scale) == ("ms", 10**6)
    path = critical_path(s)
    assert all(b.start == a.end for a, b in pairwise(path)) and (not path or path[0].start == 0)
    assert s.makespan == (path[-1].end if path else 0)
    assert [sum(astuple(idle)) for idle in idle_times(s)] == list(s.wall_bubbles)
    assert all(x >= 0 for idle in idle_times(s) for x in astuple(idle))
    assert all(b >= 0 and w >= o >= 0 for b, w, o in zip(s.busy, s.wall_bubbles, s.own_bubbles, strict=True))


@given(st.integers(0, 2**32))
@examples(30)
def test_two_simulators_agree_on_random_programs_with_random_times(seed: int) -> None:
    r = random.Random(seed)
    for p in random_programs(r):
        check(r, p)
        if r.random() < 0.1:
            check(r, evaluation_of(p))


def test_two_simulators_agree_on_the_library_with_random_times() -> None:
    r = random.Random(7)
    for case in CASES:
        check(r, library_program(*case, width=r.choice([1, 2])))
