"""The store: the values of a rank, by (value, pipe, stage, micro-batch). Values that are being received are in it too.

Each value has a slot. Slots are looked up once, when a stream is translated to calls. A receive buffer is made by its
RECV, and freed when the last value of its message is released (docs/semantics.md, "Buffers").
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from chimerac.interpreter.runtime.model import Values
from chimerac.interpreter.transport import Pending, Transport


class Key(NamedTuple):
    """The name of a value. stage: of the task that reads it."""

    value: str  # act or grad
    pipe: int
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.value} of pipe {self.pipe}, s{self.stage}, m{self.micro_batch}"


class Buffer:
    """The memory of one received message. held: how many of its values have not been released."""

    __slots__ = ("_transport", "held", "message", "pending")

    def __init__(self, message: Tensor, transport: Transport) -> None:
        self.message, self._transport = message, transport
        self.pending: Pending | None = None  # the receive that fills it, until it has been waited for
        self.held = 0

    def arrive(self) -> None:
        """Wait for the message, unless it has already been waited for."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None

    def release(self) -> None:
        """Release one of its values; the buffer is free after the last one."""
        self.arrive()
        self.held -= 1
        if not self.held:
            self._transport.forget(self.message)


class Slot:
    """Holds one value, or a value that is being received, or nothing."""

    __slots__ = ("buffer", "freed_later", "key", "values")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.values: Values | None = None
        self.buffer: Buffer | None = None  # of a received value
        self.freed_later = False  # whether a FREE releases the value, instead of the last task that reads it

    def set(self, values: Values) -> None:
        """Hold a value that this rank has made."""
        if self.values is not None:
            raise KeyError(f"{self.key} is already there")
        self.values = values

    def expect(self, values: Values, buffer: Buffer) -> None:
        """Hold a value that is being received into `buffer`."""
        self.set(values)
        self.buffer = buffer
        buffer.held += 1

    def read(self) -> Values:
        """Return the value, after waiting for it."""
        if self.values is None:
            raise KeyError(f"{self.key} is not there: never made, not received, or released before")
        if self.buffer is not None and self.buffer.pending is not None:
            self.buffer.arrive()
        return self.values

    def release(self) -> None:
        """Free the value, after the last task that reads it, unless a FREE does."""
        if not self.freed_later:
            self.free()

    def free(self) -> None:
        """Empty the slot."""
        self.values = None
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            buffer.release()

    def take(self) -> Values:
        """Return a value that this rank has made, and empty the slot."""
        values = self.read()
        self.free()
        return values


class Store:
    """All slots of a rank."""

    def __init__(self) -> None:
        self._slots: dict[Key, Slot] = {}

    def slot(self, key: Key) -> Slot:
        """Return the slot of a value: the same one for equal keys."""
        if key not in self._slots:
            self._slots[key] = Slot(key)
        return self._slots[key]

    def left(self) -> list[Key]:
        """Return the keys of the values that are held or being received."""
        return [slot.key for slot in self._slots.values() if slot.values is not None]
