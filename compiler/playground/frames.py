"""Messages between the server and its workers: a length of four bytes, then as many bytes."""

from __future__ import annotations

import os

CANCEL = b""  # the message that stops the compilation of the last request


def send(pipe: int, message: bytes) -> None:
    """Write a message to a pipe, given by its descriptor. Raises OSError if its reader is gone."""
    rest = memoryview(len(message).to_bytes(4, "big") + message)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def receive(pipe: int) -> bytes | None:
    """Return the next message of a pipe, given by its descriptor; None at its end."""
    head = _read(pipe, 4)
    return None if head is None else _read(pipe, int.from_bytes(head, "big"))


def _read(pipe: int, size: int) -> bytes | None:
    """Return the next `size` bytes of a pipe; None if it ends before."""
    parts, missing = [], size
    while missing:
        part = os.read(pipe, min(missing, 2**20))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
