"""The machines of docs/semantics.md as a simulated network: when a transfer and when a collective completes.

A transfer or a collective is an operation. Its members are its ranks; a transfer has two. It completes when all its members
have posted it and it is first in every queue that it is in. The collectives of a rank are in a queue. On `paired` and `serial`
its transfers are in queues too. Channels are first in, first out.

Where a SEND waits for its window is in loopback.py. Ranks that are processes do not use this module: processes.py limits
their window, and the rest of their machine follows from how gloo or NCCL executes the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from chimerac.chimera_ir.machines import max_incomplete_sends
from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.transport.cuda_streams import CudaOrder, keep, new_stream, order_on
from chimerac.interpreter.transport.scheduler import Scheduler

Queue = deque["Operation"]


class Operation:
    """A transfer or a collective. It completes when all its members have posted it and it is first in all its queues.

    Attributes:
        missing: how many members have not posted it.
        complete: whether it has completed.
        action: called when it completes.
        queues: those that it is in, at most one of each member.
        order: when a GPU executes it; None on the CPU, which executes it at once.
    """

    __slots__ = ("action", "complete", "missing", "order", "queues")

    def __init__(self, members: int, order: CudaOrder | None = None) -> None:
        self.missing, self.complete, self.order = members, False, order
        self.action: Callable[[], None] | None = None
        self.queues: list[Queue] = []

    def post(self, queue: Queue | None) -> None:
        """Post the operation on one member.

        Args:
            queue: the queue of that member; None if it is in none.

        `action` must be set before the last member posts it.
        """
        self.missing -= 1
        if self.order is not None:
            self.order.post()
        if queue is not None:
            queue.append(self)
            self.queues.append(queue)
        # An operation that completes may make others the first of their queues.
        candidates = [self]
        while candidates:
            candidates += candidates.pop().complete_if_first()

    def complete_if_first(self) -> list[Operation]:
        """Complete the operation if it can complete. Return the operations that are then the first of its queues."""
        if self.missing or self.complete or any(queue[0] is not self for queue in self.queues):
            return []
        self.complete = True
        assert self.action is not None
        if self.order is None:
            self.action()
        else:
            self.order.execute(self.action)
        self.action = None  # frees the tensors that it refers to
        for queue in self.queues:
            queue.popleft()
        return [queue[0] for queue in self.queues if queue]


class Channel:
    """A directed pair of ranks.

    Attributes:
        sends, receives: how many have been posted.
        completed: how many transfers are complete.
        unmatched: transfers of which one side has been posted, oldest first, with the buffer of that side.

    Args:
        stream: of the transfers on a GPU.

    A parameter `queue` is that of the rank that posts, as for `Operation.post`.
    """

    def __init__(self, stream: torch.cuda.Stream | None = None) -> None:
        self._stream = stream
        self.sends = self.receives = self.completed = 0
        self.unmatched: deque[tuple[Operation, Tensor]] = deque()

    def is_empty(self) -> bool:
        """Return whether every send is complete."""
        return self.completed == self.sends

    def post_send(self, buffer: Tensor, queue: Queue | None) -> None:
        """Post the next send, of `buffer`."""
        self.sends += 1
        if self.sends > self.receives:
            transfer = Operation(members=2, order=order_on(self._stream))
            self.unmatched.append((transfer, buffer))
        else:
            transfer, target = self.unmatched.popleft()
            transfer.action = lambda: self._deliver(buffer, target)
        transfer.post(queue)

    def post_receive(self, buffer: Tensor, queue: Queue | None) -> Operation:
        """Post the next receive, into `buffer`."""
        self.receives += 1
        if self.receives > self.sends:
            transfer = Operation(members=2, order=order_on(self._stream))
            self.unmatched.append((transfer, buffer))
        else:
            transfer, message = self.unmatched.popleft()
            transfer.action = lambda: self._deliver(message, buffer)
        transfer.post(queue)
        return transfer

    def _deliver(self, message: Tensor, target: Tensor) -> None:
        if (message.shape, message.dtype) != (target.shape, target.dtype):
            sent = f"{message.dtype}{list(message.shape)}"
            raise ValueError(f"a receive of {target.dtype}{list(target.shape)} meets a send of {sent}")
        target.copy_(message)
        keep(message)  # the sender may free it before the GPU has copied it
        self.completed += 1


class Network:
    """What the ranks of one program share.

    Args:
        every_post: another rank may also continue when a rank posts an operation.
        device: where messages are.

    Attributes:
        window: how many sends of a channel may be incomplete; None: any number.
        collectives: those that are not complete, by their ranks and number, with the buffers by rank.
        gathered: the values that the ranks gather outside the streams, by the number of the call and by rank.
    """

    def __init__(
        self, program: Program, machine: Machine, every_post: bool, scheduler: Scheduler, device: torch.device
    ) -> None:
        self.size, self.machine, self.every_post = program.world, machine, every_post
        self.window = max_incomplete_sends(machine, program.header.window)
        self.scheduler, self._device = scheduler, device
        self._streams: dict[tuple[int, ...], torch.cuda.Stream | None] = {}  # of collectives, by their ranks
        self.channels: dict[tuple[int, int], Channel] = {}
        self.queues: dict[tuple[object, ...], Queue] = {}  # by (rank,), (rank, peer) or (rank, "collectives")
        self.collectives: dict[tuple[tuple[int, ...], int], tuple[Operation, dict[int, Tensor]]] = {}
        self.gathered: dict[int, dict[int, Any]] = {}

    def channel(self, sender: int, receiver: int) -> Channel:
        """Return the channel from one rank to another."""
        if (sender, receiver) not in self.channels:
            self.channels[sender, receiver] = Channel(new_stream(self._device))
        return self.channels[sender, receiver]

    def collective(self, ranks: tuple[int, ...], number: int) -> tuple[Operation, dict[int, Tensor]]:
        """Return the collective of this number of a group of ranks, and the buffers of the ranks that have posted it."""
        if (ranks, number) not in self.collectives:
            if ranks not in self._streams:
                self._streams[ranks] = new_stream(self._device)
            self.collectives[ranks, number] = Operation(len(ranks), order_on(self._streams[ranks])), {}
        return self.collectives[ranks, number]

    def transfer_queue(self, rank: int, peer: int) -> Queue | None:
        """Return the queue of a rank's transfers with a peer; None if the machine has no queues for them."""
        match self.machine:
            case "serial":
                return self.queues.setdefault((rank,), deque())
            case "paired":
                return self.queues.setdefault((rank, peer), deque())
            case _:
                return None

    def collective_queue(self, rank: int) -> Queue:
        """Return the queue of a rank's collectives. On `serial` it is the queue of its transfers too."""
        key = (rank,) if self.machine == "serial" else (rank, "collectives")
        return self.queues.setdefault(key, deque())
