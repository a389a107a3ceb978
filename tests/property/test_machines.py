"""Programs on every machine can be analysed and drawn. An independent event-driven simulator gives the same makespans."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.instructions import Recv, Send, Task
from chimerac.chimera_ir.program import Pipe, Program
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import evaluation_of
from chimerac.compiler.analyze.graph import dependency_graph, dot, graphml
from chimerac.compiler.analyze.report import report
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.draw.timeline import draw_timeline
from chimerac.compiler.lower.relower import arranged
from chimerac.compiler.verify import verify
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines
from tests.effort import examples
from tests.helpers import CASES, library_program, streams
from tests.helpers_events import makespan
from tests.proof.disorder import with_own_orders
from tests.proof.drawn import (
    MACHINES,
    Sizes,
    lower_tasks,
    outputs_and_inputs,
    pair_up,
    random_order,
    random_tasks,
    tasks_of,
    with_late_receives,
    with_moved_receives,
)
from tests.proof.mutations import codes

SIZES = Sizes(ranks=4, stages=4, pipes=2, micro_batches=3)


def random_programs(r: random.Random) -> Iterator[Program]:
    """Yield one random program, once for each machine on which it terminates.

    For some machines also yield a version that is arranged for the machine. Yield nothing if the program is wrong or terminates
    on no machine.
    """
    tasks = random_tasks(r, SIZES)
    p = lower_tasks(tasks, r)
    p = r.choice(  # only the chosen one is built
        [
            lambda: p,
            lambda: with_moved_receives(r, p),
            lambda: with_late_receives(p, past=(Send,), window=r.randint(0, 1)),
            lambda: with_own_orders(r, tasks),
        ]
    )()
    p = replace(p, costs=replace(p.costs, hop=r.randint(0, 3)))
    if codes(p.with_header(machine="posted")):  # every other machine has more waits, and cannot run it either
        return
    for machine, terminates in machines(ProgramIndex(p)).items():
        on_machine = p.with_header(machine=machine)
        version = arranged(on_machine, machine)  # type: ignore[arg-type]
        if terminates:
            yield on_machine
        if version is not None:
            verified = verify(version)
            if r.random() < 0.5:
                yield verified


def check_times_and_drawings(p: Program) -> None:
    """Write and read a program in its text form, check its simulated times, and make its report, timeline and graphs."""
    p = verify(program_from_text(program_to_text(p)))
    s = simulate(p)
    assert s.makespan == makespan(p)
    assert all(w >= o >= 0 for w, o in zip(s.wall_bubbles, s.own_bubbles, strict=True))
    assert report(p, s) and draw_timeline(p, s.timeline)
    graph = dependency_graph(p)
    assert dot(graph) and graphml(graph)


@given(st.integers(0, 2**32))
@examples(30)
def test_random_programs_can_be_simulated_and_drawn_on_their_machines(seed: int) -> None:
    r = random.Random(seed)
    for p in random_programs(r):
        check_times_and_drawings(p)
        if r.random() < 0.1:
            check_times_and_drawings(evaluation_of(p))


def test_the_draws_include_all_machines_and_programs_that_only_posted_runs() -> None:
    r = random.Random(1)
    found: Counter[object] = Counter()
    for _ in range(150):
        for p in random_programs(r):
            found[p.header.machine] += 1
            found[p.header.machine, "window 0"] += p.header.window == 0
            found["posted alone"] += sum(machines(ProgramIndex(p)).values()) == 1
    assert min(found[m] for m in MACHINES) > 20 and min(found[m, "window 0"] for m in MACHINES) > 3
    assert found["posted alone"] > 3


class Always(random.Random):
    """Random numbers with which everything that is drawn with a probability happens."""

    def random(self) -> float:
        return 0.0


def test_every_overlapped_pair_that_is_possible_can_be_drawn() -> None:
    for seed in range(40):
        r = random.Random(seed)
        placement = [r.randrange(3) for _ in range(3)]
        drawn = random_order(r, [*tasks_of(r, 0, Pipe("p", (0, 1, 2), (0, 1, 2)), stages=3)], stages=3)
        order = [(placement[i.stage], i) for i in drawn]
        pair_up(Always(), order, stages=3)
        of_pairs = {n + k for n, (_, i) in enumerate(order) if i.overlap for k in (0, 1)}
        for at, (rank, _) in enumerate(order):
            following = [n for n in range(at + 1, len(order)) if order[n][0] == rank][:1]
            if not of_pairs & {at, *following}:
                # No pair was made of these two, so the second needs the first, or what is made after it.
                later = set().union(*(outputs_and_inputs(i, 3)[0] for _, i in order[at:]))
                assert all(outputs_and_inputs(order[n][1], 3)[1] & later for n in following)


def test_moving_receives_changes_no_other_order_and_late_receives_part_no_pair() -> None:
    r, pairs = random.Random(2), 0
    for _ in range(100):
        p = lower_tasks(random_tasks(r, SIZES), r)
        late, moved = with_late_receives(p, past=(Send,)), with_moved_receives(r, p)
        pairs += sum(isinstance(i, Task) and i.overlap for stream in streams(p) for i in stream)
        assert codes(late) <= {"E440"}  # not E403, which forbids a RECV between the two tasks of a pair
        for changed in (late, moved):
            for before, after in zip(streams(p), streams(changed), strict=True):
                assert [i for i in before if not isinstance(i, Recv)] == [i for i in after if not isinstance(i, Recv)]
    assert pairs > 50


@given(st.integers(0, 2**32))
@examples(30)
def test_a_program_that_terminates_on_a_machine_terminates_on_machines_with_fewer_waits(seed: int) -> None:
    for p in random_programs(random.Random(seed)):
        terminates = machines(ProgramIndex(p))
        for stricter, looser in (("serial", "paired"), ("paired", "window"), ("rendezvous", "window"), ("window", "posted")):
            assert terminates[looser] or not terminates[stricter]


def test_the_library_can_be_simulated_and_drawn_on_every_machine() -> None:
    for name, parameters in CASES:
        for machine in MACHINES:
            p = arranged(library_program(name, parameters, width=2), machine)
            assert p is not None
            check_times_and_drawings(verify(replace(p, costs=replace(p.costs, hop=1))))
