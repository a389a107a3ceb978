"""Compares the speed of the runtime with torch.distributed.pipelining and with loops written by hand.

All of them train the same model on the same two gloo ranks with one thread each. Every round runs each of them once, so that
other load on the machine affects all. A ratio is computed in each round; the table has the median and the quartiles.

    python -m tools.bench_runtime [ROUNDS]      default 7
    python -m tools.bench_runtime --write       and records the result in docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining.schedules import ScheduleDualPipeV, ScheduleZBVZeroBubble

from chimerac.chimera_ir.partition import balanced
from chimerac.compiler import compile_schedule
from chimerac.interpreter.pipeline.pipeline import Pipeline
from chimerac.interpreter.runtime.batch import TensorBatch
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.runtime.draws import Draws
from chimerac.interpreter.runtime.partitioned import partitioned
from chimerac.interpreter.transport.gloo import Gloo, join, leave
from tests.proof.record import record, stamp, table
from tools import bench_bare
from tools.bench_models import GPT, SAMPLES, SEED, TINY, Sizes, mean_loss, model_of, tokens_of

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"
RANKS = 2
OURS: dict[str, dict[str, int]] = {"gpipe": {}, "1f1b": {}, "interleaved": {"v": 2}, "zb_v": {}, "chimera": {}}
V_SHAPED = {"ZBV": ScheduleZBVZeroBubble, "DualPipeV": ScheduleDualPipeV}
THEIRS: dict[str, Any] = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B, "Interleaved1F1B": ScheduleInterleaved1F1B, **V_SHAPED}
RUNS = {"GPT, N=8": (GPT, 8), "GPT, N=16": (GPT, 16), "tiny, N=64": (TINY, 64)}
# What is compared with what, and the largest ratio that is a success.
GOALS = {
    "GPT, N=8": [
        ("ours 1f1b", "torch 1F1B", 0.98),
        ("ours gpipe", "torch GPipe", 1.0),
        ("ours chimera", "torch 1F1B", 0.90),
        ("ours chimera", "best of torch", 0.97),
        ("ours chimera", "chimera by hand", 1.02),
        ("ideal", "ours chimera", None),
    ],
    "GPT, N=16": [
        ("ours chimera", "torch 1F1B", 0.93),
        ("ours chimera", "best of torch", 0.97),
        ("ours chimera", "chimera by hand", 1.02),
        ("ideal", "ours chimera", None),
    ],
    "tiny, N=64": [("ours 1f1b", "torch 1F1B", 0.80), ("ours gpipe", "torch GPipe", 0.80)],
}
EFFICIENCY = {"GPT, N=8": 0.93, "GPT, N=16": 0.95}  # at least


def ours(name: str, z: Sizes, micro_batches: int, transport: Gloo) -> tuple[Callable[[], None], int]:
    """Return a function that runs one iteration with our runtime, and the number of its instructions on this rank."""
    program = compile_schedule(name, {"D": RANKS, "N": micro_batches, **OURS[name]}).program
    model, tokens = model_of(z), tokens_of(z, micro_batches)
    pipe = Pipeline.of(program, partitioned(program, model, describe(model, SAMPLES)), transport, SEED)
    draws = [Draws(SEED, 0, ())] * micro_batches

    def iterate() -> None:
        pipe.run(TensorBatch((tokens,), (tokens,), {}, micro_batches, (tokens.numel(),), draws))
        for stage in pipe.stages.values():
            stage.zero_grad()

    return iterate, len(pipe.executor.stream)


def theirs(name: str, z: Sizes, micro_batches: int) -> Callable[[], None]:
    """Return a function that runs one iteration with torch.distributed.pipelining."""
    model, tokens, rank = model_of(z), tokens_of(z, micro_batches), dist.get_rank()
    each = 1 if name in ("GPipe", "1F1B") else 2
    stages = RANKS * each
    cut = balanced(describe(model, SAMPLES), stages).layers
    mine = [rank, stages - 1 - rank] if name in V_SHAPED else list(range(rank, stages, RANKS))
    modules = {s: nn.Sequential(*model.build_stage(cut[s], SEED).layers) for s in mine}
    parts = [PipelineStage(modules[s], s, stages, torch.device("cpu")) for s in mine]
    schedule = THEIRS[name](parts if each > 1 else parts[0], micro_batches, loss_fn=mean_loss)
    first, last = 0 in mine, stages - 1 in mine

    def iterate() -> None:
        schedule.step(*([tokens] if first else []), **({"target": tokens, "losses": []} if last else {}))
        for module in modules.values():
            module.zero_grad()

    return iterate


def by_hand(z: Sizes, micro_batches: int) -> Callable[[], None]:
    """Return the loop of tools/bench_bare.py for Chimera."""
    model = model_of(z)
    halves = [model.build_stage(layers, SEED) for layers in balanced(describe(model, SAMPLES), 2).layers]
    groups = [dist.new_group([0, 1]) for _ in range(4)]
    return bench_bare.chimera(*halves, tokens_of(z, micro_batches), groups)  # type: ignore[arg-type]


def alone(z: Sizes, micro_batches: int) -> Callable[[], None]:
    """Return a loop over the whole model. Both ranks run one at the same time, each on all micro-batches."""
    model = model_of(z)
    return bench_bare.alone(model.build_stage(range(len(model.layers)), SEED), tokens_of(z, micro_batches))


def measure(z: Sizes, micro_batches: int, rounds: int) -> dict[str, Any]:
    """Return the seconds of each round for every runner, and the instructions of this rank by schedule."""
    transport, counts = Gloo(), {}
    runners: dict[str, Callable[[], None]] = {"alone": alone(z, micro_batches)}
    for name in OURS:
        runners[f"ours {name}"], counts[name] = ours(name, z, micro_batches, transport)
    for name in THEIRS:
        if z is GPT or name not in V_SHAPED:  # torch's split backward fails on the tiny model: "can't detach views in-place"
            runners[f"torch {name}"] = theirs(name, z, micro_batches)
    runners["chimera by hand"] = by_hand(z, micro_batches)
    times: dict[str, list[float]] = {name: [] for name in runners}
    for number in range(rounds + 1):
        for name, run in runners.items():
            dist.barrier()
            start = time.perf_counter()
            run()
            dist.barrier()
            if number:  # the first round is a warm-up
                times[name].append(time.perf_counter() - start)
    times["ideal"] = [t / RANKS for t in times["alone"]]
    best = min((name for name in times if name.startswith("torch")), key=lambda name: statistics.median(times[name]))
    times["best of torch"] = times[best]
    return {"times": times, "counts": counts, "best": best}


def rank(out: Path, rounds: int) -> None:
    """Run as one rank; rank 0 writes the results to `out`."""
    torch.set_num_threads(1)
    join(timeout_s=120)
    found = {name: measure(z, n, rounds if z is GPT else 3 * rounds) for name, (z, n) in RUNS.items()}
    if dist.get_rank() == 0:
        out.write_text(json.dumps(found))
    leave()


def ratios(times: dict[str, list[float]], a: str, b: str) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile of the times of `a` divided by those of `b`."""
    found = [x / y for x, y in zip(times[a], times[b], strict=True)]
    low, median, high = statistics.quantiles(found, n=4, method="inclusive")
    return low, median, high


