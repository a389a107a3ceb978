"""Ranks that are processes, on the process groups of torch.distributed: what gloo and NCCL have in common.

Every channel and every collective has a process group of its own. All of them are created, and used once, in one global
order before the first iteration. So every connection exists before it is needed, and no later call waits until another rank
sets one up. `all_reduce` and `all_gather` use the default group, which is gloo's, and host memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.machines import max_incomplete_sends
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.transport import Pending, ranks_text
from chimerac.interpreter.transport.progress import NUMBER, Awaited
from chimerac.interpreter.transport.rendezvous import rendezvous

CPU = torch.device("cpu")
# gloo counts the timeout of a collective from its launch, but a rank may begin to wait for it much later. So the groups of
# collectives have this timeout, which is never reached, and PendingOperation.wait applies that of the run.
YEAR = timedelta(days=365)


class PendingOperation:
    """A transfer or a collective that was posted to a process group.

    work: torch's handle of it. then: called when it is complete. limit: the timeout of the wait; None if the timeout of its
    group applies.
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
        """Return when it is complete. Raises PeerLostError where a peer is gone or the wait times out."""
        progress, begin = self._transport.progress, perf_counter_ns()
        progress.begin_wait(self._awaited, self._posted)
        try:
            if self._limit is None:
                self._work.wait()
            else:
                self._work.wait(self._limit)
        except RuntimeError as error:
            raise self._transport.rendezvous.lost(self._awaited, error) from error
        progress.end_wait()
        self._transport.waited_ns += perf_counter_ns() - begin
        if self._then is not None:
            self._then()


class Channel:
    """One end of a channel: its group, the peer's rank in the group, and the sends that have not been waited for."""

    __slots__ = ("awaited", "group", "peer", "sends")

    def __init__(self, group: Any, peer: int, awaited: Awaited) -> None:
        self.group, self.peer, self.awaited = group, peer, awaited
        self.sends: deque[tuple[PendingOperation, Tensor]] = deque()  # a buffer may not be freed before its send is complete


