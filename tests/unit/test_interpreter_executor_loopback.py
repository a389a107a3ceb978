"""Executors of several ranks: buffers, copies of stages, tied parameters, times, and independence of the compiler."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import AllReduce
from chimerac.chimera_ir.jsonform import program_to_json
from chimerac.chimera_ir.program import Program, Tied
from chimerac.chimera_ir.streams import program_of
from chimerac.compiler import compile_text
from chimerac.interpreter.errors import RankError
from chimerac.interpreter.runtime.batch import Batch
from chimerac.interpreter.runtime.model import LayeredModel, Model, Stage, Values, combined
from chimerac.interpreter.runtime.parameters import parameter_groups
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.runtime.times import Times
from chimerac.interpreter.runtime.work import Work
from chimerac.interpreter.transport import Transport, loopback
from chimerac.interpreter.transport.loopback import Loopback, run_in_loopback
from tests.distributed.integers import LENGTH, First, IntegerSamples, Last, Whole, example, integer_model, loss
from tests.distributed.programs import TWO_RANKS, program
from tests.helpers_loopback import (
    SAMPLES,
    SEED,
    RankResult,
    deep_model,
    description_of,
    differences,
    rank_of,
    run_and_compare,
)

ROOT = Path(__file__).parents[2]
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


def model_of(*layers: Callable[[], nn.Module]) -> Model:
    named = tuple((f"layer {k}", make) for k, make in enumerate(layers))
    return LayeredModel(name="small", layers=named, loss=loss, example=example)


class Shifted(nn.Module):
    """Adds a parameter of the size of a micro-batch: its gradient is a view of the gradient of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.ones(2 * LENGTH, 8, dtype=torch.float64))

    def forward(self, x: Tensor, mask: Tensor) -> Values:
        return x + self.shift.view(x.shape), mask


def test_an_input_that_a_stage_returns_unchanged_outlives_its_buffer() -> None:
    # s1 returns the mask unchanged. The weight gradients of s2 read it after s1 has released its buffer.
    p = program(SPLIT_PAIR, "split_pair", 2, 3, 2)
    run_and_compare(p, integer_model(3), 0, iterations=2)


def test_a_received_gradient_that_autograd_keeps_outlives_its_buffer() -> None:
    model = model_of(First, Shifted, Whole, Last)
    run_and_compare(TWO_RANKS["1f1b"], model, 0, iterations=2)


def test_a_buffer_that_the_executor_frees_too_early_is_poisoned(monkeypatch: pytest.MonkeyPatch) -> None:
    p = TWO_RANKS["1f1b"]
    forward = Work.forward

    def forward_and_free(work: Work) -> None:
        forward(work)
        if work.input is not None:
            values = work.input.read()
            work.input.release()
            work.input.set(values)  # only loopback detects this

    monkeypatch.setattr(Work, "forward", forward_and_free)
    with pytest.raises(RankError, match=r"rank 1, instruction \d+: BWD main s1 m0: .*modified by an inplace operation"):
        run_in_loopback(p, rank_of(p, deep_model(3)))


def test_a_recomputation_of_a_poisoned_input_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    p = program(SPLIT_PAIR.replace("FWD main s1 m0", "FWD main s1 m0 recompute"), "split_pair", 2, 3, 2)
    forward = Work.forward_to_recompute
    run_and_compare(p, deep_model(3), 0)

    def forward_and_free(work: Work) -> None:
        forward(work)
        if work.input is not None:
            values = work.input.read()
            work.input.release()
            work.input.set(values)

    monkeypatch.setattr(Work, "forward_to_recompute", forward_and_free)
    assert list(differences(p, deep_model(3), run_in_loopback(p, rank_of(p, deep_model(3)))))


