"""Files: text is read within a limit, and written whole or not at all (E001, E003)."""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
from contextlib import nullcontext, suppress
from typing import BinaryIO, TextIO

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import refuse

MAX_NAME = 300  # characters of a path shown


def read(path: str | os.PathLike[str], opened: BinaryIO | None = None) -> str:
    """Return the text of a file; every line ends with a newline alone, and a byte order mark at its begin is left out.

    opened: the file, where it is open already; then `path` is only what findings call it. Raises ChimeraError E001 where
    it cannot be read.
    """
    try:
        if opened is None and (size := _size(path)) > limits.FILE:
            raise refuse("E001", f"{named(path)} has {size} bytes; at most {limits.FILE} are read")
        with open(path, "rb") if opened is None else nullcontext(opened) as file:
            data = file.read(limits.FILE + 1)
        if len(data) > limits.FILE:  # a pipe or a device: its size is known only now
            raise refuse("E001", f"{named(path)} has more than {limits.FILE} bytes")
        text = data.decode("utf-8-sig")
        return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text
    except UnicodeDecodeError as error:
        raise refuse("E001", f"{named(path)} is not text: byte {error.start} is not UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise refuse("E001", f"{named(path)} cannot be read: {reason(error).lower()}") from None


def named(path: str | os.PathLike[str]) -> str:
    """Return a path as findings name it: of a long one, its ends."""
    name = os.fspath(path)
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME // 2]}...{name[-MAX_NAME // 2 :]}"


def reason(error: Exception) -> str:
    """Return what the operating system says is wrong."""
    return (error.strerror if isinstance(error, OSError) else "") or str(error)


def _size(path: str | os.PathLike[str]) -> int:
    found = os.stat(path)
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


def say(text: str) -> None:
    """Write a text to stdout, all of it. Raises ChimeraError E003 where that is not possible.

    If stdout has no sign for a character, all is written as UTF-8, as in files.
    """
    if sys.stdout is None:  # the shell closed it
        raise refuse("E003", "the output cannot be written: stdout is closed")
    try:
        try:
            sys.stdout.write(text)
        except UnicodeEncodeError:
            sys.stdout.buffer.write(text.encode("utf-8", "backslashreplace"))
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        hang_up(sys.stdout)
        raise refuse("E003", f"the output cannot be written: {reason(error)}") from None


def hang_up(stream: TextIO) -> None:
    """Let nothing more be written to a stream, also at the exit: whoever should have it takes no more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def write(text: str, path: str) -> None:
    """Write a text to a file. Raises ChimeraError E003 where that is not possible; a file that was there is then as it was.

    The text is written beside the file, under a name that nobody can know before, and takes its place when it is whole. A
    link stays, and leads to the new text. Owner and permissions stay. A file is written where it is if nothing can stand
    beside it or take its place: a pipe, a device, a file of several names, of another owner, in a folder that takes no
    new files.
    """
    try:
        found = _status(path)
        if found is None or not _is_stdout(found):
            data = text.encode()
            if not (_is_replaceable(path, found) and _replaced(os.path.realpath(path), data, found)):
                with open(path, "wb") as file:
                    file.write(data)
            return
    except (OSError, ValueError) as error:
        raise refuse("E003", f"{named(path)} cannot be written: {reason(error)}") from None
    say(text)  # /dev/stdout, which may be a file with text in it


def _status(path: str) -> os.stat_result | None:
    """Return what stands at the end of a path and its links, or nothing."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def _is_stdout(found: os.stat_result) -> bool:
    try:
        return sys.stdout is not None and os.path.samestat(found, os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError):  # it is no file
        return False


def _is_replaceable(path: str, found: os.stat_result | None) -> bool:
    """Return whether another file may take the place of what is there."""
    if found is None:
        return os.path.basename(path) not in ("", ".", "..")
    if not (stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and os.access(path, os.W_OK)):
        return False
    real = _status(os.path.realpath(path))  # of /dev/fd/3 there may be none
    return real is not None and os.path.samestat(found, real)


_NOTHING_BESIDE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG)


def _replaced(target: str, data: bytes, found: os.stat_result | None) -> bool:
    """Write a file beside the target and let it take its place; return whether that was possible."""
    beside = os.path.join(os.path.dirname(target), f".{secrets.token_hex(8)}")
    made = False
    try:
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            made = True
            if found is not None:
                if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), found.st_uid, found.st_gid)
                os.fchmod(file.fileno(), stat.S_IMODE(found.st_mode))
            file.write(data)
        os.replace(beside, target)
    except BaseException as error:
        if made:
            with suppress(OSError):
                os.unlink(beside)
        if isinstance(error, OSError) and error.errno in _NOTHING_BESIDE:
            return False
        raise
    return True
