"""Kills a training process again and again, also while it saves, starts it again, and compares the losses bit by bit.

    python -m tests.distributed.killed [--kills 50] [--seed 1] [--folder PATH]

A run is one training of 18 iterations. Its process is killed with SIGKILL at a random moment, and the next process goes on from
the last complete checkpoint, until one trains to the end. About half of the processes kill themselves just before a drawn
operation on the files of the checkpoints. The others are killed by their parent after a drawn number of iterations, while they
train or save. Every second run saves asynchronously. The script checks that

- a process loses at most the iterations since the last save, or with asynchronous saves since the save before it;
- every loss, and the weights and the optimizer state at the end, are those of a run that is never killed;
- a run leaves no incomplete checkpoint.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from chimerac.interpreter.training.checkpoints import CheckpointSettings
from chimerac.interpreter.transport import Transport
from chimerac.interpreter.transport.loopback import run_in_loopback
from tests.helpers_checkpoints import SETTINGS, Trained, compiled, data, description, model, training

EVERY, KEEP, ITERATIONS = 3, 2, 18  # iterations from one checkpoint to the next; checkpoints that are kept; iterations of a run
OPERATIONS = 90  # a process that kills itself does so before one of its first 90 operations on files; two saves make about 90
# The audit events of Python that count as operations on files.
FILE_EVENTS = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.scandir", "os.listdir", "shutil.rmtree"}
NEVER = sys.maxsize  # a number of iterations that no process reaches: its parent does not kill it


class WrongError(Exception):
    """A check of this script or of killed_ranks.py failed."""


def train(folder: Path, log: Path, asynchronous: bool, after_iteration: Callable[[], object] = lambda: None) -> None:
    """Train from the last checkpoint to the end. Write each loss to the log, and at the end the `digest`.

    Args:
        folder: of the checkpoints.
        after_iteration: called after each iteration and its save.
    """
    program = compiled("chimera", width=1, D=2, N=4)
    with open(log, "a", buffering=1, encoding="utf-8") as lines:

        def after(transport: Transport, done: int, loss: float) -> None:
            if transport.rank == 0:
                lines.write(json.dumps({"done": done, "loss": loss.hex()}) + "\n")
                after_iteration()

        save = CheckpointSettings(folder, EVERY, KEEP, asynchronous)
        train_rank = training(program, save, source="auto", until=ITERATIONS, after=after)
        ranks = run_in_loopback(program, train_rank, seed=os.getpid())
        lines.write(json.dumps({"start": ranks[0].start, "weights": digest(ranks)}) + "\n")


def digest(ranks: list[Trained]) -> str:
    """Return a digest of the weights and of the optimizer's state."""
    sha = hashlib.sha256()
    for name, tensor in sorted(((name, t) for rank in ranks for name, t in rank.tensors.items()), key=itemgetter(0)):
        sha.update(name.encode() + tensor.numpy().tobytes())
    return sha.hexdigest()


def attempt(folder: Path, log: Path, asynchronous: bool, operation: int | None, after_iteration: Callable[[], object]) -> None:
    """Train as in `train`.

    Args:
        operation: as in `kill_before`; None: this process does not kill itself.
    """
    if operation is not None:
        kill_before(operation, folder)
    train(folder, log, asynchronous, after_iteration)


