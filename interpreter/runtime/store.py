"""The store: a rank's values by what they are, those that are still on their way included.

A place for every value is looked up once, when a stream is bound; what runs then holds the place itself. A receive
buffer is made by its RECV, and gone when the last of its message's values is given up (docs/semantics.md, "Buffers").
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from chimerac.interpreter.runtime.model import Values
from chimerac.interpreter.transport import Pending, Transport


class Key(NamedTuple):
    """A value is known by what it is. stage: that of the task that reads it."""

    value: str  # act or grad
    pipe: int
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.value} of pipe {self.pipe}, s{self.stage}, m{self.micro_batch}"


class Buffer:
    """Memory for one message on its way, or read where it lies. held: how many of its values have not been given up."""

    __slots__ = ("_transport", "held", "message", "pending")

    def __init__(self, message: Tensor, transport: Transport) -> None:
        self.message, self._transport = message, transport
        self.pending: Pending | None = None  # the receive that fills it, until somebody has waited for it
        self.held = 0

    def arrive(self) -> None:
        """Wait for the message, once."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None

    def give_up(self) -> None:
        """Give up one of its values."""
        self.arrive()
        self.held -= 1
        if not self.held:
            self._transport.forget(self.message)


class Slot:
    """The place of one value: empty, waiting for it, or holding it."""

    __slots__ = ("buffer", "freed_later", "key", "values")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.values: Values | None = None
        self.buffer: Buffer | None = None  # where a received value lies
        self.freed_later = False  # whether a FREE empties the place, not the last task that reads it

    def put(self, values: Values) -> None:
        """Hold a value that this rank has made."""
        if self.values is not None:
            raise KeyError(f"{self.key} is already there")
        self.values = values

    def expect(self, values: Values, buffer: Buffer) -> None:
        """Hold a value that is coming into `buffer`."""
        self.put(values)
        self.buffer = buffer
        buffer.held += 1

    def read(self) -> Values:
        """Return the value, after waiting for it."""
        if self.values is None:
            raise KeyError(f"{self.key} is not there: never made, not received, or given up before")
        if self.buffer is not None and self.buffer.pending is not None:
            self.buffer.arrive()
        return self.values

    def give_up(self) -> None:
        """Take note that the last task has read the value."""
        if not self.freed_later:
            self.free()

    def free(self) -> None:
        """Empty the place."""
        self.values = None
        buffer, self.buffer = self.buffer, None
        if buffer is not None:
            buffer.give_up()

    def take(self) -> Values:
        """Return a value that this rank has made, and empty the place."""
        values = self.read()
        self.free()
        return values


class Store:
    """All places of a rank."""

    def __init__(self) -> None:
        self._slots: dict[Key, Slot] = {}

    def slot(self, key: Key) -> Slot:
        """Return the place of a value, always the same one."""
        if key not in self._slots:
            self._slots[key] = Slot(key)
        return self._slots[key]

    def left(self) -> list[Key]:
        """Return the values that are there or on their way."""
        return [slot.key for slot in self._slots.values() if slot.values is not None]
