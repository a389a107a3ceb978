"""Random programs of tasks, lowered as in the compiler. Placements, pipes, groups, overlapped pairs, orders and more are drawn.

The compiler emits no FREE, and posts each RECV where its rules say. So FREEs are added here, and RECVs are moved.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

from chimerac.chimera_ir.instructions import (
    Bwd,
    BwdInput,
    BwdWeight,
    Free,
    Fwd,
    Instruction,
    Recompute,
    Recv,
    Send,
    Task,
)
from chimerac.chimera_ir.program import Costs, Header, Machine, Pipe, Program, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler.lower.insert import insert
from chimerac.compiler.lower.sync import gradient_sync
from chimerac.compiler.lower.transfers import transfers
from chimerac.compiler.lower.width import widen
from chimerac.compiler.tasks import TaskIndex, data_edges, earliest, task_costs
from chimerac.compiler.verify import verify
from tests.helpers import Streams, streams, with_move, with_streams

# An output of a task: "F" (of a forward), "B" (an input gradient) or "R" (of a recomputation); stage; micro-batch.
Output = tuple[str, int, int]


@dataclass(frozen=True)
class Sizes:
    """Upper bounds for random programs.

    Attributes:
        tied: whether parameters may be tied.
        kind: an evaluation has only forwards.
    """

    ranks: int = 4
    stages: int = 6
    pipes: int = 3
    micro_batches: int = 3  # of a pipe
    tied: bool = True
    kind: Literal["training", "evaluation"] = "training"


def random_tasks(r: random.Random, sizes: Sizes = Sizes()) -> Program:
    """Return a program of tasks. The orders of all ranks come from one random order that respects all dependencies."""
    ranks, stages = r.randint(1, sizes.ranks), r.randint(1, sizes.stages)
    pipes, total = [], 0
    for p in range(r.randint(1, sizes.pipes)):
        count = r.randint(1, sizes.micro_batches)
        placement = tuple(r.randrange(ranks) for _ in range(stages))
        pipes.append(Pipe(f"p{p}", placement, tuple(range(total, total + count))))
        total += count
    tied = (Tied("shared", (0, stages - 1)),) if sizes.tied and stages > 1 and r.random() < 0.15 else ()
    forward, input_grad, weight_grad = r.randint(1, 3), r.randint(1, 2), r.randint(1, 2)
    costs = Costs(*((cost,) * stages for cost in (forward, input_grad + weight_grad, input_grad, weight_grad)))
    window = r.randint(0, 3)
    header = Header("drawn", {}, ranks, stages, total, tuple(pipes), window=window, kind=sizes.kind, tied=tied)
    tasks = [task for p, pipe in enumerate(pipes) for task in tasks_of(r, p, pipe, stages)]
    ordered = random_order(r, [i for i in tasks if sizes.kind == "training" or isinstance(i, Fwd)], stages)
    order = [(pipes[i.pipe].placement[i.stage], i) for i in ordered]
    if r.random() < 0.3:
        pair_up(r, order, stages)
    return program_of(header, [[i for rank, i in order if rank == g] for g in range(ranks)], costs)


def tasks_of(r: random.Random, p: int, pipe: Pipe, stages: int) -> Iterator[Task]:
    """Yield the tasks of a pipe. Some are over groups of micro-batches, some forwards run again, and some backwards are split.

    Args:
        p: the number of the pipe.
    """
    grouped = r.random() < 0.3
    for stage in range(stages):
        for forward in (True, False):
            remaining = list(pipe.micro_batches)
            while remaining:
                size = r.randint(1, len(remaining)) if grouped else 1
                group, remaining = tuple(remaining[:size]), remaining[size:]
                if forward:
                    yield Fwd(p, stage, group, recompute=(recompute := r.random() < 0.3))
                    if recompute and r.random() < 0.6:
                        yield from (Recompute(p, stage, part) for part in _parts(r, group))
                elif r.random() < 0.4:
                    yield BwdInput(p, stage, group)
                    yield BwdWeight(p, stage, group)
                else:
                    yield Bwd(p, stage, group)


def _parts(r: random.Random, group: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return a group of micro-batches, sometimes cut in two."""
    cut = r.randrange(len(group))
    return [part for part in (group[:cut], group[cut:]) if part]


def outputs_and_inputs(i: Task, stages: int) -> tuple[set[Output], set[Output]]:
    """Return the outputs and the inputs of a task. Not every input of a backward exists: R only where a task outputs it."""
    outputs, inputs = set(), set()
    for m in i.micro_batches:
        match i:
            case Fwd():
                outputs.add(("F", i.stage, m))
                inputs |= {("F", i.stage - 1, m)} if i.stage else set()
            case BwdWeight():
                inputs.add(("B", i.stage, m))
            case Recompute():
                outputs.add(("R", i.stage, m))
                inputs.add(("F", i.stage, m))
            case _:
                outputs.add(("B", i.stage, m))
                inputs |= {("F", i.stage, m), ("R", i.stage, m)}
                inputs |= {("B", i.stage + 1, m)} if i.stage < stages - 1 else set()
    return outputs, inputs


def random_order(r: random.Random, tasks: list[Task], stages: int) -> list[Task]:
    """Return these tasks in a random order that respects the dependencies between them. The given list is emptied."""
    order: list[Task] = []
    missing = set().union(*(outputs_and_inputs(i, stages)[0] for i in tasks))
    while tasks:
        i = r.choice([i for i in tasks if not outputs_and_inputs(i, stages)[1] & missing])
        tasks.remove(i)
        order.append(i)
        missing -= outputs_and_inputs(i, stages)[0]
    return order


