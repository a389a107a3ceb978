"""All ranks in one process: the machines of docs/semantics.md, executable.

The machines.py of this folder decides when a transfer or a collective completes. This module has the waits of the ranks: those
of a SEND for its window, and those for a transfer or a collective that the rank has posted. One rank runs at a time. Another
one continues only where the running one waits or ends, or also where it posts (`every_post`). So the seed determines in which
order ranks run, and a deadlock is detected at once.

All bits of a receive buffer are set when its receive is posted and when the buffer is freed. So a rank that reads
floating-point numbers of the buffer too early or too late gets NaN, or an error of autograd.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter_ns
from typing import TypeVar

import torch
from torch import Tensor

from chimerac.chimera_ir.machines import machine_name
from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.errors import RankError, StuckError
from chimerac.interpreter.generators import Generators
from chimerac.interpreter.transport import Transport, ranks_text
from chimerac.interpreter.transport.cuda_streams import new_stream, running_on
from chimerac.interpreter.transport.gpu_waits import GpuWaits
from chimerac.interpreter.transport.machines import Channel, Network, Operation
from chimerac.interpreter.transport.progress import NUMBER, Progress
from chimerac.interpreter.transport.scheduler import Scheduler, always

T = TypeVar("T")
CPU = torch.device("cpu")


def run_in_loopback(
    program: Program,
    run_rank: Callable[[Transport], T],
    seed: int = 0,
    machine: Machine | None = None,
    every_post: bool = False,
    device: torch.device | None = None,
) -> list[T]:
    """Call `run_rank` once for each rank of the program, with the rank's transport, and return the results by rank.

    Args:
        seed: of the scheduler, which draws the rank that continues.
        machine: by default the one in the program's header.
        every_post: another rank may also continue at each transfer and collective, so that every interleaving can be drawn.
        device: where messages are; by default the CPU. On a GPU each rank has a CUDA stream of its own (cuda_streams.py).

    Each rank begins with the states that torch's random generators have now, and its draws do not change those of another rank.
    When all ranks have ended, the generators get these states again.

    Raises the first error of a rank. If no rank can continue, this is StuckError, with what each waiting rank waits for.
    """
    machine, device = machine or program.header.machine, device or CPU
    scheduler = _Ranks(program.world, seed, device)
    network = Network(program, machine, every_post, scheduler, device)
    generators = Generators(device)
    states = generators.states()
    caller_stream = torch.cuda.current_stream(device) if device.type == "cuda" else None

    def run_with_generators(rank: Loopback) -> T:
        generators.set(states)
        with running_on(new_stream(device), after=caller_stream):
            return run_rank(rank)

    results = scheduler.run([partial(run_with_generators, Loopback(rank, network, device)) for rank in range(program.world)])
    generators.set(states)
    errors = scheduler.errors
    if not errors:
        return results
    first = next(iter(errors.values()))
    if isinstance(first.cause if isinstance(first, RankError) else first, StuckError):
        lines = "".join(f"\n  {errors[rank]}" for rank in sorted(errors))
        raise StuckError(f"deadlock on the {machine_name(machine, program.header.window)} machine:{lines}") from first
    raise first


class _Ranks(Scheduler):
    """Schedules ranks, which share the random generators of the process. Each rank finds them as it left them."""

    def __init__(self, count: int, seed: int, device: torch.device) -> None:
        super().__init__(count, seed)
        self._generators = Generators(device)

    def switch(self, thread: int, ready: Callable[[], bool] = always) -> None:
        """Let a rank run that can continue, as in `Scheduler`. Afterwards the generators have the states of this rank again."""
        states = self._generators.states()
        super().switch(thread, ready)
        self._generators.set(states)


class PendingOperation:
    """A transfer or a collective that a rank has posted."""

    __slots__ = ("_operation", "_transport", "_what")

    def __init__(self, transport: Loopback, operation: Operation, what: str) -> None:
        self._transport, self._operation, self._what = transport, operation, what

    def wait(self) -> None:
        """Return when it is complete; other ranks run meanwhile."""
        waits = self._transport.waits_of_gpu
        if waits is not None:
            waits.measure(self._transport.progress.position[NUMBER], self._wait)
        else:
            self._wait()

    def _wait(self) -> None:
        self._transport.wait(lambda: self._operation.complete, self._what)
        if self._operation.order is not None:
            self._operation.order.wait()


class Loopback:
    """One rank on the network that all ranks share."""

    rehearsal: Callable[[], AbstractContextManager[None]] | None = None
    waits_of_gpu: GpuWaits | None = None

    def __init__(self, rank: int, network: Network, device: torch.device) -> None:
        self.rank, self.world, self.machine = rank, network.size, network.machine
        self.device, self.waited_ns, self.progress = device, 0, Progress()
        self._network = network
        self._to: dict[int, Channel] = {}  # by peer, the channels over which this rank has sent
        self._sent: dict[int, deque[Tensor]] = {}  # by peer, the buffers of the sends that have not been waited for
        self._launched: dict[tuple[int, ...], int] = {}  # by ranks, how many collectives this rank has posted
        self._gathers = 0  # how many gathers of all ranks this rank has begun

    def named(self, ranks: Sequence[int]) -> str:
        """Return ranks as text for a message."""
        return ranks_text(ranks)

    def wait(self, ready: Callable[[], bool], what: str) -> None:
        """Return when `ready()` is true; other ranks run meanwhile.

        Args:
            what: what this rank waits for, as text for the error.
        """
        begin = perf_counter_ns()
        self._network.scheduler.wait(self.rank, ready, what)
        self.waited_ns += perf_counter_ns() - begin

    def _pause(self) -> None:
        """With probability 1/2, let the scheduler choose which rank runs now, if the network allows that at each post."""
        if self._network.every_post:
            self._network.scheduler.pause(self.rank)

    def connect(self, program: Program) -> None:
        """Do nothing: a channel is created by its first use."""

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send. If the window is full, first wait for an earlier send. With window 0, post it, then wait for it."""
        self._pause()
        channel = self._to[peer] = self._network.channel(self.rank, peer)
        window = self._network.window
        # With a window, the number of the transfer to wait for; if negative, there is none.
        awaited = channel.sends - (window or 0)
        sent = self._sent.setdefault(peer, deque())
        if window:
            self._wait_for_transfer(peer, channel, awaited)
            if len(sent) == window:
                sent.popleft()
        channel.post_send(buffer, self._network.transfer_queue(self.rank, peer))
        if window == 0:
            self._wait_for_transfer(peer, channel, awaited)
        else:
            sent.append(buffer)

    def _wait_for_transfer(self, peer: int, channel: Channel, number: int) -> None:
        """Return when transfer `number` is complete; without queues of transfers, as soon as its receive is posted."""
        if self._network.transfer_queue(self.rank, peer) is None:
            self.wait(lambda: channel.receives > number, f"rank {peer} to post its receive number {number} of this channel")
        else:
            self.wait(lambda: channel.completed > number, f"its transfer number {number} to rank {peer}")

    def recv(self, peer: int, buffer: Tensor) -> PendingOperation:
        """Post a receive into `buffer`."""
        self._pause()
        poison(buffer)
        channel = self._network.channel(peer, self.rank)
        operation = channel.post_receive(buffer, self._network.transfer_queue(self.rank, peer))
        return PendingOperation(self, operation, f"a message from rank {peer}")

    def launch_all_reduce(self, ranks: tuple[int, ...], buffer: Tensor) -> PendingOperation:
        """Launch an all-reduce (sum) of `buffer`, in place, over these ranks.

        The sum has the same bits in whatever order the ranks launch it.
        """

        def total(buffers: Mapping[int, Tensor]) -> Tensor:
            return torch.stack([buffers[r] for r in ranks]).sum(dim=0) if len(ranks) > 1 else buffers[ranks[0]]

        return self._launch(ranks, buffer, total, f"the all-reduce over {ranks_text(ranks)}")

    def broadcast(self, ranks: tuple[int, ...], source: int, buffer: Tensor) -> PendingOperation:
        """Copy the buffer of rank `source` to all of these ranks; called by them together, outside the streams."""
        what = f"the broadcast from rank {source} to {ranks_text(ranks)}"
        return self._launch(ranks, buffer, lambda buffers: buffers[source].clone(), what)

    def _launch(
        self, ranks: tuple[int, ...], buffer: Tensor, result: Callable[[Mapping[int, Tensor]], Tensor], what: str
    ) -> PendingOperation:
        """Post a collective.

        Args:
            result: computes from the buffers, by rank, what all of them hold afterwards.
            what: the collective, as text.
        """
        self._pause()
        number = self._launched[ranks] = self._launched.get(ranks, 0) + 1
        operation, buffers = self._network.collective(ranks, number)
        buffers[self.rank] = buffer

        def complete() -> None:
            del self._network.collectives[ranks, number]
            values = result(buffers)
            for member_buffer in buffers.values():
                member_buffer.copy_(values)

        operation.action = complete
        operation.post(self._network.collective_queue(self.rank))
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
        buffers = self._gather(buffer.to(CPU, copy=True))
        buffer.copy_(torch.stack(buffers).sum(dim=0))

    def all_gather(self, text: str) -> list[str]:
        """Return the text of each rank; called by all ranks together, outside the streams."""
        return self._gather(text)

    def _gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        self._gathers += 1
        values = self._network.gathered.setdefault(self._gathers, {})
        values[self.rank] = value
        self.wait(lambda: len(values) == self.world, "all ranks to make this call")
        self._network.gathered.pop(self._gathers, None)
        return [values[r] for r in range(self.world)]


def poison(buffer: Tensor) -> None:
    """Set every bit, which gives NaN in every floating-point type that a message may have.

    A backward that kept the tensor fails: autograd detects that it was overwritten.
    """
    if buffer.numel():
        buffer.view(-1).view(torch.uint8).fill_(255)
