"""The store: a rank's values by what they are, those that are still on their way included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from interpreter.messages import Specs, unpack
from interpreter.transport import Pending

Values = tuple[Tensor, ...]


class Key(NamedTuple):
    """A value is known by what it is. stage: that of the task that reads it."""

    value: str  # act or grad
    pipe: int
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.value} of pipe {self.pipe}, s{self.stage}, m{self.micro_batch}"


class Store:
    """Values by key. Reading one that is on its way waits for it."""

    def __init__(self) -> None:
        self._here: dict[Key, Values] = {}
        self._coming: dict[Key, tuple[Pending, Tensor, Sequence[Key], Specs]] = {}

    def put(self, key: Key, values: Values) -> None:
        """Add a value that this rank has made."""
        if key in self._here or key in self._coming:
            raise KeyError(f"{key} is already there")
        self._here[key] = values

    def expect(self, keys: Sequence[Key], pending: Pending, buffer: Tensor, specs: Specs) -> None:
        """Add values that one message brings. specs: the tensors of each of them."""
        for key in keys:
            if key in self._here or key in self._coming:
                raise KeyError(f"{key} is already there")
            self._coming[key] = (pending, buffer, keys, specs)

    def read(self, key: Key) -> Values:
        """Return a value and keep it."""
        if key in self._coming:
            self._arrive(key)
        if key not in self._here:
            raise KeyError(f"{key} is not there: never made, not received, or given up before")
        return self._here[key]

    def take(self, key: Key) -> Values:
        """Return a value and give it up."""
        values = self.read(key)
        del self._here[key]
        return values

    def drop(self, key: Key) -> None:
        """Give up a value if it is still there."""
        if key in self._coming:
            self._arrive(key)
        self._here.pop(key, None)

    def left(self) -> list[Key]:
        """Return the values that are there or on their way."""
        return [*self._here, *self._coming]

    def _arrive(self, key: Key) -> None:
        pending, buffer, keys, specs = self._coming[key]
        pending.wait()
        tensors = unpack(buffer, specs * len(keys))
        for n, k in enumerate(keys):
            del self._coming[k]
            self._here[k] = tensors[n * len(specs) : (n + 1) * len(specs)]
