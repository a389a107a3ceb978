"""Ranks that are processes, on the backends of torch.distributed: what gloo and NCCL have in common.

Every channel and every collective has connections of its own (backends.py). All of them are made, and used once, in one
global order before the first iteration. So every connection exists before it is needed, and no later call waits for another
rank to set one up. all_reduce and all_gather have connections of all ranks over gloo, and use host memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.machines import PROCESSES, max_incomplete_sends
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.transport import Pending
from chimerac.interpreter.transport.backends import broadcast, connected, summed
from chimerac.interpreter.transport.progress import NUMBER, Awaited
from chimerac.interpreter.transport.rendezvous import Rendezvous, rendezvous

HOST = torch.device("cpu")
# gloo counts the timeout of an all-reduce from its launch, but a rank may wait for it much later. So the timeout of its
# connections is a year, which is never reached, and PendingOperation.wait applies the real one.
NEVER = timedelta(days=365)


class PendingOperation:
    """A transfer or a collective that was posted.

    then: called when it is complete; limit: the timeout of the wait; None if the timeout of its connections applies. posted:
    the number of the instruction that posted it.
    """

    __slots__ = ("_awaited", "_limit", "_owner", "_posted", "_then", "_work")

    def __init__(
        self,
        owner: Processes,
        work: Any,
        awaited: Awaited,
        then: Callable[[], object] | None = None,
        limit: timedelta | None = None,
    ) -> None:
        self._owner, self._work, self._awaited, self._then, self._limit = owner, work, awaited, then, limit
        self._posted = owner.progress.position[NUMBER]

    def wait(self) -> None:
        """Return when it is complete. Raises PeerLostError where a peer is gone or the wait times out."""
        progress, begin = self._owner.progress, perf_counter_ns()
        progress.begin_wait(self._awaited, self._posted)
        try:
            if self._limit is None:
                self._work.wait()
            else:
                self._work.wait(self._limit)
        except RuntimeError as error:
            raise self._owner.rendezvous.lost(self._awaited, error) from error
        progress.end_wait()
        self._owner.waited_ns += perf_counter_ns() - begin
        if self._then is not None:
            self._then()


class Channel:
    """One end of a channel: its connections, the peer's number among them, and the sends that have not been waited for."""

    __slots__ = ("awaited", "group", "peer", "sends")

    def __init__(self, group: Any, peer: int, awaited: Awaited) -> None:
        self.group, self.peer, self.awaited = group, peer, awaited
        # With their buffers, which may not be freed before the send is complete.
        self.sends: deque[tuple[PendingOperation, Tensor]] = deque()


