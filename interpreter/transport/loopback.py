"""All ranks in one process: the executable form of the machines of docs/semantics.md.

Here is the wait of a SEND for its window. machines.py decides when a transfer or a collective completes. One rank runs at a
time, and another one continues only where it would wait (turns.py). So a run is a function of its seed, and a deadlock is
found at once. A receive buffer is overwritten with NaN when its receive is posted and when the buffer is freed. So a rank
that reads it too early or too late gets NaN, or an error of autograd.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import TypeVar

import torch
from torch import Tensor

from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.errors import RankError, StuckError
from chimerac.interpreter.transport import Transport, ranks_text
from chimerac.interpreter.transport.machines import Channel, Operation, World
from chimerac.interpreter.transport.progress import Progress
from chimerac.interpreter.transport.turns import Turns

T = TypeVar("T")


class PendingOperation:
    """A transfer or a collective that a rank has posted."""

    __slots__ = ("_operation", "_owner", "_what")

    def __init__(self, owner: Loopback, operation: Operation, what: str) -> None:
        self._owner, self._operation, self._what = owner, operation, what

    def wait(self) -> None:
        """Return when it is complete; other ranks run meanwhile."""
        self._owner.wait(lambda: self._operation.complete, self._what)


class Loopback:
    """One rank of a world."""

    def __init__(self, rank: int, world: World, device: torch.device) -> None:
        self.rank, self.world, self.machine = rank, world.size, world.machine
        self.device, self.waited_ns = device, 0
        self._world, self.progress = world, Progress()
        self._to: dict[int, Channel] = {}
        self._sent: dict[int, deque[Tensor]] = {}  # by peer, the messages of the sends that have not been waited for
        self._launched: dict[tuple[int, ...], int] = {}
        self._gathered = 0

    def named(self, ranks: Sequence[int]) -> str:
        """Return ranks for a message."""
        return ranks_text(ranks)

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready()` is true; other ranks run meanwhile."""
        begin = perf_counter_ns()
        self._world.turns.wait(self.rank, ready, what)
        self.waited_ns += perf_counter_ns() - begin

    def _pause(self) -> None:
        if self._world.every_post:
            self._world.turns.pause(self.rank)

    def connect(self, program: Program) -> None:
        """Do nothing: a channel is created by its first use."""

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send, after waiting for the window as the machine requires; with window 0, wait for this send too."""
        self._pause()
        channel = self._to[peer] = self._world.channel(self.rank, peer)
        window = self._world.window
        queue = self._world.transfers(self.rank, peer)
        number = channel.sends - (window or 0)  # of the transfer to wait for
        sent = self._sent.setdefault(peer, deque())
        if window:
            self._wait_for(peer, channel, number)
            if len(sent) == window:
                sent.popleft()
        channel.sent(buffer, queue)
        if window == 0:
            self._wait_for(peer, channel, number)
        else:
            sent.append(buffer)

    def _wait_for(self, peer: int, channel: Channel, number: int) -> None:
        """Return when transfer `number` is complete, or on machines without queues when its receive has been posted."""
        if self._world.transfers(self.rank, peer) is None:
            self.wait(lambda: channel.receives > number, f"rank {peer} to post its receive number {number} of this channel")
        else:
            self.wait(lambda: channel.done > number, f"its transfer number {number} to rank {peer}")

    def recv(self, peer: int, buffer: Tensor) -> PendingOperation:
        """Post a receive into `buffer`."""
        self._pause()
        poison(buffer)
        operation = self._world.channel(peer, self.rank).received(buffer, self._world.transfers(self.rank, peer))
        return PendingOperation(self, operation, f"what rank {peer} sends")

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> PendingOperation:
        """Launch an all-reduce (sum) of `buffer`, in place, over these ranks. The terms are added in the order of the ranks."""

        def total(parts: Mapping[int, Tensor]) -> Tensor:
            return torch.stack([parts[r] for r in ranks]).sum(dim=0) if len(ranks) > 1 else parts[ranks[0]]

        return self._collective(ranks, buffer, total, f"the sum over {ranks_text(ranks)}")

    def broadcast(self, ranks: tuple[int, ...], source: int, buffer: Tensor) -> PendingOperation:
        """Give all of these ranks the buffer of rank `source`; called by them together, outside the streams."""
        what = f"what rank {source} sends to {ranks_text(ranks)}"
        return self._collective(ranks, buffer, lambda parts: parts[source].clone(), what)

    def _collective(
        self, ranks: tuple[int, ...], buffer: Tensor, result: Callable[[Mapping[int, Tensor]], Tensor], what: str
    ) -> PendingOperation:
        """Post a collective. result: from the buffers by rank, what all of them hold afterwards."""
        self._pause()
        number = self._launched[ranks] = self._launched.get(ranks, 0) + 1
        operation, parts = self._world.joined.setdefault((ranks, number), (Operation(len(ranks)), {}))
        parts[self.rank] = buffer

        def complete() -> None:
            del self._world.joined[ranks, number]
            values = result(parts)
            for part in parts.values():
                part.copy_(values)

        operation.do = complete
        operation.post(self._world.collectives(self.rank))
        return PendingOperation(self, operation, what)

    def flush(self) -> None:
        """Wait for every send."""
        for peer, channel in self._to.items():
            self.wait(channel.is_empty, f"rank {peer} to receive what was sent")
            self._sent[peer].clear()

    def forget(self, buffer: Tensor) -> None:
        """Overwrite a receive buffer that may not be read any more."""
        poison(buffer)

    def all_reduce(self, buffer: Tensor) -> None:
        """Sum `buffer`, in place, over all ranks; called by all ranks together, outside the streams."""
        parts = self._gather(buffer.clone())
        buffer.copy_(torch.stack(parts).sum(dim=0))

    def all_gather(self, text: str) -> list[str]:
        """Return the text of each rank; called by all ranks together, outside the streams."""
        return self._gather(text)

    def _gather(self, mine: T) -> list[T]:
        """Return the value of every rank."""
        self._gathered += 1
        table = self._world.gathered.setdefault(self._gathered, {})
        table[self.rank] = mine
        self.wait(lambda: len(table) == self.world, "all ranks to make this call")
        self._world.gathered.pop(self._gathered, None)
        return [table[r] for r in range(self.world)]  # type: ignore[misc]


def poison(buffer: Tensor) -> None:
    """Set every bit, which gives NaN in every floating-point type. Autograd detects that the tensor was overwritten."""
    if buffer.numel():
        buffer.view(-1).view(torch.uint8).fill_(255)


def _cause(error: BaseException) -> BaseException:
    return error.cause if isinstance(error, RankError) else error


def run_in_loopback(
    program: Program,
    run_rank: Callable[[Transport], T],
    seed: int = 0,
    machine: Machine | None = None,
    every_post: bool = False,
    device: torch.device | None = None,
    turns: Turns | None = None,
) -> list[T]:
    """Call `run_rank` once for each rank of the program, with the rank's transport, and return the results.

    machine: by default the one in the program's header; every_post: another rank may also continue at each transfer and
    collective, so that every interleaving can be drawn; device: where messages are; turns: decides which rank continues; if
    not given, that is drawn with the seed. Raises the first error of a rank, or StuckError, with what every rank waits for,
    if no rank can continue.
    """
    machine = machine or program.header.machine
    world = World(program, machine, every_post, turns or Turns(program.world, seed))
    ranks = [Loopback(rank, world, device or torch.device("cpu")) for rank in range(program.world)]
    results = world.turns.run([partial(run_rank, rank) for rank in ranks])
    errors = world.turns.errors
    if errors:
        first = next(iter(errors.values()))
        if all(isinstance(_cause(error), StuckError) for error in errors.values()):
            name = f"window({program.header.window})" if machine == "window" else machine
            lines = "".join(f"\n  {errors[rank]}".replace("deadlock: it", "it") for rank in sorted(errors))
            raise StuckError(f"deadlock on the {name} machine:{lines}") from first
        raise first
    return results