def kill_before(operation: int, folder: Path) -> None:
    """Make this process kill itself just before its operation with this number, from 0, on the folder and the files in it.

    Only operations that are given the whole path count: `shutil.rmtree` removes the files of a folder by their names alone.
    """
    left = operation

    def count(event: str, arguments: Any) -> None:
        nonlocal left
        if event in FILE_EVENTS and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def in_child(work: Callable[[Callable[[], object]], None], iterations: int) -> bool:
    """Run this work in a process of its own, and kill it after this many iterations, unless it ends before.

    Return whether the process was killed, also if it killed itself.

    Args:
        work: gets the function that it calls after each iteration.

    Raises WrongError if the work failed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            work(lambda: os.write(writing, b"."))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    for _ in range(iterations):
        if not os.read(reading, 1):
            break  # the process has ended
    else:
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(reading)
    if status not in (0, -signal.SIGKILL):
        raise WrongError(f"a process ended with the exit code {status}")
    return status != 0


def lines_of(log: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a log."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def check(lines: list[dict[str, Any]], before: int, expected: list[dict[str, Any]], asynchronous: bool) -> None:
    """Raise WrongError unless these log lines of one process have the expected losses, and begin after a recent enough save.

    Args:
        before: the last iteration that the processes before it have logged, 0 if none. They may have been killed after they had
            saved the next iteration and before they logged it; with asynchronous saves also before their last save was
            complete.
    """
    losses = [line for line in lines if "done" in line]
    if wrong := [line for line in losses if line != expected[line["done"] - 1]]:
        raise WrongError(f"{wrong[0]} instead of {expected[wrong[0]['done'] - 1]}")
    saved = before // EVERY * EVERY - (EVERY if asynchronous else 0)
    if losses and not saved <= (start := losses[0]["done"] - 1) <= before + 1:
        raise WrongError(f"a process went on from iteration {start}; those before it had logged {before}")


def run_with_kills(number: int, folder: Path, most_kills: int, rng: random.Random, expected: list[dict[str, Any]]) -> int:
    """Run to the end, killing at most `most_kills` processes; return how many were killed.

    Args:
        number: of the run; runs with an even number save asynchronously.
        expected: the log of a run that is never killed.

    Raises WrongError if a check of this script fails.
    """
    checkpoints, log, asynchronous = folder / f"run {number}", folder / f"log {number}", number % 2 == 0
    *expected_losses, expected_end = expected
    killed = done = seen = 0  # processes that were killed; the last iteration that was logged; lines that were checked
    was_killed = True
    while was_killed:
        iterations, operation = NEVER, None
        if killed < most_kills and rng.random() < 0.5:
            operation = rng.randrange(OPERATIONS)
        elif killed < most_kills:
            iterations = rng.randint(1, 2 * EVERY)
        was_killed = in_child(partial(attempt, checkpoints, log, asynchronous, operation), iterations)
        if was_killed:
            killed += 1
        lines = lines_of(log)
        check(lines[seen:], done, expected_losses, asynchronous)
        done = max([done, *(line["done"] for line in lines[seen:] if "done" in line)])
        seen = len(lines)
    if lines[-1]["weights"] != expected_end["weights"]:
        raise WrongError(f"weights or optimizer state of run {number} differ from those of the run that is never killed")
    if left := [path.name for path in checkpoints.iterdir() if path.name.startswith(".")]:
        raise WrongError(f"run {number} left {', '.join(left)}")
    return killed


def main(kills: int, seed: int, folder: Path) -> int:
    """Kill this many processes, and return the exit code. Raises WrongError if a check fails."""
    torch.set_num_threads(1)  # so torch starts no threads: a fork would not have them
    # Every process needs the description and the data. They are cached here, before the forks.
    description(model(), SETTINGS.micro_batch)
    data(SETTINGS.seed)
    whole_log = folder / "log"
    in_child(lambda after_iteration: train(folder / "whole", whole_log, asynchronous=False), NEVER)
    expected = lines_of(whole_log)
    print(f"a run that is never killed: {len(expected) - 1} iterations", flush=True)
    rng = random.Random(seed)
    killed = runs = 0
    while killed < kills:
        runs += 1
        killed += run_with_kills(runs, folder, kills - killed, rng, expected)
    print(f"{killed} processes killed in {runs} runs: every loss and the weights at the end are those of the run never killed")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="an empty folder for all files, kept afterwards (default: a temporary one)")
    given = parser.parse_args()
    place = given.folder or Path(tempfile.mkdtemp())
    try:
        sys.exit(main(given.kills, given.seed, place))
    finally:
        if given.folder is None:
            shutil.rmtree(place)
