"""Ranks that are processes, on the backends of torch.distributed: what gloo and NCCL have in common.

Every channel has a backend of its own (backends.py), and so has every group of ranks that all-reduce together. All of them are
created, and used once, in one global order before the program runs. So every connection exists before it is needed, and no
later call waits until another rank sets one up. `all_reduce` and `all_gather` use a gloo backend of all ranks, and host memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.machines import PROCESSES, max_incomplete_sends
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.errors import MAX_TIMEOUT_S
from chimerac.interpreter.transport import Pending
from chimerac.interpreter.transport.backends import all_reduce, broadcast, create_backend, gloo_devices
from chimerac.interpreter.transport.gpu_waits import GpuWaits
from chimerac.interpreter.transport.progress import NUMBER, Awaited
from chimerac.interpreter.transport.rendezvous import Rendezvous, rendezvous
from chimerac.interpreter.transport.shared import SharedAllReduces, share_memory

CPU = torch.device("cpu")
# gloo counts the timeout of a collective from its launch, but a rank may begin to wait for it much later. So the backends of
# collectives have this timeout, which is never reached, and PendingOperation.wait applies that of the run.
LONGEST = timedelta(seconds=MAX_TIMEOUT_S)


class PendingOperation:
    """A transfer or a collective that was posted.

    Args:
        work: torch's handle of it.
        awaited: what its wait is for.
        then: called when it is complete; None: nothing is called.
        limit: the timeout of the wait; None if the timeout of its backend applies.
    """

    __slots__ = ("_awaited", "_limit", "_posted", "_then", "_transport", "_work")

    def __init__(
        self,
        transport: Processes,
        work: Any,
        awaited: Awaited,
        then: Callable[[], object] | None = None,
        limit: timedelta | None = None,
    ) -> None:
        self._transport, self._work, self._awaited, self._then, self._limit = transport, work, awaited, then, limit
        self._posted = transport.progress.position[NUMBER]  # the number of the instruction that posted it

    def wait(self) -> None:
        """Return when it is complete; over NCCL at once, and the GPU waits instead.

        Raises PeerLostError if a peer is gone or the wait times out.
        """
        progress, begin = self._transport.progress, perf_counter_ns()
        progress.begin_wait(self._awaited, self._posted)
        try:
            if self._transport.waits_of_gpu is not None:
                self._transport.waits_of_gpu.measure(progress.position[NUMBER], self._wait)
            else:
                self._wait()
        except RuntimeError as error:
            raise self._transport.rendezvous.lost(self._awaited, error) from error
        progress.end_wait()
        self._transport.waited_ns += perf_counter_ns() - begin
        if self._then is not None:
            self._then()

    def _wait(self) -> None:
        if self._limit is None:
            self._work.wait()
        else:
            self._work.wait(self._limit)


class Channel:
    """One end of a channel.

    Args:
        backend: of the two ranks; the sender has the number 0 in it, the receiver 1.
        awaited: what the wait for a transfer is for.
        peer: the number of the other rank in the backend.

    Attributes:
        sends: those that have not been waited for, each with its buffer.
    """

    __slots__ = ("awaited", "backend", "peer", "sends")

    def __init__(self, backend: Any, awaited: Awaited, peer: int) -> None:
        self.backend, self.awaited, self.peer = backend, awaited, peer
        self.sends: deque[tuple[PendingOperation, Tensor]] = deque()  # a buffer may not be freed before its send is complete


class Processes:
    """One rank's channels and collectives. The ranks must have joined, and create their objects of this class together.

    Args:
        backend: gloo or nccl.
        device: where messages are.
        staged: whether messages are copied through host memory, as gloo needs for those on a GPU.
        ranks: the rendezvous of these ranks; by default that of the job.
    """

    machine = PROCESSES
    rehearsal: Callable[[], AbstractContextManager[None]] | None = None
    waits_of_gpu: GpuWaits | None = None

    def __init__(self, backend: str, device: torch.device, staged: bool, ranks: Rendezvous | None = None) -> None:
        self.device, self.waited_ns, self.rendezvous = device, 0, ranks or rendezvous()
        self.rank, self.world = self.rendezvous.rank, self.rendezvous.world
        self.progress, self.named = self.rendezvous.progress, self.rendezvous.named
        self._backend, self._staged = backend, staged
        # Whether this class applies the timeout to waits for a collective. NCCL's waits do not block the process.
        self._limits_waits = backend == "gloo" and self.rendezvous.limit is not None
        self._channels: set[tuple[int, int]] = set()  # the channels of this rank, as (sender, receiver)
        self._to: dict[int, Channel] = {}  # by receiving peer
        self._from: dict[int, Channel] = {}  # by sending peer
        self._collectives: dict[tuple[int, ...], Any] = {}  # by ranks, the backend
        self._shared: dict[tuple[int, ...], SharedAllReduces] = {}  # by ranks, for groups of gloo that are on one host
        self._devices: list[Any] = []  # of gloo; all backends share them
        self._store = self.rendezvous.new_store()
        self._all_ranks = self._backend_of("gloo", "all", range(self.world))

    def connect(self, program: Program) -> None:
        """Create this program's channels and collectives; called by all ranks together, with equal programs."""
        self.progress.add(program)
        self._window = max_incomplete_sends(self.machine, program.header.window)
        sends = program.table.op == Op.SEND
        pairs = np.unique(np.stack([program.rank_of[sends], program.table.peer[sends]], axis=1), axis=0)
        channels = [(a, b) for a, b in pairs.tolist() if self.rank in (a, b) and (a, b) not in self._channels]
        collectives = sorted({c.ranks for c in program.collectives if self.rank in c.ranks} - set(self._collectives))
        # Creating a backend of gloo, or using one of NCCL for the first time, waits until all of its ranks do so. So the ranks
        # create their backends, and then use each once, in the same global order.
        for sender, receiver in channels:
            self._channels.add((sender, receiver))
            backend = self._backend_of(self._backend, "channel", (sender, receiver))
            if self.rank == sender:
                awaited = Awaited(f"the send to {self.named([receiver])}", "send", (receiver,))
                self._to[receiver] = Channel(backend, awaited, peer=1)
            else:
                awaited = Awaited(f"the receive from {self.named([sender])}", "receive", (sender,))
                self._from[sender] = Channel(backend, awaited, peer=0)
        for ranks in collectives:
            self._collectives[ranks] = self._backend_of(self._backend, "all-reduce", ranks)
            self._share(ranks)
        self._use_once(channels, collectives)
        if self._limits_waits:
            for ranks in collectives:
                self._collectives[ranks].set_timeout(LONGEST)

    def _backend_of(self, name: str, purpose: str, ranks: Sequence[int]) -> Any:
        """Create the backend of these ranks for one purpose; called by all of them together.

        Args:
            name: gloo or nccl.
        """
        store = PrefixStore(f"{purpose} {' '.join(map(str, ranks))}", self._store)
        with self.rendezvous.wait(f"connecting {self.named(ranks)}", "other", ranks):
            if name == "gloo" and not self._devices:
                self._devices = gloo_devices()
            return create_backend(name, store, ranks.index(self.rank), len(ranks), self.rendezvous.limit, self._devices)

    def _share(self, ranks: tuple[int, ...]) -> None:
        """Let a group of ranks that all-reduce over gloo share memory, if all are on one host; called by them together."""
        hosts = self.rendezvous.hosts
        if self._backend != "gloo" or (hosts and len({hosts[r] for r in ranks}) > 1):
            return
        store = PrefixStore(f"memory {' '.join(map(str, ranks))}", self._store)
        with self.rendezvous.wait(f"sharing memory with {self.named(ranks)}", "other", ranks):
            memory = share_memory(self._collectives[ranks], store, ranks.index(self.rank), len(ranks))
        if memory is not None:
            self._shared[ranks] = SharedAllReduces(memory)

    def _use_once(self, channels: Sequence[tuple[int, int]], collectives: Sequence[tuple[int, ...]]) -> None:
        """Transfer one number over each channel and all-reduce one in each group of ranks. Then all connections exist."""
        for sender, receiver in channels:
            if self.rank == sender:
                self.send(receiver, torch.zeros(1, device=self.device))
                self.flush()
            else:
                self.recv(sender, torch.zeros(1, device=self.device)).wait()
        for ranks in collectives:
            self.launch_all_reduce(ranks, torch.zeros(1, device=self.device)).wait()

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send. If the window is full, first wait for the oldest send. With window 0, post it, then wait for it."""
        channel = self._to[peer]
        queue = channel.sends
        while queue and self._window is not None and len(queue) >= self._window:
            queue.popleft()[0].wait()
        message = buffer
        if self._staged:
            message = _host_buffer(buffer)
            message.copy_(buffer)
        try:
            work = channel.backend.send([message], channel.peer, 0)
        except RuntimeError as error:
            raise self.rendezvous.lost(channel.awaited, error) from error
        queue.append((PendingOperation(self, work, channel.awaited), message))
        if self._window == 0:
            queue.popleft()[0].wait()

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        """Post a receive into `buffer`."""
        channel = self._from[peer]
        message, then = buffer, None
        if self._staged:
            message = _host_buffer(buffer)
            then = partial(buffer.copy_, message, non_blocking=True)
        try:
            work = channel.backend.recv([message], channel.peer, 0)
        except RuntimeError as error:
            raise self.rendezvous.lost(channel.awaited, error) from error
        return PendingOperation(self, work, channel.awaited, then)

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch an all-reduce (sum) of `buffer`, in place, over these ranks."""
        awaited = Awaited(f"the all-reduce over {self.named(ranks)}", "all-reduce", ranks)
        shared = self._shared.get(ranks)
        if shared is not None and shared.takes(buffer):
            return self._launch(awaited, ranks, buffer, lambda _, values: shared.launch(values))
        return self._launch(awaited, ranks, buffer, all_reduce)

    def broadcast(self, ranks: tuple[int, ...], source: int, buffer: Tensor) -> Pending:
        """Copy the buffer of rank `source` to all of these ranks; called by them together, outside the streams."""
        awaited = Awaited(f"the broadcast from {self.named([source])} to {self.named(ranks)}", "other", ranks)
        return self._launch(awaited, ranks, buffer, partial(broadcast, source=ranks.index(source)))

    def _launch(
        self, awaited: Awaited, ranks: tuple[int, ...], buffer: Tensor, collective: Callable[[Any, Tensor], Any]
    ) -> Pending:
        """Launch a collective that changes `buffer` in place."""
        values, then = buffer, None
        if self._staged:
            values = _host_buffer(buffer)
            values.copy_(buffer)
            then = partial(buffer.copy_, values, non_blocking=True)
        try:
            work = collective(self._collectives[ranks], values)
        except RuntimeError as error:
            raise self.rendezvous.lost(awaited, error) from error
        return PendingOperation(self, work, awaited, then, self.rendezvous.limit if self._limits_waits else None)

    def flush(self) -> None:
        """Wait for every send."""
        for channel in self._to.values():
            while channel.sends:
                channel.sends.popleft()[0].wait()

    def forget(self, buffer: Tensor) -> None:
        """Do nothing: only the loopback overwrites a receive buffer that is not read any more."""

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum `buffer`, in place, over all ranks; called by all ranks together, outside the streams."""
        total = buffer.to(CPU)
        self._wait_for_sum(total, "an all-reduce over all ranks")
        if total is not buffer:
            buffer.copy_(total)

    def _wait_for_sum(self, buffer: Tensor, what: str) -> None:
        """Sum a tensor in host memory, in place, over all ranks, and wait for it.

        Args:
            what: the wait, as text.
        """
        with self.rendezvous.wait(what):
            all_reduce(self._all_ranks, buffer).wait()

    def all_gather(self, text: str) -> Sequence[str]:
        """Return the text of each rank; called by all ranks together, outside the streams."""
        own = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        sizes = torch.zeros(self.world, dtype=torch.int64)
        sizes[self.rank] = len(own)
        self._wait_for_sum(sizes, "an all-gather over all ranks")
        everything = torch.zeros(int(sizes.sum()), dtype=torch.uint8)
        texts = torch.split(everything, sizes.tolist())
        texts[self.rank].numpy()[:] = own
        if len(everything):
            # Each rank adds zeros to the texts of the others, so the sum is all texts one after the other.
            self._wait_for_sum(everything, "an all-gather over all ranks")
        return [bytes(part.numpy()).decode("utf-8", "surrogatepass") for part in texts]

    def close(self) -> None:
        """Close all connections. No rank may still wait for another one."""
        for shared in self._shared.values():
            shared.close()
        if self._backend == "nccl":
            channels = (*self._to.values(), *self._from.values())
            for backend in (*(channel.backend for channel in channels), *self._collectives.values()):
                backend.shutdown()
        # A backend of gloo closes its connections when it is freed.
        for connections in (self._to, self._from, self._collectives, self._shared):
            connections.clear()
        self._all_ranks = None
        self._devices.clear()


def _host_buffer(like: Tensor) -> Tensor:
    """Return host memory of the shape and dtype of `like`; pinned if `like` is on a GPU, because copies are then faster.

    torch uses pinned memory again that has been freed, but not before the copies to a GPU that read it are complete.
    """
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
