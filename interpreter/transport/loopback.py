"""All ranks in one process: the executable form of the machines of docs/semantics.md.

What waits for what is in machines.py. One rank runs at a time and hands over only where it would wait (turns.py), so a
run is a function of its seed, and "nobody can move" is seen at once. A receive buffer is poisoned when it is
posted and when it is given back: whoever reads it too early or too late gets nonsense, or autograd's complaint.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from typing import TypeVar

import torch
from torch import Tensor

from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.transport import Transport, ranks_text
from chimerac.interpreter.transport.machines import Channel, Deed, World
from chimerac.interpreter.transport.turns import StuckError, Turns

T = TypeVar("T")


class Posted:
    """A transfer or a collective that a rank has posted."""

    __slots__ = ("_deed", "_owner", "_what")

    def __init__(self, owner: Loopback, deed: Deed, what: str) -> None:
        self._owner, self._deed, self._what = owner, deed, what

    def wait(self) -> None:
        """Return when it is complete; others run meanwhile."""
        self._owner.wait(lambda: self._deed.complete, self._what)


class Loopback:
    """One rank of a world."""

    def __init__(self, rank: int, world: World, device: torch.device) -> None:
        self.rank, self.world, self.device, self.waited_ns = rank, world.size, device, 0
        self._common = world
        self._to: dict[int, Channel] = {}
        self._sent: dict[int, deque[Tensor]] = {}  # by peer, what belongs to its send until that has been waited for
        self._launched: dict[tuple[int, ...], int] = {}
        self._met = 0

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready` holds; others run meanwhile."""
        begin = perf_counter_ns()
        self._common.turns.wait(self.rank, ready, what)
        self.waited_ns += perf_counter_ns() - begin

    def _pause(self) -> None:
        if self._common.every_post:
            self._common.turns.pause(self.rank)

    def connect(self, program: Program) -> None:
        """Do nothing: channels are there when they are used."""

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send, after waiting as long as the machine says."""
        self._pause()
        channel = self._to[peer] = self._common.channel(self.rank, peer)
        window = self._common.window
        queue = self._common.transfers(self.rank, peer)
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
        """Return when a SEND's transfer has got as far as the machine's windows want."""
        if self._common.transfers(self.rank, peer) is None:
            self.wait(lambda: channel.receives > number, f"rank {peer} to post its receive number {number} of this channel")
        else:
            self.wait(lambda: channel.done > number, f"its transfer number {number} to rank {peer}")

    def recv(self, peer: int, buffer: Tensor) -> Posted:
        """Post a receive into `buffer`."""
        self._pause()
        poison(buffer)
        deed = self._common.channel(peer, self.rank).received(buffer, self._common.transfers(self.rank, peer))
        return Posted(self, deed, f"what rank {peer} sends")

    def sum(self, ranks: tuple[int, ...], buffer: Tensor) -> Posted:
        """Launch the sum of `buffer`, in place, over these ranks, in the order of the ranks."""
        self._pause()
        number = self._launched[ranks] = self._launched.get(ranks, 0) + 1
        parts: dict[int, Tensor] = {}
        deed, parts = self._common.sums.setdefault((ranks, number), (Deed(len(ranks)), parts))
        parts[self.rank] = buffer

        def add() -> None:
            del self._common.sums[ranks, number]
            total = torch.stack([parts[r] for r in ranks]).sum(dim=0) if len(ranks) > 1 else parts[ranks[0]]
            for part in parts.values():
                part.copy_(total)

        deed.do = add
        deed.post(self._common.collectives(self.rank))
        return Posted(self, deed, f"the sum over {ranks_text(ranks)}")

    def flush(self) -> None:
        """Wait for every send."""
        for peer, channel in self._to.items():
            self.wait(channel.is_empty, f"rank {peer} to receive what was sent")
            self._sent[peer].clear()

    def forget(self, buffer: Tensor) -> None:
        """Poison a receive buffer that nobody should read any more."""
        poison(buffer)

    def sum_all(self, buffer: Tensor) -> None:
        """Sum `buffer`, in place, over all ranks; called by all ranks together, outside the streams."""
        parts = self._meet(buffer.clone())
        buffer.copy_(torch.stack(parts).sum(dim=0))

    def copy_from(self, rank: int, buffer: Tensor) -> None:
        """Overwrite `buffer` with that of `rank`; called by all ranks together, outside the streams."""
        buffer.copy_(self._meet(buffer.clone() if rank == self.rank else buffer)[rank])

    def tell_all(self, words: str) -> list[str]:
        """Return what each rank said; called by all ranks together, outside the streams."""
        return self._meet(words)

    def _meet(self, brought: T) -> list[T]:
        """Return what every rank has brought to this meeting of all."""
        self._met += 1
        table = self._common.meetings.setdefault(self._met, {})
        table[self.rank] = brought
        self.wait(lambda: len(table) == self.world, "all ranks to come together")
        self._common.meetings.pop(self._met, None)
        return [table[r] for r in range(self.world)]  # type: ignore[misc]


def poison(buffer: Tensor) -> None:
    """Fill with ones, bit by bit: not a number, in every floating-point type; autograd sees that it was overwritten."""
    if buffer.numel():
        buffer.view(-1).view(torch.uint8).fill_(255)


def run_in_loopback(
    program: Program,
    make_rank: Callable[[Transport], T],
    seed: int = 0,
    machine: Machine | None = None,
    every_post: bool = False,
    device: torch.device | None = None,
    turns: Turns | None = None,
) -> list[T]:
    """Run `make_rank`, a rank's whole life, once for each rank of the program, and return what they return.

    machine: by default the one that the program promises to end on; every_post: ranks may also hand over at each
    transfer and collective, so that every interleaving can be drawn; device: where messages lie; turns: who goes on,
    drawn with the seed if not given. Raises the first error of a rank; StuckError, with what every rank waits for, where
    nobody can move.
    """
    machine = machine or program.header.machine
    world = World(program, machine, every_post, turns or Turns(program.world, seed))
    ranks = [Loopback(rank, world, device or torch.device("cpu")) for rank in range(program.world)]
    results = world.turns.run([partial(make_rank, rank) for rank in ranks])
    errors = world.turns.errors
    if errors:
        stuck = {rank: error for rank, error in errors.items() if isinstance(error.__cause__ or error, StuckError)}
        first = next(iter(errors.values()))
        if len(stuck) == len(errors):
            name = f"window({program.header.window})" if machine == "window" else machine
            words = "".join(f"\n  {stuck[rank]}".replace("nobody can move: it", "it") for rank in sorted(stuck))
            raise StuckError(f"nobody can move on the {name} machine:{words}") from first
        raise first
    return results
