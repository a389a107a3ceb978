"""The output of a run: lines, a progress bar, a log of JSON lines, and the table at the end. Only rank 0 writes.

The bar is drawn on stderr, and only where stderr is a terminal. The log and the scalars for TensorBoard are by-products: if one
can no longer be written, the run says so once and goes on. docs/training.md lists the fields of the log.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason, short_path
from chimerac.interpreter.launch.tensorboard import Scalars

if TYPE_CHECKING:
    from tqdm import tqdm

FORMAT = "chimera-log"
VERSION = 1
OUTPUTS = {"--log-file": "the log", "--trace": "the trace", "--tensorboard": "the TensorBoard folder"}


class Record:
    """The output of one rank. Ranks other than rank 0 have none.

    log: the file of the JSON lines, to which this run appends; about: its settings and sizes, for the first line; tensorboard:
    the folder of the same numbers for TensorBoard.
    """

    def __init__(
        self,
        rank: int,
        iterations: int,
        log: Path | None = None,
        about: Mapping[str, object] | None = None,
        tensorboard: Path | None = None,
    ) -> None:
        self.is_writer, self.iterations = rank == 0, iterations
        self._bar: tqdm[NoReturn] | None = None
        self._path, self._log = log, None
        self._folder, self._scalars = tensorboard, None
        if self.is_writer and tensorboard is not None:
            self._scalars = _scalars(tensorboard)
        if self.is_writer and log is not None:
            self._log = _opened(log)
            started = datetime.now(UTC).isoformat(timespec="seconds")
            self._append({"format": FORMAT, "version": VERSION, "started": started, **(about or {})})

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        if self.is_writer:
            self.clear()
            print(text, flush=True)

    def write(self, line: Mapping[str, object]) -> None:
        """Write the line of an iteration to the log and for TensorBoard. It never raises OSError."""
        self._append(line)
        if self._scalars is None:
            return
        try:
            self._scalars.write(line)
        except OSError as error:
            self._scalars.close()
            self._scalars = None
            self._say_lost("--tensorboard", self._folder, error)

    def _append(self, line: Mapping[str, object]) -> None:
        """Append a line to the log. A number that is not finite becomes null, as JSON has none. It never raises OSError."""
        if self._log is None:
            return
        try:
            # Without a buffer of Python, so that nothing is left to be written when the process ends.
            text = (json.dumps(_finite(line), allow_nan=False) + "\n").encode()
            while text:
                text = text[self._log.write(text) :]
        except OSError as error:
            with suppress(OSError):
                self._log.close()
            self._log = None
            self._say_lost("--log-file", self._path, error)

    def _say_lost(self, option: str, path: Path | None, error: Exception) -> None:
        what = f"{OUTPUTS[option]} {short_path(path or '')}"
        self.say(f"{what} can no longer be written: {reason(error).lower()}; the run goes on")

    def start(self, done: int = 0) -> None:
        """Start the progress bar. done: iterations that are complete already."""
        if self.is_writer and sys.stderr.isatty():
            # tqdm takes 0.1 s to import, which --help does not need.
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # no thread beside the training
            self._bar = tqdm(total=self.iterations, initial=done, unit="it", dynamic_ncols=True, leave=False)

    def draw(self, done: int, loss: float, tokens_per_second: float) -> None:
        """Move the bar on to `done` iterations. tqdm draws it at most ten times a second."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}, {tokens_per_second:,.0f} tokens/s", refresh=False)
            self._bar.update(done - self._bar.n)

    def clear(self) -> None:
        """Erase the bar; the next `draw` draws it again."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Erase the bar, so that what follows begins a line, and close the log and the scalars."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._log is not None:
            with suppress(OSError):
                self._log.close()
            self._log = None
        if self._scalars is not None:
            self._scalars.close()
            self._scalars = None

    def table(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """Print the rows: name, figure, remark."""
        names, figures = (max(len(row[k]) for row in rows) for k in (0, 1))
        self.say("\n" + "\n".join(f"{name:<{names}}  {figure:>{figures}}   {note}".rstrip() for name, figure, note in rows))


def check_output(path: Path, option: str) -> None:
    """Raise ChimeraError E811 if the file of this option cannot be written. Nothing is written, and no file is made."""
    try:
        try:
            changed = path
            if stat.S_ISDIR(path.stat().st_mode):
                raise IsADirectoryError(0, "it is a folder")
        except FileNotFoundError:
            changed = path.parent
            if not changed.is_dir():
                raise FileNotFoundError(0, f"the folder {short_path(changed)} does not exist") from None
        if not os.access(changed, os.W_OK):
            raise PermissionError(0, "permission denied")
    except (OSError, ValueError) as error:
        raise _not_written(path, option, error) from None


def check_folder(path: Path, option: str) -> None:
    """Raise ChimeraError E811 if files cannot be written to the folder of this option. It may not exist yet; none is made."""
    try:
        parent = path.absolute()
        while not os.path.lexists(parent):
            parent = parent.parent
        if not stat.S_ISDIR(parent.stat().st_mode):
            raise NotADirectoryError(0, f"{short_path(parent)} is not a folder")
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(0, f"permission denied for {short_path(parent)}")
    except (OSError, ValueError) as error:
        raise _not_written(path, option, error) from None


def _scalars(folder: Path) -> Scalars:
    try:
        return Scalars(folder)
    except (OSError, ValueError) as error:
        raise _not_written(folder, "--tensorboard", error) from None


def _opened(path: Path) -> BinaryIO:
    """Return the log, opened to append whole lines: if an earlier run was killed while it wrote a line, that line is ended."""
    try:
        file = path.open("ab", buffering=0)
        if path.is_file() and file.tell():
            with path.open("rb") as before, suppress(OSError):  # a full disk: `write` reports it
                before.seek(-1, os.SEEK_END)
                if before.read(1) != b"\n":
                    file.write(b"\n")
    except (OSError, ValueError) as error:
        raise _not_written(path, "--log-file", error) from None
    return file


def _finite(value: object) -> object:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {name: _finite(item) for name, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value


def _not_written(path: Path, option: str, error: Exception) -> ChimeraError:
    what = f"{OUTPUTS[option]} {short_path(path)} cannot be written: {reason(error).lower()}"
    return refuse("E811", what, help=f"give {option} another path")
