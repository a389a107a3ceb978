"""Executes one run in its folder, and records how it ended.

    python -m chimerac.interpreter.experiments.execute FOLDER DISCARD MINUTES COMMAND...

A SLURM job runs this command. For runs on this host, local.py calls `execute`. DISCARD: how many iterations at the start are
left out of the utilization of the GPUs. MINUTES: the longest time of the run. The files of a run's folder, besides those of
SLURM (slurm.py):

    config.yaml   its settings, as `run.py --config` reads them
    log.jsonl     the log of the run
    output.txt    what it printed
    result.json   how it ended; written at its end
    lock          locked while the run is executed: by the process that executes it, and by the run itself
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.files import write, write_stderr
from chimerac.interpreter.experiments.host import GpuUtilization, this_host, versions
from chimerac.interpreter.launch.startup import ENDS_WITH_PARENT, INTERRUPTED

CONFIG, LOG, OUTPUT, RESULT, LOCK = "config.yaml", "log.jsonl", "output.txt", "result.json", "lock"
FORMAT, VERSION = "chimera-experiment-run", 1
FIELDS = ("state", "exit_code", "reason", "started", "seconds", "host", "versions", "gpu_utilization")  # of result.json
REMOVE = "remove it, and its run is executed again"
POLL_S = 0.1
ATTEMPTS = 3  # how often `locked` tries to get a lock if `waiting` is None
END_S = 10.0  # how long a run may take to end after a signal, before it gets the next one
HOST_LOCK = Path(tempfile.gettempdir()) / f"chimerac-experiments-{os.getuid()}.lock"  # held by a runner that executes a run

Waiting = Callable[[], None]  # called again and again during a wait


@contextmanager
def locked(path: Path, waiting: Waiting | None = None) -> Iterator[int | None]:
    """Lock a file, and yield its descriptor; None if another process has locked it and `waiting` is None.

    Args:
        waiting: called again and again until the lock is free. If it is None, the lock is tried ATTEMPTS times, because
            `is_locked` in another process holds it briefly.

    The lock ends when no process has the descriptor open any more: so also if all of them are killed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        for attempt in itertools.count(1):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if waiting is not None:
                    waiting()
                elif attempt == ATTEMPTS:
                    yield None
                    return
                time.sleep(POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Return whether a process executes the run of this folder."""
    if not folder.is_dir():
        return False
    with locked(folder / LOCK) as descriptor:
        return descriptor is None


def result_of(folder: Path) -> dict[str, Any] | None:
    """Return how the run of this folder ended: the content of its result.json. None if it has not ended.

    Raises ValueError for a result.json that is not one of this version, OSError if it cannot be read.
    """
    path = folder / RESULT
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        raise ValueError(f"{path} is not JSON; {REMOVE}") from None
    expected = {"format": FORMAT, "version": VERSION}
    if not isinstance(record, dict):
        raise ValueError(f"{path} is not the result of a run: it is no object; {REMOVE}")
    actual = {name: record.get(name) for name in expected}
    if actual != expected:
        raise ValueError(f"{path} is not the result of a run: it has {actual}, expected {expected}; {REMOVE}")
    if missing := [name for name in FIELDS if name not in record]:
        raise ValueError(f"{path} is not the result of a run: it has no {missing[0]!r}; {REMOVE}")
    return record


def execute(
    folder: Path, command: Sequence[str], discard: int, minutes: float, locks: Sequence[int], waiting: Waiting | None = None
) -> dict[str, Any]:
    """Execute a command as the run of a folder, write its result.json, and return the content of this file.

    Args:
        discard: iterations at the start that are left out of the utilization of the GPUs.
        minutes: the longest time of the run. After this time it is ended, and counts as failed.
        locks: descriptors that the run keeps open, so that their files stay locked until it has ended too.
        waiting: called while it runs.

    If this process is interrupted, it ends the run, and writes no result.json.

    Raises OSError if the command cannot be started or a file cannot be written, ChimeraError E003 if result.json cannot.
    """
    result, log = folder / RESULT, folder / LOG
    for path in (result, log):
        path.unlink(missing_ok=True)
    started, begin = datetime.now(UTC), time.monotonic()
    reason = ""
    lines = discard + 1  # the first line of a log is no iteration
    with (folder / OUTPUT).open("wb") as output, GpuUtilization(log, lines) as gpus:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, ENDS_WITH_PARENT: "1"},
            pass_fds=tuple(locks),
            start_new_session=True,  # Ctrl-C reaches this process alone, which then ends the run
        )
        try:
            while process.poll() is None:
                if time.monotonic() - begin > 60 * minutes:
                    reason = f"it was not done after {minutes:g} minutes"
                    break
                if waiting is not None:
                    waiting()
                time.sleep(POLL_S)
        finally:
            _end(process)
    record: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    record |= {"state": "done" if process.returncode == 0 and not reason else "failed", "exit_code": process.returncode}
    record |= {"reason": reason or _reason(process.returncode), "started": started.isoformat(timespec="seconds")}
    record |= {"seconds": round(time.monotonic() - begin, 3), "host": this_host(), "versions": versions()}
    record |= {"gpu_utilization": gpus.shares()}
    write(json.dumps(record, indent=1) + "\n", str(result))
    return record


def _reason(exit_code: int) -> str:
    """Return in words how a run ended; an empty text for exit code 0."""
    if exit_code < 0 or exit_code > 128:
        number = -exit_code if exit_code < 0 else exit_code - 128
        with suppress(ValueError):
            return f"it was ended by {signal.Signals(number).name}"
    return f"exit status {exit_code}" if exit_code else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a run that has not ended, with all its ranks."""
    # srun needs the second signal: at one SIGINT it only prints its status; at SIGTERM it ends its tasks.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
    process.wait()


def main(arguments: Sequence[str]) -> int:
    """Execute the command of a SLURM job as the run of a folder.

    Return the exit status of the command, as a shell gives it. Return 1 if another process executes the run, and if the command
    was ended after MINUTES and has status 0.
    """
    folder, discard, minutes, *command = arguments
    # This process goes on after SIGTERM, to record how the run ends. The ranks get SIGTERM too: if they are training, they end
    # after the current iteration. The handler is a function, because the ranks would inherit SIG_IGN.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with locked(Path(folder) / LOCK) as lock:
        if lock is None:
            write_stderr(f"another process executes the run of {folder}\n")
            return 1
        record = execute(Path(folder), command, int(discard), float(minutes), [lock])
    code = int(record["exit_code"])
    if code == 0 and record["state"] == "failed":  # it was ended after MINUTES, with exit code 0
        return 1
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
