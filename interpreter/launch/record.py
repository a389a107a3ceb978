"""The output of a run: lines, a progress bar, a log of JSON lines, TensorBoard, and the table at the end. Only rank 0 writes.

The bar is drawn on stderr, if stderr is a terminal. If the log or the scalars for TensorBoard can no longer be written, the run
prints a message and goes on without them. docs/training.md lists the fields of the log.
"""

from __future__ import annotations

import json
import math
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
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
OUTPUTS = {  # option -> what it writes, for messages
    "--log-file": "the log",
    "--trace": "the trace",
    "--timeline": "the timeline",
    "--tensorboard": "the TensorBoard folder",
    "-o": "the profile",
}


class Record:
    """The output of one rank. Ranks other than rank 0 have none.

    Args:
        iterations: of the run.
        log: the file of the JSON lines, to which this run appends; None: no log.
        header: more fields of the first line that it appends, such as the settings.
        tensorboard: the folder for TensorBoard, with the same numbers and with pictures; None: there is none.

    Raises ChimeraError on rank 0: E811 if the log or the folder cannot be written, E840 if a folder is given and the package
    tensorboard is missing.
    """

    def __init__(
        self,
        rank: int,
        iterations: int,
        log: Path | None = None,
        header: Mapping[str, object] | None = None,
        tensorboard: Path | None = None,
    ) -> None:
        self.is_writer, self.iterations = rank == 0, iterations
        self._bar: tqdm[NoReturn] | None = None
        self._path, self._log = log, None
        self._folder, self._scalars = tensorboard, None
        if self.is_writer and tensorboard is not None:
            self._scalars = _open_scalars(tensorboard)
        if self.is_writer and log is not None:
            self._log = _open_log(log)
            started = datetime.now(UTC).isoformat(timespec="seconds")
            self._append({"format": FORMAT, "version": VERSION, "started": started, **(header or {})})

    def print_text(self, text: str) -> None:
        """Print a text above the bar."""
        if self.is_writer:
            self.clear()
            print(text, flush=True)

    def write(self, line: Mapping[str, object]) -> None:
        """Write the line of an iteration to the log and for TensorBoard. If that fails, print why and go on."""
        self._append(line)
        self._to_tensorboard(lambda scalars: scalars.write(line))

    @property
    def writes_pictures(self) -> bool:
        """Whether `write_picture` does anything: whether this rank writes for TensorBoard."""
        return self._scalars is not None

    def write_picture(self, name: str, png: bytes, iteration: int) -> None:
        """Write a picture for TensorBoard, if this rank writes for it.

        Args:
            png: the bytes of a PNG file.

        Errors as for `write`.
        """
        self._to_tensorboard(lambda scalars: scalars.write_picture(name, png, iteration))

    def _to_tensorboard(self, write: Callable[[Scalars], None]) -> None:
        if self._scalars is None:
            return
        try:
            write(self._scalars)
        except OSError as error:
            self._scalars.close()
            self._scalars = None
            self._print_write_error("--tensorboard", self._folder, error)

    def _append(self, line: Mapping[str, object]) -> None:
        """Append a line to the log. JSON has no number that is not finite: null stands for it. Errors as for `write`."""
        if self._log is None:
            return
        try:
            # The file has no buffer, so no text is lost when the process ends. One call may write only a part of the text.
            text = (json.dumps(_finite(line), allow_nan=False) + "\n").encode()
            while text:
                text = text[self._log.write(text) :]
        except OSError as error:
            with suppress(OSError):
                self._log.close()
            self._log = None
            self._print_write_error("--log-file", self._path, error)

    def _print_write_error(self, option: str, path: Path | None, error: Exception) -> None:
        what = f"{OUTPUTS[option]} {short_path(path or '')}"
        self.print_text(f"{what} can no longer be written: {reason(error)}; the run goes on")

    def start(self, done: int = 0) -> None:
        """Start the progress bar, if stderr is a terminal.

        Args:
            done: iterations that are complete already.
        """
        if self.is_writer and sys.stderr is not None and sys.stderr.isatty():
            # tqdm takes 0.1 s to import, which --help does not need.
            from tqdm import tqdm

            tqdm.monitor_interval = 0  # so tqdm starts no thread
            self._bar = tqdm(total=self.iterations, initial=done, unit="it", dynamic_ncols=True, leave=False)

    def draw(self, done: int, loss: float, speed: str) -> None:
        """Set the bar to `done` iterations. tqdm draws it at most ten times a second.

        Args:
            speed: with its unit.
        """
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {loss:.3f}, {speed}", refresh=False)
            self._bar.update(done - self._bar.n)

    def clear(self) -> None:
        """Erase the bar; a later `draw` draws it again."""
        if self._bar is not None:
            self._bar.clear()

    def close(self) -> None:
        """Erase the bar, so that later output begins at the start of a line, and close the log and the scalars."""
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
        """Print the rows as a table: name, figure, remark."""
        name_width, figure_width = (max(len(row[k]) for row in rows) for k in (0, 1))
        lines = (f"{name:<{name_width}}  {figure:>{figure_width}}   {remark}".rstrip() for name, figure, remark in rows)
        self.print_text("\n" + "\n".join(lines))


