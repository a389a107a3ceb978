"""Kills a training process again and again, also while it saves, starts it again, and compares the losses bit by bit.

    python -m tests.distributed.killed [--kills 50] [--seed 1] [--folder PATH]

Each process goes on from the last checkpoint and is killed with SIGKILL at a random moment. Half of them are killed just before
a drawn operation on a file of the checkpoints. The others are killed by their parent while an iteration or a save is running.
Every second run saves asynchronously. The script checks that no more is lost than the iterations since the last save, and that
every loss and the weights at the end are those of a run that is never killed.
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
OPERATIONS = 90  # on files, about those of two saves
FILE_EVENTS = {"open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.scandir", "os.listdir", "shutil.rmtree"}
NEVER = sys.maxsize  # a process that is killed after so many iterations is never killed


class WrongError(Exception):
    """A process or a job did not go on as it should."""


def train(folder: Path, log: Path, asynchronous: bool, after_iteration: Callable[[], object] = lambda: None) -> None:
    """Train to the end, from the last checkpoint on, and write each loss to the log. folder: of the checkpoints."""
    program = compiled("chimera", width=1, D=2, N=4)
    with open(log, "a", buffering=1, encoding="utf-8") as lines:

        def after(transport: Transport, done: int, loss: float) -> None:
            if transport.rank == 0:
                lines.write(json.dumps({"done": done, "loss": loss.hex()}) + "\n")
                after_iteration()

        save = CheckpointSettings(folder, EVERY, KEEP, asynchronous)
        train_rank = training(program, save, source="auto", until=ITERATIONS, after=after)
        found = run_in_loopback(program, train_rank, seed=os.getpid())
        lines.write(json.dumps({"start": found[0].start, "weights": digest(found)}) + "\n")


def digest(ranks: list[Trained]) -> str:
    """Return a digest of the weights and of the optimizer's state."""
    found = hashlib.sha256()
    for name, tensor in sorted(((name, t) for rank in ranks for name, t in rank.tensors.items()), key=itemgetter(0)):
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def attempt(folder: Path, log: Path, asynchronous: bool, operation: int | None, after_iteration: Callable[[], object]) -> None:
    """Train. operation: the number of the operation on a file before which this process kills itself; None: it does not."""
    if operation is not None:
        kill_before(operation, folder)
    train(folder, log, asynchronous, after_iteration)


def kill_before(operation: int, folder: Path) -> None:
    """Make this process kill itself just before this operation on a file of the folder. The first one has the number 0."""
    left = operation

    def count(event: str, arguments: Any) -> None:
        nonlocal left
        if event in FILE_EVENTS and str(arguments[0]).startswith(str(folder)):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def in_child(work: Callable[[Callable[[], object]], None], iterations: int) -> bool:
    """Run this work in a process of its own, and kill it after this many iterations. Return whether it was killed.

    work: gets the function that it calls after each iteration.
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
            break
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

    before: how many iterations the processes before it have logged. The last of these processes may have been killed after
    it had saved one more iteration; with asynchronous saves also before its last save was complete.
    """
    losses = [line for line in lines if "done" in line]
    if wrong := [line for line in losses if line != expected[line["done"] - 1]]:
        raise WrongError(f"{wrong[0]} instead of {expected[wrong[0]['done'] - 1]}")
    saved = before // EVERY * EVERY - (EVERY if asynchronous else 0)
    if losses and not saved <= (start := losses[0]["done"] - 1) <= before + 1:
        raise WrongError(f"a process went on from iteration {start}; the one before it had done {before}")


def run_with_kills(number: int, folder: Path, most_kills: int, rng: random.Random, expected: list[dict[str, Any]]) -> int:
    """Run to the end, killing at most `most_kills` processes; return how many were killed.

    expected: the log of a run that is never killed. Raises WrongError if the losses or the weights differ from it.
    """
    checkpoints, log, asynchronous = folder / f"run {number}", folder / f"log {number}", number % 2 == 0
    *expected_losses, expected_end = expected
    killed = done = seen = 0  # processes that were killed; iterations that were logged; lines of the log that were checked
    was_killed = True
    while was_killed:
        iterations, operation = NEVER, None
        if killed < most_kills and rng.random() < 0.5:
            operation = rng.randrange(OPERATIONS)
        elif killed < most_kills:
            iterations = rng.randint(1, 2 * EVERY)
        was_killed = in_child(partial(attempt, checkpoints, log, asynchronous, operation), iterations)
        killed += was_killed
        lines = lines_of(log)
        check(lines[seen:], done, expected_losses, asynchronous)
        done = max([done, *(line["done"] for line in lines[seen:] if "done" in line)])
        seen = len(lines)
    if lines[-1]["weights"] != expected_end["weights"]:
        raise WrongError(f"the weights of run {number} differ from those of the run that is never killed")
    if left := [path.name for path in checkpoints.iterdir() if path.name.startswith(".")]:
        raise WrongError(f"run {number} left {', '.join(left)}")
    return killed


def main(kills: int, seed: int, folder: Path) -> int:
    """Kill this many processes, and return the exit code."""
    torch.set_num_threads(1)  # so torch starts no threads: a fork would not have them
    description(model(), SETTINGS.micro_batch)  # every process needs these; they are made once
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
    parser.add_argument("--folder", type=Path, help="for the checkpoints, kept afterwards (default: a temporary one)")
    given = parser.parse_args()
    place = given.folder or Path(tempfile.mkdtemp())
    try:
        sys.exit(main(given.kills, given.seed, place))
    finally:
        if given.folder is None:
            shutil.rmtree(place)
