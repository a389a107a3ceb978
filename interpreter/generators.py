"""The states of torch's random generators. A forward that is run again restores them, so it draws the same numbers.

Checkpoints save these states too, and in the loopback each rank has its own. Only layers that draw from these generators need
all this, such as nn.Dropout. The dropout of this project seeds generators of its own (runtime/draws.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class Generators:
    """The states of torch's default generators: that of the CPU, and that of `device` if this is another device.

    states: by type of device, such as cuda.
    """

    def __init__(self, device: torch.device, states: Mapping[str, Tensor]) -> None:
        self._device, self.states = device, states

    @classmethod
    def of(cls, device: torch.device) -> Generators:
        """Return the current states."""
        states = {"cpu": torch.get_rng_state()}
        if device.type != "cpu":
            states[device.type] = torch.get_device_module(device).get_rng_state(device)
        return cls(device, states)

    def have_advanced(self) -> bool:
        """Return whether a number was drawn since these states were read."""
        current = Generators.of(self._device).states
        return not all(state.equal(current[kind]) for kind, state in self.states.items())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Give the generators these states inside the context, and their previous states afterwards."""
        previous = Generators.of(self._device)
        self.set()
        try:
            yield
        finally:
            previous.set()

    def set(self) -> None:
        """Give the generators these states."""
        torch.set_rng_state(self.states["cpu"])
        if self._device.type != "cpu":
            torch.get_device_module(self._device).set_rng_state(self.states[self._device.type], self._device)