class Processes:
    """One rank's channels and collectives. The ranks must have joined.

    backend: of the groups; device: where messages are; staged: whether they are copied through host memory, as gloo needs
    for messages on a GPU.
    """

    def __init__(self, backend: str, device: torch.device, staged: bool) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device, self.waited_ns, self.rendezvous = device, 0, rendezvous()
        self.progress = self.rendezvous.progress
        self._backend, self._staged = backend, staged
        # Whether this class applies the timeout to waits for a collective. NCCL's waits do not block the process.
        self._limits_waits = backend == "gloo" and self.rendezvous.limit is not None
        self._free_buffers: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}  # in host memory, for reuse
        self._channels: set[tuple[int, int]] = set()  # of all ranks: sender, receiver
        self._to: dict[int, Channel] = {}
        self._from: dict[int, Channel] = {}
        self._collectives: dict[tuple[int, ...], Any] = {}  # by ranks, the group

    def connect(self, program: Program) -> None:
        """Create this program's channels and collectives; called by all ranks together, with equal programs."""
        self.progress.add(program)
        self._window = max_incomplete_sends(program.header.machine, program.header.window)
        sends = program.table.op == Op.SEND
        pairs = np.unique(np.stack([program.rank_of[sends], program.table.peer[sends]], axis=1), axis=0)
        channels = [(sender, receiver) for sender, receiver in pairs.tolist() if (sender, receiver) not in self._channels]
        collectives = sorted({c.ranks for c in program.collectives} - set(self._collectives))
        # All ranks create all groups, in this order: new_group is itself a collective.
        for sender, receiver in channels:
            self._channels.add((sender, receiver))
            group = self._new_group((sender, receiver))
            if self.rank == sender:
                awaited = Awaited(f"the send to rank {receiver}", "send", (receiver,))
                self._to[receiver] = Channel(group, dist.get_group_rank(group, receiver), awaited)
            elif self.rank == receiver:
                awaited = Awaited(f"the receive from rank {sender}", "receive", (sender,))
                self._from[sender] = Channel(group, dist.get_group_rank(group, sender), awaited)
        for ranks in collectives:
            self._collectives[ranks] = self._new_group(ranks)
        self._use_once(channels, collectives)
        if self._limits_waits:
            for ranks in collectives:
                if self.rank in ranks:
                    self._collectives[ranks]._get_backend(CPU).set_timeout(YEAR)

    def _new_group(self, ranks: Sequence[int]) -> Any:
        """Create the process group of these ranks; called by all ranks together."""
        limit = self.rendezvous.limit
        with self.rendezvous.wait(f"connecting {ranks_text(ranks)}", "other"):
            if limit is None:
                return dist.new_group(list(ranks), backend=self._backend)
            # A new group does not inherit the timeout of the default group: torch's default is half an hour.
            return dist.new_group(list(ranks), backend=self._backend, timeout=limit)

    def _use_once(self, channels: Sequence[tuple[int, int]], collectives: Sequence[tuple[int, ...]]) -> None:
        """Transfer one number over each channel and reduce one in each collective, which creates their connections."""
        for sender, receiver in channels:
            if self.rank == sender:
                self.send(receiver, torch.zeros(1, device=self.device))
                self.flush()
            elif self.rank == receiver:
                self.recv(sender, torch.zeros(1, device=self.device)).wait()
        for ranks in collectives:
            if self.rank in ranks:
                self.launch_all_reduce(ranks, torch.zeros(1, device=self.device)).wait()

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send, after waiting for the oldest of its channel where the window is full."""
        channel = self._to[peer]
        queue = channel.sends
        while queue and self._window is not None and len(queue) >= self._window:
            queue.popleft()[0].wait()
        message, then = buffer, None
        if self._staged:
            message = self._host_buffer(buffer)
            message.copy_(buffer)
            then = self._releasing(message)
        try:
            work = channel.group.send([message], channel.peer, 0)
        except RuntimeError as error:
            raise self.rendezvous.lost(channel.awaited, error) from error
        queue.append((PendingOperation(self, work, channel.awaited, then), message))
        if self._window == 0:
            queue.popleft()[0].wait()

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        """Post a receive into `buffer`."""
        channel = self._from[peer]
        message, then = buffer, None
        if self._staged:
            message = self._host_buffer(buffer)
            then = self._releasing(message, buffer)
        try:
            work = channel.group.recv([message], channel.peer, 0)
        except RuntimeError as error:
            raise self.rendezvous.lost(channel.awaited, error) from error
        return PendingOperation(self, work, channel.awaited, then)

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch an all-reduce (sum) of `buffer`, in place, over these ranks."""
        awaited = Awaited(f"the all-reduce over {ranks_text(ranks)}", "all-reduce", ranks)
        return self._launch(awaited, dist.all_reduce, ranks, buffer)

    def broadcast(self, ranks: tuple[int, ...], source: int, buffer: Tensor) -> Pending:
        """Copy the buffer of rank `source` to all of these ranks; called by them together, outside the streams."""
        awaited = Awaited(f"the broadcast from rank {source} to {ranks_text(ranks)}", "other", ranks)
        return self._launch(awaited, partial(dist.broadcast, src=source), ranks, buffer)

    def _launch(self, awaited: Awaited, collective: Callable[..., Any], ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch a collective of torch that changes `buffer` in place."""
        values, then = buffer, None
        if self._staged:
            values = self._host_buffer(buffer)
            values.copy_(buffer)
            then = self._releasing(values, buffer)
        try:
            work = collective(values, group=self._collectives[ranks], async_op=True)
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

    def _host_buffer(self, like: Tensor) -> Tensor:
        """Return host memory for a message; pinned where the message is on a GPU, because copies are then faster."""
        free = self._free_buffers.setdefault((like.shape, like.dtype), [])
        return free.pop() if free else torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)

    def _releasing(self, host: Tensor, target: Tensor | None = None) -> Callable[[], None]:
        """Return the function to call when a transfer is complete: it copies `host` to `target`, and keeps `host` for reuse."""

        def release() -> None:
            if target is not None:
                target.copy_(host)
            self._free_buffers[host.shape, host.dtype].append(host)

        return release

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum `buffer`, in place, over all ranks; called by all ranks together, outside the streams."""
        host = buffer.to(CPU)
        with self.rendezvous.wait("an all-reduce over all ranks"):
            dist.all_reduce(host)
        if host is not buffer:
            buffer.copy_(host)

    def all_gather(self, text: str) -> Sequence[str]:
        """Return the text of each rank; called by all ranks together, outside the streams."""
        texts = [""] * self.world
        with self.rendezvous.wait("the comparison of all ranks"):
            dist.all_gather_object(texts, text)
        return texts
