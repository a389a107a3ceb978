"""The store: a rank's values by what they are, those that are still on their way included.

A place for every value is looked up once, when a stream is bound; what runs then holds the place itself. Receive
buffers come from a pool and go back to it when the last of a message's values is given up (docs/semantics.md,
"Buffers"); the tensors that lie in a buffer are worked out once per buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from interpreter.messages import Layout, Specs, Values
from interpreter.transport import Pending, Transport


class Key(NamedTuple):
    """A value is known by what it is. stage: that of the task that reads it."""

    value: str  # act or grad
    pipe: int
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.value} of pipe {self.pipe}, s{self.stage}, m{self.micro_batch}"


class Buffer:
    """Memory for one message. tensors: those of each of its values, which lie in `message`."""

    __slots__ = ("held", "message", "pending", "tensors")

    def __init__(self, message: Tensor, tensors: Sequence[Values]) -> None:
        self.message, self.tensors = message, tensors
        self.pending: Pending | None = None  # the receive that fills it, until somebody has waited for it
        self.held = 0  # values that have not been given up

    def arrive(self) -> None:
        """Wait for the message, once."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None


class Pool:
    """A rank's receive buffers for messages of one layout, of `count` values each."""

    def __init__(self, layout: Layout, count: int, transport: Transport) -> None:
        self.layout, self.count, self.transport = layout, count, transport
        self.free: list[Buffer] = []
        self.made = 0

    def take(self) -> Buffer:
        """Return a buffer that nobody reads."""
        if self.free:
            return self.free.pop()
        self.made += 1
        message = self.layout.empty(self.transport.device)
        tensors = self.layout.unpack(message)
        each = len(tensors) // self.count
        return Buffer(message, [tensors[n * each : (n + 1) * each] for n in range(self.count)])

    def give_back(self, buffer: Buffer) -> None:
        """Take back a buffer whose last value has been given up."""
        self.transport.forget(buffer.message)
        self.free.append(buffer)


class Slot:
    """The place of one value: empty, waiting for it, or holding it."""

    __slots__ = ("buffer", "key", "pool", "values")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.values: Values | None = None
        self.buffer: Buffer | None = None  # where a received value lies
        self.pool: Pool | None = None

    def put(self, values: Values) -> None:
        """Hold a value that this rank has made."""
        if self.values is not None:
            raise KeyError(f"{self.key} is already there")
        self.values = values

    def expect(self, values: Values, buffer: Buffer, pool: Pool) -> None:
        """Hold a value that is coming into `buffer`."""
        self.put(values)
        self.buffer, self.pool = buffer, pool
        buffer.held += 1

    def read(self) -> Values:
        """Return the value, after waiting for it."""
        if self.values is None:
            raise KeyError(f"{self.key} is not there: never made, not received, or given up before")
        if self.buffer is not None and self.buffer.pending is not None:
            self.buffer.arrive()
        return self.values

    def give_up(self) -> None:
        """Empty the place; a buffer that nobody else reads goes back to its pool."""
        self.values = None
        buffer, pool, self.buffer, self.pool = self.buffer, self.pool, None, None
        if buffer is not None and pool is not None:
            buffer.arrive()
            buffer.held -= 1
            if not buffer.held:
                pool.give_back(buffer)

    def take(self) -> Values:
        """Return a value that this rank has made, and empty the place."""
        values = self.read()
        self.give_up()
        return values


class Store:
    """All places of a rank, and its pools of receive buffers."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._slots: dict[Key, Slot] = {}
        self._pools: dict[tuple[Specs, int], Pool] = {}

    def slot(self, key: Key) -> Slot:
        """Return the place of a value, always the same one."""
        if key not in self._slots:
            self._slots[key] = Slot(key)
        return self._slots[key]

    def pool(self, specs: Specs, count: int) -> Pool:
        """Return the pool for messages of `count` values. specs: the tensors of each of them."""
        if (specs, count) not in self._pools:
            self._pools[specs, count] = Pool(Layout(specs * count), count, self._transport)
        return self._pools[specs, count]

    def left(self) -> list[Key]:
        """Return the values that are there or on their way."""
        return [slot.key for slot in self._slots.values() if slot.values is not None]

    @property
    def buffer_bytes(self) -> int:
        """Return the bytes of all receive buffers made so far."""
        return sum(pool.made * pool.layout.bytes for pool in self._pools.values())
