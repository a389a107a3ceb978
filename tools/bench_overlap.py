"""Shows how much of the gradient sync the computation hides, with each `sync` of the language, over a slow link.

    python -m tools.bench_overlap [ROUNDS]      default 5
    python -m tools.bench_overlap --write       and records the result in docs/benchmarks.md

Real gloo ranks compute a real model. Their all-reduces take as long as over links of limited bandwidth (tools/slow_link.py).
For each schedule of RUNS, every round runs every `sync` at every bandwidth once. The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_text
from chimerac.compiler.library import find
from chimerac.interpreter.pipeline.bound import BoundPipeline
from chimerac.interpreter.transport.gloo import Gloo
from tests.proof.record import table
from tools.bench_models import GPT, iteration_of, pipeline_of
from tools.bench_ranks import benchmark, is_rank, on_ranks, progress, ratio_cells, ratios, run_rank, timed_rounds, verdict
from tools.slow_link import SlowLink

AT_END = "at end"
SYNCS = (AT_END, "eager where idle", "eager")
GIGABITS = (1, 2, 4)  # per second


@dataclass(frozen=True)
class Run:
    """A schedule of the library.

    Attributes:
        ranks: of all replicas together.
        most_exposed: a goal at the highest bandwidth. The exposed time of the all-reduces with `sync eager` is at most this
            share of their exposed time with `sync at end`.
    """

    schedule: str
    parameters: dict[str, int]
    width: int
    ranks: int
    most_exposed: float

    def program(self, sync: str) -> Program:
        """Return the program of the schedule with this `sync`, in the place of its own if it has one."""
        source = find(self.schedule)
        text = re.sub(r"^sync .*$", "", source.text, flags=re.MULTILINE) + f"sync {sync}\n"
        return compile_text(text, self.parameters, self.width, source.name).program


RUNS = {
    "looped_bfs, D=1, v=4, N=4, W=2": Run("looped_bfs", {"D": 1, "v": 4, "N": 4}, width=2, ranks=2, most_exposed=0.5),
    "chimera, D=2, N=2": Run("chimera", {"D": 2, "N": 2}, width=1, ranks=2, most_exposed=0.7),
    "chimera, D=4, N=4": Run("chimera", {"D": 4, "N": 4}, width=1, ranks=4, most_exposed=0.7),
}


@dataclass
class Variant:
    """A `sync` at a bandwidth of `gigabits` per second.

    Attributes:
        iteration_s, exposed_s: of each round.
    """

    sync: str
    gigabits: int
    iteration_s: list[float]
    exposed_s: list[float]


def measure(run: Run, rounds: int) -> list[dict[str, Any]]:
    """Measure a run on this rank, together with the other ranks. Return its variants as dicts of their fields."""
    link = SlowLink()
    pipes = {sync: pipeline_of(run.program(sync), GPT, link) for sync in SYNCS}
    variants = {f"{sync} {gigabits}": Variant(sync, gigabits, [], []) for gigabits in GIGABITS for sync in SYNCS}

    def runner(variant: Variant) -> Callable[[], None]:
        iterate = iteration_of(pipes[variant.sync], GPT)

        def run_one() -> None:
            link.bandwidth = variant.gigabits * 1e9 / 8
            iterate()

        return run_one

    for _, name, seconds in timed_rounds({name: runner(variant) for name, variant in variants.items()}, rounds):
        variant = variants[name]
        variant.iteration_s.append(seconds)
        variant.exposed_s.append(exposed_s(pipes[variant.sync]))
    check_sums(run, pipes)
    return [vars(variant) for variant in variants.values()]


def exposed_s(pipe: BoundPipeline) -> float:
    """Return the seconds for which ranks waited for all-reduces at the end of the last iteration: the mean of all ranks."""
    return statistics.fmean(pipe.measured().all_reduce_waits_s)


def check_sums(run: Run, pipes: dict[str, BoundPipeline]) -> None:
    """Raise ValueError if the gradients of a pipeline's last iteration are not those with plain gloo, bit for bit."""
    expected = pipeline_of(run.program(AT_END), GPT, Gloo())
    iteration_of(expected, GPT)()
    for sync, pipe in pipes.items():
        for group, gradients in expected.executor.gradients.items():
            found = pipe.executor.gradients[group].flat
            if not all(torch.equal(a, b) for a, b in zip(found, gradients.flat, strict=True)):
                raise ValueError(f"with `sync {sync}` the gradients of {group} are not those of gloo")


