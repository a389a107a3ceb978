"""Compares predicted iterations with measured ones: timed stages and a GPT on gloo ranks, with and without delayed messages.

    python -m tools.bench_predicted [ROUNDS]      default 7
    python -m tools.bench_predicted --write       and records the result in docs/profile.md

The profile is measured on the same ranks, at the same time on all of them. In a round, every program runs once with each delay.
The layers of the GPT are measured before each of its runs, so that other load on the host affects both the prediction and the
measurement. Nothing is fitted to the iterations. The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from chimerac.chimera_ir.profile import TIMES, AllReduceTime, Link, Profile, SizeTimes, all_reduce_s, layer_bytes
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.analyze.durations import Durations, Network, measured_durations, profiled_durations
from chimerac.compiler.analyze.formula import closed_equation
from chimerac.interpreter.launch.compiling import plan_of
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.timed_job import TimedJob
from chimerac.interpreter.profiling.layers import LayerBench
from chimerac.interpreter.profiling.links import all_reduces, point_to_point
from chimerac.interpreter.profiling.measure import mean_of_ranks
from tests.proof.record import table
from tools import ROOT
from tools.bench_models import GPT, description_of, iteration_of, model_of, pipeline_of
from tools.bench_ranks import benchmark, is_rank, on_ranks, progress, run_rank, verdict
from tools.bench_timed import MESSAGE
from tools.delayed import Delayed

PAGE = ROOT / "docs" / "profile.md"
UNIT_MS = 25  # the time of a unit of cost, with timed stages
DELAYS_MS = (0, 10)
REPEATS = 20  # of each measurement of messages and all-reduces
TIMED = ("gpipe", "1f1b", "chimera", "zb_h1")
TIMED_RANKS = (4, 8)
REAL = ("gpipe", "1f1b", "chimera", "zb_v")
REAL_RANKS, REAL_MICRO_BATCHES = 2, 8
LARGEST_MEDIAN = {"timed": 0.03, "GPT": 0.06}  # the goals: by model, the largest median of the errors
ERROR, SHARE_WITHIN = 0.12, 0.9  # the last goal: the least share of all errors that are at most ERROR


@dataclass(frozen=True)
class Row:
    """The times of an iteration of one program, in seconds.

    Attributes:
        model: `timed` or `GPT`.
        predicted_s: by the simulator.
        equation_s: by the closed equation.
        measured_s: the median over the rounds; 0 until it is known.
    """

    model: str
    schedule: str
    ranks: int
    micro_batches: int
    delay_ms: int
    predicted_s: float
    equation_s: float
    measured_s: float = 0.0

    @property
    def error(self) -> float:
        """Return by how much the prediction differs from the measurement, relative to the measurement."""
        return self.predicted_s / self.measured_s - 1

    def cells(self) -> tuple[object, ...]:
        """Return the row of the table."""
        times = (f"{1e3 * x:.1f} ms" for x in (self.measured_s, self.predicted_s))
        equation = (f"{1e3 * self.equation_s:.1f} ms", f"{100 * (self.equation_s / self.measured_s - 1):+.1f} %")
        delay = f"{self.delay_ms} ms" if self.delay_ms else "none"
        return (
            self.model,
            self.schedule,
            self.ranks,
            self.micro_batches,
            delay,
            *times,
            f"{100 * self.error:+.1f} %",
            *equation,
        )


@dataclass
class Run:
    """An iteration that this rank can run.

    Attributes:
        predict: returns its row, without the measured time.
        before: called before each run; for the GPT it measures the layers.
    """

    delay_ms: int
    iterate: Callable[[], object]
    predict: Callable[[], Row]
    before: Callable[[], object] = lambda: None


def predicted(model: str, program: Program, delay_ms: int, durations: Durations) -> Row:
    """Return the row of a program with both predictions: that of the simulator and that of the closed equation."""
    s = simulate(program, durations=durations)
    equation = closed_equation(program, durations)
    h = program.header
    makespan_ms, equation_ms = s.makespan / s.scale, equation.total / equation.scale
    return Row(model, h.schedule, program.world, h.micro_batches, delay_ms, makespan_ms / 1e3, equation_ms / 1e3)


def timed_runs(transport: Delayed, link: Link, all_reduce_times: tuple[AllReduceTime, ...]) -> Iterator[Run]:
    """Yield the runs with timed stages: a task sleeps for its cost, so its time is known."""
    settings = parse_options(["--timed", str(UNIT_MS)])
    for schedule in TIMED:
        program = compile_schedule(schedule, {"D": transport.world, "N": 2 * transport.world}).program
        job = TimedJob(plan_of(program, timed=True), settings, UNIT_MS, MESSAGE)
        trainer = job.trainer(transport)

        def iterate(job: TimedJob = job, trainer: Any = trainer) -> None:
            job.sleeper.begin(lambda: transport.waited_ns)
            trainer.gradients(0)

        tasks = {op: [cost * UNIT_MS / 1e3 for cost in program.costs.of(op)] for op in TIMES}
        for delay_ms in DELAYS_MS:
            network = _network(link, all_reduce_times, delay_ms)
            durations = measured_durations(
                program, tasks, network, lambda value, stage, count: count * MESSAGE.bytes, _gradient_bytes
            )
            yield Run(delay_ms, iterate, partial(predicted, "timed", program, delay_ms, durations))


def real_runs(transport: Delayed, link: Link, all_reduce_times: tuple[AllReduceTime, ...]) -> Iterator[Run]:
    """Yield the runs of the GPT, predicted with a profile that all ranks measure at the same time."""
    description = description_of(GPT)
    bench = LayerBench(model_of(GPT), description, torch.device("cpu"))

    def predict(program: Program, delay_ms: int) -> Row:
        found = mean_of_ranks(bench.result(), transport)
        profile = Profile(
            model=description.name,
            hardware="-",
            source="-",
            overhead=found.overhead,
            layers=layer_bytes(description, 0),
            sizes=(SizeTimes(description.samples, found.layers),),
            point_to_point=link,
            all_reduce=all_reduce_times,
        )
        durations = profiled_durations(program, description, profile, _network(link, all_reduce_times, delay_ms))
        return predicted("GPT", program, delay_ms, durations)

    for schedule in REAL:
        program = compile_schedule(schedule, {"D": transport.world, "N": REAL_MICRO_BATCHES}).program
        pipe = pipeline_of(program, GPT, transport)
        for delay_ms in DELAYS_MS:
            yield Run(delay_ms, iteration_of(pipe, GPT), partial(predict, pipe.program, delay_ms), bench.run)


def _network(link: Link, all_reduce_times: tuple[AllReduceTime, ...], delay_ms: int) -> Network:
    """Return the network of the measured link, with the delay as a part of its latency. All-reduces have no delay."""
    return Network(
        Link(link.latency_s + delay_ms / 1e3, link.bytes_per_s), all_reduce_s=partial(all_reduce_s, all_reduce_times, link)
    )


def _gradient_bytes(_: object) -> int:
    """Return the bytes that an all-reduce sums: a timed stage has one gradient of four bytes."""
    return 4


def measure(rounds: int) -> list[dict[str, Any]]:
    """Measure on this rank, together with the other ranks. Return all rows for this number of ranks, as dicts."""
    transport = Delayed()
    progress(f"{transport.world} ranks: the profile")
    link, all_reduce_times = point_to_point(transport, REPEATS), all_reduces(transport, REPEATS)
    runs: list[Run] = []
    if transport.world in TIMED_RANKS:
        runs += timed_runs(transport, link, all_reduce_times)
    if transport.world == REAL_RANKS:
        runs += real_runs(transport, link, all_reduce_times)
    seconds: Mapping[int, list[float]] = {k: [] for k in range(len(runs))}
    for number in range(rounds + 1):
        progress(f"{transport.world} ranks: round {number} of {rounds}")
        for k, run in enumerate(runs):
            transport.delay_s = run.delay_ms / 1e3
            transport.all_reduce(torch.zeros(1))  # so that all ranks measure their layers at the same time
            run.before()
            taken = _timed(transport, run.iterate)
            if number:  # round 0 is a warm-up
                seconds[k].append(taken)
    return [asdict(run.predict()) | {"measured_s": statistics.median(seconds[k])} for k, run in enumerate(runs)]


def _timed(transport: Delayed, run: Callable[[], object]) -> float:
    """Return how long the slowest rank took, in seconds, after all have begun together."""
    transport.all_reduce(torch.zeros(1))
    begin = time.perf_counter()
    run()
    taken = time.perf_counter() - begin
    return max(float(text) for text in transport.all_gather(str(taken)))


def report(rows: list[Row]) -> tuple[str, bool]:
    """Return the table and the goals, and whether all goals are met."""
    head = ("model", "schedule", "ranks", "N", "sends delayed", "measured", "simulated", "error", "closed equation", "error")
    text = table(head, [row.cells() for row in rows])
    errors = [abs(row.error) for row in rows]
    by_model = {model: [abs(row.error) for row in rows if row.model == model] for model in LARGEST_MEDIAN}
    goals = {}
    for model, largest in LARGEST_MEDIAN.items():
        median = statistics.median(by_model[model])
        goal = f"the median error on {model} stages is at most {100 * largest:.0f} % (it is {100 * median:.1f} %)"
        goals[goal] = ["it is larger"] if median > largest else []
    within = sum(error <= ERROR for error in errors) / len(errors)
    goals[f"nine of ten within {100 * ERROR:.0f} % ({100 * within:.0f} % are)"] = ["fewer are"] if within < SHARE_WITHIN else []
    return text + "".join(verdict(goal, failures) for goal, failures in goals.items()), not any(goals.values())


def measured_on_all(rounds: int) -> tuple[str, bool]:
    """Run one set of ranks after another; return the table and the goals, and whether all goals are met."""
    found = [on_ranks("tools.bench_predicted", ranks, rounds) for ranks in (REAL_RANKS, *TIMED_RANKS)]
    return report([Row(**row) for rows in found for row in rows])


if __name__ == "__main__":
    if is_rank():
        run_rank(partial(measure, int(sys.argv[1])))
    else:
        sys.exit(benchmark("predicted", __doc__, measured_on_all, "ROUNDS", 7, PAGE))
