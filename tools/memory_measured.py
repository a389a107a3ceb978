"""Compares the memory that is estimated for each rank with the memory that it allocates, by torch's profiler.

    python -m tools.memory_measured            print the table
    python -m tools.memory_measured --write    and record it in docs/partition.md

Real gloo ranks train two iterations with AdamW while torch's profiler records every allocation of a tensor's memory, from
before the stages are built: weights, gradients, the state of the optimizer, activations, values, messages and workspace. The
estimate is that of `chimerac partition --optimizer adamw`. `peak` is the most that is allocated at one time. Both are in bytes.
The exit status is 1 if an estimate differs from the peak by more than a tenth of the peak.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from chimerac.chimera_ir.optimizers import OPTIMIZERS
from chimerac.compiler.analyze.memory import OptimizerState, memory
from chimerac.interpreter.runtime.describe import describe
from chimerac.interpreter.training.settings import Settings
from chimerac.interpreter.training.trainer import Trainer
from chimerac.interpreter.transport.gloo import Gloo
from tests.proof.record import record, stamp, table
from tools import ROOT
from tools.bench_ranks import is_rank, on_ranks, progress, run_rank
from tools.shown_models import SEED, case_of

MODELS: Mapping[str, tuple[int, int]] = {  # samples of a micro-batch, tokens of a sample; images have none
    "gpt2-mini": (8, 128),
    "bert-mini": (8, 128),
    "cnn-cifar": (16, 0),
    "hf:gpt2": (4, 128),
    "hf:llama": (8, 128),
    "gpt2-small/2": (4, 128),  # with 2 blocks
}
SCHEDULES: Mapping[str, Mapping[str, int]] = {"1f1b": {"D": 2, "N": 4}, "chimera": {"D": 2, "N": 4}}
RANKS, ITERATIONS, TOLERANCE = 2, 2, 0.1
PAGE = ROOT / "docs" / "partition.md"
HEAD = ("model", "schedule", "rank", "estimate", "peak", "estimate / peak")
Figures = tuple[int, int]  # estimate and peak of a rank, in bytes


def measured(name: str, schedule: str, micro_batch: int, length: int) -> Figures:
    """Train on this rank, and return its estimated and measured peaks in bytes.

    Args:
        micro_batch: samples of a micro-batch.
        length: tokens of a sample; 0 for images.
    """
    torch.set_num_threads(1)
    case = case_of(name, micro_batch, length)
    description = describe(case.model, micro_batch)
    program, parted = case.parted(schedule, SCHEDULES[schedule], description)
    transport = Gloo()
    estimate = memory(program, parted.description, OptimizerState(Fraction(OPTIMIZERS["adamw"])))[transport.rank].peak
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        trainer = Trainer(program, parted, case.samples, transport, Settings(ITERATIONS, SEED, micro_batch, rate=1e-3))
        for iteration in range(ITERATIONS):
            trainer.update(iteration, trainer.gradients(iteration))
    return estimate, peak_bytes(profiler)


def peak_bytes(profiler: Any) -> int:
    """Return the most bytes that were allocated at one time, of those that were allocated while a profiler ran."""
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    events.sort(key=lambda e: e.start_ns())
    return max(accumulate((e.nbytes() for e in events), initial=0))


def _measure_all() -> list[list[Any]]:
    """Run as one rank: return a row for each model, schedule and rank, without the last column of HEAD."""
    rows: list[list[Any]] = []
    for name, (micro_batch, length) in MODELS.items():
        for schedule in SCHEDULES:
            progress(f"{name}, {schedule}")
            gathered: list[Any] = [None] * RANKS
            dist.all_gather_object(gathered, measured(name, schedule, micro_batch, length))
            rows += [[name, schedule, rank, *figures] for rank, figures in enumerate(gathered)]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="record the table in docs/partition.md")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    found = on_ranks("tools.memory_measured", RANKS)
    rows = [(*place, estimate, peak, f"{estimate / peak:.3f}") for *place, estimate, peak in found]
    text = table(HEAD, rows)
    print(text)
    if options.write:
        record("memory_measured", stamp(time.monotonic() - start, SEED, ("torch", "transformers")) + text, PAGE)
    return 0 if all(abs(estimate / peak - 1) <= TOLERANCE for *_, estimate, peak in found) else 1


if __name__ == "__main__":
    if is_rank():
        run_rank(_measure_all)
        sys.exit(0)
    sys.exit(main())
