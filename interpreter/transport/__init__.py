"""Transports carry messages between ranks: one protocol, one file per transport.

    gloo.py       ranks are processes; messages are on the CPU, or on GPUs and are copied through pinned host memory; large
                  all-reduces of ranks of one host go through memory that they share (shared.py)
    nccl.py       ranks are processes with a GPU each; a wait blocks the work that is queued on the GPU, not the process
    loopback.py   all ranks in one process, one running at a time, on any machine of docs/semantics.md

A transport deals with ranks and buffers, not with stages or micro-batches. Channels are directed, and first in, first
out. No message needs a tag (docs/semantics.md, "Channels"). Every method that waits for other ranks raises PeerLostError if
one of them is gone or the wait times out. The loopback has no timeout: it raises StuckError if no rank can continue
(interpreter/errors.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor

from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.transport.gpu_waits import GpuWaits
from chimerac.interpreter.transport.progress import Progress


class Pending(Protocol):
    """A transfer or a collective that has been posted."""

    def wait(self) -> object:
        """Return when it is complete; over NCCL at once, and the GPU waits instead."""


class Transport(Protocol):
    """How one rank communicates with the others.

    Attributes:
        machine: the machine of docs/semantics.md on which the ranks run.
        device: where the tensors of messages are.
        waited_ns: for how many nanoseconds this rank has waited for other ranks in its stream, in total since the start; waits
            outside the stream may be counted too.
        progress: what this rank is doing; the executor writes there which instruction runs.
        rehearsal: makes a context in which nothing is sent, and a receive fills its buffer with zeros at once. If it is not
            None, a rank runs its stream once in this context before it posts the first receive.
        waits_of_gpu: during a run on a GPU, where the transport measures its waits; the executor sets it. Otherwise None.
    """

    rank: int
    world: int
    machine: Machine
    device: torch.device
    waited_ns: int
    progress: Progress
    rehearsal: Callable[[], AbstractContextManager[None]] | None
    waits_of_gpu: GpuWaits | None

    def named(self, ranks: Sequence[int]) -> str:
        """Return ranks as text for a message: `rank 1`, `ranks 0, 2`.

        Ranks that are processes are named with their hosts if there are several hosts, and with their global ranks if these
        have other numbers.
        """

    def connect(self, program: Program) -> None:
        """Create this program's channels and collectives; called by all ranks together, with equal programs.

        A second call, for another program, adds those that do not exist yet.
        """

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send. If the window is full, first wait for the oldest send of the channel.

        With window 0, post the send at once, then wait for it. `buffer`, or its copy in host memory, is kept until this send
        has been waited for: by a later send, by the flush, or with window 0 by this call (docs/semantics.md, "Buffers").
        """

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        """Post a receive into `buffer`."""

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch an all-reduce (sum) of `buffer`, in place, over these ranks."""

    def broadcast(self, ranks: tuple[int, ...], source: int, buffer: Tensor) -> Pending:
        """Launch a broadcast of the buffer of rank `source` to all of these ranks, bit for bit.

        Called by these ranks together, outside the streams.

        Args:
            ranks: those of a collective of a connected program.
        """

    def flush(self) -> None:
        """Wait for every send."""

    def forget(self, buffer: Tensor) -> None:
        """Tell the transport that this receive buffer is not read any more."""

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum `buffer`, in place, over all ranks; called by all ranks together, outside the streams."""

    def all_gather(self, text: str) -> Sequence[str]:
        """Return the text of each rank; called by all ranks together, outside the streams."""


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as text for a message: `rank 1`, `ranks 0, 2`. Of more than 16 ranks it names the first 16."""
    shown = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
