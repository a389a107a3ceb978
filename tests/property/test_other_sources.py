"""Schedules of the library have the orders of other implementations. Orders of torch also compile as listings of all tasks.

torch        the compute order of ScheduleZBVZeroBubble and ScheduleDualPipeV, from the installed torch
DualPipe     an emulation of the eight phases of its published step()
"""

# ruff: noqa: N803, N806 (letters as in the papers)

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_text
from tests.helpers import program, tasks
from tests.helpers_reference import find_error

Task = tuple[str, int, int]  # kind, stage, micro-batch within the pipe
Line = tuple[Task, ...]  # one task, or an overlapped pair


def task_orders(p: Program) -> list[list[tuple[object, ...]]]:
    """Return the tasks of every rank in order: (operation, pipe, stage, micro-batches, overlap).

    Micro-batches are numbered within their pipe. overlap: whether the task overlaps with the next one.
    """
    ids = [{m: k for k, m in enumerate(pipe.micro_batches)} for pipe in p.header.pipes]
    return [
        [(i.op, i.pipe, i.stage, tuple(ids[i.pipe][m] for m in i.micro_batches), i.overlap) for i in tasks(p.stream(g))]
        for g in range(p.world)
    ]


def listing_of(ranks: Sequence[Sequence[Line]], stages: int, micro_batches: int) -> str:
    """Return the text of a schedule that lists every task of every rank, with the stages placed in a V."""
    D = len(ranks)
    lines = [f"schedule listed  ranks {D}  stages {stages}"]
    lines.append(f"pipe main {{ stage s on rank if s < {D} then s else {2 * D - 1} - s   micro_batches {micro_batches} }}")
    lines.append("order listing for rank r {")
    for r, order in enumerate(ranks):
        lines.append(f"    if r == {r} {{")
        lines += ["        " + " & ".join(f"{kind} main({s}, {m})" for kind, s, m in line) for line in order]
        lines.append("    }")
    return "\n".join([*lines, "}"]) + "\n"


def torch_order(schedule: str, D: int, N: int) -> list[list[Line]]:
    """Return the compute order that a schedule class of torch generates for D ranks and N micro-batches."""
    module = pytest.importorskip("torch.distributed.pipelining.schedules")
    method = getattr(getattr(module, schedule, None), "_calculate_single_rank_operations", None)
    if method is None:
        pytest.skip(f"this torch has no {schedule} of the shape known here")
    # The attributes that the method reads. The constructor cannot be used: it needs stages with process groups.
    attributes = SimpleNamespace(pp_group_size=D, num_stages=2 * D, _num_stages=2 * D, _n_microbatches=N)
    letters = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "B"}

    def task(action: Any) -> Task:
        return letters[action.computation_type.name], action.stage_index, action.microbatch_index

    actions = [[a for a in method(attributes, rank) if a is not None] for rank in range(D)]
    return [
        [tuple(map(task, a.sub_actions)) if a.sub_actions else (task(a),) for a in rank_actions] for rank_actions in actions
    ]


@pytest.mark.parametrize(("D", "N"), [(D, N) for D in (1, 2, 3, 4, 8) for N in (2 * D - 1, 2 * D, 2 * D + 1, 4 * D)])
def test_zb_v_has_the_order_of_torch(D: int, N: int) -> None:
    order = torch_order("ScheduleZBVZeroBubble", D, N)
    p = compile_text(listing_of(order, 2 * D, N)).program
    assert task_orders(p) == task_orders(program("zb_v", D=D, N=N))
    assert not find_error(p, range(1))


@pytest.mark.parametrize(("D", "N"), [(2, 1), (2, 2), (4, 1), (4, 3), (4, 6), (5, 5)])
def test_the_order_of_torch_for_few_micro_batches_is_correct(D: int, N: int) -> None:
    """For N < 2D - 1 torch uses the order for 2D - 1 without the tasks that do not exist; zb_v.sched excludes such N."""
    p = compile_text(listing_of(torch_order("ScheduleZBVZeroBubble", D, N), 2 * D, N)).program
    assert not find_error(p)


