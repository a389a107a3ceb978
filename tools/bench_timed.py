"""Compares measured times of schedules with the simulation: timed stages run on real gloo ranks.

    python -m tools.bench_timed [MILLISECONDS]     of a unit of cost, default 40

The exit status is 1 if a measured makespan differs from the simulated one by more than 5 %. Timed stages sleep instead of
computing, so ranks can share processors. Everything else is as in training. One set of ranks runs all schedules of a depth.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCHEDULES = ("gpipe", "1f1b", "chimera")
DEPTHS = (4, 8)
ITERATIONS = 4
TOLERANCE = 0.05


def main(unit_ms: float) -> int:
    """Run all depths, one after the other, and print one table. Return 1 if one of them fails."""
    print(f"unit {unit_ms:g} ms, median of {ITERATIONS - 1} iterations\n")
    print("schedule   D   N   predicted   measured             bubble   measured", flush=True)
    status = 0
    for depth in DEPTHS:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(depth)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        status |= subprocess.run([*command, __file__, str(unit_ms)], env=environment, check=False).returncode
    return int(status != 0)


def rank(unit_ms: float) -> int:
    """Run as one rank: every schedule at N = D and N = 2 D. Return 1 if one differs by more than TOLERANCE."""
    from chimerac.compiler import compile_schedule
    from chimerac.interpreter.launch.compiling import plan_of
    from chimerac.interpreter.launch.options import parse_options
    from chimerac.interpreter.launch.timed_job import TimedJob
    from chimerac.interpreter.launch.workloads import model_of
    from chimerac.interpreter.transport.gloo import Gloo, join, leave

    join(timeout_s=60)
    transport, depth, status = Gloo(), int(os.environ["WORLD_SIZE"]), 0
    settings = parse_options(["--timed", str(unit_ms), "--iterations", str(ITERATIONS)])
    for name in SCHEDULES:
        for micro_batches in (depth, 2 * depth):
            plan = plan_of(compile_schedule(name, {"D": depth, "N": micro_batches}).program, timed=True)
            found = TimedJob(plan, settings, unit_ms, model_of(settings, plan.program)).measure(transport)
            assert found.predicted is not None
            error = found.measured.makespan / found.predicted.makespan - 1
            status |= int(abs(error) > TOLERANCE)
            if transport.rank == 0:
                p, m = found.predicted, found.measured
                times = f"{p.makespan:7.3f} s  {m.makespan:7.3f} s  {100 * error:+5.1f} %"
                print(
                    f"{name:<9}{depth:>3} {micro_batches:>3}   {times}      {p.bubble_ratio:7.3f}    {m.bubble_ratio:7.3f}",
                    flush=True,
                )
    leave()
    return status


if __name__ == "__main__":
    milliseconds = float(sys.argv[1]) if len(sys.argv) > 1 else 40.0
    sys.exit(rank(milliseconds) if "RANK" in os.environ else main(milliseconds))
