"""Compares the speed of the runtime with torch.distributed.pipelining and with loops written by hand.

All of them compute the gradients of the same model, on two gloo ranks with one thread each. Our runtime, torch's schedules and
Chimera by hand have two processes each, as jobs of their own. While one job computes, the processes of the others are stopped.
Our runtime sets up the allocator of its processes (interpreter/runtime/allocator.py), and the job by hand does the same.

Two times whose ratio has a goal are measured soon after each other (GROUPS), so that other load on the host affects both, and
the ratio is computed each time. The jobs are started several times (STARTS): how fast a process is depends by one or two
percent on where its memory happens to lie, and that stays the same until it ends. A table has the median and the quartiles of
each ratio, and how many there are. Another one has the times and, for our schedules, the waits for communication.

    python -m tools.bench_runtime [ROUNDS]      of each start, default 2; two or three times as many are run (RUNS)
    python -m tools.bench_runtime --write       and records the result in docs/benchmarks.md

The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleDualPipeV, ScheduleZBVZeroBubble

from chimerac.chimera_ir.partition import balanced
from chimerac.compiler import compile_schedule, compile_text
from chimerac.compiler.library import find
from chimerac.interpreter.pipeline.bound import BoundPipeline
from chimerac.interpreter.runtime.allocator import keep_freed_memory
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.gloo import Gloo
from tests.proof.record import table
from tools import bench_bare
from tools.bench_instructions import Instant
from tools.bench_models import GPT, SEED, TINY, Sizes, description_of, iteration_of, mean_loss, model_of, pipeline_of, tokens_of
from tools.bench_ranks import at_once, benchmark, is_rank, ratio_cells, ratios, run_rank, timed_rounds

RANKS = 2  # of each job
JOBS = ("ours", "torch", "by hand")  # a plain loop over the whole model is in the first one
STARTS = 5  # of the jobs
# Our schedules, with their parameters besides D and N.
OURS: dict[str, dict[str, int]] = {"gpipe": {}, "1f1b": {}, "interleaved": {"v": 2}, "zb_v": {}, "chimera": {}}
# Chimera that launches the all-reduce of a stage right after its last gradient. That of the library waits until the rank is
# idle, or else until its last task has ended.
EAGER = "chimera, sync eager"
# torch's schedules, with their classes.
V_SHAPED = {"ZBV": ScheduleZBVZeroBubble, "DualPipeV": ScheduleDualPipeV}
THEIRS: dict[str, Any] = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B, "Interleaved1F1B": ScheduleInterleaved1F1B, **V_SHAPED}
# The model, N, and a factor of the number of rounds: shorter iterations get more of them.
RUNS = {"GPT, N=8": (GPT, 8, 3), "GPT, N=16": (GPT, 16, 2), "tiny, N=64": (TINY, 64, 3)}
# By run: the names of two times, and the most that the first divided by the second may be; None: EFFICIENCY is the least.
GOALS = {
    "GPT, N=8": [
        ("ours 1f1b", "torch 1F1B", 0.98),
        ("ours gpipe", "torch GPipe", 1.0),
        ("ours chimera", "torch 1F1B", 0.90),
        ("ours chimera", "best of torch", 0.97),
        ("ours chimera", "chimera by hand", 1.02),
        (f"ours {EAGER}", "chimera by hand", 1.02),  # both launch the first all-reduce before the last backward
        ("ours on one rank", "alone", 1.02),
        ("ideal", "ours chimera", None),
    ],
    "GPT, N=16": [
        ("ours chimera", "torch 1F1B", 0.93),
        ("ours chimera", "best of torch", 0.97),
        ("ours chimera", "chimera by hand", 1.02),
        (f"ours {EAGER}", "chimera by hand", 1.02),  # both launch the first all-reduce before the last backward
        ("ideal", "ours chimera", None),
    ],
    "tiny, N=64": [("ours 1f1b", "torch 1F1B", 0.80), ("ours gpipe", "torch GPipe", 1.00)],
}
_ALL_OF_TORCH = [f"torch {name}" for name in THEIRS]
_OF_GPT = [
    ["ours gpipe", "torch GPipe"],
    ["ours chimera", *_ALL_OF_TORCH],
    ["ours chimera", f"ours {EAGER}", "chimera by hand"],
    ["ours chimera", "ours on one rank", "alone"],
    ["ours interleaved", "ours zb_v"],
]
# By run: the loops that run one after another in a round. Those of a goal are in one group, or in several: a ratio has the
# rounds of all of them. The closer a ratio is to its goal, the more often it is measured.
GROUPS = {
    "GPT, N=8": [*[["ours 1f1b", "torch 1F1B"]] * 8, *[["ours chimera", "torch 1F1B"]] * 3, *_OF_GPT],
    "GPT, N=16": [["ours 1f1b", "torch 1F1B"], *[["ours chimera", "torch 1F1B"]] * 3, *_OF_GPT],
    "tiny, N=64": [
        ["ours 1f1b", "torch 1F1B"],
        ["ours gpipe", "torch GPipe"],
        ["ours interleaved", "torch Interleaved1F1B"],
        ["ours zb_v", "ours chimera", "chimera by hand", "ours on one rank", "alone"],
    ],
}
EFFICIENCY = {"GPT, N=8": 0.93, "GPT, N=16": 0.95}  # by run: the least that the ideal time divided by ours may be


def ours(name: str, z: Sizes, micro_batches: int, transport: Transport) -> tuple[Callable[[], None], BoundPipeline]:
    """Return a function that runs one iteration with our runtime, and the pipeline of this rank.

    Args:
        name: a schedule of the library, or EAGER.
    """
    sizes = {"D": transport.world, "N": micro_batches, **OURS.get(name, {})}
    if name == EAGER:
        text = find("chimera").text.replace("sync eager where idle", "sync eager")
        program = compile_text(text, sizes).program
    else:
        program = compile_schedule(name, sizes).program
    pipe = pipeline_of(program, z, transport)
    return iteration_of(pipe, z), pipe


def theirs(name: str, z: Sizes, micro_batches: int) -> Callable[[], None]:
    """Return a function that runs one iteration with torch.distributed.pipelining.

    Args:
        name: a key of THEIRS.
    """
    model, tokens, rank = model_of(z), tokens_of(z, micro_batches), dist.get_rank()
    stages_of_rank = 1 if name in ("GPipe", "1F1B") else 2
    stages = RANKS * stages_of_rank
    cut = balanced(description_of(z), stages).layers
    mine = [rank, stages - 1 - rank] if name in V_SHAPED else list(range(rank, stages, RANKS))
    modules = {s: nn.Sequential(*model.build_stage(cut[s], SEED).layers) for s in mine}
    parts = [PipelineStage(modules[s], s, stages, torch.device("cpu")) for s in mine]
    schedule = THEIRS[name](parts if stages_of_rank > 1 else parts[0], micro_batches, loss_fn=mean_loss)
    first, last = 0 in mine, stages - 1 in mine

    def iterate() -> None:
        schedule.step(*([tokens] if first else []), **({"target": tokens, "losses": []} if last else {}))
        for module in modules.values():
            module.zero_grad()

    return iterate


def by_hand(z: Sizes, micro_batches: int) -> Callable[[], None]:
    """Return the loop of tools/bench_bare.py for Chimera."""
    model = model_of(z)
    halves = [model.build_stage(layers, SEED) for layers in balanced(description_of(z), 2).layers]
    groups = [dist.new_group([0, 1]) for _ in range(4)]
    return bench_bare.chimera(*halves, tokens_of(z, micro_batches), groups)  # type: ignore[arg-type]


def alone(z: Sizes, micro_batches: int) -> Callable[[], None]:
    """Return a loop over the whole model. Both ranks run one at the same time, each on all micro-batches."""
    model = model_of(z)
    return bench_bare.alone(model.build_stage(range(len(model.layers)), SEED), tokens_of(z, micro_batches))


def measure(job: str, run: str, rounds: int) -> dict[str, Any]:
    """Return what this rank has measured. A runner is one of the loops that are compared.

    times: for each group of GROUPS, by runner of this job, the seconds of each round. counts: by schedule of ours, the number
    of instructions of this rank. waits: by runner of a schedule of ours on both ranks, for each of its runs the seconds in
    which the rank waited for values, for sends and for all-reduces.

    Args:
        job: one of JOBS.
        run: one of RUNS.
        rounds: multiplied by the factor of the run.
    """
    z, micro_batches, factor = RUNS[run]
    runners: dict[str, Callable[[], None]] = {}
    counts, pipes = {}, dict[str, BoundPipeline]()
    if job == "torch":
        # torch's split backward fails on the tiny model: "can't detach views in-place".
        names = [name for name in THEIRS if z is GPT or name not in V_SHAPED]
        runners |= {f"torch {name}": theirs(name, z, micro_batches) for name in names}
    elif job == "by hand":
        keep_freed_memory()
        runners["chimera by hand"] = by_hand(z, micro_batches)
    else:
        transport = Gloo()
        runners["alone"] = alone(z, micro_batches)
        runners["ours on one rank"], _ = ours("1f1b", z, micro_batches, Instant(rank=0, world=1))
        for name in [*OURS, EAGER] if z is GPT else [*OURS]:
            runners[f"ours {name}"], pipes[f"ours {name}"] = ours(name, z, micro_batches, transport)
            counts[name] = len(pipes[f"ours {name}"].executor.stream)
    times: list[dict[str, list[float]]] = [{name: [] for name in group if name in runners} for group in GROUPS[run]]
    waits: dict[str, list[tuple[float, float, float]]] = {name: [] for name in pipes}
    for group, name, seconds in timed_rounds(runners, factor * rounds, GROUPS[run]):
        times[group][name].append(seconds)
        if name in pipes:
            figures = pipes[name].figures
            waits[name].append((figures.value_wait_s, figures.send_wait_s, figures.all_reduce_wait_s))
    return {"times": times, "counts": counts, "waits": waits}


def measure_job(rounds: int, job: str) -> dict[str, Any]:
    """Return what `measure` finds for every run."""
    return {run: measure(job, run, rounds) for run in RUNS}


def measure_all(rounds: int) -> dict[str, Any]:
    """Start all jobs STARTS times; return by run what they have measured, joined.

    The times of a group are joined, with those of `ideal`, which is `alone` divided by RANKS, and of `best of torch`. best: the
    runner of torch's fastest schedule; None if no group has all of torch's.
    """
    starts = [at_once("tools.bench_runtime", RANKS, [(rounds, job) for job in JOBS]) for _ in range(STARTS)]
    found = {}
    for run in RUNS:
        ours = [of_ours[run] for of_ours, *_ in starts]
        times = [_joined([of_job[run]["times"][n] for of_job in jobs] for jobs in starts) for n in range(len(GROUPS[run]))]
        waits = {name: [row for of_start in ours for row in of_start["waits"][name]] for name in ours[0]["waits"]}
        best = None
        for of_group in times:
            if "alone" in of_group:
                of_group["ideal"] = [t / RANKS for t in of_group["alone"]]
            if of_group.keys() >= set(_ALL_OF_TORCH):
                best = min(_ALL_OF_TORCH, key=lambda name: statistics.median(of_group[name]))
                of_group["best of torch"] = of_group[best]
        found[run] = {"counts": ours[0]["counts"], "times": times, "waits": waits, "best": best}
    return found


def _joined(starts: Iterable[Sequence[dict[str, list[float]]]]) -> dict[str, list[float]]:
    """Return the times of a group in all starts, one after the other, by runner.

    Args:
        starts: for each start, those of each job, by runner.
    """
    joined: dict[str, list[float]] = {}
    for of_jobs in starts:
        for times in of_jobs:
            for name, seconds in times.items():
                joined.setdefault(name, []).extend(seconds)
    return joined


def report(found: dict[str, Any]) -> tuple[str, bool]:
    """Return the tables of the results, and whether all goals are met.

    Args:
        found: as `measure_all` returns it.
    """
    text, all_met = "", True
    for run in RUNS:
        rounds = len(next(iter(found[run]["times"][0].values())))
        best = f"; the best of torch is {found[run]['best']}" if found[run]["best"] else ""
        text += f"**{run}**: medians of {rounds} rounds in {STARTS} starts{best}.\n\n"
        ratio_table, met = _ratio_table(run, found[run]["times"])
        text += ratio_table + "\n" + _loop_table(run, found[run]) + "\n"
        all_met &= met
    return text, all_met


def _ratio_table(run: str, times: list[dict[str, list[float]]]) -> tuple[str, bool]:
    """Return the table of the ratios of a run, and whether its goals are met.

    Args:
        times: as in what `measure_all` returns for this run.
    """
    rows, all_met = [], True
    for first, second, most in GOALS[run]:
        both = [of_group for of_group in times if first in of_group and second in of_group]
        numerators, denominators = ([t for of_group in both for t in of_group[name]] for name in (first, second))
        quartiles = ratios(numerators, denominators)
        median = quartiles[1]
        met = median <= most if most is not None else median >= EFFICIENCY[run]
        goal = f"at most {most:.2f}" if most is not None else f"at least {EFFICIENCY[run]:.2f}"
        cells = [first, second, *ratio_cells(quartiles), str(len(numerators))]
        rows.append([*cells, goal, "met" if met else "missed"])
        all_met &= met
    return table(["time of", "beside", "ratio", "quartiles", "ratios", "goal", ""], rows), all_met


def _loop_table(run: str, found: dict[str, Any]) -> str:
    """Return the table of the loops of a run: the time of an iteration, and the waits.

    Args:
        found: as `measure_all` returns it for this run.

    For the tiny model it also has the time of an iteration divided by the number of instructions.
    """
    times, counts, waits = found["times"], found["counts"], found["waits"]
    is_tiny = RUNS[run][0] is TINY
    rows = []
    names = {name for of_group in times for name in of_group}
    for name in sorted(names - {"ideal", "best of torch"}):
        iteration_s = statistics.median(t for of_group in times for t in of_group.get(name, ()))
        waits_s = [statistics.median(column) for column in zip(*waits.get(name, ()), strict=True)]
        row = [name, f"{iteration_s * 1e3:.1f} ms", *([f"{s * 1e3:.1f} ms" for s in waits_s] or [""] * 3)]
        if is_tiny:
            count = counts.get(name.removeprefix("ours "))
            row.append(f"{iteration_s / count * 1e6:.0f} µs" if count else "")
        rows.append(row)
    head = ["loop", "iteration", "waits for values", "for sends", "for all-reduces"]
    return table([*head, *(["each instruction"] if is_tiny else [])], rows)


if __name__ == "__main__":
    if is_rank():
        run_rank(partial(measure_job, int(sys.argv[1]), sys.argv[2]))
    else:
        sys.exit(benchmark("runtime", __doc__, lambda rounds: report(measure_all(rounds)), "ROUNDS", 2))
