"""Ranks that are processes, on torch.distributed's process groups: what gloo and NCCL have in common.

Every channel and every collective has a process group of its own. All of them are created, and used once, in one global
order before the first iteration. So every connection exists before it is needed, and no later call waits for the set-up
of another rank. all_reduce and all_gather use the default group, which is gloo's, and host memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.machines import open_sends
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.transport import Pending, ranks_text
from chimerac.interpreter.transport.meeting import meeting

HOST = torch.device("cpu")
NO_LIMIT = timedelta(days=365)  # a sum is launched long before it is waited for: gloo must not end it in between


class Posted:
    """A transfer or a collective that was posted to a process group.

    then: called when it is complete; limit: how long to wait for it; None where its group has a limit of its own.
    """

    __slots__ = ("_limit", "_owner", "_then", "_what", "_work")

    def __init__(
        self,
        owner: Processes,
        work: Any,
        what: str,
        then: Callable[[], object] | None = None,
        limit: timedelta | None = None,
    ) -> None:
        self._owner, self._work, self._what, self._then, self._limit = owner, work, what, then, limit

    def wait(self) -> None:
        """Return when it is complete. Raises PeerLostError where a peer is gone or late."""
        met = self._owner.meeting
        begin = perf_counter_ns()
        met.waiting = self._what, monotonic()
        try:
            if self._limit is None:
                self._work.wait()
            else:
                self._work.wait(self._limit)
        except RuntimeError as error:
            raise met.lost(self._what, error) from error
        met.waiting = None
        self._owner.waited_ns += perf_counter_ns() - begin
        if self._then is not None:
            self._then()


class Channel:
    """One end of a channel: its group, the other end's rank in the group, and the sends that may be incomplete."""

    __slots__ = ("group", "peer", "sends", "what")

    def __init__(self, group: Any, peer: int, what: str) -> None:
        self.group, self.peer, self.what = group, peer, what
        # A buffer may not be freed before its send is complete.
        self.sends: deque[tuple[Posted, Tensor]] = deque()


class Processes:
    """One rank's channels and collectives. The ranks have met.

    backend: of the groups; device: where messages lie; staged: they are copied through host memory, which gloo needs.
    """

    def __init__(self, backend: str, device: torch.device, staged: bool) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.device, self.waited_ns, self.meeting = device, 0, meeting()
        self._backend, self._staged = backend, staged
        # gloo measures a timeout from the launch of a sum. Here it is measured from the wait, so `Posted` gets the limit.
        # Waits of NCCL do not block the process.
        self._limits_waits = backend == "gloo" and self.meeting.limit is not None
        self._hosts: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}  # host memory for reuse
        self._channels: set[tuple[int, int]] = set()
        self._to: dict[int, Channel] = {}
        self._from: dict[int, Channel] = {}
        self._collectives: dict[tuple[int, ...], Any] = {}

    def connect(self, program: Program) -> None:
        """Create this program's channels and collectives; called by all ranks together, with equal programs."""
        self._window = open_sends(program.header.machine, program.header.window)
        sends = program.table.op == Op.SEND
        ends = np.unique(np.stack([program.rank_of[sends], program.table.peer[sends]], axis=1), axis=0)
        channels = [(a, b) for a, b in ends.tolist() if (a, b) not in self._channels]
        sets = sorted({c.ranks for c in program.collectives} - set(self._collectives))
        # All ranks create all groups, in this order: new_group is itself a collective.
        for a, b in channels:
            self._channels.add((a, b))
            group = self._group((a, b))
            if self.rank == a:
                self._to[b] = Channel(group, dist.get_group_rank(group, b), f"the send to rank {b}")
            elif self.rank == b:
                self._from[a] = Channel(group, dist.get_group_rank(group, a), f"the receive from rank {a}")
        for ranks in sets:
            self._collectives[ranks] = self._group(ranks)
        self._use_once(channels, sets)
        if self._limits_waits:
            for ranks in sets:
                if self.rank in ranks:
                    self._collectives[ranks]._get_backend(HOST).set_timeout(NO_LIMIT)

    def _group(self, ranks: Sequence[int]) -> Any:
        limit = self.meeting.limit
        with self.meeting.wait(f"connecting {ranks_text(ranks)}"):
            if limit is None:
                return dist.new_group(list(ranks), backend=self._backend)
            # A new group does not inherit the timeout of the default group: torch's default is half an hour.
            return dist.new_group(list(ranks), backend=self._backend, timeout=limit)

    def _use_once(self, channels: Sequence[tuple[int, int]], sets: Sequence[tuple[int, ...]]) -> None:
        """Move one number over each channel and each collective, so that their connections are made."""
        for sender, receiver in channels:
            if self.rank == sender:
                self.send(receiver, torch.zeros(1, device=self.device))
                self.flush()
            elif self.rank == receiver:
                self.recv(sender, torch.zeros(1, device=self.device)).wait()
        for ranks in sets:
            if self.rank in ranks:
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
            then = self._free(buffer)
        try:
            work = channel.group.send([buffer], channel.peer, 0)
        except RuntimeError as error:
            raise self.meeting.lost(channel.what, error) from error
        queue.append((Posted(self, work, channel.what, then), buffer))
        if self._window == 0:
            queue.popleft()[0].wait()

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        """Post a receive into `buffer`."""
        channel, then, into = self._from[peer], None, buffer
        if self._staged:
            into = self._host(buffer)
            then = self._free(into, buffer)
        try:
            work = channel.group.recv([into], channel.peer, 0)
        except RuntimeError as error:
            raise self.meeting.lost(channel.what, error) from error
        return Posted(self, work, channel.what, then)

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch the sum of `buffer`, in place, over these ranks."""
        what, then, total = f"the sum over {ranks_text(ranks)}", None, buffer
        if self._staged:
            total = self._host(buffer)
            total.copy_(buffer)
            then = self._free(total, buffer)
        try:
            work = dist.all_reduce(total, group=self._collectives[ranks], async_op=True)
        except RuntimeError as error:
            raise self.meeting.lost(what, error) from error
        return Posted(self, work, what, then, self.meeting.limit if self._limits_waits else None)

    def flush(self) -> None:
        """Wait for every send."""
        for channel in self._to.values():
            while channel.sends:
                channel.sends.popleft()[0].wait()

    def forget(self, buffer: Tensor) -> None:
        """Do nothing: nobody reads the buffer again."""

    def _host(self, like: Tensor) -> Tensor:
        """Return host memory for a message; pinned where the message is on a GPU, because copies are then faster."""
        free = self._hosts.setdefault((like.shape, like.dtype), [])
        return free.pop() if free else torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)

    def _free(self, host: Tensor, target: Tensor | None = None) -> Callable[[], None]:
        """Return the call for when a transfer is complete: copy `host` to its target, and keep `host` for reuse."""

        def complete() -> None:
            if target is not None:
                target.copy_(host)
            self._hosts[host.shape, host.dtype].append(host)

        return complete

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum `buffer`, in place, over all ranks; called by all ranks together, outside the streams."""
        host = buffer if buffer.device == HOST else buffer.to(HOST)
        with self.meeting.wait("a sum over all ranks"):
            dist.all_reduce(host)
        if host is not buffer:
            buffer.copy_(host)

    def all_gather(self, text: str) -> Sequence[str]:
        """Return the text of each rank; called by all ranks together, outside the streams."""
        texts = [""] * self.world
        with self.meeting.wait("the comparison of all ranks"):
            dist.all_gather_object(texts, text)
        return texts
