"""How long the GPU of a rank waits for other ranks.

Over NCCL a wait blocks the GPU and not the process. Over gloo it blocks the process, but the GPU may still have work meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate

import torch


class GpuWaits:
    """The waits of one run of a stream, each between two events on the current CUDA stream of a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._waits: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []  # with the number of the instruction

    def begin(self) -> None:
        """Forget all waits, at the start of a run."""
        self._waits.clear()

    def measure(self, number: int, wait: Callable[[], object]) -> None:
        """Let the GPU wait.

        Args:
            number: of the instruction that waits; after the last one, the end of the iteration.
            wait: makes the current stream wait, or the process.
        """
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        stream = torch.cuda.current_stream(self._device)
        begin.record(stream)
        wait()
        end.record(stream)
        self._waits.append((number, begin, end))

    def totals_ns(self, readings: int) -> list[int]:
        """Return how long the GPU had waited in all at each reading of the clock, in nanoseconds; waits for the GPU.

        Args:
            readings: how many there are: one before the first instruction, one after each, and one at the end.
        """
        waited: dict[int, int] = defaultdict(int)
        for number, begin, end in self._waits:
            end.synchronize()
            waited[number + 1] += round(begin.elapsed_time(end) * 1e6)
        return list(accumulate(waited[reading] for reading in range(readings)))
