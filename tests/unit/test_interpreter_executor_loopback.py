"""Executors of several ranks in loopback: receive buffers, recomputation, unequal copies, flush, times and rehearsals."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import compile_schedule, compile_text
from chimerac.interpreter.errors import RankError
from chimerac.interpreter.runtime.executor import Executor
from chimerac.interpreter.runtime.model import Values
from chimerac.interpreter.runtime.times import Times
from chimerac.interpreter.runtime.work import Work
from chimerac.interpreter.transport import Transport, loopback
from chimerac.interpreter.transport.loopback import Loopback, run_in_loopback
from tests.distributed.integers import LENGTH, WIDTH, First, Last, Whole
from tests.distributed.programs import TWO_RANKS, program
from tests.helpers_loopback import (
    SAMPLES,
    RankResult,
    Rehearsing,
    batch_of,
    deep_model,
    description_of,
    differences,
    rank_of,
    run_and_compare,
    small_model,
)

# Rank 1 holds two stages. The second one has a split backward for micro-batch 0.
SPLIT_PAIR = """pipe main on 0 1 1 micro_batches 0 1

rank 0:
  FWD main s0 m0; SEND act main s1 m0 -> 1; RECV grad main s0 m0 <- 1
  FWD main s0 m1; SEND act main s1 m1 -> 1; RECV grad main s0 m1 <- 1
  BWD main s0 m0
  BWD main s0 m1
rank 1:
  RECV act main s1 m0 <- 0
  FWD main s1 m0
  FWD main s2 m0
  BWD_INPUT main s2 m0
  BWD main s1 m0; SEND grad main s0 m0 -> 0; RECV act main s1 m1 <- 0
  FWD main s1 m1
  BWD_WEIGHT main s2 m0
  FWD main s2 m1
  BWD main s2 m1
  BWD main s1 m1; SEND grad main s0 m1 -> 0
"""


class Shifted(nn.Module):
    """Adds a parameter of the size of a micro-batch. The parameter's gradient is a view of the gradient of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(SAMPLES * LENGTH, WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor, mask: Tensor) -> Values:
        return x + self.shift.view(x.shape), mask


class ChosenByMask(nn.Module):
    """Adds the row of a table that the mask chooses. A split backward computes the gradient of the table from the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(2, WIDTH, dtype=torch.float64))

    def forward(self, x: Tensor, mask: Tensor) -> Values:
        return x + F.embedding(mask.squeeze(-1), self.table), mask


def test_an_input_that_a_stage_returns_unchanged_outlives_its_buffer() -> None:
    # s1 returns the mask unchanged. The BWD_WEIGHT of s2 reads it after s1 has released the buffer in which it arrived. The
    # stages have 1, 2 and 2 of the five layers.
    p = program(SPLIT_PAIR, "split_pair", ranks=2, stages=3, micro_batches=2)
    run_and_compare(p, small_model(First, Whole, Whole, ChosenByMask, Last), seed=0, iterations=2)


def test_a_received_gradient_that_autograd_keeps_outlives_its_buffer() -> None:
    model = small_model(First, Shifted, Whole, Last)
    run_and_compare(TWO_RANKS["1f1b"], model, seed=0, iterations=2)


def free_after(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a method of Work free the receive buffer of its input too early. Loopback then overwrites the buffer with NaN."""
    original = getattr(Work, method)

    def original_and_free(work: Work) -> None:
        original(work)
        if work.input is not None:
            values = work.input.read()
            work.input.release()
            work.input.set(values)  # the tensors stay there for later tasks, though their memory is overwritten

    monkeypatch.setattr(Work, method, original_and_free)


def test_a_buffer_that_the_executor_frees_too_early_is_poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    p = TWO_RANKS["1f1b"]
    free_after("forward", monkeypatch)
    with pytest.raises(RankError, match=r"rank 1, instruction \d+: BWD main s1 m0: .*modified by an inplace operation"):
        run_in_loopback(p, rank_of(p, deep_model(middle=3)))


