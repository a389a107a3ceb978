"""Compares the speed of the compiler with torch.distributed.pipelining. This is a benchmark, not a test.

The compiler compiles a text to a verified program. torch generates and lowers the same schedule, without its own check of it.
(For 1f1b this is its interleaved schedule with one stage per rank: torch_lowering.py.) The benchmark also measures the verifier
alone, writing and reading the program as JSON, and the simulator: with costs, and with links that have a latency and a
bandwidth.

    python -m tools.bench                  all sizes (D, N); five to ten minutes, most of which torch takes
    python -m tools.bench --quick          sizes up to (32, 256); takes seconds
    python -m tools.bench --write          all sizes, and records the result in docs/speed.md

Times are processor times. Those of our compilations are medians. At the two largest sizes torch runs only once. At all sizes
but the largest, the compiler and torch take turns.
The exit status is 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.profile import TIMES, Link
from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule, simulate, verify
from chimerac.compiler.analyze.durations import Network, measured_durations
from chimerac.compiler.analyze.simulate import Simulation
from tests.proof.record import record, table
from tools import ROOT

PAGE = ROOT / "docs" / "speed.md"
IN_TORCH = ("1f1b", "interleaved", "zb_v")  # the schedules that torch has too
SCHEDULES = (*IN_TORCH, "chimera")  # torch has no schedule in which two ranks hold the same stage
SIZES = ((8, 64), (32, 256), (64, 512), (128, 1024))  # D, N
SMALL, LARGE = SIZES[0], SIZES[-1]
RUNS = {(8, 64): (15, 15), (32, 256): (5, 3), (64, 512): (5, 1), (128, 1024): (3, 1)}  # number of runs: ours, torch's
PROCESSES = 7  # number of processes in which the first compilation of each schedule is measured
COLLECTOR = ("on", "off", "frozen")  # states of the garbage collector; frozen: it skips the objects that exist already
# us, simulated_us: the most µs per instruction, to compile and to simulate with links, from SIZES[1] on. first_ms: the most ms
# of the first compilation of a process, at SMALL. growth: the most that the time per instruction at LARGE may be, divided by
# that at SIZES[1]. speedup, speedup_large: the least that torch's time may be, divided by ours, from SIZES[1] on and at LARGE.
# peak_gb: the most GB of a process that compiles at LARGE.
GOALS = {"us": 3.0, "first_ms": 25.0, "growth": 2.0, "speedup": 1.0, "speedup_large": 4.0, "peak_gb": 4.0, "simulated_us": 2.0}


@dataclass
class Case:
    """The measurements of a schedule at a size (D, N), in seconds of processor time.

    Attributes:
        ours, theirs: of each compilation by this project and by torch; theirs is empty if torch lacks the schedule.
        actions: the number of torch's instructions.

    The times whose names end in _s: of what is done with the compiled program (`uses`).
    """

    name: str
    size: tuple[int, int]
    instructions: int = 0
    ours: list[float] = field(default_factory=list)
    verify_s: float = 0.0
    write_json_s: float = 0.0
    read_json_s: float = 0.0
    simulate_s: float = 0.0
    simulate_links_s: float = 0.0
    actions: int = 0
    theirs: list[float] = field(default_factory=list)

    @property
    def us_per_instruction(self) -> float:
        """Return the microseconds of a compilation per instruction."""
        return statistics.median(self.ours) * 1e6 / self.instructions

    @property
    def speedup(self) -> float:
        """Return the time of torch divided by ours."""
        return statistics.median(self.theirs) / statistics.median(self.ours)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the processor time of a call in seconds, and its result."""
    gc.collect()
    begin = time.process_time()
    result = work()
    return time.process_time() - begin, result


def compiling(name: str, size: tuple[int, int]) -> Callable[[], Any]:
    """Return a function that compiles a schedule.

    Args:
        size: D and N.
    """
    D, N = size  # noqa: N806
    return lambda: compile_schedule(name, {"D": D, "N": N}).program


def lowering(name: str, size: tuple[int, int]) -> Callable[[], int]:
    """Return a function that generates and lowers torch's schedule, and returns the number of its actions.

    Args:
        size: D and N.
    """
    from tools.torch_lowering import lowered

    return lambda: lowered(name, *size)


