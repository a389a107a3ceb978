"""Messages between the server and its workers: a length of four bytes, then as many bytes."""

from __future__ import annotations

import os

CANCEL = b""  # the message that stops the compilation of the last request


def send(file: int, message: bytes) -> None:
    """Write a message to a pipe. Raises OSError if its reader is gone."""
    rest = memoryview(len(message).to_bytes(4, "big") + message)
    while rest:
        rest = rest[os.write(file, rest) :]


def receive(file: int) -> bytes | None:
    """Return the next message of a pipe, None at its end."""
    head = _exactly(file, 4)
    return None if head is None else _exactly(file, int.from_bytes(head, "big"))


def _exactly(file: int, size: int) -> bytes | None:
    parts, missing = [], size
    while missing:
        part = os.read(file, min(missing, 2**20))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
