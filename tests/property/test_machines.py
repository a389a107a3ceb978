"""Programs on every machine can be analysed and drawn. An independent event-driven simulator gives the same makespans."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.instructions import Send
from chimerac.chimera_ir.program import Program
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
from tests.helpers import CASES, library_program
from tests.helpers_events import makespan
from tests.proof.disorder import with_own_orders
from tests.proof.drawn import MACHINES, Sizes, lower_tasks, random_tasks, with_late_receives, with_moved_receives
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
