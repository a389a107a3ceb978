"""Files and standard streams: reading text of limited size, atomic writes, and output that may be closed (E001 to E003)."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from typing import BinaryIO, TextIO

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import refuse

MAX_NAME = 300  # characters of a path shown
CONFIG_SUFFIXES = (".yaml", ".yml")  # of config files of interpreter/run.py, such as plans; it takes schedules and programs too


def read(path: str | os.PathLike[str], opened: BinaryIO | None = None) -> str:
    """Return the text of a file with `\\n` line ends and without a byte order mark.

    Args:
        opened: the file if it is already open; `path` is then only its name in findings.

    Raises ChimeraError E001 if it cannot be read, is larger than limits.FILE or is not UTF-8.
    """
    try:
        if opened is None and (size := _size(path)) > limits.FILE:
            raise refuse("E001", f"{short_path(path)} has {size} bytes; at most {limits.FILE} are read")
        with open(path, "rb") if opened is None else nullcontext(opened) as file:
            data = file.read(limits.FILE + 1)
        if len(data) > limits.FILE:  # such as a pipe, whose size is known only now
            raise refuse("E001", f"{short_path(path)} has more than {limits.FILE} bytes")
        text = data.decode().removeprefix("\ufeff")  # utf-8-sig would leave the mark out of error.start
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
    except UnicodeDecodeError as error:
        raise refuse("E001", f"{short_path(path)} is not text: byte {error.start} is not UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise refuse("E001", f"{short_path(path)} cannot be read: {reason(error)}") from None


def short_path(path: str | os.PathLike[str]) -> str:
    """Return a path for findings: shortened in the middle if it is long, and two quotes if it is empty."""
    name = os.fspath(path) or "''"
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME // 2]}...{name[-MAX_NAME // 2 :]}"


def reason(error: Exception) -> str:
    """Return what went wrong, as the end of a sentence: an OSError in the system's words, any other error in its own."""
    if not isinstance(error, OSError):
        return str(error)
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]  # only the first letter: the rest may have a path


def _size(path: str | os.PathLike[str]) -> int:
    """Return the bytes of a regular file, and 0 for anything else."""
    status = os.stat(path)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def write_stdout(text: str | bytes) -> None:
    """Write a text or bytes to stdout. A text that the encoding of stdout cannot express is written as UTF-8.

    Raises ChimeraError E003 if that fails, BrokenPipeError if the reader of a pipe has closed its end.
    """
    if sys.stdout is None:  # the shell closed it
        raise refuse("E003", "the output cannot be written: stdout is closed")
    try:
        try:
            if isinstance(text, bytes):
                sys.stdout.flush()
                sys.stdout.buffer.write(text)
            else:
                sys.stdout.write(text)
        except UnicodeEncodeError:
            sys.stdout.flush()
            sys.stdout.buffer.write(str(text).encode("utf-8", "backslashreplace"))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_output(sys.stdout)
        raise refuse("E003", f"the output cannot be written: {reason(error)}") from None


def write_stderr(text: str) -> None:
    """Write a text to stderr. If stderr is closed or full, raise nothing, so that the caller still sets the exit status."""
    try:
        if sys.stderr is not None:  # the shell closed it; print would write to stdout instead
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        discard_output(sys.stderr)


def discard_output(stream: TextIO) -> None:
    """Redirect a stream to the null device, because it can no longer be written. So the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write(text: str | bytes, path: str) -> None:
    """Write a text or bytes to a file, or to stdout if the path leads to stdout.

    The text is written to a temporary file in the same folder, which then replaces the file. The name of the temporary file
    is random, so that no other process can create it first. Symbolic links, owner and permissions are kept. Some files cannot
    be replaced, and are written in place: a pipe, a device, a file with several hard links, a file whose owner this process
    cannot give to the new one, any file in a folder that allows no new files, and a file whose temporary path is too long.

    Raises ChimeraError E003 if that fails. An existing file is then unchanged, unless it was written in place. Raises
    BrokenPipeError as `write_stdout`.
    """
    try:
        status = _status(path)
        if status is None or not _is_stdout(status):
            data = text if isinstance(text, bytes) else text.encode()
            if not (_is_replaceable(path, status) and _replace(os.path.realpath(path), data, status)):
                with open(path, "wb") as file:
                    file.write(data)
            return
    except (OSError, ValueError) as error:
        raise refuse("E003", f"{short_path(path)} cannot be written: {reason(error)}") from None
    write_stdout(text)  # the path is stdout: if that is a file, opening it would truncate it


def check_folder(path: str | None) -> None:
    """Raise ChimeraError E003 if the folder of the file `path` does not exist. None: no file will be written.

    A caller checks this before long work, since `write` would raise only after it.
    """
    if path and not os.path.isdir(os.path.dirname(path) or "."):
        raise refuse("E003", f"{short_path(path)} cannot be written: there is no folder {short_path(os.path.dirname(path))}")


def check_not_overwritten(output: str | None, inputs: Iterable[tuple[str, str]]) -> None:
    """Raise ChimeraError E002 if -o names a file that is read.

    Args:
        output: the path that -o gives, or None.
        inputs: of each file that is read, what it is, for the message, and its path.
    """
    if not output or not os.path.isfile(output):
        return
    for what, path in inputs:
        if os.path.isfile(path) and os.path.samefile(path, output):
            raise refuse("E002", f"-o {output} would write over {what}", help="give another path")


def _status(path: str) -> os.stat_result | None:
    """Return the status of the file that a path leads to; None if there is none."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_stdout(status: os.stat_result) -> bool:
    try:
        return sys.stdout is not None and os.path.samestat(status, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # stdout has no file descriptor
        return False


def _is_replaceable(path: str, status: os.stat_result | None) -> bool:
    """Return whether a new file may replace the one at a path.

    Args:
        status: that of the path; None if there is no file yet.
    """
    if status is None:
        return os.path.basename(path) not in ("", ".", "..")
    if not (stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and os.access(path, os.W_OK)):
        return False
    real = _status(os.path.realpath(path))  # the real path of /dev/fd/3 may not exist
    return real is not None and os.path.samestat(status, real)


# Errors after which a file is written in place. ENAMETOOLONG: the temporary name may be longer than that of the file.
_NO_TEMPORARY_FILE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)


def _replace(target: str, data: bytes, status: os.stat_result | None) -> bool:
    """Write a temporary file and replace the target with it. Return False if the file has to be written in place.

    Raises OSError for another failure, such as a full disk. The target is then unchanged.
    """
    temporary = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}")
    is_created = False
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            is_created = True
            if status is not None:
                if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            file.write(data)
        os.replace(temporary, target)
    except BaseException as error:
        if is_created:
            with suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError) and error.errno in _NO_TEMPORARY_FILE:
            return False
        raise
    return True
