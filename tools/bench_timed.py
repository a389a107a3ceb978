"""Compares measured times of every schedule of the library with the simulation: timed stages run on real gloo ranks.

    python -m tools.bench_timed [MILLISECONDS]     of a unit of cost, default 25
    python -m tools.bench_timed --write            and records the result in docs/benchmarks.md

Timed stages sleep instead of computing, so ranks can share processors. Everything else is as in training. One set of ranks
runs all programs of a number of ranks. The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from chimerac.chimera_ir.boundary import Tensor
from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.program import RECOMPUTE, Program
from chimerac.compiler import compile_schedule
from chimerac.compiler.library import names
from chimerac.interpreter.launch.compiling import plan_of
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.timed_job import TimedJob
from chimerac.interpreter.transport.gloo import Gloo
from tests.proof.record import table
from tools.bench_ranks import benchmark, is_rank, on_ranks, progress, run_rank, verdict

RANKS = (4, 8)
ITERATIONS = 3
TOLERANCE = 0.05
MESSAGE = Tensor((4, 256), "float32", gradient=True)  # 4 kB: the predictions are of transfers that take no time
ORDER = ("chimera_zb", "chimera", "1f1b")  # at N = D, the fastest first


@dataclass(frozen=True)
class Row:
    """What was found about a schedule at a depth, a number of micro-batches of a replica, and a width.

    own: its own parameters that differ from their defaults. Times are in seconds. recomputes: whether it runs forwards again.
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
    recomputes: bool = False
    reason: str = ""

    @property
    def name(self) -> str:
        """Return the schedule with its parameters besides D and N, and its width."""
        others = {**self.own, **({"W": self.width} if self.width > 1 else {})}
        return ", ".join([self.schedule, *(f"{name}={value}" for name, value in others.items())])

    @property
    def error(self) -> float:
        """Return by how much the measured makespan differs from the predicted one, relative to it."""
        return self.measured_s / self.predicted_s - 1

    def cells(self) -> tuple[object, ...]:
        """Return the row of the table."""
        head = (self.name, self.depth, self.micro_batches)
        if self.reason:
            return (*head, self.reason, "", "", "", "")
        times = (f"{self.predicted_s:.3f} s", f"{self.measured_s:.3f} s", f"{100 * self.error:+.1f} %")
        return (*head, *times, f"{self.predicted_bubble:.3f}", f"{self.measured_bubble:.3f}")


class Ranks:
    """One rank of a set that runs many programs. unit_ms: milliseconds for a unit of cost."""

    def __init__(self, unit_ms: int) -> None:
        self.unit_ms, self.transport = unit_ms, Gloo()
        self.settings = parse_options(["--timed", str(unit_ms), "--iterations", str(ITERATIONS)])

    def rows(self) -> Iterator[Row]:
        """Yield a row for every program of this number of ranks.

        Every schedule of the library runs with its defaults at N = D and N = 2 D. At N = D it runs once more for each of its
        own parameters, with the number after the default. The schedules of ORDER run with two replicas too.
        """
        depth = self.transport.world
        for schedule in names():
            for micro_batches in (depth, 2 * depth):
                row, program = self.row(schedule, {}, depth, micro_batches)
                yield row
                values = program.header.parameters if program and micro_batches == depth else {}
                for name in [name for name in values if name not in ("D", "N")]:
                    yield self.row(schedule, {name: values[name] + 1}, depth, micro_batches)[0]
        if depth // 2 in RANKS:
            for schedule in ORDER:
                yield self.row(schedule, {}, depth // 2, depth // 2, width=2)[0]

    def row(
        self, schedule: str, own: Mapping[str, int], depth: int, micro_batches: int, width: int = 1
    ) -> tuple[Row, Program | None]:
        """Measure one program. Return its row, and the program if there is one."""
        what = (schedule, own, depth, micro_batches, width)
        try:
            program = compile_schedule(schedule, {"D": depth, "N": micro_batches, **own}, width).program
        except ChimeraError as error:
            if any(d.code != "E210" for d in error.diagnostics):  # E210: a `require` does not hold
                raise
            return Row(*what, reason=error.diagnostics[0].message), None
        begin, plan = time.monotonic(), plan_of(program, timed=True)
        found = TimedJob(plan, self.settings, self.unit_ms, MESSAGE).measure(self.transport)
        p, m = found.predicted, found.measured
        assert p is not None
        recomputes = bool((program.table.flags & RECOMPUTE).any())
        row = Row(*what, p.makespan, m.makespan, p.bubble_ratio, m.bubble_ratio, recomputes)
        progress(f"{'  '.join(map(str, row.cells()))}  ({time.monotonic() - begin:.1f} s)")
        return row, program


def measure(unit_ms: int) -> list[dict[str, Any]]:
    """Run as one rank: return all rows for this number of ranks."""
    return [asdict(row) for row in Ranks(unit_ms).rows()]


def report(unit_ms: int, rows: list[Row]) -> tuple[str, bool]:
    """Return the table and the goals, and whether all goals are met."""
    head = ("schedule", "D", "N", "predicted", "measured", "error", "bubble, predicted", "bubble, measured")
    text = f"A unit of cost is {unit_ms} ms. Times are medians of {ITERATIONS} iterations.\n\n"
    text += table(head, [row.cells() for row in rows])
    measured = [row for row in rows if not row.reason]
    goals = {
        f"every makespan within {100 * TOLERANCE:.0f} % of the simulated one; with recomputation it may be shorter": [
            f"{row.name} at {row.depth}, {row.micro_batches}: {100 * row.error:+.1f} %"
            for row in measured
            if abs(row.error) > TOLERANCE and not (row.recomputes and row.error < 0)
        ],
        "every schedule measured at every D": [
            f"{name} at D = {depth}" for depth in RANKS for name in names() if not _of(measured, name, depth)
        ],
        f"measured {' < '.join(ORDER)} at N = D": list(_out_of_order(measured)),
    }
    return text + "".join(verdict(goal, failures) for goal, failures in goals.items()), not any(goals.values())


def _of(rows: list[Row], schedule: str, depth: int) -> list[Row]:
    return [row for row in rows if (row.schedule, row.depth) == (schedule, depth)]


def _out_of_order(rows: list[Row]) -> Iterator[str]:
    """Yield the places where the measured makespans of ORDER are not in this order."""
    plain = [row for row in rows if not row.own and row.micro_batches == row.depth]
    for depth, width in sorted({(row.depth, row.width) for row in plain}):
        found = {row.schedule: row.measured_s for row in plain if (row.depth, row.width) == (depth, width)}
        times = [found[name] for name in ORDER if name in found]
        if times != sorted(times):
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
