"""Fuzz readers of input from outside: `python -m tests.proof.fuzz --minutes M`.

A worker process runs one target (fuzz_targets.py). By default there are as many workers at a time as processors, or as targets
if these are fewer. If a worker dies or no longer answers, its input is saved as a failure, and a new worker is started. The
results are recorded in docs/proof.md, unless the run is interrupted or has --no-record.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from threading import Event

from tests.proof.campaign import campaign, failure_list, quoted
from tests.proof.fuzz_engine import HANG_S, HEAD
from tests.proof.fuzz_targets import ROOT, TARGETS
from tests.proof.record import stamp, table

ENGINE = "atheris" if find_spec("atheris") else "builtin"
FAILED_INPUTS = Path("runs/fuzz")  # folder for the inputs that fail


@dataclass
class Result:
    """The results of all workers of one target.

    Attributes:
        failures: by name, what failed, and the file that holds the input.
        slowest_s: the processor time of the slowest input.
        slowest_bytes, slowest_text: its length and its beginning.
        corpus_size: the most inputs in the corpus of a worker.
        branches: the most branches that a worker reached, 0 if unknown.
    """

    target: str
    executions: int = 0
    failures: dict[str, tuple[str, Path]] = field(default_factory=dict)
    slowest_s: float = 0.0
    slowest_bytes: int = 0
    slowest_text: str = ""
    corpus_size: int = 0
    branches: int = 0


def command(target: str, seconds: float, seed: int, folder: Path) -> list[str]:
    """Return the command that starts a worker."""
    return [sys.executable, "-m", "tests.proof.fuzz_engine", target, ENGINE, str(seconds), str(seed), str(folder)]


class Fuzzing:
    """A run over the chosen targets: its seed, the folder for its files, and an event that stops it."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder, self.stop = seed, folder, Event()

    def run(self, target: str, seconds: float) -> Result:
        """Fuzz a target for some seconds; start a new worker if one dies or no longer answers."""
        result, end, number = Result(target), time.monotonic() + seconds, 0
        # at most 1000 workers, in case each dies at once
        while (remaining := end - time.monotonic()) > 1 and not self.stop.is_set() and number < 1000:
            folder = self.folder / target.replace(" ", "-") / str(number)
            folder.mkdir(parents=True)
            self.work(result, folder, remaining, number)
            number += 1
        return result

    def work(self, result: Result, folder: Path, seconds: float, number: int) -> None:
        """Run one worker for some seconds, and add its results to `result`.

        Args:
            number: how many workers have run before it.
        """
        arguments = command(result.target, seconds, self.seed + number, folder)
        with (folder / "output").open("wb") as output:
            worker = subprocess.Popen(arguments, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            end = time.monotonic() + seconds + 10  # the worker should end by itself before this
            while worker.poll() is None:
                start_time, _ = _running(folder)
                # The worker should abort an input by itself after HANG_S.
                if self.stop.wait(0.5) or time.monotonic() > end or time.time() - start_time > 2 * HANG_S:
                    worker.kill()
                    break
        worker.wait()
        _collect(result, folder)
        start_time, data = _running(folder)
        # A worker that still runs at `end` is killed too. This is no failure: its input may have begun just before.
        if worker.returncode and not self.stop.is_set() and time.monotonic() < end:
            hangs = time.time() - start_time > 2 * HANG_S
            failure = "no answer" if hangs else f"the process exited with code {worker.returncode}"
            path = folder / "fail-process"
            path.write_bytes(data)
            lines = (folder / "output").read_text(errors="replace").split("\n")
            last_line = next((line for line in reversed(lines) if line.strip()), "nothing")
            result.failures[f"{failure} {number}"] = (f"{failure}; the last line that it printed: {last_line}", path)


def _running(folder: Path) -> tuple[float, bytes]:
    """Return when a worker started its current input, and the first bytes of this input (SAVED_BYTES in fuzz_engine.py).

    If the worker has no input yet, return now and no bytes.
    """
    try:
        data = (folder / "running").read_bytes()
    except OSError:
        return time.time(), b""
    start_time, length = HEAD.unpack_from(data)
    return start_time or time.time(), data[HEAD.size : HEAD.size + length]


def _collect(result: Result, folder: Path) -> None:
    """Add what a worker has logged to the results of its target."""
    try:
        log = json.loads((folder / "log.json").read_text())
    except OSError:
        return
    result.executions += log["executions"]
    result.failures |= {name: (failure, folder / f"fail-{name}") for name, failure in log["failures"].items()}
    if log["slowest_s"] > result.slowest_s:
        result.slowest_s, result.slowest_bytes = log["slowest_s"], log["slowest_bytes"]
        result.slowest_text = log["slowest_text"]
    # the progress lines of libFuzzer, which atheris prints
    progress = re.findall(r"cov: (\d+) ft: \d+ corp: (\d+)", (folder / "output").read_text(errors="replace"))
    branches, corpus_size = map(int, progress[-1]) if progress else (0, log["corpus_size"])
    result.branches, result.corpus_size = max(result.branches, branches), max(result.corpus_size, corpus_size)


def report(results: Sequence[Result], seconds: float, seed: int) -> str:
    """Return the text for docs/proof.md."""
    builtin = "the built-in engine, because atheris is not installed"
    engine = "atheris, which is guided by coverage" if ENGINE == "atheris" else builtin
    slowest = ("slowest, s", "size of that input, bytes", "first words of that input")
    head = ("target", "executions", "failures", *slowest, "corpus", "branches reached")
    rows = [
        (
            r.target,
            r.executions,
            len(r.failures),
            f"{r.slowest_s:.2f}",
            r.slowest_bytes,
            quoted(r.slowest_text),
            r.corpus_size,
            r.branches or "unknown",
        )
        for r in results
    ]
    packages = ("lark", "numpy", "pydantic", *(["atheris"] if ENGINE == "atheris" else []))
    text = stamp(seconds, seed, packages) + f"Inputs are mutated word by word and byte by byte by {engine}.\n\n"
    text += table(head, rows)
    failures = ((r.target, failure) for r in results for failure, _ in r.failures.values())
    return text + failure_list(failures, "No input failed.")


def fuzz(targets: Sequence[str], seconds: float, seed: int, jobs: int) -> list[Result]:
    """Fuzz each target for some seconds, and copy the failing inputs into FAILED_INPUTS.

    Args:
        jobs: targets at a time.
    """
    if ENGINE == "builtin":
        print("atheris is not installed (it has no wheel for some Pythons): fuzzing with the built-in engine only")
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(jobs) as pool:
        fuzzing = Fuzzing(seed, Path(folder))
        futures = [pool.submit(fuzzing.run, target, seconds) for target in targets]
        try:
            results = [future.result() for future in futures]
        except KeyboardInterrupt:
            fuzzing.stop.set()
            for future in futures:
                future.cancel()
            raise
        for r in results:
            for name, (_, path) in r.failures.items():
                FAILED_INPUTS.mkdir(parents=True, exist_ok=True)
                print("saved", shutil.copy(path, FAILED_INPUTS / f"{r.target}-{name}".replace(" ", "-")))
    return results


if __name__ == "__main__":
    sys.exit(campaign("fuzz", "target", list(TARGETS), minutes=60, run=fuzz, report=report))
