"""Messages between the server and its workers: a length of four bytes, then as many bytes."""

from __future__ import annotations

import os

CANCEL = b""  # the message that stops the work on the last request


def send(descriptor: int, message: bytes) -> None:
    """Write a message to a file descriptor. Raises OSError if its reader is gone."""
    rest = memoryview(len(message).to_bytes(4, "big") + message)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def receive(descriptor: int) -> bytes | None:
    """Return the next message of a file descriptor; None if it ends before the message is complete."""
    head = _read(descriptor, 4)
    return None if head is None else _read(descriptor, int.from_bytes(head, "big"))


def _read(descriptor: int, size: int) -> bytes | None:
    """Return the next `size` bytes of a file descriptor; None if there are fewer."""
    parts, missing = [], size
    while missing:
        part = os.read(descriptor, min(missing, 2**20))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
