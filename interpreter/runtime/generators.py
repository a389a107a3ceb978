"""The state of torch's random generators, so that a forward that is run again draws the same numbers.

Layers of this project draw their numbers from runtime/draws.py and need none of this. It is for the layers of users, such as
nn.Dropout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class Generators:
    """The states of torch's default generators: of the CPU, and of the device where that is another one."""

    def __init__(self, device: torch.device, states: Mapping[str, Tensor]) -> None:
        self._device, self.states = device, states

    @classmethod
    def of(cls, device: torch.device) -> Generators:
        """Return the states that the generators have now, by type of device."""
        states = {"cpu": torch.get_rng_state()}
        if device.type != "cpu":
            states[device.type] = torch.get_device_module(device).get_rng_state(device)
        return cls(device, states)

    def have_advanced(self) -> bool:
        """Return whether a number was drawn since."""
        now = Generators.of(self._device).states
        return not all(state.equal(now[kind]) for kind, state in self.states.items())

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw from these states inside, and afterwards go on from where the generators were."""
        now = Generators.of(self._device)
        self.set()
        try:
            yield
        finally:
            now.set()

    def set(self) -> None:
        """Draw from these states from now on."""
        torch.set_rng_state(self.states["cpu"])
        if self._device.type != "cpu":
            torch.get_device_module(self._device).set_rng_state(self.states[self._device.type], self._device)
