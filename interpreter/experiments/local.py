"""Runs an experiment on this host: one run after the other, with a display of the progress and an estimate of the time."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.diagnostics import visible
from chimerac.chimera_ir.files import write_stderr
from chimerac.interpreter.experiments.execute import HOST_LOCK, LOCK, execute, is_locked, locked, result_of
from chimerac.interpreter.experiments.runs import Run

SCRIPT = Path(__file__).parents[1] / "run.py"
DRAW_S = 0.5  # the least time between two drawings of the line about the present run
SHOWN_LINES = 5  # of the output of a run that failed


def command_of(run: Run) -> list[str]:
    """Return the command that runs all ranks of a run on this host."""
    return [sys.executable, str(SCRIPT), "--config", str(run.config)]


def state_of(run: Run) -> str:
    """Return done, failed, running (in another process), or pending."""
    result = result_of(run.folder)
    if is_locked(run.folder):
        return "running"
    return "pending" if result is None else str(result["state"])


def states_to_run(retry_failed: bool) -> tuple[str, ...]:
    """Return the states of the runs that are to be executed."""
    return ("pending", "failed") if retry_failed else ("pending",)


class Progress:
    """Prints a line for every run that this runner has executed, and after a failed run the end of its output.

    On a terminal it also draws a line about the present run.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._drawn_s, self._width = 0.0, 0
        self._ranks_and_seconds = [(run.ranks, float(r["seconds"])) for run in runs if (r := result_of(run.folder))]

    def time_left(self, rest: Iterable[Run], elapsed_s: float = 0.0) -> str:
        """Return in words how long the rest will take, estimated from the runs that have ended.

        The text is empty if no run has ended, or if no time is left. A run takes as long as the mean of those with as many
        ranks; if there are none, a time proportional to its ranks.

        Args:
            elapsed_s: how long the first of the rest has been running.
        """
        if not self._ranks_and_seconds:
            return ""
        by_ranks = dict[int, list[float]]()
        for ranks, seconds in self._ranks_and_seconds:
            by_ranks.setdefault(ranks, []).append(seconds)
        per_rank = sum(seconds for _, seconds in self._ranks_and_seconds) / sum(ranks for ranks, _ in self._ranks_and_seconds)
        total = 0.0
        for number, run in enumerate(rest):
            same = by_ranks.get(run.ranks)
            seconds = sum(same) / len(same) if same else per_rank * run.ranks
            total += seconds if number else max(0.0, seconds - elapsed_s)
        return f"about {duration(total)} left" if total else ""

    def draw(self, run: Run, state: str, since: float, rest: Sequence[Run], runs: bool = True) -> None:
        """Draw the line about the present run on a terminal, at most once in DRAW_S seconds.

        Args:
            state: what it does, in words.
            since: when that began (time.monotonic).
            rest: the other runs that are left.
            runs: whether it is executed, and not waiting for another one.
        """
        now = time.monotonic()
        if not self.is_terminal or now - self._drawn_s < DRAW_S:
            return
        self._drawn_s = now
        left = self.time_left([run, *rest], now - since if runs else 0.0)
        text = f"{self._number(run)}  {run.title}   {state} {now - since:.0f} s   {left}"
        columns = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
        self._write(text.rstrip()[:columns], end="")

    def ended(self, run: Run, record: dict[str, Any], rest: Sequence[Run]) -> None:
        """Print the line about a run that has ended, and after a failed one the end of its output.

        Args:
            record: the result of the run.
            rest: the other runs that are left.
        """
        self._ranks_and_seconds.append((run.ranks, float(record["seconds"])))
        how = "done in" if record["state"] == "done" else f"FAILED: {record['reason']}, after"
        text = f"{self._number(run)}  {run.title}   {how} {record['seconds']:.1f} s   {self.time_left(rest)}"
        self._write(text.rstrip(), end="\n")
        if record["state"] != "done":
            for line in _last_lines(run.output):
                self._write(f"    {visible(line)}", end="\n")
            self._write(f"    all of it: {run.output}", end="\n")

    def clear(self) -> None:
        """Erase the line about the present run."""
        if self._width:
            self._write("", end="")

    def _number(self, run: Run) -> str:
        return f"{self.runs.index(run) + 1}/{len(self.runs)}"

    def _write(self, text: str, end: str) -> None:
        """Write over the line about the present run.

        Args:
            end: a line break, or nothing for a text that is to be erased later.
        """
        erased = f"\r{' ' * self._width}\r" if self._width else ""
        write_stderr(f"{erased}{text}{end}")
        self._width = 0 if end else len(text)


def _last_lines(output: Path) -> list[str]:
    try:
        return output.read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
    except OSError:
        return []


def duration(seconds: float) -> str:
    """Return a duration in words."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 90 * 60 else f"{seconds / 3600:.1f} h"


def run_all(runs: Sequence[Run], discard: int, minutes: float, retry_failed: bool) -> None:
    """Execute the runs that are pending.

    Args:
        discard, minutes: as in execute.py.

    Runs that failed before are executed again only if `retry_failed`. Another runner may work on the same runs: a run is
    executed by one of them at a time. The runners of one user on this host execute one run at a time, so that runs do not slow
    each other down.
    """
    states = states_to_run(retry_failed)
    left = [run for run in runs if state_of(run) in (*states, "running")]
    progress = Progress(runs)
    while left:
        # The first run that is not being executed elsewhere. It is executed here if its state is still one of `states`.
        ended = next((run for run in left if _execute_if_free(run, states, left, progress, discard, minutes)), None)
        if ended is None:
            break  # other runners execute all that is left
        left.remove(ended)
    progress.clear()


def _execute_if_free(
    run: Run, states: Sequence[str], left: Sequence[Run], progress: Progress, discard: int, minutes: float
) -> bool:
    """Execute a run if its state is one of `states`, and return True; return False if another process executes it.

    Return True also if another runner has executed it in the meantime.

    Args:
        left: the runs that are left for `run_all`, with this one.

    The other arguments are as in `run_all`.
    """
    run.prepare()
    with ExitStack() as stack:
        run_lock = stack.enter_context(locked(run.folder / LOCK))
        if run_lock is None:
            return False
        result = result_of(run.folder)
        if result is not None and result["state"] not in states:
            return True  # another runner has executed it in the meantime
        rest, begin = [other for other in left if other is not run], time.monotonic()

        def draw(state: str = "waits for a run of another runner on this host,", runs: bool = False) -> None:
            progress.draw(run, state, begin, rest, runs)

        host_lock = stack.enter_context(locked(HOST_LOCK, draw))
        begin = time.monotonic()
        locks = [descriptor for descriptor in (run_lock, host_lock) if descriptor is not None]
        record = execute(run.folder, command_of(run), discard, minutes, locks, lambda: draw("running", runs=True))
        progress.ended(run, record, rest)
    return True