def measure(name: str, size: tuple[int, int]) -> Case:
    """Measure a case in this process, ours and theirs alternately."""
    case, (runs, runs_of_torch) = Case(name, size), RUNS[size]
    ours, theirs = compiling(name, size), lowering(name, size) if name in IN_TORCH else None
    for number in range(runs):
        seconds, program = timed(ours)
        case.ours.append(seconds)
        case.instructions = len(program)
        if theirs and number < runs_of_torch:
            seconds, case.actions = timed(theirs)
            case.theirs.append(seconds)
    return replace(case, **uses(program))


def uses(program: Program) -> dict[str, Any]:
    """Return the seconds of what is done with a compiled program, by the names that `Case` has for them."""
    write_json_s, text = timed(lambda: program_to_json(program))
    return {
        "verify_s": median_time(lambda: verify(program)),
        "write_json_s": write_json_s,
        "read_json_s": timed(lambda: program_from_json(text))[0],
        "simulate_s": median_time(lambda: simulate(program)),
        "simulate_links_s": median_time(lambda: simulated_links(program)),
    }


def simulated_links(program: Program) -> Simulation:
    """Return the simulation with tasks of 5 ms, and links that carry messages of 4 MiB and all-reduces of 64 MiB."""
    tasks = {op: [0.005] * program.header.stages for op in TIMES}
    network = Network(Link(latency_s=1e-5, bytes_per_s=1e10))
    durations = measured_durations(program, tasks, network, message_bytes=lambda *_: 2**22, reduced_bytes=lambda _: 2**26)
    return simulate(program, durations=durations)


def median_time(work: Callable[[], Any]) -> float:
    """Return the processor time of a call in seconds, the median of three."""
    return statistics.median(timed(work)[0] for _ in range(3))


# --- measurements in fresh processes ------------------------------------------------------------------------------------


def peak_gb() -> float:
    """Return the peak memory of this process in GB.

    It is at least the memory that the parent process had when it started this one, so the parent must be small.
    """
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


def first_compile(name: str) -> dict[str, Any]:
    """Measure the first compilation in a process, which includes loading the grammar."""
    return {"seconds": timed(compiling(name, SMALL))[0]}