class Processes:
    """One rank's channels and collectives. The ranks must have joined, and create it together.

    backend: gloo or nccl; device: where messages are; staged: whether they are copied through host memory, as gloo needs for
    messages on a GPU. ranks: by default those of the job.
    """

    machine = PROCESSES

    def __init__(self, backend: str, device: torch.device, staged: bool, ranks: Rendezvous | None = None) -> None:
        self.device, self.waited_ns, self.rendezvous = device, 0, ranks or rendezvous()
        self.rank, self.world = self.rendezvous.rank, self.rendezvous.world
        self.progress, self.named = self.rendezvous.progress, self.rendezvous.named
        self._backend, self._staged = backend, staged
        # Whether this class applies the timeout to waits for an all-reduce. NCCL's waits do not block the process.
        self._limits_waits = backend == "gloo" and self.rendezvous.limit is not None
        self._hosts: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}  # free host buffers, for reuse
        self._channels: set[tuple[int, int]] = set()
        self._to: dict[int, Channel] = {}
        self._from: dict[int, Channel] = {}
        self._collectives: dict[tuple[int, ...], Any] = {}
        self._keys = self.rendezvous.keys()
        self._everyone = self._connected("gloo", "all", range(self.world))

    def connect(self, program: Program) -> None:
        """Create this program's channels and collectives; called by all ranks together, with equal programs."""
        self.progress.add(program)
        self._window = max_incomplete_sends(self.machine, program.header.window)
        sends = program.table.op == Op.SEND
        ends = np.unique(np.stack([program.rank_of[sends], program.table.peer[sends]], axis=1), axis=0)
        channels = [(a, b) for a, b in ends.tolist() if self.rank in (a, b) and (a, b) not in self._channels]
        sets = sorted({c.ranks for c in program.collectives if self.rank in c.ranks} - set(self._collectives))
        # All ranks make their connections in one global order, because each one waits until its other ranks make it too.
        for a, b in channels:
            self._channels.add((a, b))
            group = self._connected(self._backend, "channel", (a, b))
            if self.rank == a:
                self._to[b] = Channel(group, 1, Awaited(f"the send to {self.named([b])}", "send", (b,)))
            else:
                self._from[a] = Channel(group, 0, Awaited(f"the receive from {self.named([a])}", "receive", (a,)))
        for ranks in sets:
            self._collectives[ranks] = self._connected(self._backend, "sum", ranks)
        self._use_once(channels, sets)
        if self._limits_waits:
            for ranks in sets:
                self._collectives[ranks].set_timeout(NEVER)

    def _connected(self, backend: str, what: str, ranks: Sequence[int]) -> Any:
        """Return connections of some ranks; called by all of them together. what: they are used for."""
        keys = PrefixStore(f"{what} {' '.join(map(str, ranks))}", self._keys)
        with self.rendezvous.wait(f"connecting {self.named(ranks)}", "setup", ranks):
            return connected(backend, keys, ranks.index(self.rank), len(ranks), self.rendezvous.limit)

    def _use_once(self, channels: Sequence[tuple[int, int]], sets: Sequence[tuple[int, ...]]) -> None:
        """Move one number over each channel and each collective, so that their connections are made."""
        for sender, receiver in channels:
            if self.rank == sender:
                self.send(receiver, torch.zeros(1, device=self.device))
                self.flush()
            else:
                self.recv(sender, torch.zeros(1, device=self.device)).wait()
        for ranks in sets:
            self.launch_all_reduce(ranks, torch.zeros(1, device=self.device)).wait()

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send, after waiting for the oldest of its channel where the window is full."""
        channel = self._to[peer]
        queue = channel.sends
        while queue and self._window is not None and len(queue) >= self._window:
            queue.popleft()[0].wait()
        then = None
        if self._staged:
            device, buffer = buffer, self._host(buffer)
            buffer.copy_(device)
            then = self._release(buffer)
        try:
            work = channel.group.send([buffer], channel.peer, 0)
        except RuntimeError as error:
            raise self.rendezvous.lost(channel.awaited, error) from error
        queue.append((PendingOperation(self, work, channel.awaited, then), buffer))
        if self._window == 0:
            queue.popleft()[0].wait()

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        """Post a receive into `buffer`."""
        channel, then, into = self._from[peer], None, buffer
        if self._staged:
            into = self._host(buffer)
            then = self._release(into, buffer)
        try:
            work = channel.group.recv([into], channel.peer, 0)
        except RuntimeError as error:
            raise self.rendezvous.lost(channel.awaited, error) from error
        return PendingOperation(self, work, channel.awaited, then)

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch an all-reduce (sum) of `buffer`, in place, over these ranks."""
        return self._launch(Awaited(f"the sum over {self.named(ranks)}", "sum", ranks), ranks, buffer, summed)

    def broadcast(self, ranks: tuple[int, ...], source: int, buffer: Tensor) -> Pending:
        """Give all of these ranks the buffer of rank `source`; called by them together, outside the streams."""
        awaited = Awaited(f"what {self.named([source])} sends to {self.named(ranks)}", "all", ranks)
        return self._launch(awaited, ranks, buffer, lambda group, values: broadcast(group, ranks.index(source), values))

    def _launch(
        self, awaited: Awaited, ranks: tuple[int, ...], buffer: Tensor, collective: Callable[[Any, Tensor], Any]
    ) -> Pending:
        """Launch a collective that changes `buffer` in place."""
        then, values = None, buffer
        if self._staged:
            values = self._host(buffer)
            values.copy_(buffer)
            then = self._release(values, buffer)
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
        """Do nothing: the buffer is not read again."""

    def _host(self, like: Tensor) -> Tensor:
        """Return host memory for a message; pinned where the message is on a GPU, because copies are then faster."""
        free = self._hosts.setdefault((like.shape, like.dtype), [])
        return free.pop() if free else torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)

    def _release(self, host: Tensor, target: Tensor | None = None) -> Callable[[], None]:
        """Return the function to call when a transfer is complete: it copies `host` to `target`, and keeps `host` for reuse."""

        def complete() -> None:
            if target is not None:
                target.copy_(host)
            self._hosts[host.shape, host.dtype].append(host)

        return complete

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum `buffer`, in place, over all ranks; called by all ranks together, outside the streams."""
        host = buffer if buffer.device == HOST else buffer.to(HOST)
        self._sum(host, "a sum over all ranks")
        if host is not buffer:
            buffer.copy_(host)

    def _sum(self, host: Tensor, what: str) -> None:
        with self.rendezvous.wait(what):
            summed(self._everyone, host).wait()

    def all_gather(self, text: str) -> Sequence[str]:
        """Return the text of each rank; called by all ranks together, outside the streams."""
        mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.zeros(0, dtype=torch.uint8)
        sizes = torch.zeros(self.world, dtype=torch.int64)
        sizes[self.rank] = len(mine)
        self._sum(sizes, "the comparison of all ranks")
        every = torch.zeros(int(sizes.sum()), dtype=torch.uint8)  # a sum of texts, of which all but one are zeros here
        parts = torch.split(every, sizes.tolist())
        parts[self.rank].copy_(mine)
        if len(every):
            self._sum(every, "the comparison of all ranks")
        return [bytes(part.numpy()).decode() for part in parts]

    def close(self) -> None:
        """Close all connections, once no rank waits for another one any more."""
        groups = [channel.group for channel in (*self._to.values(), *self._from.values())]
        if self._backend == "nccl":
            for group in (*groups, *self._collectives.values()):
                group.shutdown()
        for connections in (self._to, self._from, self._collectives):
            connections.clear()
        self._everyone = None
