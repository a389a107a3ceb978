"""Prepared files: data that is converted once, written to a file, and then mapped into memory by each rank that reads it.

A file has a header of HEADER_BYTES, and then the numbers of one array in little-endian order. The header is a JSON object,
padded with spaces and a line end. The name of the file has a digest of what it is made from (`key_of`). The file is written
under another name and renamed when it is complete. If several ranks start at once, one of them gets the lock on a lock file
beside it and prepares the file. The others wait. Where the file system has no locks, each of them may prepare it (`_locked`).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason, short_path

FORMAT, VERSION = "chimera-data", 1
HEADER_BYTES = 4096
TYPES = {"u1": np.uint8, "u2": np.uint16, "u4": np.uint32}
POLL_S = 0.1  # interval at which a waiting process tries to get the lock

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Prepared:
    """A prepared file.

    Attributes:
        about: what its header says about the data.
        digest: of the numbers.
        array: the numbers, mapped into memory.
    """

    path: Path
    about: Mapping[str, Any]
    digest: str
    array: Array


class Writer:
    """A prepared file that is being written. Numbers are appended; they are not kept in memory.

    Args:
        lock: the lock file, None if this file system has no locks.
        kind: the type of the numbers, one of TYPES.

    Attributes:
        count: how many were appended.
    """

    def __init__(self, file: IO[bytes], lock: IO[str] | None, kind: str) -> None:
        self._file, self._lock, self._type, self._hash = file, lock, np.dtype(TYPES[kind]).newbyteorder("<"), hashlib.sha256()
        self.kind, self.count = kind, 0
        file.write(b" " * HEADER_BYTES)

    def append(self, numbers: Array) -> None:
        """Append an array of any shape, and update the time of the lock file, by which waiting processes see progress."""
        data = np.ascontiguousarray(numbers, self._type)
        self._file.write(data.data)
        self._hash.update(data.data)
        self.count += data.size
        if self._lock is not None:
            os.utime(self._lock.fileno())

    def finish(self, about: Mapping[str, Any]) -> None:
        """Write the header.

        Args:
            about: as in `Prepared`.
        """
        known = {"format": FORMAT, "version": VERSION, "type": self.kind, "count": self.count, "digest": self._hash.hexdigest()}
        header = json.dumps({**known, "about": about}).encode()
        assert len(header) < HEADER_BYTES, "the header must be shorter than HEADER_BYTES"
        self._file.seek(0)
        self._file.write(header.ljust(HEADER_BYTES - 1) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def key_of(*parts: object) -> str:
    """Return a digest of what a file is made from, for its name. It depends on the version of the format too."""
    return hashlib.sha256(repr((VERSION, *parts)).encode()).hexdigest()[:16]


def prepared(path: Path, kind: str, write: Callable[[Writer], Mapping[str, Any]], limit_s: float) -> Prepared:
    """Return the prepared file of this path, which is written first if it does not exist.

    Args:
        kind: the type of the numbers if the file is written, one of TYPES.
        write: appends the numbers and returns what the header says about them.
        limit_s: how long to wait for another process that prepares the file and makes no progress.

    Raises ChimeraError E860 if the file is damaged, if the wait is too long, or for an OSError (also one from `write`). Raises
    whatever else `write` raises.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(path, limit_s) as lock:
                if not path.exists():
                    _write(path, kind, write, lock)
        return _opened(path)
    except OSError as error:
        raise _refused(path, "cannot be written or read", reason(error), "give --work-dir another folder") from None


def _write(path: Path, kind: str, write: Callable[[Writer], Mapping[str, Any]], lock: IO[str] | None) -> None:
    partial = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}.partial")
    if lock is not None:  # nobody else writes now: these files are of processes that were killed
        for left in path.parent.glob(f".{path.name}.*.partial"):
            left.unlink(missing_ok=True)
    try:
        with partial.open("wb") as file:
            writer = Writer(file, lock, kind)
            writer.finish(write(writer))
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def _locked(path: Path, limit_s: float) -> Iterator[IO[str] | None]:
    """Wait for the lock of a path, and hold it in the context.

    Yields None if another process has completed the file meanwhile, or if this file system has no locks. The kernel frees the
    lock of a process that ends. Without locks several processes may write the file: each writes a file of its own, and the last
    one that is renamed remains.
    """
    name = path.with_name(f".{path.name}.lock")
    with name.open("a+") as lock:
        if not _acquire(lock, path, limit_s):
            yield None
            return
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {platform.node()}")
        lock.flush()
        yield lock
        if path.exists():
            name.unlink(missing_ok=True)


def _acquire(lock: IO[str], path: Path, limit_s: float) -> bool:
    """Wait for the lock and return True; False if this file system has no locks, or if the prepared file is complete.

    Raises ChimeraError E860 if the process that has the lock makes no progress for `limit_s`.
    """
    import fcntl  # not on Windows

    last_change_ns, last_progress_s = 0, time.monotonic()
    while not path.exists():
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        except OSError:
            return False
        with suppress(OSError):
            change_ns = os.fstat(lock.fileno()).st_mtime_ns
            if change_ns != last_change_ns:
                last_change_ns, last_progress_s = change_ns, time.monotonic()
        if time.monotonic() - last_progress_s > limit_s:
            lock.seek(0)
            holder = lock.read() or "another process"
            why = f"{holder} prepares it and has made no progress for {limit_s:g} s"
            raise _refused(path, "is not there", why, "end that process, or prepare the data before the run (docs/data.md)")
        time.sleep(POLL_S)
    return False


def _opened(path: Path) -> Prepared:
    """Map a prepared file into memory. Raises ChimeraError E860 if it is damaged, OSError if it cannot be read."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    try:
        header = json.loads(head)
        if (header["format"], header["version"]) != (FORMAT, VERSION):
            raise ValueError(f"it has the format {header['format']} {header['version']}, expected {FORMAT} {VERSION}")
        dtype = np.dtype(TYPES[header["type"]]).newbyteorder("<")
        count, about, digest = int(header["count"]), dict(header["about"]), str(header["digest"])
        size, expected = path.stat().st_size, HEADER_BYTES + count * dtype.itemsize
        if size != expected:
            raise ValueError(f"it has {size} bytes, and its header says {expected}")
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        is_ours = isinstance(error, ValueError) and str(error).startswith("it has ")  # one of the two messages above
        why = str(error) if is_ours else "its header cannot be read"
        raise _refused(path, "is damaged", why, "delete it: it is made again") from None
    array = np.memmap(path, dtype, "r", HEADER_BYTES, (count,)) if count else np.zeros(0, dtype)
    return Prepared(path, about, digest, array)


def _refused(path: Path, what: str, why: str, help: str) -> ChimeraError:
    return refuse("E860", f"the prepared file {short_path(path)} {what}: {why}", help=help)
