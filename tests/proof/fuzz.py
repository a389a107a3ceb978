"""Fuzz every reader of what a stranger may write: `python -m tests.proof.fuzz --minutes M`.

Each target (fuzz_targets.py) runs in a process of its own, as many at a time as there are processors; a process that
dies, hangs or runs out of memory is a failure, its input is saved, and another one goes on. What was seen is recorded in
docs/proof.md. Interrupted, it records nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom
from threading import Event

from chimerac.chimera_ir.diagnostics import visible
from tests.proof.fuzz_engine import HANG, HEAD
from tests.proof.fuzz_targets import ROOT, TARGETS
from tests.proof.record import record, stamp, table

ENGINE = "atheris" if find_spec("atheris") else "own"
FOUND = Path("runs/fuzz")  # where the inputs that fail are left


@dataclass
class Result:
    """What all workers of one target have seen."""

    target: str
    executions: int = 0
    failures: dict[str, tuple[str, Path]] = field(default_factory=dict)
    slowest: float = 0.0
    size: int = 0
    first: str = ""
    kept: int = 0
    coverage: int = 0


def command(target: str, seconds: float, seed: int, folder: Path) -> list[str]:
    """Return the command that is a worker."""
    return [sys.executable, "-m", "tests.proof.fuzz_engine", target, ENGINE, str(seconds), str(seed), str(folder)]


class Fuzzing:
    """A run over targets: its seed, where it leaves what it finds, and whether it was interrupted."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder, self.stop = seed, folder, Event()

    def run(self, target: str, seconds: float) -> Result:
        """Fuzz a target for a time, with a new worker where one dies."""
        result, end, number = Result(target), time.monotonic() + seconds, 0
        while (left := end - time.monotonic()) > 1 and not self.stop.is_set() and number < 1000:
            folder = self.folder / target.replace(" ", "-") / str(number)
            folder.mkdir(parents=True)
            self.work(result, folder, left, number)
            number += 1
        return result

    def work(self, result: Result, folder: Path, seconds: float, number: int) -> None:
        """Let one worker run, and add what it has seen to a result."""
        arguments = command(result.target, seconds, self.seed + number, folder)
        with (folder / "output").open("wb") as output:
            worker = subprocess.Popen(arguments, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            end = time.monotonic() + seconds + 10
            while worker.poll() is None:
                began, _ = _running(folder)
                if self.stop.wait(0.5) or time.monotonic() > end or time.time() - began > 2 * HANG:
                    worker.kill()
                    break
        worker.wait()
        _collect(result, folder)
        began, data = _running(folder)
        if worker.returncode and not self.stop.is_set() and time.monotonic() < end:
            what = "no answer" if time.time() - began > 2 * HANG else f"the process died with {worker.returncode}"
            path = folder / "fail-process"
            path.write_bytes(data)
            result.failures[f"{what} {number}"] = (f"{what}; see {folder / 'output'}", path)


def _running(folder: Path) -> tuple[float, bytes]:
    """Return since when the input that a worker runs is running, and the input."""
    try:
        data = (folder / "running").read_bytes()
    except OSError:
        return time.time(), b""
    began, length = HEAD.unpack_from(data)
    return began or time.time(), data[HEAD.size : HEAD.size + length]


def _collect(result: Result, folder: Path) -> None:
    """Add what a worker has seen."""
    try:
        log = json.loads((folder / "log.json").read_text())
    except OSError:
        return
    result.executions += log["executions"]
    result.failures |= {name: (what, folder / f"fail-{name}") for name, what in log["failures"].items()}
    if log["slowest"] > result.slowest:
        result.slowest, result.size, result.first = log["slowest"], log["size"], log["first"]
    said = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", (folder / "output").read_text(errors="replace"))
    coverage, kept = map(int, said[-1]) if said else (0, log["kept"])
    result.coverage, result.kept = max(result.coverage, coverage), max(result.kept, kept)


def report(results: Sequence[Result], seconds: float, seed: int) -> str:
    """Return what docs/proof.md says of a run."""
    engine = "atheris, guided by coverage," if ENGINE == "atheris" else "an engine of its own (atheris has no wheel here)"
    head = ("target", "executions", "failures", "slowest, s", "its bytes", "its first words", "corpus", "branches reached")
    rows = [
        (r.target, r.executions, len(r.failures), f"{r.slowest:.2f}", r.size, _quoted(r.first), r.kept, r.coverage or "unknown")
        for r in results
    ]
    packages = ("lark", "numpy", "pydantic", *(["atheris"] if ENGINE == "atheris" else []))
    text = stamp(seconds, seed, packages) + f"Inputs are made by {engine} word by word and byte by byte.\n\n"
    text += table(head, rows)
    told = (f"- {r.target}: {visible(what)}" for r in results for what, _ in r.failures.values())
    found = [textwrap.fill(line, 120, subsequent_indent="  ") for line in told]
    return text + ("\n".join(found) if found else "No input failed.") + "\n"


def _quoted(text: str) -> str:
    """Return the first words of an input as a cell of a table."""
    words = visible(" ".join(text.split()))[:32].replace("`", "'").replace("|", "/")
    return f"`{words}`" if words else ""


def fuzz(targets: Sequence[str], minutes: float, seed: int, jobs: int) -> list[Result] | None:
    """Return what was seen, or nothing where it was interrupted. The targets share `minutes` x `jobs`."""
    seconds = minutes * 60 * min(jobs, len(targets)) / len(targets)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        fuzzing = Fuzzing(seed, Path(folder))
        futures = [pool.submit(fuzzing.run, target, seconds) for target in targets]
        try:
            results = [future.result() for future in futures]
        except KeyboardInterrupt:
            fuzzing.stop.set()
            for future in futures:
                future.cancel()
            return None
        for r in results:
            for name, (_, path) in r.failures.items():
                FOUND.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, FOUND / f"{r.target.replace(' ', '-')}-{name.replace(' ', '-')}")
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Fuzz and record; return the exit status: 1 where an input failed."""
    p = argparse.ArgumentParser(description="Fuzz every reader of what a stranger may write.")
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--seed", type=int, default=SystemRandom().randrange(2**31))
    p.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time, default all processors")
    p.add_argument("--target", action="append", choices=list(TARGETS), help="only this one; repeatable")
    p.add_argument("--no-record", action="store_true", help="leave docs/proof.md as it is")
    options = p.parse_args(argv)
    if ENGINE == "own":
        print("atheris is not installed (it has no wheel for every Python): fuzzing with an engine of its own only")
    began = time.monotonic()
    results = fuzz(options.target or list(TARGETS), options.minutes, options.seed, options.jobs)
    if results is None:
        print("\ninterrupted: nothing is recorded", file=sys.stderr)
        return 130
    text = report(results, time.monotonic() - began, options.seed)
    print(text)
    for r in results:
        for name in r.failures:
            print(f"saved {FOUND / (r.target.replace(' ', '-') + '-' + name.replace(' ', '-'))}")
    if not options.no_record:
        record("fuzz", text)
    return int(any(r.failures for r in results))


if __name__ == "__main__":
    sys.exit(main())
