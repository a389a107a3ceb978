"""The output of a run: lines, a progress bar, a log of JSON lines, and the table at the end. Only rank 0 writes.

The bar is drawn on stderr, and only where stderr is a terminal.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason, short_path

BAR = 24  # width of the bar, in characters
EVERY_S = 0.1  # how often the bar is drawn


class Record:
    """The output of one rank. Ranks other than rank 0 have none. log: the file of the JSON lines."""

    def __init__(self, rank: int, iterations: int, log: Path | None = None) -> None:
        self.is_writer, self.iterations = rank == 0, iterations
        self._bar: TextIO | None = sys.stderr if self.is_writer and sys.stderr.isatty() else None
        self._log = _opened(log) if self.is_writer and log else None
        self._start = self._drawn = time.monotonic()

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.is_writer:
            self.clear()
            print(text, flush=True)

    def write(self, line: Mapping[str, object]) -> None:
        """Add a line to the log."""
        if self._log:
            try:
                self._log.write(json.dumps(line, allow_nan=False) + "\n")
            except OSError as error:
                raise _not_written(self._log.name, error) from None

    def start(self) -> None:
        """Start to measure the time of iterations."""
        self._start = time.monotonic()

    def draw(self, done: int, loss: float, tokens_per_second: float) -> None:
        """Draw the bar again, at most every EVERY_S seconds. done: iterations."""
        now = time.monotonic()
        if self._bar is None or (now - self._drawn < EVERY_S and done < self.iterations):
            return
        self._drawn = now
        left_s = (now - self._start) / done * (self.iterations - done)
        print(f"\r{bar(done, self.iterations, loss, tokens_per_second, left_s)}\x1b[K", end="", file=self._bar, flush=True)

    def clear(self) -> None:
        """Erase the bar."""
        if self._bar is not None:
            print("\r\x1b[K", end="", file=self._bar, flush=True)

    def table(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Print the rows: name, figure, remark."""
        names, figures = (max(len(row[k]) for row in rows) for k in (0, 1))
        self.say("\n" + "\n".join(f"{name:<{names}}  {figure:>{figures}}   {note}".rstrip() for name, figure, note in rows))


def bar(done: int, iterations: int, loss: float, tokens_per_second: float, left_s: float) -> str:
    """Return the progress bar as text."""
    full = BAR * done // iterations
    minutes, seconds = divmod(round(left_s), 60)
    return (
        f"[{'#' * full}{'.' * (BAR - full)}] {done}/{iterations}  loss {loss:.3f}  "
        f"{tokens_per_second:,.0f} tokens/s  {minutes}:{seconds:02} left"
    )


def _opened(path: Path) -> TextIO:
    try:
        return path.open("w", buffering=1, encoding="utf-8")  # each line is written when its iteration ends
    except (OSError, ValueError) as error:
        raise _not_written(path, error) from None


def _not_written(path: str | Path, error: Exception) -> ChimeraError:
    return refuse(
        "E811", f"the log {short_path(path)} cannot be written: {reason(error).lower()}", help="give --log-file another path"
    )
