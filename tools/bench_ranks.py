"""What the benchmarks on real ranks have in common: they start gloo ranks, run rounds, compare times and record tables.

A benchmark is one module. Its command starts it again as ranks (`on_ranks` or `at_once`), and each rank calls `run_rank`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from chimerac.interpreter.transport.gloo import join, leave
from tests.proof.record import record, stamp
from tools import ROOT
from tools.bench_models import SEED

PAGE = ROOT / "docs" / "benchmarks.md"
# Environment variables of a rank.
OUT = "BENCH_OUT"  # the file for what rank 0 has found
TURNS = "BENCH_TURNS"  # the port of the store in which a job says that its turn has ended
JOB, JOBS = "BENCH_JOB", "BENCH_JOBS"  # the number of the job, and how many there are
TURN_TIMEOUT_S = 600  # a job waits no longer than this for the turn of another one
_TURNS = itertools.count()


def on_ranks(module: str, count: int, *arguments: object) -> Any:
    """Run a module as `count` ranks of this host, with one thread each; return what its rank 0 has found.

    Args:
        arguments: the command line of the module.

    Raises subprocess.CalledProcessError if a rank fails.
    """
    (found,) = at_once(module, count, [arguments])
    return found


def at_once(module: str, count: int, command_lines: Sequence[Sequence[object]]) -> list[Any]:
    """Run a module once with each of these command lines, all at the same time; return what the rank 0 of each has found.

    Each is a job of its own, of `count` ranks of this host with one thread each. While they run `timed_rounds`, one of them
    computes, and the processes of the others are stopped (SIGSTOP), so that their threads take no time from it.

    Raises subprocess.CalledProcessError if a rank of any job fails; the other jobs are then ended.
    """
    turns = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as at_the_end:
        outs = [Path(folder) / f"{number}.json" for number, _ in enumerate(command_lines)]
        jobs = []
        for number, (out, command_line) in enumerate(zip(outs, command_lines, strict=True)):
            ours = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), OUT: str(out), TURNS: str(turns.port)}
            ours |= {JOB: str(number), JOBS: str(len(outs))}
            command = [*launcher, "-m", module, *map(str, command_line)]
            jobs.append(at_the_end.enter_context(subprocess.Popen(command, env=os.environ | ours, cwd=ROOT)))
            at_the_end.callback(jobs[-1].terminate)
        at_the_end.callback(_resume_all, turns, len(jobs))  # called first: a process that is stopped does not end
        while (codes := [job.poll() for job in jobs]).count(None) and not any(codes):
            time.sleep(0.1)
        for job in jobs:
            if job.returncode:
                raise subprocess.CalledProcessError(job.returncode, job.args)
        return [json.loads(out.read_text()) for out in outs]


def _resume_all(turns: dist.Store, jobs: int) -> None:
    """Let the ranks of all jobs run again that are stopped.

    Args:
        turns: the store of the turns, where each job has written the numbers of its processes.
        jobs: how many there are.
    """
    for key in (f"processes {job}" for job in range(jobs)):
        for pid in json.loads(turns.get(key)) if turns.check([key]) else ():
            with suppress(ProcessLookupError):  # it has ended
                os.kill(pid, signal.SIGCONT)


def is_rank() -> bool:
    """Return whether this process is a rank that `at_once` or `on_ranks` has started."""
    return OUT in os.environ


def run_rank(measure: Callable[[], Any]) -> None:
    """Join the other ranks, measure on all of them together, and leave. Rank 0 writes what it has found, as JSON."""
    torch.set_num_threads(1)
    join(timeout_s=120)
    found = measure()
    if dist.get_rank() == 0:
        Path(os.environ[OUT]).write_text(json.dumps(found))
    leave()


def progress(text: str) -> None:
    """Print a line about what is measured, on rank 0."""
    if dist.get_rank() == 0:
        print(text, file=sys.stderr, flush=True)


def timed_rounds(
    runners: Mapping[str, Callable[[], None]], rounds: int, groups: Sequence[Sequence[str]] | None = None
) -> Iterator[tuple[int, str, float]]:
    """Run each group of runners in every round, on all ranks together. Yield the group's number, a name, and the seconds.

    The seconds are those that all ranks took.

    Args:
        runners: those of this job.
        groups: the names of runners that are compared; they run one after another, so that other load on the host affects all
            of them. A name may be in several groups. None: all runners are one group. A name that is not in `runners` belongs
            to another job of `at_once`; this job waits while that one runs it. All jobs have the same groups and rounds.

    Before the first round each runner runs once, to warm up. The order of the groups, and that within a group, are random, so
    that no runner always follows the same one.
    """
    shuffler = random.Random(SEED)  # with one seed, all ranks of all jobs have the same orders
    numbered = list(enumerate([list(runners)] if groups is None else groups))
    for name in dict.fromkeys(name for _, names in numbered for name in names):
        _turn(runners.get(name))
    for _ in range(rounds):
        for group, names in shuffler.sample(numbered, len(numbered)):
            for name in shuffler.sample(names, len(names)):
                seconds = _turn(runners.get(name))
                if seconds is not None:
                    yield group, name, seconds


def _turn(runner: Callable[[], None] | None) -> float | None:
    """Run a runner on all ranks of this job, and return its seconds. Without one it is the turn of another job: wait for it."""
    others, ended = _ranks_of_other_jobs(), f"turn {next(_TURNS)} has ended"
    if runner is None:
        _store().wait([ended])
        return None
    if dist.get_rank() == 0:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
    dist.barrier()
    start = time.perf_counter()
    runner()
    dist.barrier()
    seconds = time.perf_counter() - start
    if dist.get_rank() == 0:
        for pid in others:
            os.kill(pid, signal.SIGCONT)
        _store().set(ended, "")
    else:
        _store().wait([ended])
    return seconds


@cache
def _store() -> dist.Store:
    """Return the store of the turns of all jobs."""
    return dist.TCPStore("localhost", int(os.environ[TURNS]), is_master=False, timeout=timedelta(seconds=TURN_TIMEOUT_S))


@cache
def _ranks_of_other_jobs() -> list[int]:
    """Return the numbers of the processes of all other jobs' ranks. The first call waits for all ranks of all jobs."""
    own = [0] * dist.get_world_size()
    dist.all_gather_object(own, os.getpid())
    if dist.get_rank() == 0:
        _store().set(f"processes {os.environ[JOB]}", json.dumps(own))
    others = [job for job in map(str, range(int(os.environ[JOBS]))) if job != os.environ[JOB]]
    return [pid for job in others for pid in json.loads(_store().get(f"processes {job}"))]


