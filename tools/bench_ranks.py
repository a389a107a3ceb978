"""What the benchmarks on real ranks have in common: they start gloo ranks, run rounds, compare times and record tables.

A benchmark is one module. Its command starts it again as ranks (`on_ranks`), and each rank calls `run_rank`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from chimerac.interpreter.transport.gloo import join, leave
from tests.proof.record import record, stamp
from tools import ROOT
from tools.bench_models import SEED

PAGE = ROOT / "docs" / "benchmarks.md"
OUT = "BENCH_OUT"  # the environment variable of a rank that names the file for what rank 0 has found


def on_ranks(module: str, count: int, *arguments: object) -> Any:
    """Run a module as `count` ranks of this host, with one thread each; return what its rank 0 has found.

    Args:
        arguments: the command line of the module.

    Raises subprocess.CalledProcessError if a rank fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), OUT: str(out)}
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        subprocess.run([*launcher, "-m", module, *map(str, arguments)], env=environment, cwd=ROOT, check=True)
        return json.loads(out.read_text())


def is_rank() -> bool:
    """Return whether this process is a rank that `on_ranks` has started."""
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
        groups: the names of runners that are compared; they run one after another, so that other load on the host affects all
            of them. A name may be in several groups. None: all runners are one group.

    One round more, at the beginning, warms up, and nothing is yielded for it. The order of the groups, and that within a group,
    are random, so that no runner always follows the same one.
    """
    shuffler = random.Random(SEED)  # with one seed, all ranks have the same orders
    numbered = list(enumerate([list(runners)] if groups is None else groups))
    for number in range(rounds + 1):
        for group, names in shuffler.sample(numbered, len(numbered)):
            for name in shuffler.sample(names, len(names)):
                dist.barrier()
                start = time.perf_counter()
                runners[name]()
                dist.barrier()
                if number:
                    yield group, name, time.perf_counter() - start


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
