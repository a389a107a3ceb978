"""Ranks that are processes, over NCCL, with one GPU each.

NCCL has no tags. Within a communicator, torch puts all messages of a pair of ranks on one CUDA stream, so a receive that is
posted early would block a later send. Therefore every channel (one direction of a pair) has a communicator of its own, and so
has every group of ranks that all-reduce together. The first call on a communicator creates it, and blocks until its other ranks
make this call too. So all communicators are used once before the first iteration, in one global order (processes.py).

`wait` on a transfer blocks the GPU's current stream and not the process. So under NCCL a SEND whose window is full returns
at once, and the GPU work that is queued after it waits. The waiting times that the process measures do not include this wait.

A receive is a kernel, which occupies the GPU from its post until the message has arrived. The first launch of some kernels
waits until the GPU is idle: CUDA loads them then, and libraries such as cuBLAS allocate memory. So a rank that has posted a
receive and then computes something for the first time could wait for ever: for the receive, which waits for a rank that waits
for this one. Therefore a rank runs its stream once without messages before the first iteration (`Executor.rehearse`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.transport import Pending
from chimerac.interpreter.transport.gloo import join as join_gloo
from chimerac.interpreter.transport.processes import Processes
from chimerac.interpreter.transport.rendezvous import Rendezvous

MIN_CONNECTIONS, MAX_CONNECTIONS = 8, 32  # CUDA's default, and its limit


def connections(program: Program, rank: int) -> int:
    """Return how many hardware queues the CUDA streams of a rank need, from MIN_CONNECTIONS to MAX_CONNECTIONS.

    Each channel and each group of ranks that all-reduce together have a CUDA stream of their own. The computation has two: the
    second one is for overlapped pairs. If two streams share a queue of the GPU, the work of one waits for that of the other.
    CUDA reads the number from CUDA_DEVICE_MAX_CONNECTIONS when a process first uses a GPU.
    """
    first, end = program.offsets[rank : rank + 2].tolist()
    op, peer = program.table.op[first:end], program.table.peer[first:end]
    channels = sum(len(np.unique(peer[op == kind])) for kind in (Op.SEND, Op.RECV))
    groups = {c.ranks for c in program.collectives if rank in c.ranks}
    return max(MIN_CONNECTIONS, min(2 + channels + len(groups), MAX_CONNECTIONS))


def join(timeout_s: float, local_rank: int) -> None:
    """Connect to the other ranks that torchrun started, and select this rank's GPU.

    Args:
        timeout_s: seconds after which a wait for them is an error.
        local_rank: the number of this rank on its host.

    Raises ChimeraError E815 if this host has no GPU for this rank or torch is built without NCCL, and the errors of
    `initialize` (rendezvous.py).
    """
    if not dist.is_nccl_available():
        raise refuse(
            "E815", "this torch is built without NCCL", help="install a torch with NCCL, or choose another --transport"
        )
    if local_rank >= torch.cuda.device_count():
        has = f"has only {count_text(torch.cuda.device_count(), 'GPU')}"
        message = f"rank {local_rank} of this host needs a GPU of its own, and the host {has}; ranks count from 0"
        raise refuse("E815", message, help="start at most as many ranks as there are GPUs, or choose --transport staged")
    torch.cuda.set_device(local_rank)
    join_gloo(timeout_s)


class Nccl(Processes):
    """One rank's channels and collectives. The ranks must have joined, each with its GPU as the current device.

    Args:
        ranks: the rendezvous of these ranks; by default that of the job.
    """

    def __init__(self, ranks: Rendezvous | None = None) -> None:
        super().__init__("nccl", torch.device("cuda", torch.cuda.current_device()), staged=False, ranks=ranks)
        self._rehearses, self.rehearsal = False, self._rehearsal

    @contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """Return a context in which nothing is sent or received. It ends when the GPU has done all that it was given in it."""
        self._rehearses = True
        try:
            yield
            torch.cuda.synchronize()
        finally:
            self._rehearses = False

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send, as in `Processes`."""
        if not self._rehearses:
            super().send(peer, buffer)

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        """Post a receive into `buffer`."""
        if not self._rehearses:
            return super().recv(peer, buffer)
        buffer.zero_()
        return Arrived()

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch an all-reduce (sum) of `buffer`, in place, over these ranks."""
        return Arrived() if self._rehearses else super().launch_all_reduce(ranks, buffer)


class Arrived:
    """A transfer or a collective of a rehearsal."""

    def wait(self) -> None:
        """Return at once."""
