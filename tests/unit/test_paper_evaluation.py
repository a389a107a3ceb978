"""The predicted evaluation of the Chimera paper: closed forms of asynchronous schemes, intervals, planner, recorded tables."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from chimerac.chimera_ir.profile import Link
from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.analyze.durations import cost_durations
from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.plan.evaluate import Evaluator
from chimerac.compiler.plan.space import Configuration
from tests.helpers import program
from tests.helpers_by_hand import TOY
from tests.proof.record import rows
from tools import paper_evaluation
from tools.asynchronous import Scheme, Stage, peak_bytes, seconds_per_micro_batch, versions
from tools.paper_evaluation import LINKS, PAGE, PUBLISHED, SYNCHRONOUS, Speed, ratio_table, ratios, verdict

STAGES = [Stage(tasks_s=3.0, all_reduce_s=8.0, weight_bytes=100), Stage(tasks_s=4.0, all_reduce_s=2.0, weight_bytes=50)]


@pytest.mark.parametrize(
    ("scheme", "hidden", "seconds"),
    [
        ("PipeDream", False, 11.0),  # stage 0 adds its all-reduce to every micro-batch
        ("PipeDream", True, 8.0),  # the all-reduce of stage 0 takes longer than its tasks
        ("PipeDream-2BW", False, 5.0),  # stage 0: (4 x 3 + 8) / 4; stage 1 takes only (4 x 4 + 2) / 4
        ("PipeDream-2BW", True, 4.0),  # stage 1: its tasks, which hide its all-reduce
    ],
)
def test_the_seconds_of_a_micro_batch_are_those_computed_by_hand(scheme: Scheme, hidden: bool, seconds: float) -> None:
    assert seconds_per_micro_batch(scheme, STAGES, micro_batches=4, hidden=hidden) == seconds


def test_without_all_reduces_the_closed_forms_are_the_steady_state_of_1f1b() -> None:
    """One more micro-batch lengthens the makespan of a simulated 1F1B with uneven stages by the time of the closed forms."""
    forward, backward = (2, 3, 5, 2), (4, 6, 7, 5)  # the costs of the stages
    makespans = []
    for micro_batches in (32, 33):
        compiled = compile_schedule("1f1b", {"D": 4, "N": micro_batches}).program
        durations = cost_durations(compiled)
        costs = replace(durations.costs, FWD=forward, BWD=backward)
        makespans.append(simulate(compiled, durations=replace(durations, costs=costs)).makespan)
    stages = [Stage(tasks_s=f + b, all_reduce_s=0.0, weight_bytes=0) for f, b in zip(forward, backward, strict=True)]
    schemes: tuple[Scheme, ...] = ("PipeDream", "PipeDream-2BW")
    seconds = {seconds_per_micro_batch(x, stages, micro_batches=8, hidden=False) for x in schemes}
    assert seconds == {float(makespans[1] - makespans[0])}


def test_versions_of_the_weights_add_to_the_memory_of_1f1b() -> None:
    p = program("1f1b", D=2, N=4)
    needs = memory(p, TOY)
    stages = [Stage(tasks_s=1.0, all_reduce_s=0.0, weight_bytes=x.weights) for x in needs]
    assert [versions("PipeDream", s, stages=2) for s in range(2)] == [2, 1]
    assert versions("PipeDream-2BW", stage=1, stages=2) == 2
    peaks = [x.peak for x in needs]
    assert peak_bytes("PipeDream", peaks, stages) == max(peaks[0] + needs[0].weights, peaks[1])
    assert peak_bytes("PipeDream-2BW", peaks, stages) == max(x.peak + x.weights for x in needs)


def test_an_interval_covers_all_links_and_hidden_and_exposed_all_reduces() -> None:
    fast, slow = Link(latency_s=1e-6, bytes_per_s=1e10), Link(latency_s=1e-6, bytes_per_s=1e9)

    def speed(samples_per_s: float) -> Speed:
        return Speed(samples_per_s, ranks=8, width=1, micro_batch=1, recompute=False)

    by_link: Any = {}
    for link, of_chimera, of_scheme in ((fast, 300.0, (200.0, 150.0)), (slow, 100.0, (100.0, 80.0))):  # samples per second
        by_link[link] = {name: (speed(of_chimera),) for name in paper_evaluation.CHIMERA}
        by_link[link] |= {name: tuple(map(speed, of_scheme)) for name in PUBLISHED}
    assert sorted(ratios(by_link, "Chimera, two pipes", "PipeDream")) == [1.0, 1.25, 1.5, 2.0]
    table = ratio_table(by_link)
    assert "| DAPPLE | compiled program | 1.38x | 1.00x to 2.00x: in it | 1.00x to 2.00x: in it |" in table
    assert "| PipeDream | closed form, not executable | 2.01x | 1.00x to 2.00x: above it |" in table
    assert verdict(0.9, least=1.0, most=2.0) == "below it"


def test_the_planners_choice_is_at_least_as_fast_as_a_fixed_one_and_the_equation_is_near_the_simulation() -> None:
    """The fixed configuration is D=8, W=8 on 64 ranks. The paper's equation differs from the simulation by at most 25 %."""
    link = Link(latency_s=2e-5, bytes_per_s=3e9)
    given = paper_evaluation.problem(["chimera"], ranks=64, link=link)
    best = paper_evaluation.synchronous(["chimera"], link, ranks=64)
    c = Configuration(ranks=8, recompute=False, micro_batch=1, schedule="chimera", own=(("f", 1),), width=8, micro_batches=8)
    fixed = paper_evaluation.speed(Evaluator(given).outcome(c), batch=64)
    assert best.samples_per_s >= fixed.samples_per_s
    assert paper_evaluation.by_equation(given, c, link) == pytest.approx(fixed.samples_per_s, rel=0.25)


def test_the_recorded_tables_have_all_schemes_and_the_verdicts_of_their_intervals() -> None:
    published, speeds, choices = rows("paper_evaluation", PAGE)
    assert [row["Chimera is faster than"] for row in published] == list(PUBLISHED)
    assert {row["Chimera is faster than"] for row in published if row["from"] == "compiled program"} == {*SYNCHRONOUS}
    for row in published:
        ratio = float(row["published"].removesuffix("x"))
        for name in paper_evaluation.CHIMERA:
            least, most = (float(x) for x in re.findall(r"([\d.]+)x", row[name]))
            assert row[name].endswith(f": {verdict(ratio, least, most)}")
    assert len(speeds) == len(paper_evaluation.CHIMERA) + len(PUBLISHED) and len(choices) == len(LINKS)
    choice = "W=16, D=32"  # of the paper's performance model
    assert all(int(row["samples/s"]) >= int(row[choice]) for row in choices), "the planner's choice is never slower than it"