@pytest.mark.parametrize(("D", "N"), [(D, N) for D in (1, 2, 3, 4, 5, 8) for N in (2 * D, 2 * D + 1, 3 * D, 4 * D)])
def test_dualpipev_has_the_order_of_torch(D: int, N: int) -> None:
    order = torch_order("ScheduleDualPipeV", D, N)
    assert any(len(line) == 2 for rank in order for line in rank)
    p = compile_text(listing_of(order, 2 * D, N)).program
    assert task_orders(p) == task_orders(program("dualpipev", D=D, N=N))
    assert not find_error(p, range(1))


class Published:
    """One rank of DualPipe's step(): its eight phases, which record the tasks.

    Source: DeepSeek-AI, DualPipe, 2025, dualpipe.py. The names of the eight phases, such as nF0, are those of the source. So is
    the argument `phase`, which selects a pipe and is not the number of one of the eight phases.
    """

    def __init__(self, rank: int, D: int, N: int):
        self.rank, self.D = rank, D
        self.second_half = rank >= D // 2
        self.from_end = min(rank, D - 1 - rank)  # ranks between this one and the nearer end
        self.tasks: list[tuple[object, ...]] = []
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.weights: list[tuple[int, int]] = []  # (pipe, micro-batch) of weight gradients to compute: first in, first out
        self.phases(N)

    def pipe_of(self, phase: int) -> int:
        """Return for phase 0 the pipe of which this rank has a stage of the first half; for phase 1 the other pipe."""
        return 1 - phase if self.second_half else phase

    def record(self, op: str, pipe: int, m: int, overlap: bool = False) -> None:
        stage = self.rank if pipe == 0 else self.D - 1 - self.rank
        self.tasks.append((op, pipe, stage, (m,), overlap))

    def F(self, phase: int, overlap: bool = False) -> None:  # noqa: N802
        pipe = self.pipe_of(phase)
        self.record("FWD", pipe, self.forwards[pipe], overlap)
        self.forwards[pipe] += 1

    def B(self, phase: int, split: bool = False) -> None:  # noqa: N802
        pipe = self.pipe_of(phase)
        m = self.backwards[pipe]
        self.record("BWD_INPUT" if split else "BWD", pipe, m)
        if split:
            self.weights.append((pipe, m))
        self.backwards[pipe] += 1

    def W(self) -> None:  # noqa: N802
        self.record("BWD_WEIGHT", *self.weights.pop(0))

    def FB(self, forward: int, backward: int) -> None:  # noqa: N802
        self.F(forward, overlap=True)
        self.B(backward)

    def phases(self, N: int) -> None:
        inner = self.D // 2 - self.from_end - 1  # ranks between this one and the middle
        for _ in range(2 * inner):  # 1: nF0
            self.F(0)
        for _ in range(self.from_end + 1):  # 2: nF0F1
            self.F(0)
            self.F(1)
        for _ in range(inner):  # 3: nB1W1F1
            self.B(1, split=True)
            self.W()
            self.F(1)
        for i in range(N // 2 - self.D + self.from_end + 1):  # 4: nF0B1F1B0
            if i == 0 and inner == 0:  # the two middle ranks do not overlap the first F and B here
                self.F(0)
                self.B(1)
            else:
                self.FB(0, 1)
            self.FB(1, 0)
        for _ in range(inner):  # 5: nB1F1B0
            self.B(1)
            self.FB(1, 0)
        first_split, split = (self.from_end + 1) // 2, False
        for i in range(self.from_end + 1):  # 6: nB1B0, the second half of these backwards split
            split |= i == first_split and self.from_end % 2 == 1
            self.B(1, split)
            split |= i == first_split and self.from_end % 2 == 0
            self.B(0, split)
        for _ in range(inner):  # 7: nWB0
            self.W()
            self.B(0, split=True)
        for _ in range(self.from_end + 1):  # 8: nW
            self.W()
        assert not self.weights


@pytest.mark.parametrize("D", range(2, 17, 2))
def test_dualpipe_is_its_eight_published_phases(D: int) -> None:
    for N in (2 * D, 2 * D + 2, 3 * D, 4 * D, 4 * D + 6, 6 * D):
        p = program("dualpipe", D=D, N=N)
        assert task_orders(p) == [Published(rank, D, N).tasks for rank in range(D)]
