"""How fast the compiler is: `make bench`. Not a test; the goal is at most 5 microseconds per instruction, at any size.

Compiling is everything from the text to the verified program; writing it as JSON is measured apart. Times are those of
the processor, so that what else the machine does hardly shows.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from chimera_ir.jsonform import program_from_json, program_to_json
from chimera_ir.program import Program
from compiler import compile_schedule
from compiler.verify import verify

SCHEDULES = ("1f1b", "chimera", "interleaved")
SIZES = ((8, 64), (16, 128), (32, 256), (64, 512))
GOAL = 5.0  # microseconds per instruction
Result = TypeVar("Result")


def median(work: Callable[[], Result], runs: int) -> tuple[float, Result]:
    """Return the median processor time of some runs in seconds, and what the last one returned."""
    times = []
    for _ in range(runs):
        gc.collect()
        begin = time.process_time()
        result = work()
        times.append(time.process_time() - begin)
    return statistics.median(times), result


def measure(name: str, D: int, N: int, runs: int) -> dict[str, float]:  # noqa: N803
    """Return microseconds per instruction of compiling (verification included), verifying, writing and reading."""

    def compile_it() -> Program:
        return compile_schedule(name, {"D": D, "N": N}).program

    compiling, program = median(compile_it, runs)
    verifying, _ = median(lambda: verify(program), runs)
    writing, text = median(lambda: program_to_json(program), runs)
    reading, _ = median(lambda: program_from_json(text), 1)
    count = len(program)
    per = {"compile": compiling, "verify": verifying, "write": writing, "read": reading}
    return {"instructions": count, "bytes": len(text)} | {k: v * 1e6 / count for k, v in per.items()}


def main() -> int:
    """Print a table of all schedules and sizes."""
    p = argparse.ArgumentParser("bench", description=__doc__)
    p.add_argument("--runs", type=int, default=5, help="the median of so many runs, default 5")
    p.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = p.parse_args()
    measure("1f1b", 2, 2, 1)  # imports and caches are not the question
    figures = {(name, D, N): measure(name, D, N, options.runs) for name in SCHEDULES for D, N in SIZES}
    if options.json:
        print(json.dumps([{"schedule": s, "D": D, "N": N} | f for (s, D, N), f in figures.items()], indent=1))
        return 0
    print("microseconds per instruction, median of", options.runs, "runs; read: one run\n")
    head = ("schedule", "D", "N", "instructions", "compile + verify", "ratio", "verify alone", "write JSON", "read JSON")
    rows = [head]
    for name in SCHEDULES:
        before = 0.0
        for D, N in SIZES:  # noqa: N806
            f = figures[name, D, N]
            ratio = f"{f['compile'] / before:.2f}" if before else ""  # 1: linear
            before = f["compile"]
            per = [f"{f[k]:.2f}" for k in ("verify", "write", "read")]
            rows.append((name, str(D), str(N), f"{f['instructions']:,}", f"{before:.2f}", ratio, *per))
    widths = [max(len(row[k]) for row in rows) for k in range(len(head))]
    for row in rows:
        print(f"{row[0]:<{widths[0]}}  " + "  ".join(f"{x:>{w}}" for x, w in zip(row[1:], widths[1:], strict=True)))
    slow = {k: f["compile"] for k, f in figures.items() if f["compile"] > GOAL}
    print(f"\ngoal: at most {GOAL} for compiling and verifying;", "met" if not slow else f"missed by {sorted(slow)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