@pytest.mark.parametrize("early", [False, True])
def test_a_backward_waits_for_its_gradient_before_it_runs_the_forward_again(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the simulator assumes. Only a RECOMPUTE runs the forward again before the gradient has arrived."""
    p = compile_text(
        "schedule wait  ranks 2  stages 2  pipe main { stage s on rank s recompute when s == 0   micro_batches 1 }"
        f" order listing for rank r {{ if r == 0 {{ F {'R' * early} B }} else {{ F B }} }}"
    ).program
    waited: list[bool] = []
    again = Work._build_again

    def run_again(work: Work) -> None:
        assert work.output_gradient is not None and work.output_gradient.message is not None
        waited.append(work.output_gradient.message.pending is None)
        again(work)

    monkeypatch.setattr(Work, "_build_again", run_again)
    run_and_compare(p, deep_model(3), 0)
    assert set(waited) == {not early}


class UnequalCopies(First):
    """A layer whose copies differ: the second instance has other initial weights."""

    built = 0

    def __init__(self) -> None:
        super().__init__()
        UnequalCopies.built += 1
        if UnequalCopies.built % 4 == 0:
            self.table.data[0, 0] += 1


def test_copies_that_differ_are_named_before_the_first_iteration() -> None:
    UnequalCopies.built = 2  # the third instance is the one that is measured
    model = model_of(UnequalCopies, Whole, Whole, Last)
    p = TWO_RANKS["two pipes"]
    description_of(model)
    UnequalCopies.built = 2
    with pytest.raises(ChimeraError, match=r"E810: the copies of stage 0 on rank 0 and rank 1 have different weights"):
        run_in_loopback(p, rank_of(p, model))


def test_copies_that_become_different_are_found_by_the_check() -> None:
    p = TWO_RANKS["two pipes"]

    def run_rank(transport: Transport) -> RankResult:
        found = rank_of(p, deep_model(3))(transport)
        found.executor.check_copies()
        if transport.rank == 1:
            next(found.executor.stages[1].parameters()).data[0, 0] += 2**-40
        found.executor.check_copies()
        return found

    with pytest.raises(ChimeraError, match=r"E810: the copies of stage 1 on rank 0 and rank 1"):
        run_in_loopback(p, run_rank)


class TiedFirst(First):
    tied = {"embedding": "table"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.table.data = torch.arange(64).view(8, 8).double() % 5 - 2


class TiedLast(nn.Module):
    """Uses the table of the first layer under another name."""

    tied = {"embedding": "inner.weight"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8, bias=False, dtype=torch.float64)
        self.inner.weight.data = torch.arange(64).view(8, 8).double() % 5 - 2

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return self.inner(x) * mask  # type: ignore[no-any-return]


TIED = model_of(TiedFirst, Whole, TiedLast)
TIED_PIPE = """pipe main on 0 1 micro_batches 0

rank 0:
  FWD main s0 m0; SEND act main s1 m0 -> 1; RECV grad main s0 m0 <- 1
  BWD main s0 m0
rank 1:
  RECV act main s1 m0 <- 0
  FWD main s1 m0
  BWD main s1 m0; SEND grad main s0 m0 -> 0
"""


def tied_program() -> Program:
    untied = program(TIED_PIPE, "tied", 2, 2, 1)
    streams = [[*untied.stream(g), AllReduce("embedding", 0, (0, 1))] for g in range(2)]
    return program_of(replace(untied.header, tied=(Tied("embedding", (0, 1)),)), streams)


def whole_gradients() -> list[Tensor]:
    """Return the gradients of the tied model in one process: one table, used at both ends."""
    whole = TIED.build_stage(range(3), SEED)
    first, middle, last = whole.layers
    last.inner.weight = first.table  # type: ignore[union-attr]
    batch = Batch(IntegerSamples(), SEED, 0, 0, 1, 1, SAMPLES)
    torch.autograd.backward(combined(loss(whole(*batch.inputs(0)), batch.targets(0)), [64]))
    return [p.grad for p in (first.table, middle.weight) if p.grad is not None]  # type: ignore[union-attr]


def test_tied_parameters_have_one_gradient_on_all_their_stages() -> None:
    p = tied_program()
    table, weight = whole_gradients()
    found = run_in_loopback(p, rank_of(p, TIED))
    groups = [f.executor.groups for f in found]
    assert [len(g["embedding"]) for g in groups] == [1, 1]
    assert sum(len(ps) for g in groups for name, ps in g.items() if name != "embedding") == 1  # the middle layer's
    for g in groups:
        grad = g["embedding"][0].grad
        assert grad is not None and grad.equal(table) and grad.any()
    (middle,) = (p.grad for g in groups for name, ps in g.items() if name != "embedding" for p in ps)
    assert middle is not None and middle.equal(weight)


def test_tied_parameters_on_one_rank_are_one_parameter() -> None:
    first, last = Stage([TiedFirst()]), Stage([TiedLast()])
    header = tied_program().header
    groups = parameter_groups(header, {0: first, 1: last})
    assert groups["embedding"] == [first.layers[0].table] == [last.layers[0].inner.weight]  # type: ignore[union-attr]
    assert groups["stage 0"] == groups["stage 1"] == []


@pytest.mark.parametrize(
    ("p", "model", "message"),
    [
        (TWO_RANKS["1f1b"], TIED, "the program ties embedding on no stage, but small on stages 0, 1"),
        (tied_program(), deep_model(1), "the program ties embedding on stages 0, 1, but signed integers on no stage"),
    ],
)
def test_ties_of_only_the_model_or_only_the_program_are_refused(p: Program, model: Model, message: str) -> None:
    """Before ranks meet, and also where no rank has two of the layers."""
    with pytest.raises(ChimeraError, match=f"E805: {message}"):
        partitioned(p, model, description_of(model))


def test_nothing_is_in_flight_when_an_iteration_ends() -> None:
    p, waited = TWO_RANKS["1f1b, window 9"], []

    class Recording(Loopback):
        def flush(self) -> None:
            waited.append(not all(channel.is_empty() for channel in self._to.values()))
            super().flush()

    def run_rank(transport: Loopback) -> None:
        transport.__class__ = Recording
        rank_of(p, deep_model(3))(transport)
        assert all(channel.is_empty() for channel in transport._to.values())

    for seed in range(8):
        run_in_loopback(p, run_rank, seed, every_post=True)  # type: ignore[arg-type]
    assert any(waited) and len(waited) == 16


def test_times_separate_computing_from_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    p = TWO_RANKS["1f1b"]
    now = 0

    def clock() -> int:
        """Return a fake time that only slow layers and reading the time increase."""
        nonlocal now
        now += 1
        return now

    class Slow(Whole):
        def forward(self, x: Tensor, mask: Tensor) -> Values:
            nonlocal now
            now += 10_000_000
            return super().forward(x, mask)

    monkeypatch.setattr(time, "perf_counter_ns", clock)
    monkeypatch.setattr(loopback, "perf_counter_ns", clock)
    model = model_of(First, Slow, Last)  # rank 0 has the first layer alone, or with the slow one
    begin = clock()
    found = run_in_loopback(p, rank_of(p, model))
    end = clock()
    for rank, f in enumerate(found):
        times: Times = f.executor.times
        stream = p.stream(rank)
        assert len(times.start) == len(stream) and (times.start[1:] == times.end[:-1]).all()
        assert begin < times.start[0] and times.end[-1] <= times.finish < end
        assert (times.waited >= 0).all() and (times.busy >= 0).all()
        forwards = np.array([i.op == "FWD" for i in stream])
        slow = times.busy[forwards] > 9_000_000
        assert slow.all() or not slow.any()
        assert times.task_ns <= times.busy.sum()
        if not slow.any():  # the wait of this rank for the sleep of the other does not count for its own tasks
            assert times.waited.sum() > 25_000_000 and times.busy.sum() < 1_000_000
    assert sum(bool((f.executor.times.busy > 9_000_000).any()) for f in found) == 1


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "compiler":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocker())
from pathlib import Path
from chimerac.chimera_ir.jsonform import program_from_json
from tests.helpers_loopback import deep_model, run_and_compare
program = program_from_json(Path(sys.argv[1]).read_text(), "program.json")
run_and_compare(program, deep_model(3), 0)
assert "compiler" not in sys.modules
print("equal")
"""


def test_it_runs_without_the_compiler(tmp_path: Path) -> None:
    path = tmp_path / "program.json"
    path.write_text(program_to_json(TWO_RANKS["split V"]))
    command = [sys.executable, "-c", BLOCKED, str(path)]
    run = subprocess.run(command, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, text=True, capture_output=True)
    assert (run.stdout, run.stderr) == ("equal\n", "")