def large(name: str) -> dict[str, Any]:
    """Measure the largest size: memory, and times with the garbage collector on, off, and on with existing objects frozen."""
    pauses: list[float] = []  # the ends of collections, and their beginnings times -1: the sum is the time in collections

    def watch(phase: str, _: dict[str, int]) -> None:
        pauses.append(time.process_time() * (-1 if phase == "start" else 1))

    compile_schedule("1f1b", {"D": 2, "N": 2})  # so that loading the grammar is not measured
    ours = compiling(name, LARGE)
    gc.collect()
    gc.callbacks.append(watch)
    program = ours()
    gc.callbacks.remove(watch)
    found = {"instructions": len(program), "collections": len(pauses) // 2, "paused": sum(pauses), "peak": peak_gb()}
    found["uses"] = uses(program)
    del program
    times: dict[str, list[float]] = {how: [] for how in COLLECTOR}
    for _ in range(RUNS[LARGE][0]):
        for how in COLLECTOR:
            gc.collect()
            if how == "off":
                gc.disable()
            elif how == "frozen":
                gc.freeze()
            times[how].append(timed(ours)[0])
            gc.enable()
            gc.unfreeze()
    return found | {"times": times}


def large_theirs(name: str) -> dict[str, Any]:
    """Measure torch at the largest size."""
    theirs = lowering(name, LARGE)
    lowering(name, SMALL)()  # so that the first call of a process is not measured
    seconds, actions = timed(theirs)
    return {"seconds": seconds, "actions": actions, "peak": peak_gb()}


CHILDREN = {f.__name__: f for f in (first_compile, large, large_theirs)}


def child(what: str, name: str) -> dict[str, Any]:
    """Run one of CHILDREN in a fresh process and return its result.

    Args:
        what: its name.
        name: the schedule.
    """
    command = [sys.executable, "-m", "tools.bench", "--child", what, name]
    result = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


# --- the whole benchmark ------------------------------------------------------------------------------------------------


def measure_all(quick: bool) -> tuple[list[Case], dict[str, dict[str, Any]]]:
    """Return all cases, and by schedule the measurements in fresh processes.

    The measurements in fresh processes are made first, while this process is small (`peak_gb` says why).
    """
    fresh: dict[str, dict[str, Any]] = {name: {"first": []} for name in SCHEDULES}
    for _ in range(PROCESSES):
        for name in SCHEDULES:
            fresh[name]["first"].append(child("first_compile", name)["seconds"])
    for name in () if quick else SCHEDULES:
        fresh[name]["large"] = child("large", name)
        if name in IN_TORCH:
            fresh[name]["large_theirs"] = child("large_theirs", name)
    for name in SCHEDULES:  # so that imports and caches are not measured below
        compiling(name, SMALL)()
    cases = [measure(name, size) for name in SCHEDULES for size in (SIZES[:2] if quick else SIZES[:-1])]
    for name in () if quick else SCHEDULES:
        large_run, torch_run = fresh[name]["large"], fresh[name].get("large_theirs")
        case = Case(name, LARGE, large_run["instructions"], large_run["times"]["on"], **large_run["uses"])
        if torch_run:
            case.actions, case.theirs = torch_run["actions"], [torch_run["seconds"]]
        cases.append(case)
    return sorted(cases, key=lambda c: (SCHEDULES.index(c.name), c.size)), fresh


def seconds(value: float) -> str:
    """Return seconds as text, short times in milliseconds."""
    return f"{value * 1e3:.1f} ms" if value < 0.1 else f"{value:.2f} s"


def times(cases: list[Case]) -> str:
    """Return the table of times.

    The column growth is the time per instruction over that at the size before: 1 if the time grows as the instructions do.
    """
    head = (
        "schedule",
        "D, N",
        "instructions",
        "compile + verify",
        "µs per instruction",
        "growth",
        "verify only, µs per instruction",
        "simulate, µs per instruction",
        "with links",
        "torch: actions",
        "torch: time",
        "torch time / our time",
    )
    rows: list[tuple[object, ...]] = []
    before: Case | None = None
    for c in cases:
        growth = f"{c.us_per_instruction / before.us_per_instruction:.2f}" if before and before.name == c.name else ""
        before = c
        theirs = (
            (c.actions, seconds(statistics.median(c.theirs)), f"{c.speedup:.1f}") if c.theirs else ("", "not available", "")
        )
        ours = (
            seconds(statistics.median(c.ours)),
            f"{c.us_per_instruction:.2f}",
            growth,
            *(f"{part * 1e6 / c.instructions:.2f}" for part in (c.verify_s, c.simulate_s, c.simulate_links_s)),
        )
        rows.append((c.name, f"{c.size[0]}, {c.size[1]}", c.instructions, *ours, *theirs))
    return table(head, rows)


def other_measurements(cases: list[Case], fresh: dict[str, dict[str, Any]]) -> str:
    """Return the table of the measurements in fresh processes, and of writing and reading JSON at the largest size measured."""
    head = ("schedule", f"first compile at {SMALL}", "write JSON, µs per instruction", "read JSON, µs per instruction")
    head = (*head, "peak memory", "torch: peak memory", "collections", "time in collections", "collector off", "objects frozen")
    rows = []
    for name in SCHEDULES:
        largest, measured = [c for c in cases if c.name == name][-1], fresh[name]
        row = [name, seconds(statistics.median(measured["first"]))]
        row += [f"{part * 1e6 / largest.instructions:.2f}" for part in (largest.write_json_s, largest.read_json_s)]
        if "large" in measured:
            large_run, torch_run = measured["large"], measured.get("large_theirs")
            on = statistics.median(large_run["times"]["on"])
            row += [f"{large_run['peak']:.2f} GB", f"{torch_run['peak']:.2f} GB" if torch_run else ""]
            row += [str(large_run["collections"]), seconds(large_run["paused"])]
            row += [f"{statistics.median(large_run['times'][how]) / on - 1:+.0%}" for how in COLLECTOR[1:]]
        rows.append([*row, *[""] * (len(head) - len(row))])
    return table(head, rows)


def goals(cases: list[Case], fresh: dict[str, dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
    """Yield every goal that was measured, with the cases that miss it."""
    g = GOALS
    later = [c for c in cases if c.size != SMALL]  # from SIZES[1] on
    missed = [f"{c.name} at {c.size}: {c.us_per_instruction:.2f}" for c in later if c.us_per_instruction > g["us"]]
    yield f"at most {g['us']:.0f} µs per instruction from {SIZES[1]} on", missed
    missed = [
        f"{c.name} at {c.size}: {c.simulate_links_s * 1e6 / c.instructions:.2f}"
        for c in later
        if c.simulate_links_s * 1e6 / c.instructions > g["simulated_us"]
    ]
    yield f"simulated with links in at most {g['simulated_us']:.0f} µs per instruction from {SIZES[1]} on", missed
    firsts = {name: statistics.median(x["first"]) * 1e3 for name, x in fresh.items()}
    missed = [f"{name}: {ms:.1f} ms" for name, ms in firsts.items() if ms > g["first_ms"]]
    yield f"at most {g['first_ms']:.0f} ms at {SMALL}, first compile of a process", missed
    missed = [f"{c.name} at {c.size}: {c.speedup:.2f}" for c in later if c.theirs and c.speedup < g["speedup"]]
    yield f"not slower than torch from {SIZES[1]} on", missed
    largest = [c for c in cases if c.size == LARGE]
    if not largest:
        return
    missed = [f"{c.name}: {c.speedup:.2f}" for c in largest if c.theirs and c.speedup < g["speedup_large"]]
    yield f"at least {g['speedup_large']:.0f} times faster than torch at {LARGE}", missed
    base = {c.name: c.us_per_instruction for c in cases if c.size == SIZES[1]}
    missed = [
        f"{c.name}: {c.us_per_instruction / base[c.name]:.2f}"
        for c in largest
        if c.us_per_instruction / base[c.name] > g["growth"]
    ]
    yield f"linear: sixteen times the instructions take at most {16 * g['growth']:.0f} times as long", missed
    peaks = {name: x["large"]["peak"] for name, x in fresh.items()}
    missed = [f"{name}: {peak:.2f} GB" for name, peak in peaks.items() if peak > g["peak_gb"]]
    yield f"at most {g['peak_gb']:.0f} GB at {LARGE}", missed


def host() -> str:
    """Return a description of the host, and the versions on which the times depend."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    packages = ", ".join(f"{p} {version(p)}" for p in ("numpy", "torch"))
    return f"{platform.machine()}, {cores} cores, {platform.system()}, Python {platform.python_version()}, {packages}"


def main() -> int:
    """Measure and print, and record if asked to; return the exit status: 1 if a goal is missed, otherwise 0."""
    p = argparse.ArgumentParser("bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--quick", action="store_true", help="sizes up to (32, 256) only")
    p.add_argument("--write", action="store_true", help="record the result in docs/speed.md")
    p.add_argument("--child", nargs=2, metavar=("WHAT", "NAME"), help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.quick and options.write:
        p.error("--quick leaves out sizes that docs/speed.md has: record without it")
    if options.child:
        what, name = options.child
        print(json.dumps(CHILDREN[what](name)))
        return 0
    begin = time.monotonic()
    cases, fresh = measure_all(options.quick)
    found = list(goals(cases, fresh))
    verdicts = "".join(f"- {goal}: {'missed: ' + ', '.join(where) if where else 'met'}\n" for goal, where in found)
    date, minutes = f"{datetime.now(UTC):%Y-%m-%d}", (time.monotonic() - begin) / 60
    head = f"Recorded {date} in {minutes:.0f} minutes. {host()}.\n\n"
    text = head + times(cases) + other_measurements(cases, fresh) + verdicts
    print(text)
    if options.write:
        record("compile", text, PAGE)
    return 1 if any(where for _, where in found) else 0


if __name__ == "__main__":
    sys.exit(main())
