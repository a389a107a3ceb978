"""Overlapped pairs on two CUDA streams: which tasks run on which stream, and that the gradients are those of one process.

In this file a stream is a CUDA stream, except in `Program.stream`, the instructions of a rank. A Recorder stands for the second
CUDA stream, so that no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from chimerac.chimera_ir.instructions import Bwd, Fwd, Instruction, Task
from chimerac.compiler import compile_schedule
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.overlap import Call, Overlap, on_streams, overlap_of, second_stream_of
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers_loopback import SEED, RankResult, batch_of, deep_model, description_of, differences, stages_of


class Recorder:
    """A second stream that runs every call immediately, and records what is started on which stream.

    Attributes:
        events: "fork", "join", and for each call of `task` its stream, "main" or "second".
        kept: how many tensors `keep` has got.
    """

    def __init__(self) -> None:
        self.events: list[str] = []
        self.on_second = False
        self.kept = 0

    def fork(self) -> None:
        assert not self.on_second
        self.events.append("fork")

    def join(self) -> None:
        assert not self.on_second
        self.events.append("join")

    def run(self, call: Call) -> None:
        assert not self.on_second
        self.on_second = True
        call()
        self.on_second = False

    def keep(self, tensors: Iterable[Tensor]) -> None:
        self.kept += sum(1 for _ in tensors)

    def task(self) -> None:
        self.events.append("second" if self.on_second else "main")


def events_of(instructions: list[Instruction]) -> list[str]:
    recorder = Recorder()
    for call in on_streams(instructions, [recorder.task for _ in instructions], recorder):
        call()
    return recorder.events


def pair(forward: int, backward: int) -> list[Instruction]:
    """Return an overlapped pair of stage 0: the forward and the backward of these micro-batches."""
    return [Fwd(0, 0, (forward,), overlap=True), Bwd(0, 0, (backward,))]


def test_all_tasks_of_a_micro_batch_are_on_one_stream_and_only_a_pair_runs_at_the_same_time() -> None:
    """m0 is on the second stream here, so its forward forks and joins too."""
    assert events_of([Fwd(0, 0, (0,)), *pair(1, 0), Bwd(0, 0, (1,))]) == [
        *("fork", "second", "join"),
        *("fork", "main", "second", "join"),
        "main",
    ]


def test_a_micro_batch_whose_two_tasks_are_in_pairs_stays_on_its_stream() -> None:
    """m1 overlaps with m0 in its forward, and with m2 in its backward. So m0 and m2 share a stream."""
    instructions = [Fwd(0, 0, (0,)), *pair(1, 0), *pair(2, 1), Bwd(0, 0, (2,))]
    assert overlap_of(instructions) == Overlap(first={1, 3}, second_stream={(0, 0, 1)})


@pytest.mark.parametrize("kinds", [(Fwd, Fwd), (Bwd, Bwd)])
def test_two_forwards_and_two_backwards_run_one_after_the_other(kinds: tuple[type[Task], type[Task]]) -> None:
    """Two backwards may add to the same gradients, and two forwards may change the same buffers."""
    first, second = kinds
    instructions = [first(0, 0, (0,), overlap=True), second(0, 0, (1,))]
    assert overlap_of(instructions) == Overlap(first=frozenset(), second_stream=frozenset())
    assert events_of(instructions) == ["main", "main"]


MICRO_BATCHES = range(5)
# Overlapped pairs: the micro-batch of the forward and that of the backward, which differ.
PAIRS = st.lists(st.permutations(MICRO_BATCHES).map(lambda order: (order[0], order[1])), max_size=8)


@given(PAIRS)
def test_pairs_are_left_out_only_where_no_choice_of_streams_serves_all(pairs: list[tuple[int, int]]) -> None:
    """The two tasks of each pair that is not left out are on different streams.

    All choices of streams are tried: if one of them separates the tasks of every pair, no pair is left out.
    """
    overlap = overlap_of([i for forward, backward in pairs for i in pair(forward, backward)])
    taken = [pairs[number // 2] for number in overlap.first]
    assert all(((0, 0, a) in overlap.second_stream) != ((0, 0, b) in overlap.second_stream) for a, b in taken)
    possible = any(
        all(is_second[a] != is_second[b] for a, b in pairs) for is_second in product([False, True], repeat=len(MICRO_BATCHES))
    )
    assert possible == (len(overlap.first) == len(pairs))


def test_micro_batches_of_one_task_share_a_stream() -> None:
    instructions = [Fwd(0, 0, (0, 1)), Fwd(0, 0, (2,), overlap=True), Bwd(0, 0, (1,)), Bwd(0, 0, (0,)), Bwd(0, 0, (2,))]
    assert overlap_of(instructions) == Overlap(first={1}, second_stream={(0, 0, 0), (0, 0, 1)})


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev"])
def test_programs_with_pairs_have_the_gradients_of_one_process(schedule: str) -> None:
    """No pair is left out, the streams fork and join at least once for each pair, and tensors that tasks read are kept."""
    program, recorders = compile_schedule(schedule).program, {}
    model = deep_model(middle=program.header.stages - 2)
    parts = partitioned(program, model, description_of(model))

    def run_rank(transport: Transport) -> RankResult:
        recorders[transport.rank] = recorder = Recorder()
        stages = stages_of(program, parts, transport.rank, SEED)
        executor = Executor(program, model, stages, parts.boundary_table, transport, second_stream=lambda device: recorder)
        loss = executor.run(batch_of(program, replica=0))
        grads = {s: [torch.zeros_like(p) if p.grad is None else p.grad for p in m.parameters()] for s, m in stages.items()}
        return RankResult(loss, grads, executor)

    assert not list(differences(program, model, run_in_loopback(program, run_rank, SEED)))
    for rank, recorder in recorders.items():
        tasks = [i for i in program.stream(rank) if isinstance(i, Task)]
        pairs = sum(i.overlap for i in tasks)
        assert pairs and len(overlap_of(program.stream(rank)).first) == pairs
        assert recorder.events.count("fork") == recorder.events.count("join") >= pairs
        assert recorder.kept


def test_a_run_with_invoke_joins_the_streams_after_each_instruction() -> None:
    """`invoke` may read what a task has computed, as the search for a value that is not finite does."""
    program = compile_schedule("dualpipe").program
    model = deep_model(middle=program.header.stages - 2)
    parts = partitioned(program, model, description_of(model))
    calls: list[int] = []

    def run_rank(transport: Transport) -> None:
        recorder = Recorder()
        stages = stages_of(program, parts, transport.rank, SEED)
        executor = Executor(program, model, stages, parts.boundary_table, transport, second_stream=lambda device: recorder)

        def invoke(number: int, call: Call) -> None:
            recorder.events.clear()
            call()
            assert recorder.events[-1] == "join"
            calls.append(number)

        executor.run(batch_of(program, replica=0), invoke=invoke)

    run_in_loopback(program, run_rank, SEED)
    # Each rank calls its instructions and the epilogue.
    assert len(calls) == sum(len(program.stream(r)) + 1 for r in range(program.header.ranks))


def test_a_cpu_has_no_second_stream() -> None:
    assert second_stream_of(torch.device("cpu")) is None