def pair_up(r: random.Random, order: list[tuple[int, Task]], stages: int) -> None:
    """Make overlapped pairs, each of a task and the next task of its rank. The second is moved to right after the first.

    Args:
        order: (rank, task), changed in place.

    Two tasks become a pair only if the inputs of both exist before the first of them.
    """
    at = 0
    while at < len(order):
        rank, first = order[at]
        second = next((n for n in range(at + 1, len(order)) if order[n][0] == rank), None)
        missing = set().union(*(outputs_and_inputs(i, stages)[0] for _, i in order[at:]))
        if second is not None and not outputs_and_inputs(order[second][1], stages)[1] & missing and r.random() < 0.5:
            order[at] = rank, replace(first, overlap=True)
            order.insert(at + 1, order.pop(second))
            at += 1
        at += 1


def lower_tasks(tasks: Program, r: random.Random, width: int = 2, queued: bool | None = None) -> Program:
    """Return the verified program of these tasks, lowered as in the compiler. FREEs are added to some programs.

    Args:
        width: how many replicas one program in three has; the others have one.
        queued: whether to lower for machines with queues; None: drawn.
    """
    timing = earliest(tasks, task_costs(tasks), data_edges(tasks, TaskIndex.of(tasks), hop=0))
    assert not timing.stuck
    queued = r.random() < 0.3 if queued is None else queued
    insertions = []
    if tasks.header.kind == "training":
        sync, collectives = gradient_sync(tasks, timing, r.choice(["at end", "eager", "eager where idle"]), queued)  # type: ignore[arg-type]
        tasks = replace(tasks, collectives=collectives)
        insertions.append(sync)
    complete = insert(tasks, [transfers(tasks, timing, queued, ahead=r.randint(1, 3)), *insertions])
    program = widen(complete, r.choice([1, 1, width]))
    return verify(with_streams(program, with_frees(r, program)) if r.random() < 0.4 else program)


def with_frees(r: random.Random, program: Program) -> Streams:
    """Return the streams with FREEs for some received values, at or after the earliest possible place."""
    changed = streams(program)
    for stream in changed:
        for i in [i for i in stream if isinstance(i, Recv)]:
            if r.random() < 0.5:
                continue
            # The kinds of tasks of which one reads the value last.
            readers = (Bwd, BwdWeight) if i.value == "act" else (Bwd, BwdInput)
            readers = readers if program.header.kind == "training" else (Fwd,)
            last = max(n for n, x in enumerate(stream) if isinstance(x, readers) and shares_micro_batch(x, i))
            # Not between the tasks of an overlapped pair.
            places = [n + 1 for n in range(last, len(stream)) if not getattr(stream[n], "overlap", False)]
            stream.insert(r.choice(places), Free(i.value, i.pipe, i.stage, i.micro_batches))
    return changed


def shares_micro_batch(task: Instruction, i: Recv | Send) -> bool:
    """Return whether a task and a transfer have the same pipe and stage, and a micro-batch in common."""
    assert isinstance(task, Task)
    return (task.pipe, task.stage) == (i.pipe, i.stage) and bool({*task.micro_batches} & {*i.micro_batches})


def reads_first(task: Instruction, i: Recv | Send) -> bool:
    """Return whether a task reads the value of this transfer and is of the kind that reads such a value first.

    A forward reads an act first: a RECOMPUTE and the last backward task may read it again.
    """
    return isinstance(task, (Fwd,) if i.value == "act" else (Bwd, BwdInput)) and shares_micro_batch(task, i)


def delay_receives(stream: list[Instruction], past: tuple[type[Instruction], ...]) -> None:
    """Move every RECV as late in the stream as the first reader of its values and the transfers with its peer allow.

    If the first reader is the second task of an overlapped pair, the RECV stays before the pair.

    Args:
        past: the kinds of transfers with its peer that a RECV may pass.
    """
    for n in reversed(range(len(stream))):
        i = stream[n]
        if isinstance(i, Recv):
            while n + 1 < len(stream):
                after = stream[n + 1]
                if reads_first(after, i) or (getattr(after, "overlap", False) and reads_first(stream[n + 2], i)):
                    break
                if isinstance(after, Send | Recv) and after.peer == i.peer and not isinstance(after, past):
                    break
                stream[n], stream[n + 1], n = after, i, n + 1


def with_moved_receives(r: random.Random, p: Program) -> Program:
    """Return the program with its RECVs moved: all as late as possible, or up to two of each rank by at most three places.

    The result may be wrong. In the first case its window is drawn too.
    """
    changed, delayed, past = streams(p), r.random() < 0.5, r.choice([(), (Send,), (Send,)])
    for stream in changed:
        if delayed:
            delay_receives(stream, past)
            continue
        receives = [i for i in stream if isinstance(i, Recv)]
        for i in r.sample(receives, min(len(receives), 2)):
            n = stream.index(i)  # the move of the first RECV may have shifted the second
            stream[:] = with_move(stream, n, max(0, min(len(stream) - 1, n + r.choice([-3, -2, -1, 1, 2, 3]))))
    moved_program = with_streams(p, changed)
    return moved_program.with_header(window=r.randint(0, 1)) if delayed else moved_program


def with_late_receives(p: Program, past: tuple[type[Instruction], ...] = (), window: int = 0) -> Program:
    """Return the program with its RECVs as late as possible.

    Args:
        past: as in `delay_receives`.
        window: of the result.

    The result may be wrong: it may deadlock.

    If a RECV may pass no transfer, each pair of ranks keeps its order of transfers. With window 0, on the machine `window`, a
    rank then waits at each SEND until the peer has posted its RECV, which the peer does as late as it can.
    """
    changed = streams(p)
    for stream in changed:
        delay_receives(stream, past)
    return with_streams(p, changed).with_header(window=window)


MACHINES: tuple[Machine, ...] = get_args(Machine)
