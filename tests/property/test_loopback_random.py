"""Schedules that nobody designed: random placements, pipes and orders train like one process, or hang where predicted."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chimera_ir.diagnostics import ChimeraError
from chimera_ir.instructions import Bwd, BwdInput, BwdWeight, Fwd, Instruction, Recv
from chimera_ir.program import Costs, Header, Pipe, Program, program_of
from compiler.lower.sync import gradient_sync
from compiler.lower.transfers import transfers
from compiler.lower.weave import weave
from compiler.lower.width import widen
from compiler.tasks import TaskIndex, data_edges, earliest, task_costs
from compiler.verify import verify
from compiler.verify.progress import machines
from compiler.verify.view import View
from interpreter.transport.loopback import StuckError, run_in_loopback
from tests.helpers import moved, streams, with_streams
from tests.helpers_loopback import deep_model, equal_to_one_process, rank_of

MODEL = deep_model(4)


def drawn_tasks(r: random.Random) -> Program:
    """Return a program of tasks: each rank's order is part of one random order in which everything can run."""
    ranks, stages = r.randint(1, 4), r.randint(1, 6)
    pipes, total = [], 0
    for p in range(r.randint(1, 3)):
        count = r.randint(1, 3)
        placement = tuple(r.randrange(ranks) for _ in range(stages))
        pipes.append(Pipe(f"p{p}", placement, tuple(range(total, total + count))))
        total += count
    header = Header("drawn", {}, ranks, stages, total, tuple(pipes), Costs.uniform(stages), window=r.randint(0, 3))
    todo: list[list[Instruction]] = []  # chains: each runs in its order
    for p, pipe in enumerate(pipes):
        for m in pipe.micro_batches:
            chain: list[Instruction] = [Fwd(p, s, (m,), recompute=r.random() < 0.2) for s in range(stages)]
            for s in reversed(range(stages)):
                split = r.random() < 0.4
                chain.append(BwdInput(p, s, (m,)) if split else Bwd(p, s, (m,)))
            todo.append(chain)
    order: list[list[Instruction]] = [[] for _ in range(ranks)]
    while todo:
        chain = r.choice(todo)
        i = chain.pop(0)
        order[pipes[i.pipe].placement[i.stage]].append(i)  # type: ignore[union-attr]
        if isinstance(i, BwdInput):  # its other half may run whenever it likes
            todo.append([BwdWeight(i.pipe, i.stage, i.micro_batches)])
        todo = [c for c in todo if c]
    return program_of(header, order)


def lowered(tasks: Program, r: random.Random) -> Program:
    """Return the verified program of these tasks, as the compiler lowers them."""
    timing = earliest(tasks, task_costs(tasks), data_edges(tasks, TaskIndex.of(tasks), 0))
    sync, collectives = gradient_sync(tasks, timing, r.choice(["at end", "eager", "eager where idle"]))  # type: ignore[arg-type]
    woven = weave(replace(tasks, collectives=collectives), [transfers(tasks, timing, r.randint(1, 3)), sync])
    return verify(widen(woven, r.choice([1, 1, 2])))


@pytest.mark.parametrize("ten", range(6))
def test_drawn_schedules_have_the_gradients_of_one_process(ten: int) -> None:
    for seed in range(10 * ten, 10 * ten + 10):
        r = random.Random(seed)
        p = lowered(drawn_tasks(r), r)
        equal_to_one_process(p, MODEL, seed, every_post=True, iterations=2)


def test_drawn_schedules_are_of_many_shapes() -> None:
    drawn = [drawn_tasks(random.Random(seed)) for seed in range(60)]
    assert len({(p.header.ranks, p.header.stages, len(p.header.pipes)) for p in drawn}) > 25
    several = [p for p in drawn if any(len(set(pipe.placement)) < p.header.stages for pipe in p.header.pipes)]
    assert len(several) > 30


def late(stream: list[Instruction]) -> None:
    """Post every receive as late as its reader and its channel allow."""
    for n in reversed(range(len(stream))):
        i = stream[n]
        if isinstance(i, Recv):
            reads = (Fwd,) if i.value == "act" else (Bwd, BwdInput)
            while n + 1 < len(stream):
                after = stream[n + 1]
                mine = isinstance(after, reads) and (after.pipe, after.stage, after.micro_batches) == (
                    i.pipe,
                    i.stage,
                    i.micro_batches,
                )
                if mine or (isinstance(after, Recv) and after.peer == i.peer):
                    break
                stream[n], stream[n + 1], n = after, i, n + 1


def disturbed(r: random.Random) -> Program | None:
    """Return a drawn program with receives moved about, if the verifier finds nothing wrong but a hang."""
    p = lowered(drawn_tasks(r), r)
    changed, is_late = streams(p), r.random() < 0.5
    for stream in changed:
        if is_late:
            late(stream)
            continue
        receives = [n for n, i in enumerate(stream) if isinstance(i, Recv)]
        for n in r.sample(receives, min(len(receives), 2)):
            stream[:] = moved(stream, n, max(0, min(len(stream) - 1, n + r.randint(-3, 3))))
    bad = with_streams(p, changed)
    if is_late:
        bad = bad.with_header(window=r.randint(0, 1))
    try:
        verify(bad)
    except ChimeraError as error:
        return bad if {d.code for d in error.diagnostics} == {"E440"} else None
    return bad


def test_a_program_hangs_in_loopback_exactly_where_the_verifier_says() -> None:
    said = []
    for seed in range(120):
        p = disturbed(random.Random(1000 + seed))
        if p is None:
            continue
        for machine, ends in machines(View(p)).items():
            said.append((machine, ends))
            if ends:
                equal_to_one_process(p, MODEL, seed, machine, every_post=True)  # type: ignore[arg-type]
            else:
                with pytest.raises(StuckError):
                    run_in_loopback(p, rank_of(p, MODEL), seed, machine, every_post=True)  # type: ignore[arg-type]
    for machine in ("window", "rendezvous", "paired", "serial"):
        assert said.count((machine, True)) > 3 and said.count((machine, False)) > 3, (machine, said)
