"""A second opinion on how long a program takes on its machine: time goes on from event to event, as docs/semantics.md says.

No array and no code of the compiler. At each moment every rank goes on as far as it can and every transfer that may begin
begins; then the clock moves on to the next end of a task or of a transfer.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from itertools import count
from typing import Any

from chimerac.chimera_ir.instructions import AllReduce, Fwd, Instruction, Recv, Send, Task
from chimerac.chimera_ir.program import Program

Time = int | Fraction
Channel = tuple[int, int]


def makespan(program: Program, costs: dict[str, Time] | None = None, hop: Time | None = None) -> Time:
    """Return when the last task ends on the machine of the header.

    costs: by operation, the same for every stage; without them, and without a hop, the program's own. Raises
    AssertionError where nobody can move.
    """
    return _World(program, costs, program.costs.hop if hop is None else hop).run()


@dataclass(eq=False)
class _Operation:
    """A message or a collective. missing: ends that are not posted; queues: those in which it stands."""

    missing: int
    lasts: Time
    queues: list[list[_Operation]] = field(default_factory=list)
    begun: bool = False
    complete: bool = False

    def may_begin(self) -> bool:
        return not self.missing and not self.begun and all(queue[0] is self for queue in self.queues)


class _World:
    def __init__(self, program: Program, costs: dict[str, Time] | None, hop: Time) -> None:
        self.program, self.costs, self.hop = program, costs, hop
        h = program.header
        self.queued = h.machine in ("paired", "serial")
        self.window = {"posted": None, "rendezvous": 0}.get(h.machine, h.window)
        self.streams = [list(program.stream(g)) for g in range(program.world)]
        self.place = [0] * program.world
        self.busy = [False] * program.world
        self.held: list[_Operation | None] = [None] * program.world  # with K = 0 on a queue: what a SEND has posted
        self.now: Time = 0
        self.last: Time = 0
        self.count = count()
        self.events: list[tuple[Time, int, Any]] = []  # a rank that is free again, or a operation that is complete
        self.sends: dict[Channel, int] = {}
        self.receives: dict[Channel, int] = {}
        self.messages: dict[tuple[Channel, int], _Operation] = {}
        self.sums: dict[AllReduce, _Operation] = {}
        self.able: list[_Operation] = []  # that may begin now
        self.queues: dict[tuple[int, ...], list[_Operation]] = {}
        self.source: dict[tuple[object, ...], _Operation] = {}  # a received value on a rank -> its message
        self.again: set[tuple[int, int, int]] = set()  # (rank, stage, micro-batch) whose forward kept only its input

    def run(self) -> Time:
        while True:
            while any([*map(self._step, range(self.program.world)), self._begin()]):
                pass
            if not self.events:
                assert all(p == len(s) for p, s in zip(self.place, self.streams, strict=True)), "nobody can move"
                return self.last
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                self._end(heappop(self.events)[2])

    def _at(self, time: Time, what: Any) -> None:
        heappush(self.events, (time, next(self.count), what))

    def _end(self, what: Any) -> None:
        if isinstance(what, _Operation):
            what.complete = True
            for queue in what.queues:
                assert queue.pop(0) is what
            self._look(*(queue[0] for queue in what.queues if queue))
        else:
            self.busy[what[0]] = False
            self.last = self.now

    def _look(self, *operations: _Operation) -> None:
        for operation in operations:
            if operation.may_begin():
                operation.begun = True
                self.able.append(operation)

    def _begin(self) -> bool:
        begun = bool(self.able)
        while self.able:
            operation = self.able.pop()
            if operation.lasts:
                self._at(self.now + operation.lasts, operation)
            else:
                self._end(operation)
        return begun

    def _step(self, g: int) -> bool:
        """Execute what rank g can execute now; return whether there was anything."""
        moved = False
        while not self.busy[g] and self.place[g] < len(self.streams[g]) and self._go(g):
            moved = True
        return moved

    def _go(self, g: int) -> bool:
        held = self.held[g]
        if held is not None and not held.complete:
            return False
        self.held[g] = None
        i = self.streams[g][self.place[g]]
        match i:
            case Send():
                gone = self._send(g, i)
            case Recv():
                number = self.receives.get((i.peer, g), 0)
                self.receives[i.peer, g] = number + 1
                operation = self._post(g, i.peer, ((i.peer, g), number))
                self.source.update({(g, i.value, i.stage, m): operation for m in i.micro_batches})
                gone = True
            case AllReduce():
                gone = True
                if self.program.header.machine == "serial":
                    operation = self.sums.setdefault(i, _Operation(len(i.ranks), 0))
                    self._stand(operation, (g,))
            case Task():
                return self._work(g, self.streams[g][self.place[g] : self.place[g] + 1 + i.overlap])
            case _:
                gone = True
        self.place[g] += gone
        return gone

    def _send(self, g: int, i: Send) -> bool:
        channel = (g, i.peer)
        number = self.sends.get(channel, 0)
        if self.window is not None and number >= self.window and (self.window or not self.queued):
            if self.window == 0 and self.receives.get(channel, 0) <= number:
                return False
            if self.window and not self.messages[channel, number - self.window].complete:
                return False
        self.sends[channel] = number + 1
        operation = self._post(g, i.peer, (channel, number))
        if self.window == 0 and self.queued:
            self.held[g] = operation
        return True

    def _post(self, g: int, peer: int, message: tuple[Channel, int]) -> _Operation:
        operation = self.messages.setdefault(message, _Operation(2, self.hop))
        self._stand(operation, {"paired": (g, peer), "serial": (g,)}.get(self.program.header.machine))
        return operation

    def _stand(self, operation: _Operation, queue: tuple[int, ...] | None) -> None:
        """Post one end of a operation, in a queue where there is one."""
        operation.missing -= 1
        if queue is not None:
            operation.queues.append(self.queues.setdefault(queue, []))
            operation.queues[-1].append(operation)
        self._look(operation)

    def _work(self, g: int, both: Iterable[Instruction]) -> bool:
        """Begin a task, or an overlapped pair as one, if what it reads is there."""
        pair = [i for i in both if isinstance(i, Task)]
        for i in pair:
            value = {"FWD": "act", "BWD": "grad", "BWD_INPUT": "grad"}.get(i.op)  # type: ignore[attr-defined]
            for m in i.micro_batches:
                source = self.source.get((g, value, i.stage, m))
                if source is not None and not source.complete:
                    return False
        self.place[g] += len(pair)
        self.busy[g] = True
        self._at(self.now + sum(self._cost(g, i) for i in pair), (g,))
        return True

    def _cost(self, g: int, i: Task) -> Time:
        own, op = self.program.costs, i.op  # type: ignore[attr-defined]

        def once(kind: str) -> Time:
            return getattr(own, kind)[i.stage] if self.costs is None else self.costs[kind]  # type: ignore[no-any-return]

        cells = [(g, i.stage, m) for m in i.micro_batches]
        if isinstance(i, Fwd) and i.recompute:
            self.again.update(cells)
        repeated = sum(cell in self.again for cell in cells) if op in ("BWD", "BWD_INPUT") else 0
        return once(op) * len(cells) + once("FWD") * repeated if repeated else once(op) * len(cells)