def test_a_recomputation_of_a_poisoned_input_gives_other_results(monkeypatch: pytest.MonkeyPatch) -> None:
    p = program(
        SPLIT_PAIR.replace("FWD main s1 m0", "FWD main s1 m0 recompute"), "split_pair", ranks=2, stages=3, micro_batches=2
    )
    run_and_compare(p, deep_model(middle=3), seed=0)
    free_after("forward_to_recompute", monkeypatch)
    assert list(differences(p, deep_model(middle=3), run_in_loopback(p, rank_of(p, deep_model(middle=3)))))


@pytest.mark.parametrize("has_recompute", [False, True])
def test_a_backward_waits_for_its_gradient_before_it_runs_the_forward_again(
    has_recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulator assumes this. Only a RECOMPUTE runs the forward again before the gradient has arrived."""
    p = compile_text(
        "schedule wait  ranks 2  stages 2  pipe main { stage s on rank s recompute when s == 0   micro_batches 1 }"
        f" order listing for rank r {{ if r == 0 {{ F {'R' if has_recompute else ''} B }} else {{ F B }} }}"
    ).program
    has_gradient: list[bool] = []  # whether the gradient has arrived when the forward runs again
    build_again = Work._build_again

    def recording_build_again(work: Work) -> None:
        assert work.output_gradient is not None and work.output_gradient.message is not None
        has_gradient.append(work.output_gradient.message.pending is None)
        build_again(work)

    monkeypatch.setattr(Work, "_build_again", recording_build_again)
    run_and_compare(p, deep_model(middle=3), seed=0)
    assert set(has_gradient) == {not has_recompute}


class UnequalCopies(First):
    """A layer whose second instance since `built` was set to 0 has other initial weights."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        UnequalCopies.built += 1
        if UnequalCopies.built == 2:
            self.table.data[0, 0] += 1


def test_copies_that_differ_are_named_before_the_first_iteration() -> None:
    model = small_model(UnequalCopies, Whole, Whole, Last)
    p = TWO_RANKS["two pipes"]
    description_of(model)  # builds an instance to measure it, which must not count
    UnequalCopies.built = 0
    with pytest.raises(ChimeraError, match=r"E810: the copies of stage 0 on rank 0 and rank 1 have different weights"):
        run_in_loopback(p, rank_of(p, model))


def test_copies_that_become_different_are_found_by_the_check() -> None:
    p = TWO_RANKS["two pipes"]

    def run_rank(transport: Transport) -> RankResult:
        found = rank_of(p, deep_model(middle=3))(transport)
        found.executor.check_copies()
        if transport.rank == 1:
            next(found.executor.stages[1].parameters()).data[0, 0] += 2**-40
        found.executor.check_copies()
        return found

    with pytest.raises(ChimeraError, match=r"E810: the copies of stage 1 on rank 0 and rank 1"):
        run_in_loopback(p, run_rank)


def test_nothing_is_in_flight_when_an_iteration_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    p, flush = TWO_RANKS["1f1b, window 9"], Loopback.flush
    were_in_flight: list[bool] = []  # for each flush, whether messages were in flight when it began

    def recording_flush(transport: Loopback) -> None:
        were_in_flight.append(not all(channel.is_empty() for channel in transport._to.values()))
        flush(transport)

    monkeypatch.setattr(Loopback, "flush", recording_flush)

    def run_rank(transport: Loopback) -> None:
        rank_of(p, deep_model(middle=3))(transport)
        assert all(channel.is_empty() for channel in transport._to.values())

    for seed in range(8):
        run_in_loopback(p, run_rank, seed, every_post=True)
    assert any(were_in_flight) and len(were_in_flight) == 8 * 2  # eight seeds, two ranks


def test_times_separate_computing_from_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    p = TWO_RANKS["1f1b"]
    now, slow_ns = 0, 10_000_000

    def clock() -> int:
        """Return a fake time that only slow layers and reading the time increase."""
        nonlocal now
        now += 1
        return now

    class Slow(Whole):
        def forward(self, x: Tensor, mask: Tensor) -> Values:
            nonlocal now
            now += slow_ns
            return super().forward(x, mask)

    monkeypatch.setattr(time, "perf_counter_ns", clock)
    monkeypatch.setattr(loopback, "perf_counter_ns", clock)
    model = small_model(First, Slow, Last)  # the partition gives the slow layer to one of the two ranks
    begin = clock()
    results = run_in_loopback(p, rank_of(p, model))
    end = clock()
    for rank, result in enumerate(results):
        times: Times = result.executor.times
        stream = p.stream(rank)
        assert len(times.start) == len(stream) and (times.start[1:] == times.end[:-1]).all()
        assert begin < times.start[0] and times.end[-1] <= times.finish < end
        assert (times.waited >= 0).all() and (times.busy >= 0).all()
        forwards = np.array([i.op == "FWD" for i in stream])
        is_slow = times.busy[forwards] > 0.9 * slow_ns
        assert is_slow.all() or not is_slow.any()
        assert times.task_ns <= times.busy.sum()
        if not is_slow.any():  # this rank waits for most of the four slow forwards of the other one, and computes little
            assert times.waited.sum() > 2.5 * slow_ns and times.busy.sum() < 0.1 * slow_ns
    assert sum(bool((r.executor.times.busy > 0.9 * slow_ns).any()) for r in results) == 1, "one rank has the slow layer"


class Counting(nn.Module):
    """Adds a parameter and dropout, and counts its forwards in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.float64))
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, mask: Tensor) -> Values:
        self.forwards += 1
        return F.dropout(x + self.weight, 0.5), mask


@pytest.mark.parametrize("schedule", ["chimera", "chimera_recompute", "dualpipe", "zb_v"])
def test_a_rehearsal_changes_nothing_and_is_made_once(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = compile_schedule(schedule, {"D": 2, "N": 4}).program
    model = small_model(First, *[Counting] * 4, Last)

    def found(results: list[RankResult]) -> list[Any]:
        return [
            (result.loss, result.grads, {s: dict(m.named_buffers()) for s, m in result.executor.stages.items()})
            for result in results
        ]

    torch.manual_seed(0)
    expected = found(run_in_loopback(p, rank_of(p, model, iterations=2)))
    monkeypatch.setattr(loopback, "Loopback", Rehearsing)
    torch.manual_seed(0)
    results = run_in_loopback(p, rank_of(p, model, iterations=2))
    assert [result.executor.transport.rehearsals for result in results] == [[0], [0]]  # type: ignore[attr-defined]
    assert same(found(results), expected)


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, and tensors in them bit by bit."""
    if isinstance(a, Tensor):
        return a.equal(b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def test_a_rehearsal_keeps_the_gradients_that_parameters_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loopback, "Loopback", Rehearsing)
    p = compile_schedule("chimera", {"D": 2, "N": 4}).program

    def run_rank(transport: Transport) -> list[bool]:
        first = rank_of(p, deep_model(3))(transport)
        grads = {s: [g.clone() for g in of_stage] for s, of_stage in first.grads.items()}
        executor = first.executor
        again = Executor(p, executor.iteration.objective, executor.stages, executor.boundary_table, transport)
        transport.sent = 0  # type: ignore[attr-defined]
        again.run(batch_of(p, 0))
        after = {s: [w.grad for w in m.parameters()] for s, m in again.stages.items()}
        return [bool(a.equal(2 * b)) for s in grads for a, b in zip(after[s], grads[s], strict=True) if a is not None]

    assert all(all(doubled) and doubled for doubled in run_in_loopback(p, run_rank))


def test_the_error_of_a_rehearsal_names_the_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(Counting):
        def forward(self, x: Tensor, mask: Tensor) -> Values:
            if type(x) is Tensor:  # no fake one, with which a model is described
                raise ValueError("no")
            return super().forward(x, mask)

    monkeypatch.setattr(loopback, "Loopback", Rehearsing)
    p = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    with pytest.raises(RankError, match=r"rank 1, instruction \d: FWD main s1 m0: no"):
        run_in_loopback(p, rank_of(p, small_model(First, Counting, Failing, Last)))