def report(found: dict[str, Any]) -> tuple[str, bool]:
    """Return the tables of the results, and whether all goals are met."""
    text, met = "", True
    for run, (z, _) in RUNS.items():
        times, counts, rounds = found[run]["times"], found[run]["counts"], len(found[run]["times"]["ideal"])
        text += (
            f"**{run}**: medians of {rounds} rounds, in brackets the quartiles; the best of torch is {found[run]['best']}.\n\n"
        )
        rows = []
        for a, b, most in GOALS[run]:
            low, median, high = ratios(times, a, b)
            ok = median <= most if most is not None else median >= EFFICIENCY[run]
            goal = f"at most {most:.2f}" if most is not None else f"at least {EFFICIENCY[run]:.2f}"
            rows.append([a, b, f"{median:.3f}", f"{low:.3f} to {high:.3f}", goal, "met" if ok else "missed"])
            met &= ok
        text += table(["time of", "beside", "ratio", "quartiles", "goal", ""], rows) + "\n"
        each = [
            [name, f"{statistics.median(times[name]) * 1e3:.1f} ms"] for name in times if name not in ("ideal", "best of torch")
        ]
        if z is TINY:
            for row in each:
                count = counts.get(row[0].removeprefix("ours "))
                row.append(f"{statistics.median(times[row[0]]) / count * 1e6:.0f} µs" if count else "")
        text += table(["loop", "iteration", *(["each instruction"] if z is TINY else [])], each) + "\n"
    return text, met


def main() -> int:
    """Start both ranks, and print or record their results. Return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", nargs="?", type=int, default=7)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "BENCH_OUT": str(out)}
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        subprocess.run([*command, __file__, str(options.rounds)], env=environment, check=True)
        text, met = report(json.loads(out.read_text()))
    print(text)
    if options.write:
        record("runtime", stamp(time.monotonic() - begin, SEED, ("torch",)) + text, PAGE)
    return 0 if met else 1


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank(Path(os.environ["BENCH_OUT"]), int(sys.argv[1]))
    else:
        sys.exit(main())
