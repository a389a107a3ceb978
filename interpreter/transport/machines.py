"""The machines of docs/semantics.md, executable: when a transfer and when a collective completes.

The wait of a SEND for its window is in loopback.py. On real ranks processes.py limits the window, and the rest of the
machine follows from how gloo or NCCL runs the calls.

A transfer or a collective is an operation. It completes when all its members have posted it. On `paired` and `serial`
operations are also in queues, and complete in the order of the queues. Channels are first in, first out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from torch import Tensor

from chimerac.chimera_ir.machines import max_incomplete_sends
from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.transport.turns import Turns

Queue = deque["Operation"]


class Operation:
    """A transfer or a collective. It completes when all its members have posted it and it is first in all its queues."""

    __slots__ = ("complete", "do", "missing", "queues")

    def __init__(self, members: int, do: Callable[[], None] | None = None) -> None:
        self.missing, self.do, self.complete = members, do, False
        self.queues: list[Queue] = []

    def post(self, queue: Queue | None) -> None:
        """Post the operation on one member. queue: that member's queue, if the machine has queues."""
        self.missing -= 1
        if queue is not None:
            queue.append(self)
            self.queues.append(queue)
        self._complete_if_first()

    def _complete_if_first(self) -> None:
        if self.missing or self.complete or any(queue[0] is not self for queue in self.queues):
            return
        self.complete = True
        assert self.do is not None
        self.do()
        self.do = None  # frees the tensors of the transfer
        for queue in self.queues:
            queue.popleft()
        for queue in self.queues:
            if queue:
                queue[0]._complete_if_first()


class Channel:
    """A directed pair of ranks. sends, receives, done: how many have been posted, or are complete.

    waiting: transfers of which one end has been posted, oldest first, with that end's tensor.
    """

    def __init__(self) -> None:
        self.sends = self.receives = self.done = 0
        self.waiting: deque[tuple[Operation, Tensor]] = deque()

    def is_empty(self) -> bool:
        """Return whether every send is complete."""
        return self.done == self.sends

    def sent(self, buffer: Tensor, queue: Queue | None) -> None:
        """Post the next send."""
        self.sends += 1
        if self.sends > self.receives:
            transfer = Operation(2)
            self.waiting.append((transfer, buffer))
        else:
            transfer, into = self.waiting.popleft()
            transfer.do = lambda: self._deliver(buffer, into)
        transfer.post(queue)

    def received(self, buffer: Tensor, queue: Queue | None) -> Operation:
        """Post the next receive."""
        self.receives += 1
        if self.receives > self.sends:
            transfer = Operation(2)
            self.waiting.append((transfer, buffer))
        else:
            transfer, content = self.waiting.popleft()
            transfer.do = lambda: self._deliver(content, buffer)
        transfer.post(queue)
        return transfer

    def _deliver(self, content: Tensor, into: Tensor) -> None:
        if (content.shape, content.dtype) != (into.shape, into.dtype):
            sent = f"{content.dtype}{list(content.shape)}"
            raise ValueError(f"a receive of {into.dtype}{list(into.shape)} meets a send of {sent}")
        into.copy_(content)
        self.done += 1


class World:
    """What the ranks of one program share. window: how many sends of a channel may be incomplete; None: any number."""

    def __init__(self, program: Program, machine: Machine, every_post: bool, turns: Turns) -> None:
        self.size, self.machine, self.every_post = program.world, machine, every_post
        self.window = max_incomplete_sends(machine, program.header.window)
        self.turns = turns
        self.channels: dict[tuple[int, int], Channel] = {}
        self.queues: dict[tuple[object, ...], Queue] = {}
        self.joined: dict[tuple[tuple[int, ...], int], tuple[Operation, dict[int, Tensor]]] = {}
        self.gathered: dict[int, dict[int, object]] = {}

    def channel(self, a: int, b: int) -> Channel:
        """Return the channel from rank a to rank b."""
        return self.channels.setdefault((a, b), Channel())

    def transfers(self, rank: int, peer: int) -> Queue | None:
        """Return the queue of a rank's transfers with a peer; None if the machine has no queues."""
        match self.machine:
            case "serial":
                return self.queues.setdefault((rank,), deque())
            case "paired":
                return self.queues.setdefault((rank, peer), deque())
            case _:
                return None

    def collectives(self, rank: int) -> Queue:
        """Return the queue of a rank's collectives."""
        key = (rank,) if self.machine == "serial" else (rank, "collectives")
        return self.queues.setdefault(key, deque())
