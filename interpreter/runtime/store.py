"""The store: the values of a rank, by (value, pipe, stage, micro-batch). Values that are being received are in it too.

Each value has a slot. Slots are looked up once, when a stream is bound to calls. A receive buffer is made by its RECV, and
freed when the last value of its message is released (docs/semantics.md, "Buffers").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from chimerac.interpreter.runtime.messages import Layout
from chimerac.interpreter.runtime.model import Values
from chimerac.interpreter.transport import Pending, Transport


class Key(NamedTuple):
    """The name of a value.

    Attributes:
        stage: of the task that reads it.
    """

    value: str  # act or grad
    pipe: int
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.value} of pipe {self.pipe}, s{self.stage}, m{self.micro_batch}"


class Slot:
    """Holds one value, or a value that is being received, or nothing.

    Attributes:
        message: the RECV that fills the slot; None for a value that this rank computes.
        waits_for_free: whether a FREE empties the slot, instead of the last task that reads the value.
    """

    __slots__ = ("key", "message", "values", "waits_for_free")

    def __init__(self, key: Key) -> None:
        self.key = key
        self.values: Values | None = None
        self.message: Message | None = None
        self.waits_for_free = False

    def set(self, values: Values) -> None:
        """Hold a value. Raises KeyError if the slot holds one already."""
        if self.values is not None:
            raise KeyError(f"{self.key} is already there")
        self.values = values

    def read(self) -> Values:
        """Return the value, after waiting for its message. Raises KeyError if the slot is empty."""
        values = self.values
        if values is None:
            raise KeyError(f"{self.key} is not there: never made, not received, or released before")
        message = self.message
        if message is not None and message.pending is not None:
            message.arrive()
        return values

    def release(self) -> None:
        """Free the value, unless a FREE does that; called when nothing reads the slot any more."""
        if not self.waits_for_free:
            self.free()

    def free(self) -> None:
        """Empty the slot, if it holds a value."""
        if self.values is not None:
            self.values = None
            if self.message is not None:
                self.message.release()

    def pop(self) -> Values:
        """Return the value and empty the slot, unless a FREE empties it. Raises KeyError as `read`.

        The caller then owns the tensors: nothing else writes to their memory. Received tensors are copied if others share their
        buffer, or if a FREE empties the slot.
        """
        values, message = self.read(), self.message
        if message is None or (message.is_single_tensor and not self.waits_for_free):
            self.values = None
            if message is not None:
                message.buffer = None
            return values
        values = tuple([t.clone() for t in values])
        self.release()
        return values


class Message:
    """A RECV and its receive buffer, which exists from the RECV until the last value of the message is released or popped.

    Args:
        slots: of the values of the message.

    Attributes:
        is_single_tensor: whether the message is one tensor. The buffer is then that tensor, and `Slot.pop` returns it without a
            copy, unless a FREE empties the slot.
        pending: the receive, until it was waited for.
    """

    __slots__ = (
        "_layout",
        "_peer",
        "_slots",
        "_tensors_per_value",
        "_transport",
        "_unreleased",
        "buffer",
        "is_single_tensor",
        "pending",
    )

    def __init__(self, transport: Transport, peer: int, slots: Sequence[Slot], layout: Layout) -> None:
        self._transport, self._peer, self._slots, self._layout = transport, peer, tuple(slots), layout
        self._tensors_per_value = len(layout.shapes_and_dtypes) // len(self._slots)
        self.is_single_tensor = layout.is_single_tensor
        self._unreleased = 0  # how many of its values have not been released
        self.buffer: Tensor | None = None
        self.pending: Pending | None = None
        for slot in self._slots:
            slot.message = self

    def receive(self) -> None:
        """Post the receive into a new buffer."""
        self.buffer = buffer = self._layout.empty()
        self.pending = self._transport.recv(self._peer, buffer)
        if self.is_single_tensor:
            self._slots[0].set((buffer,))
        else:
            tensors, count = self._layout.unpack(buffer), self._tensors_per_value
            for n, slot in enumerate(self._slots):
                slot.set(tensors[n * count : (n + 1) * count])
        self._unreleased = len(self._slots)

    def arrive(self) -> None:
        """Wait for the message, unless it has already been waited for."""
        pending = self.pending
        if pending is not None:
            pending.wait()
            self.pending = None

    def release(self) -> None:
        """Release one of the values, after waiting for the message. With the last value, the buffer is freed."""
        self.arrive()
        self._unreleased -= 1
        if not self._unreleased:
            assert self.buffer is not None
            self._transport.forget(self.buffer)
            self.buffer = None


class Store:
    """All slots of a rank."""

    def __init__(self) -> None:
        self._slots: dict[Key, Slot] = {}

    def slot(self, key: Key) -> Slot:
        """Return the slot of a value: the same one for equal keys."""
        if key not in self._slots:
            self._slots[key] = Slot(key)
        return self._slots[key]

    def held_keys(self) -> list[Key]:
        """Return the keys of the values that are held or being received."""
        return [slot.key for slot in self._slots.values() if slot.values is not None]
