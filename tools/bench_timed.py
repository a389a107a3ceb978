"""Measured against predicted: timed stages over real gloo ranks, beside the simulator's makespan.

    python -m tools.bench_timed [MILLISECONDS]     a unit of cost, default 40; exit status 1 where a makespan is 5 % off

Stages sleep, so that ranks need no processors of their own; messages and everything else are as in a training. One set
of ranks runs all schedules of its depth.
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
    """Start the ranks of every depth, one depth after the other, and print one table."""
    print(f"unit {unit_ms:g} ms, median of {ITERATIONS - 1} iterations\n")
    print("schedule   D   N   predicted   measured             bubble   measured", flush=True)
    status = 0
    for depth in DEPTHS:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(depth)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        status |= subprocess.run([*command, __file__, str(unit_ms)], env=environment, check=False).returncode
    return int(status != 0)


def rank(unit_ms: float) -> int:
    """Run as one rank: every schedule at N = D and 2 D. Return 1 where one is further off than it may be."""
    from chimerac.compiler import compile_schedule
    from chimerac.interpreter.launch.compiling import plan_of
    from chimerac.interpreter.launch.job import TimedJob
    from chimerac.interpreter.launch.options import parse_options
    from chimerac.interpreter.launch.workloads import model_of
    from chimerac.interpreter.transport.gloo import Gloo, join, leave

    join(timeout_s=60)
    transport, depth, status = Gloo(), int(os.environ["WORLD_SIZE"]), 0
    settings = parse_options(["--timed", str(unit_ms), "--iterations", str(ITERATIONS)])
    for name in SCHEDULES:
        for micro_batches in (depth, 2 * depth):
            plan = plan_of(compile_schedule(name, {"D": depth, "N": micro_batches}).program, timed=True)
            found = TimedJob(plan, settings, unit_ms, model_of(settings)).measure(transport, alive=lambda: None)
            assert found.predicted is not None
            off = found.measured.makespan / found.predicted.makespan - 1
            status |= int(abs(off) > TOLERANCE)
            if transport.rank == 0:
                p, m = found.predicted, found.measured
                times = f"{p.makespan:7.3f} s  {m.makespan:7.3f} s  {100 * off:+5.1f} %"
                print(
                    f"{name:<9}{depth:>3} {micro_batches:>3}   {times}      {p.bubble_ratio:7.3f}    {m.bubble_ratio:7.3f}",
                    flush=True,
                )
    leave()
    return status


if __name__ == "__main__":
    given = float(sys.argv[1]) if len(sys.argv) > 1 else 40.0
    sys.exit(rank(given) if "RANK" in os.environ else main(given))
