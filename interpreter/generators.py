"""The states of torch's random generators. A forward that is run again restores them, so it draws the same numbers.

Checkpoints save these states too, and in the loopback each rank has its own. Only layers that draw from these generators need
all this, such as nn.Dropout. The dropout of this project seeds generators of its own (runtime/draws.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

States = Mapping[str, Tensor]  # the states of generators, by type of device, such as cuda


class Generators:
    """Torch's default generators: that of the CPU, and that of `device` if this is another device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._read_cpu = torch.default_generator.get_state
        self._read_device = None if device.type == "cpu" else partial(torch.get_device_module(device).get_rng_state, device)

    def states(self) -> States:
        """Return the current states."""
        states = {"cpu": self._read_cpu()}
        if self._read_device is not None:
            states[self._device.type] = self._read_device()
        return states

    def have_advanced(self, since: States) -> bool:
        """Return whether a number was drawn since these states were read."""
        # For the CPU, bytes are compared, because Tensor.equal takes longer.
        if since["cpu"].numpy().tobytes() != self._read_cpu().numpy().tobytes():
            return True
        return self._read_device is not None and not self._read_device().equal(since[self._device.type])

    @contextmanager
    def restored(self, states: States) -> Iterator[None]:
        """Give the generators these states inside the context, and their previous states afterwards."""
        previous = self.states()
        self.set(states)
        try:
            yield
        finally:
            self.set(previous)

    def set(self, states: States) -> None:
        """Give the generators these states."""
        torch.set_rng_state(states["cpu"])
        if self._read_device is not None:
            torch.get_device_module(self._device).set_rng_state(states[self._device.type], self._device)
