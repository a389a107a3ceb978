"""Compares measured times of every schedule of the library with the simulation: timed stages run on real gloo ranks.

    python -m tools.bench_timed [MILLISECONDS]     of a unit of cost, default 25
    python -m tools.bench_timed --write            and records the result in docs/benchmarks.md

Timed stages sleep instead of computing, so ranks can share processors. Messages, all-reduces and autograd are as in training;
there is no optimizer. All programs of the same number of ranks run in the same processes. The exit status is 1 if a goal is
missed.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from chimerac.chimera_ir.boundary import Tensor
from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.compiler.library import names
from chimerac.interpreter.launch.compiling import plan_of
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.timed_job import TimedJob
from chimerac.interpreter.runtime.times import IterationTimes
from chimerac.interpreter.training.timed import measured_times, median_times
from chimerac.interpreter.transport.gloo import Gloo
from tests.proof.record import table
from tools.bench_ranks import benchmark, is_rank, on_ranks, progress, run_rank, verdict

RANKS = (4, 8)
ITERATIONS = 3
TOLERANCE = 0.05  # the most by which a measured time may differ from the predicted one, relative to the predicted one
MESSAGE = Tensor((4, 256), "float32", gradient=True)  # 4 kB: small, because the predictions assume transfers of zero time
FASTEST_FIRST = ("chimera_zb", "chimera", "1f1b")  # a goal: at N = D, their measured times are in this order


@dataclass(frozen=True)
class Row:
    """What was predicted and measured of a schedule.

    Attributes:
        depth, micro_batches: of one replica.
        own: the values of its parameters besides D and N that differ from their defaults.
        predicted_s, measured_s: until the last task ends.
        reason: why there is no program; empty if there is one.
    """

    schedule: str
    own: Mapping[str, int]
    depth: int
    micro_batches: int
    width: int
    predicted_s: float = 0.0
    measured_s: float = 0.0
    predicted_bubble: float = 0.0
    measured_bubble: float = 0.0
    reason: str = ""

    @property
    def name(self) -> str:
        """Return the schedule with its parameters besides D and N, and its width."""
        others = {**self.own, **({"W": self.width} if self.width > 1 else {})}
        return ", ".join([self.schedule, *(f"{name}={value}" for name, value in others.items())])

    @property
    def error(self) -> float:
        """Return by how much the measured time differs from the predicted one, relative to the predicted one."""
        return self.measured_s / self.predicted_s - 1

    def cells(self) -> tuple[object, ...]:
        """Return the row of the table."""
        head = (self.name, self.depth, self.micro_batches)
        if self.reason:
            return (*head, self.reason, "", "", "", "")
        times = (f"{self.predicted_s:.3f} s", f"{self.measured_s:.3f} s", f"{100 * self.error:+.1f} %")
        return (*head, *times, f"{self.predicted_bubble:.3f}", f"{self.measured_bubble:.3f}")


class Run:
    """A program that this rank runs with timed stages.

    Args:
        row: without measured times.
    """

    def __init__(self, row: Row, program: Program, unit_ms: int, transport: Gloo) -> None:
        settings = parse_options(["--timed", str(unit_ms)])
        self.job = TimedJob(plan_of(program, timed=True), settings, unit_ms, MESSAGE)
        self.trainer, self.iterations = self.job.trainer(transport), list[IterationTimes]()
        predicted = self.job.predicted
        assert predicted is not None
        self.row = replace(row, predicted_s=predicted.last_task_end, predicted_bubble=predicted.bubble_ratio)

    def iterate(self) -> None:
        """Run one iteration; called by all ranks together."""
        self.iterations.append(measured_times(self.trainer, self.job.sleeper, len(self.iterations)))

    def result(self) -> Row:
        """Return the row with the measured figures, those of the iteration with the median time."""
        median = median_times(self.iterations)
        return replace(self.row, measured_s=median.last_task_end, measured_bubble=median.bubble_ratio)


def programs(ranks: int) -> Iterator[tuple[Row, Program | None]]:
    """Yield a row without times for every program of this number of ranks, and the program; None where there is none.

    Every schedule of the library runs with its defaults at N = D and N = 2 D. At N = D, if it allows these sizes, it runs once
    more for each of its own parameters, with the default of this parameter + 1. If half of this number of ranks is in RANKS
    too, the schedules of FASTEST_FIRST also run with two replicas, each of this half, at N = D.
    """
    for schedule in names():
        for micro_batches in (ranks, 2 * ranks):
            row, program = compiled(Row(schedule, {}, ranks, micro_batches, 1))
            yield row, program
            values = program.header.parameters if program and micro_batches == ranks else {}
            for name in [name for name in values if name not in ("D", "N")]:
                yield compiled(replace(row, own={name: values[name] + 1}))
    if ranks // 2 in RANKS:
        for schedule in FASTEST_FIRST:
            yield compiled(Row(schedule, {}, ranks // 2, ranks // 2, width=2))


def compiled(row: Row) -> tuple[Row, Program | None]:
    """Return a row and its program, or the row with the requirement that does not hold, and None.

    Raises ChimeraError if there is another finding.
    """
    try:
        found = compile_schedule(row.schedule, {"D": row.depth, "N": row.micro_batches, **row.own}, row.width)
    except ChimeraError as error:
        if any(d.code != "E210" for d in error.diagnostics):  # E210: a `require` does not hold
            raise
        return replace(row, reason=error.diagnostics[0].message), None
    return row, found.program


def measure(unit_ms: int) -> list[dict[str, Any]]:
    """Run as one rank: return all rows for this number of ranks.

    A round runs every program once, so that other load on the host does not affect all iterations of one program.
    """
    transport = Gloo()
    runs = [(row, Run(row, program, unit_ms, transport) if program else None) for row, program in programs(transport.world)]
    for number in range(ITERATIONS):
        progress(f"{transport.world} ranks: round {number + 1} of {ITERATIONS}")
        for _, run in runs:
            if run is not None:
                run.iterate()
    return [asdict(row if run is None else run.result()) for row, run in runs]


def report(unit_ms: int, rows: list[Row]) -> tuple[str, bool]:
    """Return the table and the goals, and whether all goals are met."""
    head = ("schedule", "D", "N", "predicted", "measured", "error", "bubble, predicted", "bubble, measured")
    text = f"A unit of cost is {unit_ms} ms. Times are medians of {ITERATIONS} rounds.\n\n"
    text += table(head, [row.cells() for row in rows])
    measured = [row for row in rows if not row.reason]
    goals = {
        f"every measured time within {100 * TOLERANCE:.0f} % of the simulated makespan": [
            f"{row.name} at D = {row.depth}, N = {row.micro_batches}: {100 * row.error:+.1f} %"
            for row in measured
            if abs(row.error) > TOLERANCE
        ],
        "every schedule measured at every D": [
            f"{name} at D = {depth}" for depth in RANKS for name in names() if not _rows_at_width_1(measured, name, depth)
        ],
        f"measured {' < '.join(FASTEST_FIRST)} at N = D": list(_out_of_order(measured)),
    }
    return text + "".join(verdict(goal, failures) for goal, failures in goals.items()), not any(goals.values())


def _rows_at_width_1(rows: list[Row], schedule: str, depth: int) -> list[Row]:
    return [row for row in rows if (row.schedule, row.depth, row.width) == (schedule, depth, 1)]


def _out_of_order(rows: list[Row]) -> Iterator[str]:
    """Yield each D and W at which the measured times of FASTEST_FIRST are not in this order, with the times."""
    plain = [row for row in rows if not row.own and row.micro_batches == row.depth]
    for depth, width in sorted({(row.depth, row.width) for row in plain}):
        found = {row.schedule: row.measured_s for row in plain if (row.depth, row.width) == (depth, width)}
        times = [found.get(name, math.nan) for name in FASTEST_FIRST]
        if not all(a < b for a, b in pairwise(times)):  # also if one was not measured
            yield f"D = {depth}, W = {width}: {', '.join(f'{seconds:.3f} s' for seconds in times)}"


def measured_on_all(unit_ms: int) -> tuple[str, bool]:
    """Run one set of ranks after another; return the table and the goals, and whether all goals are met."""
    found = [on_ranks("tools.bench_timed", ranks, unit_ms) for ranks in RANKS]
    return report(unit_ms, [Row(**row) for rows in found for row in rows])


if __name__ == "__main__":
    if is_rank():
        run_rank(partial(measure, int(sys.argv[1])))
    else:
        sys.exit(benchmark("timed", __doc__, measured_on_all, "MILLISECONDS", 25))
