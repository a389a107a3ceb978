"""Timed stages (--timed): each task takes its cost, and the table compares what was predicted and measured."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from chimerac.chimera_ir.model import Tensor as BoundaryTensor
from chimerac.chimera_ir.program import Costs
from chimerac.compiler import compile_text
from chimerac.interpreter.runtime.describe import describe, first_boundary
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.runtime.times import IterationTimes
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.timed import Comparison, Sleeper, ZeroSamples, median_times, timed_model
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from chimerac.models.families import preset
from tests.distributed.alone import Alone
from tests.helpers_text import on_one_rank, tied_1f1b


def test_a_task_that_does_not_wait_counts_from_the_time_when_the_one_before_was_due_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unit_s, late_s = 0.02, 0.003
    now, waited_ns = [0.0], [0]

    def sleep(seconds: float) -> None:
        now[0] += seconds + late_s  # it wakes up too late

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    sleeper = Sleeper(unit_s)
    now[0] = 1.0
    sleeper.begin(lambda: waited_ns[0])
    for _ in range(10):
        now[0] += 0.001  # the work of the runtime
        sleeper.sleep(2)
    tasks_end = 1.0 + 10 * 2 * unit_s
    assert now[0] == pytest.approx(tasks_end + late_s)
    now[0], waited_ns[0] = now[0] + 5.0, 5 * 10**9  # a message takes 5 s to arrive
    sleeper.sleep(2)
    assert now[0] == pytest.approx(tasks_end + late_s + 5.0 + 2 * unit_s + late_s)


SETTINGS = Settings(iterations=1, seed=0, micro_batch=2, rate=1e-3)
BOUNDARY = BoundaryTensor((SETTINGS.micro_batch, 3), "float32", gradient=True)
# Of F, B, I, W and R, each by stage. All differ, so a cost shows its task and its stage.
COSTS = Costs((1, 10), (100, 1000), (7, 70), (20000, 50000), RECOMPUTE=(3, 30))


def timed_trainer(text: str, sleeper: Sleeper) -> Trainer:
    """Return the trainer of a schedule for one rank, on timed stages with COSTS."""
    program = replace(compile_text(text).program, costs=COSTS)
    model, description = timed_model(program, BOUNDARY, SETTINGS.micro_batch, sleeper)
    return Trainer(program, partitioned(program, model, description), ZeroSamples(), Alone(), SETTINGS)


def slept_units(text: str) -> list[list[int]]:
    """Run two iterations of a schedule for one rank on timed stages with COSTS. Return for each the units that its tasks sleep.

    A backward that runs a forward again sleeps twice.
    """
    slept: list[list[int]] = []

    class Recording(Sleeper):
        def sleep(self, units: int) -> None:
            slept[-1].append(units)

    trainer = timed_trainer(text, Recording(unit_s=1.0))
    for iteration in range(2):
        slept.append([])
        trainer.update(iteration, trainer.gradients(iteration))
    return slept


def test_each_task_takes_its_cost() -> None:
    """The rank has every kind of task but R."""
    text = on_one_rank("""
    F(s, m) at 10*m + s
    B(s, m) when m == 0 at 5 - s
    I(s, m) when m == 1 at 15 - s
    W(s, m) when m == 1 at 20 + s
""")
    assert slept_units(text) == [[1, 10, 1000, 100, 1, 10, 70, 7, 20000, 50000]] * 2


def test_timed_stages_run_a_schedule_that_ties_parameters() -> None:
    slept: list[int] = []

    class Recording(Sleeper):
        def sleep(self, units: int) -> None:
            slept.append(units)

    program = compile_text(tied_1f1b(), {"D": 2, "N": 2}).program
    model, description = timed_model(program, BOUNDARY, SETTINGS.micro_batch, Recording(unit_s=1.0))
    parts = partitioned(program.with_header(tied=()), model, description)  # the timed layers share no parameters

    def rank(transport: Transport) -> float:
        return Trainer(program, parts, ZeroSamples(), transport, SETTINGS).gradients(0)

    run_in_loopback(program, rank)
    assert sorted(slept) == [1] * 4 + [2] * 4  # two forwards and two backwards on each of two ranks


def test_the_median_is_one_of_the_iterations_and_of_two_the_shorter_one() -> None:
    three, one, two = (IterationTimes(last_task_end, (0.0,)) for last_task_end in (3.0, 1.0, 2.0))
    assert median_times([three, one, two]) is two and median_times([three, one]) is one and median_times([three]) is three


RECOMPUTED = """schedule alone
ranks 1
stages 2
pipe main { stage s on rank 0 recompute when s == 0   micro_batches 2 }
order ticks {
    F(s, m) at 10*m + s
    R(s, m) when m == 1 and s == 0 at 12
    B(s, m) at 29 - 10*m - s
}
"""


def test_a_forward_that_is_run_again_takes_the_cost_of_recomputation() -> None:
    """A task R recomputes micro-batch 1, and the backward recomputes micro-batch 0. Stage 1 keeps everything."""
    assert slept_units(RECOMPUTED) == [[1, 10, 1, 10, 3, 1000, 100, 1000, 3, 100]] * 2


def test_the_time_of_recomputation_is_measured_in_tasks_r_and_in_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])

    class Clock(Sleeper):
        def sleep(self, units: int) -> None:
            now[0] += units * 10**9

    trainer = timed_trainer(RECOMPUTED, Clock(unit_s=1.0))
    for iteration in range(2):
        trainer.gradients(iteration)
        figures = trainer.pipeline.figures
        # The figures are those of this iteration alone.
        assert (figures.recompute_s, figures.computed_s) == (3 + 3, 2 * (1 + 10 + 1000 + 100 + 3))


def test_predicted_and_measured_are_in_one_table() -> None:
    table = Comparison(IterationTimes(2.0, (0.25, 0.5)), IterationTimes(2.1, (0.3, 0.5))).table().splitlines()
    assert table[0].split() == ["predicted", "measured"]
    assert table[1].split() == ["last", "task", "ends", "2.000", "s", "2.100", "s", "+5.0", "%"]
    assert table[2].split()[2:4] == ["0.375", "0.400"]
    assert table[4].split() == ["bubble", "of", "rank", "1", "0.500", "0.500"]
    measured_only = Comparison(None, IterationTimes(2.1, (0.3,))).table().splitlines()
    assert measured_only[1].split() == ["last", "task", "ends", "-", "2.100", "s"]


@pytest.mark.parametrize("name", ["gpt-nano", "bert-mini", "cnn-digits"])
def test_first_boundary_is_what_the_first_layer_passes_on(name: str) -> None:
    """Timed stages pass on the first of these tensors. In the description, only the `kept` of the tensors may differ."""
    model = preset(name, sequence_length=32)
    boundary = describe(model, samples=2).layers[0].boundary
    assert first_boundary(model, samples=2) == tuple(replace(t, kept=False) for t in boundary)
