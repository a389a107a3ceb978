"""The numbers of the log as scalars, and pictures, for TensorBoard. The package tensorboard is optional (pyproject.toml).

torch's SummaryWriter writes in a thread of its own, which prints a traceback if the disk is full. For each number,
SummaryWriter opens the file again. So this module writes the file itself, with the functions that SummaryWriter uses. All
numbers of an iteration are one event.
"""

from __future__ import annotations

import importlib.metadata
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse


class Scalars:
    """A file of scalars and pictures in a folder. The folder is created if it does not exist.

    Raises ChimeraError E840 if the package tensorboard is not installed or cannot be imported, and OSError if the file cannot
    be created.
    """

    def __init__(self, folder: Path) -> None:
        check_package()
        try:
            # These packages take 0.5 s to import, which only a run with --tensorboard needs.
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from torch.utils.tensorboard import RecordWriter
            from torch.utils.tensorboard.summary import scalar
        except ImportError as error:
            raise _missing(f"cannot be imported: {error}") from None
        self._event, self._summary = Event, Summary
        self._scalar: Callable[[str, float], Any] = scalar
        folder.mkdir(parents=True, exist_ok=True)
        seconds, fraction = divmod(time.time_ns(), 10**9)
        # TensorBoard finds the files of a folder by this name, and reads them in the order of their times.
        name = f"events.out.tfevents.{seconds:010d}.{socket.gethostname()}.{os.getpid()}.{fraction:09d}"
        self._file = (folder / name).open("xb")
        self._records: Any = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")  # the first event of a file names the version of its format

    def write(self, line: Mapping[str, object]) -> None:
        """Write the numbers of a line of the log, for its iteration. They are in the file when this returns.

        Raises OSError if they cannot be written.
        """
        values = [self._scalar(name, value).value[0] for name, value in _numbers(line)]
        self._write(step=line["iteration"], summary=self._summary(value=values))

    def write_picture(self, name: str, png: bytes, iteration: int) -> None:
        """Write a picture for an iteration.

        Args:
            png: the bytes of a PNG file.

        Raises OSError if it cannot be written.
        """
        # A PNG begins with 8 fixed bytes. 4 bytes each follow for the length and the name of its first part, and for the
        # width and the height of the picture.
        width, height = (int.from_bytes(png[k : k + 4], "big") for k in (16, 20))
        image = self._summary.Image(width=width, height=height, colorspace=4, encoded_image_string=png)  # 4: RGBA
        self._write(step=iteration, summary=self._summary(value=[self._summary.Value(tag=name, image=image)]))

    def close(self) -> None:
        """Close the file. It does not raise OSError: each line has been written, or its error has been raised."""
        with suppress(OSError):
            self._file.close()

    def _write(self, **fields: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()


def check_package() -> None:
    """Raise ChimeraError E840 if the package tensorboard is not installed. The package is not imported for this check."""
    try:
        importlib.metadata.version("tensorboard")
    except importlib.metadata.PackageNotFoundError:
        raise _missing("is not installed") from None


def _numbers(line: Mapping[str, object]) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each number of a line but `iteration`. In a list, each number is that of one rank."""
    for name, value in line.items():
        if isinstance(value, int | float) and not isinstance(value, bool) and name != "iteration":
            yield name, value
        elif isinstance(value, list | tuple):
            yield from ((f"{name}/rank {rank}", number) for rank, number in enumerate(value))


def _missing(why: str) -> ChimeraError:
    help = "install it: pip install 'chimerac[tensorboard]'"
    return refuse("E840", f"--tensorboard needs the package tensorboard, which {why}", help=help)
