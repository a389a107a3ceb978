"""CUDA streams of the loopback: each rank, each channel and each group of ranks that all-reduce together has one, as over NCCL.

The loopback runs one rank at a time, but a GPU runs the work of several streams at the same time. So a transfer or a collective
waits on the GPU for what its members had started when they posted it. What a member starts after its wait runs on the GPU after
the transfer or the collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch


class CudaOrder:
    """When the GPU executes one transfer or one collective.

    Args:
        stream: of its channel, or of its group of ranks.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._posts: list[torch.cuda.Event] = []
        self._end: torch.cuda.Event | None = None

    def post(self) -> None:
        """Let the operation wait for all that the calling rank has started."""
        self._posts.append(torch.cuda.current_stream(self._stream.device).record_event())

    def execute(self, action: Callable[[], None]) -> None:
        """Start the operation."""
        with torch.cuda.stream(self._stream):
            for event in self._posts:
                self._stream.wait_event(event)
            action()
            self._end = self._stream.record_event()

    def wait(self) -> None:
        """Let all that the calling rank starts from now on wait for the operation."""
        assert self._end is not None, "the operation is complete"
        torch.cuda.current_stream(self._stream.device).wait_event(self._end)


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    """Return a new CUDA stream; None for a device that is no CUDA device."""
    return torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]


def order_on(stream: torch.cuda.Stream | None) -> CudaOrder | None:
    """Return the order of a new operation on this stream; None without a stream."""
    return None if stream is None else CudaOrder(stream)


@contextmanager
def running_on(stream: torch.cuda.Stream | None, after: torch.cuda.Stream | None) -> Iterator[None]:
    """Run the context on a CUDA stream; None: on no other than before. It ends when the stream has done all of it.

    Args:
        after: the stream whose work is done first.
    """
    if stream is None or after is None:
        yield
        return
    stream.wait_stream(after)
    with torch.cuda.stream(stream):
        yield
    stream.synchronize()


def keep(tensor: torch.Tensor) -> None:
    """Keep the memory of a freed tensor until the current stream has done all that it was given, if the tensor is on a GPU."""
    if tensor.is_cuda:
        tensor.record_stream(torch.cuda.current_stream(tensor.device))