def ratios(a: Sequence[float], b: Sequence[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile of a / b over the rounds.

    Args:
        a, b: a number for each round, at least two.
    """
    low, median, high = statistics.quantiles([x / y for x, y in zip(a, b, strict=True)], n=4, method="inclusive")
    return low, median, high


def ratio_cells(quartiles: tuple[float, float, float]) -> tuple[str, str]:
    """Return two cells of a table: the median, and the other two quartiles.

    Args:
        quartiles: as `ratios` returns them.
    """
    low, median, high = quartiles
    return f"{median:.3f}", f"{low:.3f} to {high:.3f}"


def verdict(goal: str, failures: Sequence[str]) -> str:
    """Return a goal as an item of a list.

    Args:
        failures: where it is missed.
    """
    text = f"- {goal}: {'missed: ' + '; '.join(failures) if failures else 'met'}."
    return textwrap.fill(text, 120, subsequent_indent="  ", break_on_hyphens=False) + "\n"


def benchmark(
    name: str, doc: str, measured: Callable[[int], tuple[str, bool]], metavar: str, default: int, page: Path = PAGE
) -> int:
    """Run a benchmark as a command: print its tables, and record them on a page if asked to; return its exit status.

    The command takes one number as its argument.

    Args:
        name: of the benchmark's block on the page.
        doc: the help of the command.
        measured: a function of the number, which returns the tables and whether all goals are met.
        metavar: the name of the number in the help.
        default: the number if none is given.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("number", metavar=metavar, nargs="?", type=int, default=default)
    parser.add_argument("--write", action="store_true", help=f"record the tables in docs/{page.name}")
    options = parser.parse_args()
    begin = time.monotonic()
    text, met = measured(options.number)
    print(text)
    if options.write:
        record(name, stamp(time.monotonic() - begin, SEED, ("torch",)) + text, page)
    return 0 if met else 1