def measure_all(rounds: int) -> dict[str, Any]:
    """Measure every run that needs as many ranks as there are here. Return by name in RUNS what `measure` returns."""
    found = {}
    for name, run in RUNS.items():
        if run.ranks == dist.get_world_size():
            found[name] = measure(run, rounds)
            progress(f"{name} is measured")
    return found


def report(found: dict[str, list[dict[str, Any]]]) -> tuple[str, bool]:
    """Return the tables and the goals, and whether all goals are met.

    Args:
        found: by run, its variants as `measure` returns them.
    """
    text, exposed_more, slower, too_much = "", list[str](), list[str](), list[str]()
    head = (
        "link",
        "sync",
        "iteration",
        "exposed all-reduces",
        "iteration / at end",
        "quartiles",
        "exposed / at end",
        "quartiles",
    )
    for name, rows in found.items():
        variants = {(v.gigabits, v.sync): v for v in (Variant(**row) for row in rows)}
        cells = []
        for (gigabits, sync), v in variants.items():
            at_end, where = variants[gigabits, AT_END], f"{name}, {gigabits} Gbit/s"
            row = [f"{gigabits} Gbit/s", f"`sync {sync}`", milliseconds(v.iteration_s), milliseconds(v.exposed_s)]
            if sync != AT_END:
                iteration, exposed = ratios(v.iteration_s, at_end.iteration_s), ratios(v.exposed_s, at_end.exposed_s)
                row += [*ratio_cells(iteration), *ratio_cells(exposed)]
                if sync == "eager":
                    median_iteration, median_exposed = iteration[1], exposed[1]
                    if median_iteration >= 1:
                        slower.append(where)
                    if median_exposed >= 1:
                        exposed_more.append(where)
                    if gigabits == max(GIGABITS) and median_exposed > RUNS[name].most_exposed:
                        too_much.append(where)
            cells.append([*row, *[""] * (len(head) - len(row))])
        text += f"**{name}**: medians of {len(rows[0]['iteration_s'])} rounds.\n\n" + table(head, cells)
    shares = ", ".join(f"{run.most_exposed:.2f} for {name}" for name, run in RUNS.items())
    goals = {
        "`sync eager` exposes less than `sync at end`, at every bandwidth": exposed_more,
        "its iteration is shorter, at every bandwidth": slower,
        f"at {max(GIGABITS)} Gbit/s it exposes at most this share ({shares})": too_much,
    }
    return text + "".join(verdict(goal, failures) for goal, failures in goals.items()), not any(goals.values())


def milliseconds(seconds: list[float]) -> str:
    """Return the median of these seconds as text, in milliseconds."""
    return f"{statistics.median(seconds) * 1e3:.0f} ms"


def measured_on_all(rounds: int) -> tuple[str, bool]:
    """Run one set of ranks after another; return the tables and the goals, and whether all goals are met."""
    sets = sorted({run.ranks for run in RUNS.values()})
    found = {name: rows for ranks in sets for name, rows in on_ranks("tools.bench_overlap", ranks, rounds).items()}
    return report(found)


if __name__ == "__main__":
    if is_rank():
        run_rank(partial(measure_all, int(sys.argv[1])))
    else:
        sys.exit(benchmark("overlap", __doc__, measured_on_all, "ROUNDS", 5))
