"""The state of torch's random generators, so that a forward that is run again draws the same numbers.

Layers of this project draw their numbers from runtime/draws.py and need none of this. It is for the layers of users, such as
nn.Dropout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class Generators:
    """The states of torch's default generators: of the CPU, and of the device where that is another one."""

    def __init__(self, device: torch.device, states: tuple[Tensor, ...]) -> None:
        self._device, self._states = device, states

    @classmethod
    def of(cls, device: torch.device) -> Generators:
        """Return the states that the generators have now."""
        cpu = torch.get_rng_state()
        return cls(device, (cpu,) if device.type == "cpu" else (cpu, torch.get_device_module(device).get_rng_state(device)))

    def have_advanced(self) -> bool:
        """Return whether a number was drawn since."""
        now = Generators.of(self._device)._states
        return not all(a.equal(b) for a, b in zip(self._states, now, strict=True))

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Draw from these states inside, and afterwards go on from where the generators were."""
        now = Generators.of(self._device)
        self._set()
        try:
            yield
        finally:
            now._set()

    def _set(self) -> None:
        torch.set_rng_state(self._states[0])
        if len(self._states) > 1:
            torch.get_device_module(self._device).set_rng_state(self._states[1], self._device)
