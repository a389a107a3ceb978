"""Starts processes for tests: commands such as runs of interpreter/run.py, single ranks, and the ranks of a script."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tools import ROOT

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LAUNCHER = [sys.executable, "-m", "chimerac.interpreter.launch.launcher"]
RUN = "interpreter/run.py"
CHIMERA = ["schedules/chimera.sched", "-p", "D=2", "-p", "N=8"]
TINY = ["--model", "gpt-nano", "--seq-len", "32"]
UNCHECKED = ["--no-check-gradients", "--eval-samples", "1"]  # a run with these options starts and ends sooner
QUICK = [RUN, "schedules/chimera.sched", "-p", "D=2", "-p", "N=2", *TINY, *UNCHECKED]
LONG = [*QUICK, "--iterations", "1000000"]
# Of the processes that are started here: without the variables by which a process is a rank.
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}


def open_process(command: Sequence[str], environment: Mapping[str, str], folder: Path = ROOT) -> subprocess.Popen[str]:
    """Start a command in its own session.

    Args:
        environment: added to ENVIRONMENT.
        folder: the one that it runs in.
    """
    return subprocess.Popen(
        command,
        cwd=folder,
        env=ENVIRONMENT | environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


@contextmanager
def start_process(*command: str, folder: Path = ROOT, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command in its own session; at the end kill its process, and that process's children if it still runs."""
    process = open_process(command, environment, folder)
    try:
        yield process
    finally:
        for pid in [process.pid, *children(process.pid)]:
            kill(pid)
        process.communicate()


def run_command(
    *command: str, folder: Path = ROOT, timeout_s: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command and wait for its end."""
    with start_process(*command, folder=folder, **environment) as process:
        out, err = process.communicate(timeout=timeout_s)
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def children(pid: int) -> list[int]:
    """Return the ids of the child processes of a process; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def kill(pid: int) -> None:
    """Kill a process if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def have_ended(pids: list[int], within_s: float) -> bool:
    """Return whether these processes end, or become zombies, within this time."""
    limit = time.monotonic() + within_s
    while time.monotonic() < limit:
        if not any(map(_runs, pids)):
            return True
        time.sleep(0.1)
    return False


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(happens: Callable[[], object], process: subprocess.Popen[str], within_s: float = 60) -> None:
    """Return when `happens` returns true. Fails if the process ends first, or after `within_s` seconds."""
    limit = time.monotonic() + within_s
    while not happens():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < limit, f"what the test waits for did not happen within {within_s} s"
        time.sleep(0.01)


def wait_for_iteration(process: subprocess.Popen[str]) -> list[int]:
    """Wait until a training has printed the line of an iteration. Return the child processes of its process.

    The children of a launcher are the ranks. Fails if the training ends first.
    """
    assert process.stdout is not None
    while not (line := process.stdout.readline()).startswith("iteration"):
        assert line, process.communicate()
    return children(process.pid)


# --- single ranks -------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a free port for the rendezvous of some ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """Return a rank's environment variables that torchrun sets and the runtime needs. All ranks are on this host."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_PORT": port}
    return {k: str(v) for k, v in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}


def script_rank_of_two(rank: int, *words: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of rank `rank` of two ranks.

    Args:
        words: a script and its arguments.
    """
    return [sys.executable, *words], rank_environment(rank, 2, port)


def training_rank_of_two(rank: int, *options: str, port: int) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of rank `rank` of two ranks that train.

    Args:
        options: those of run.py.
    """
    return script_rank_of_two(rank, RUN, "schedules/chimera.sched", *options, port=port)


# --- scripts ------------------------------------------------------------------------------------------------------------


def run_script(script: str, ranks: int, *arguments: str, folder: Path = ROOT, **environment: str) -> str:
    """Run a script of this project on `ranks` ranks of this host; return what it writes to stdout. Fails if the script fails.

    Args:
        script: its path in the project.
        folder: the one that it runs in.

    The ranks are forks of one process, so torch is imported once (tests/forked_ranks.py).
    """
    command = [sys.executable, "-m", "tests.forked_ranks", str(ranks), str(ROOT / script), *arguments]
    run = run_command(*command, folder=folder, timeout_s=100, **environment)
    assert run.returncode == 0, run.stderr
    return run.stdout


def results_of(script: str, ranks: int, out: Path) -> Any:
    """Run a script of tests/distributed; return the JSON that it writes to `out`, its only argument."""
    run_script(f"tests/distributed/{script}", ranks, str(out))
    return json.loads(out.read_text())


def run_in_own_loop_project(script: str, ranks: int, folder: Path) -> Path:
    """Run a script of tests/distributed in a copy of docs/examples/own_loop below this folder; return the copy."""
    project = folder / "project"
    shutil.copytree(ROOT / "docs/examples/own_loop", project, ignore=shutil.ignore_patterns("__pycache__"))
    run_script(f"tests/distributed/{script}", ranks, folder=project)
    return project
