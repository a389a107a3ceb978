"""Kills a rank of a job again and again, lets the launcher restart all ranks, and compares the losses bit by bit.

    python -m tests.distributed.killed_ranks [--kills 50] [--seed 1] [--folder PATH]

The job is `run.py` on two ranks, started by the launcher with --max-restarts. An attempt is what the ranks do from one start to
the next. In each attempt but the last a drawn rank is killed with SIGKILL: at a random moment of the first 4 seconds, at a
random moment of the training, or just after the writing of a checkpoint has begun. The script checks that

- every attempt that logs an iteration goes on from a checkpoint that is recent enough (`check` says which are);
- every loss and the weights at the end are those of a job that is never killed;
- each kill has one message;
- no rank of an attempt with a kill is left.

tests/distributed/killed.py kills one process that runs all ranks, which takes less time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from subprocess import Popen
from typing import Any

from safetensors.torch import load_file

from tests.distributed.killed import WrongError
from tests.helpers_processes import LAUNCHER, QUICK, children, have_ended, start_process, wait_until

EVERY = 2  # iterations from one checkpoint to the next
PER_KILL = 12  # iterations of the job for each kill, so that it does not end before the last kill
LIMIT_S = 600.0  # of a wait: longer than the start of a job and PER_KILL // 2 iterations, also on a host with other work
# The first of the two lines that a job prints for each kill. The second one says that all ranks are restarted.
MESSAGE = re.compile(r"error: rank \d(, .*)?: killed by SIGKILL, as the system does when memory runs out")


def job(folder: Path, kills: int, iterations: int) -> list[str]:
    """Return the command of a job that may be restarted once for each kill.

    Args:
        folder: for its checkpoints, its log and its weights.

    With 0 kills the job trains in loopback: in one process, instead of a launcher and two ranks.
    """
    save = ["--save-dir", str(folder / "saved"), "--save-every", str(EVERY), "--keep", "2", "--async-save"]
    files = ["--log-file", str(folder / "log"), "--export", str(folder / "weights.safetensors"), "--work-dir", str(folder)]
    training = [*QUICK, "--dropout", "0.1", "--iterations", str(iterations)]
    start = [*LAUNCHER, "--max-restarts", str(kills), *training] if kills else [sys.executable, *training, "--loopback"]
    return [*start, *save, *files]


def attempts_of(log: Path) -> list[list[dict[str, Any]]]:
    """Return the lines of each attempt in a log, one for each iteration. Incomplete lines are left out."""
    attempts: list[list[dict[str, Any]]] = []
    for line in log.read_text().split("\n")[:-1] if log.exists() else []:
        if line:
            try:
                record = json.loads(line)
            except ValueError:  # an attempt was killed while it wrote this line
                continue
            if "format" in record:  # the first line of an attempt
                attempts.append([])
            else:
                attempts[-1].append(record)
    return attempts


def kill_one(launcher: Popen[str], folder: Path, known: set[int], rng: random.Random) -> str:
    """Kill a rank of the current attempt, and return the moment: start-up (its first 4 seconds), training or save.

    Args:
        known: the process ids of the ranks of earlier attempts. Those of this attempt are added.
    """
    ranks: list[int] = []

    def both_ranks_run() -> bool:
        """Return whether both ranks of this attempt run. Sets `ranks` to those that run."""
        ranks[:] = sorted(set(children(launcher.pid)) - known)
        return len(ranks) == 2

    wait_until(both_ranks_run, launcher, LIMIT_S)
    known.update(ranks)
    attempts = len(attempts_of(folder / "log"))
    moment = rng.choice(["start-up", "training", "training", "save"])
    if moment == "start-up":
        time.sleep(rng.uniform(0.0, 4.0))
    else:
        least = rng.randint(1, PER_KILL // 2)
        wait_until(lambda: len(found := attempts_of(folder / "log")) > attempts and len(found[-1]) >= least, launcher, LIMIT_S)
        time.sleep(rng.uniform(0.0, 0.1))
    if moment == "save":
        wait_until(lambda: list((folder / "saved").glob(".*.partial")), launcher, LIMIT_S)
        time.sleep(rng.uniform(0.0, 0.02))
    os.kill(rng.choice(ranks), signal.SIGKILL)
    return moment


def check(attempts: list[list[dict[str, Any]]], expected: list[float]) -> None:
    """Raise WrongError unless all losses are right and each attempt goes on from a checkpoint that is recent enough.

    For an attempt that has logged no iteration, nothing is checked.
    """
    done = 0
    for lines in attempts:
        for line in lines:
            if line["loss"] != expected[line["iteration"] - 1]:
                raise WrongError(f"iteration {line['iteration']}: {line['loss']} instead of {expected[line['iteration'] - 1]}")
        if lines:
            # The save of the last logged iteration may not have begun, and the save before it may not have been complete.
            start, saved = lines[0]["iteration"] - 1, max(0, (done - 1) // EVERY * EVERY - EVERY)
            if not saved <= start <= done:
                raise WrongError(f"an attempt went on from iteration {start}; the one before it had done {done}")
            done = lines[-1]["iteration"]


def run(folder: Path, kills: int, iterations: int, rng: random.Random) -> tuple[list[list[dict[str, Any]]], dict[str, int]]:
    """Run a job and kill one of its ranks this many times. Return the lines of each attempt, and the number of kills by moment.

    Args:
        folder: must not exist.

    Raises WrongError unless the job ends well, with one message for each kill and no rank left.
    """
    folder.mkdir(parents=True)
    moments: dict[str, int] = {}
    known: set[int] = set()
    with start_process(*job(folder, kills, iterations)) as launcher:
        for _ in range(kills):
            moment = kill_one(launcher, folder, known, rng)
            moments[moment] = moments.get(moment, 0) + 1
        message = launcher.communicate(timeout=LIMIT_S + iterations)[1]  # a second more for each iteration
    if launcher.returncode:
        raise WrongError(f"the job ended with {launcher.returncode}: {message}")
    lines = message.splitlines()
    restarts = [f"restarting all ranks, restart {k} of at most {kills}" for k in range(1, kills + 1)]
    if lines[1::2] != restarts or not all(map(MESSAGE.fullmatch, lines[::2])):
        raise WrongError(f"not one message for each kill: {message}")
    if known and not have_ended(sorted(known), within_s=5):
        raise WrongError("a rank is left")
    return attempts_of(folder / "log"), moments


def main(kills: int, seed: int, folder: Path) -> int:
    """Kill a rank this many times, and return the exit code. Raises WrongError if a check fails."""
    rng, iterations = random.Random(seed), PER_KILL * kills + 8  # eight more for the attempt after the last kill
    never_killed, _ = run(folder / "whole", 0, iterations, rng)
    expected = [line["loss"] for line in never_killed[0]]
    attempts, moments = run(folder / "killed", kills, iterations, rng)
    check(attempts, expected)
    if attempts[-1][-1]["iteration"] != iterations:
        raise WrongError("the last attempt has not trained to the end")
    whole, killed = (load_file(folder / name / "weights.safetensors") for name in ("whole", "killed"))
    if whole.keys() != killed.keys() or not all(t.equal(killed[name]) for name, t in whole.items()):
        raise WrongError("the weights differ from those of the job that is never killed")
    repetitions = sum(map(len, attempts)) - iterations
    print(f"kills of ranks: {kills} ({', '.join(f'{n} in {moment}' for moment, n in sorted(moments.items()))}) in a job of")
    print(f"{iterations} iterations, with {repetitions} repetitions: losses and final weights equal those without kills")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="an empty folder for the jobs, kept afterwards (default: a temporary one)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(given.kills, given.seed, given.folder or Path(temporary)))
