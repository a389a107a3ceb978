"""An independent event-driven simulator: how long a program takes on its machine, by the rules of docs/semantics.md.

It uses no arrays and no code of the compiler. In this file an operation is a transfer or a collective. At each point in time
every rank executes all that it can, and every operation that can start starts. Then the clock advances to the next time at
which a task ends, or an operation leaves its queues or is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from typing import Any

from chimerac.chimera_ir.instructions import AllReduce, Free, Fwd, Instruction, Recompute, Recv, Send, Task
from chimerac.chimera_ir.program import Program

Time = int | Fraction
Channel = tuple[int, int]


@dataclass(frozen=True)
class Network:
    """How long messages and all-reduces take.

    Attributes:
        message: given a rank and its SEND, the latency of the message and how long it occupies its channel.
        all_reduce: the duration of an all-reduce.
    """

    message: Callable[[int, Send], tuple[Time, Time]]
    all_reduce: Callable[[AllReduce], Time]


def makespan(
    program: Program, costs: dict[str, Time] | None = None, hop: Time | None = None, network: Network | None = None
) -> Time:
    """Return the time at which all tasks and all-reduces have ended on the machine of the header.

    Args:
        costs: by the kind of task, such as FWD; the same for every stage; by default the program's own.
        hop: the duration of a transfer; by default the program's own.
        network: used instead of the hop. None: every message takes the hop, and all-reduces take no time.

    Raises AssertionError if the ranks deadlock.
    """
    duration = program.costs.hop if hop is None else hop
    return _Simulation(program, costs, network or Network(lambda g, i: (duration, 0), lambda i: 0)).run()


@dataclass(eq=False)
class _Operation:
    """A transfer or a collective.

    Attributes:
        missing: how many ranks have not posted their end of it yet.
        duration: how long it stays in its queues after its start.
        latency: how long it then takes until it is complete.
        is_collective: the makespan includes its completion.
        queues: those that it is in.
    """

    missing: int
    duration: Time
    latency: Time = 0
    is_collective: bool = False
    queues: list[list[_Operation]] = field(default_factory=list)
    started: bool = False
    complete: bool = False

    def can_start(self) -> bool:
        return not self.missing and not self.started and all(queue[0] is self for queue in self.queues)


class _Simulation:
    def __init__(self, program: Program, costs: dict[str, Time] | None, network: Network) -> None:
        self.program, self.costs, self.network = program, costs, network
        h = program.header
        self.has_queues = h.machine in ("paired", "serial")
        self.window = {"posted": None, "rendezvous": 0}.get(h.machine, h.window)  # None: without a limit
        self.streams = [list(program.stream(g)) for g in range(program.world)]
        self.position = [0] * program.world
        self.busy = [False] * program.world
        # By rank: with queues and window 0, the transfer of its last SEND, which must be complete before the rank goes on.
        self.blocking: list[_Operation | None] = [None] * program.world
        self.now: Time = 0
        self.last: Time = 0  # the end of the last task or all-reduce so far
        self.tie_breakers = count()
        # (time, tie-breaker, subject). The subject is (rank,) when a rank becomes free, or an operation when it leaves its
        # queues or is complete.
        self.events: list[tuple[Time, int, Any]] = []
        self.sends: dict[Channel, int] = {}
        self.receives: dict[Channel, int] = {}
        self.transfers: dict[tuple[Channel, int], _Operation] = {}
        self.collectives: dict[AllReduce, _Operation] = {}
        self.startable: list[_Operation] = []  # operations that can start now
        self.queues: dict[tuple[int, ...], list[_Operation]] = {}
        self.source: dict[tuple[object, ...], _Operation] = {}  # (rank, value, stage, micro-batch) -> its transfer
        # (rank, stage, micro-batch) whose forward is to be run again, and no RECOMPUTE has done that yet
        self.not_recomputed: set[tuple[int, int, int]] = set()

    def run(self) -> Time:
        while True:
            while any([*map(self._advance, range(self.program.world)), self._start_operations()]):
                pass
            if not self.events:
                assert all(p == len(s) for p, s in zip(self.position, self.streams, strict=True)), "the ranks deadlock"
                return self.last
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                self._end(heappop(self.events)[2])

    def _schedule(self, time: Time, subject: Any) -> None:
        heappush(self.events, (time, next(self.tie_breakers), subject))

    def _end(self, subject: Any) -> None:
        if isinstance(subject, _Operation):
            queues, subject.queues = subject.queues, []
            for queue in queues:
                assert queue.pop(0) is subject
            if subject.latency:
                latency, subject.latency = subject.latency, 0
                self._schedule(self.now + latency, subject)
            else:
                subject.complete = True
                self.last = self.now if subject.is_collective else self.last
            self._start_if_possible(*(queue[0] for queue in queues if queue))
        else:
            self.busy[subject[0]] = False
            self.last = self.now

    def _start_if_possible(self, *operations: _Operation) -> None:
        for operation in operations:
            if operation.can_start():
                operation.started = True
                self.startable.append(operation)

    def _start_operations(self) -> bool:
        started = bool(self.startable)
        while self.startable:
            operation = self.startable.pop()
            if operation.duration:
                self._schedule(self.now + operation.duration, operation)
            else:
                self._end(operation)
        return started

    def _advance(self, g: int) -> bool:
        """Execute all instructions that rank g can execute now; return whether there was any."""
        moved = False
        while not self.busy[g] and self.position[g] < len(self.streams[g]) and self._execute(g):
            moved = True
        return moved

    def _execute(self, g: int) -> bool:
        """Execute the next instruction of rank g; return False if it must wait."""
        blocking = self.blocking[g]
        if blocking is not None and not blocking.complete:
            return False
        self.blocking[g] = None
        i = self.streams[g][self.position[g]]
        match i:
            case Send():
                issued = self._send(g, i)
            case Recv():
                number = self.receives.get((i.peer, g), 0)
                self.receives[i.peer, g] = number + 1
                operation = self._post(g, i.peer, ((i.peer, g), number), None)
                self.source.update({(g, i.value, i.stage, m): operation for m in i.micro_batches})
                issued = True
            case AllReduce():
                issued = True
                operation = self.collectives.setdefault(
                    i, _Operation(len(i.ranks), self.network.all_reduce(i), is_collective=True)
                )
                # On `serial` a rank has one queue for everything. On the other machines its collectives have a queue of their
                # own, with -1 as peer.
                self._post_end(operation, (g,) if self.program.header.machine == "serial" else (g, -1))
            case Task():
                return self._start_task(g, self.streams[g][self.position[g] : self.position[g] + 1 + i.overlap])
            case Free():
                issued = True
            case _:
                raise AssertionError(f"unknown instruction {i}")
        if issued:
            self.position[g] += 1
        return issued

    def _send(self, g: int, i: Send) -> bool:
        """Post a SEND of rank g; return False if the rank must wait."""
        channel = (g, i.peer)
        number = self.sends.get(channel, 0)
        if self.window == 0 and not self.has_queues and self.receives.get(channel, 0) <= number:
            return False  # the RECV of this message is not posted
        if self.window and number >= self.window and not self.transfers[channel, number - self.window].complete:
            return False  # the window is full
        self.sends[channel] = number + 1
        operation = self._post(g, i.peer, (channel, number), i)
        if self.window == 0 and self.has_queues:
            self.blocking[g] = operation
        return True

    def _post(self, g: int, peer: int, message: tuple[Channel, int], send: Send | None) -> _Operation:
        """Post one end of a transfer, in a queue of rank g if the machine has one. Return the transfer.

        Args:
            message: its channel and its number there.
            send: None if this end is the RECV. On a machine without queues the SEND enters a queue of its channel, since the
                messages of a channel follow each other.
        """
        operation = self.transfers.setdefault(message, _Operation(2, 0))
        if send is not None:
            operation.latency, operation.duration = self.network.message(g, send)
            if self.has_queues:  # it stays in its queues until it is complete
                operation.latency, operation.duration = 0, operation.latency + operation.duration
        queue = {"paired": (g, peer), "serial": (g,)}.get(self.program.header.machine)
        if queue is None and send is not None:
            queue = (g, peer)
        self._post_end(operation, queue)
        return operation

    def _post_end(self, operation: _Operation, queue: tuple[int, ...] | None) -> None:
        """Post one end of an operation, in a queue if the machine has one."""
        operation.missing -= 1
        if queue is not None:
            operation.queues.append(self.queues.setdefault(queue, []))
            operation.queues[-1].append(operation)
        self._start_if_possible(operation)

    def _start_task(self, g: int, instructions: Iterable[Instruction]) -> bool:
        """Start a task, or an overlapped pair as one, if the values that it reads have arrived; return whether it was started.

        Args:
            instructions: the task, or the two tasks of the pair.
        """
        pair = [i for i in instructions if isinstance(i, Task)]
        for i in pair:
            value = {"FWD": "act", "BWD": "grad", "BWD_INPUT": "grad"}.get(i.op)
            for m in i.micro_batches:
                source = self.source.get((g, value, i.stage, m))
                if source is not None and not source.complete:
                    return False
        self.position[g] += len(pair)
        self.busy[g] = True
        self._schedule(self.now + sum(self._cost(g, i) for i in pair), (g,))
        return True

    def _cost(self, g: int, i: Task) -> Time:
        """Return how long a task takes, with the forwards that it runs again. Updates `not_recomputed`."""
        costs, op = self.program.costs, i.op

        def cost_of(kind: str) -> Time:
            """Return the cost of a kind of task. A recomputation without a cost of its own takes as long as a forward."""
            if self.costs is None:
                return (getattr(costs, kind) or costs.FWD)[i.stage]
            return self.costs["FWD" if kind == "RECOMPUTE" and kind not in self.costs else kind]

        cells = [(g, i.stage, m) for m in i.micro_batches]
        if isinstance(i, Fwd) and i.recompute:
            self.not_recomputed.update(cells)
        if isinstance(i, Recompute):
            self.not_recomputed.difference_update(cells)
        repeated = sum(cell in self.not_recomputed for cell in cells) if op in ("BWD", "BWD_INPUT") else 0
        return cost_of(op) * len(cells) + cost_of("RECOMPUTE") * repeated