def check_output(path: Path, option: str) -> None:
    """Raise ChimeraError E811 if the file of this option cannot be written. The check writes nothing and creates no file."""
    try:
        target = path  # what must be writable: the file, or its folder if there is no such file yet
        try:
            if stat.S_ISDIR(path.stat().st_mode):
                raise IsADirectoryError(0, "it is a folder")
        except FileNotFoundError:
            target = path.parent
            if not target.is_dir():
                raise FileNotFoundError(0, f"the folder {short_path(target)} does not exist") from None
        if not os.access(target, os.W_OK):
            raise PermissionError(0, "permission denied")
    except (OSError, ValueError) as error:
        raise _not_written(path, option, error) from None


def check_folder(path: Path, option: str) -> None:
    """Raise ChimeraError E811 if files cannot be written to the folder of this option.

    The folder need not exist, and is not created here.
    """
    try:
        existing = path.absolute()  # the folder, or if it does not exist, the nearest one above it that does
        while not os.path.lexists(existing):
            existing = existing.parent
        if not stat.S_ISDIR(existing.stat().st_mode):
            raise NotADirectoryError(0, f"{short_path(existing)} is not a folder")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(0, f"permission denied for {short_path(existing)}")
    except (OSError, ValueError) as error:
        raise _not_written(path, option, error) from None


def _open_scalars(folder: Path) -> Scalars:
    """Return the scalars of a folder. Raises ChimeraError E811 if they cannot be written, E840 without the package."""
    try:
        return Scalars(folder)
    except (OSError, ValueError) as error:
        raise _not_written(folder, "--tensorboard", error) from None


def _open_log(path: Path) -> BinaryIO:
    """Return the log, opened for appending. If an earlier run was killed while it wrote a line, that line is ended.

    Raises ChimeraError E811 if the file cannot be opened.
    """
    try:
        file = path.open("ab", buffering=0)
        if path.is_file() and file.tell():
            with path.open("rb") as earlier, suppress(OSError):  # if the disk is full, a later `write` reports it
                earlier.seek(-1, os.SEEK_END)
                if earlier.read(1) != b"\n":
                    file.write(b"\n")
    except (OSError, ValueError) as error:
        raise _not_written(path, "--log-file", error) from None
    return file


def _finite(value: object) -> object:
    """Return a value of the log with null instead of each number that is not finite."""
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
    """Return the finding E811."""
    what = f"{OUTPUTS[option]} {short_path(path)} cannot be written: {reason(error)}"
    return refuse("E811", what, help=f"give {option} another path")
