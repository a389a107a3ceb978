"""Explores all interleavings with the scheduler of loopback, which normally draws one at random.

Every rank makes the posts and waits of its stream on loopback itself, with messages of one number. A rank lets another one
continue before each post and at each wait, even if it need not wait. What a rank does from one such point to the next is a
turn. The position of a rank is the number of turns that it has begun, so positions do not depend on the interleaving. A state
is the tuple of the positions. Runs are repeated from the start with other choices until there is no new state to reach. Turns
that post nothing are not reordered with turns of other ranks, because their order has no effect.

With `thorough`, they are reordered too: every choice is taken in every state. It is also checked that the positions determine
everything else: the contents of the transport and of the buffers are compared with those of the first visit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from greenlet import greenlet
from torch import Tensor

from chimerac.chimera_ir.instructions import AllReduce, Bwd, BwdInput, Fwd, Recv, Send
from chimerac.chimera_ir.program import Machine, Program
from chimerac.interpreter.errors import PeerLostError, StuckError
from chimerac.interpreter.transport.loopback import Loopback
from chimerac.interpreter.transport.machines import Network, Queue
from chimerac.interpreter.transport.scheduler import Scheduler
from tests.proof.model import Explored

State = tuple[int, ...]  # the position of each rank
Path = tuple[int, ...]  # the rank that continued at each choice
Calls = list[tuple[Any, ...]]  # the calls of a rank to its transport
CPU = torch.device("cpu")


class GreenletScheduler(Scheduler):
    """A scheduler of greenlets, which all run in one thread. Each lets another one continue at every wait and pause.

    Args:
        choose: returns which greenlet continues, of those that can; None stops the run.
    """

    def __init__(self, count: int, choose: Callable[[Sequence[int]], int | None]) -> None:
        super().__init__(count)
        self._choose, self._next = choose, None

    def wait(self, thread: int, ready: Callable[[], bool], what: str) -> None:
        self.switch(thread, ready)
        super().wait(thread, ready, what)

    def pause(self, thread: int) -> None:
        self.switch(thread)
        if self.stopped_by:
            raise self.stopped_by("the run was stopped")

    def choose(self, able: Sequence[int]) -> int:
        chosen = self._choose(able)
        if chosen is None:  # this run can reach no new state
            self.stopped_by = PeerLostError
            return able[0]
        return chosen

    def start(self, bodies: Sequence[Callable[[], None]]) -> None:
        self._hub, self._greenlets = greenlet.getcurrent(), [greenlet(body) for body in bodies]

    def resume(self, thread: int | None) -> None:
        self._next = thread

    def suspend(self, thread: int) -> None:
        self._hub.switch()

    def join(self) -> None:
        while self._next is not None:
            self._greenlets[self._next].switch()


class CountingNetwork(Network):
    """A network that counts the sends, receives and collectives that are posted on it."""

    launched = 0  # how many times a rank has posted a collective

    def collective_queue(self, rank: int) -> Queue:
        self.launched += 1
        return super().collective_queue(rank)

    def posts(self) -> int:
        return self.launched + sum(c.sends + c.receives for c in self.channels.values())


@dataclass
class Exploration:
    """The exploration of one program on one machine.

    Attributes:
        seen: by visited state, what `contents` returns if `thorough`, else None.
    """

    program: Program
    machine: Machine
    thorough: bool = False
    seen: dict[State, object] = field(default_factory=dict)
    pending: list[tuple[Path, State]] = field(default_factory=list)  # paths to be run, and the state to which each leads
    silent: set[tuple[int, int]] = field(default_factory=set)  # (rank, position before the turn) of turns that post nothing
    finals: dict[State, bool] = field(default_factory=dict)  # by final state, whether all ranks ended correctly

    def run(self) -> Explored:
        """Visit every state that the choices of `to_explore` reach: with `thorough`, all that any interleaving can reach."""
        calls = calls_of(self.program)
        self.pending.append(((), (0,) * self.program.world))
        while self.pending:
            path, state = self.pending.pop()
            if self.thorough or state not in self.seen:
                self.repeat(calls, path)
        return Explored(len(self.seen), tuple(self.finals.values()))

    def repeat(self, calls: list[Calls], path: Path) -> None:
        """Run the program along a path of choices, and then further while it reaches new states."""
        positions, choices = [0] * len(calls), list(path)
        cut = False  # whether the run was stopped because it can reach no new state
        last_turn: tuple[int, int] | None = None  # (rank, position before the turn)
        posts_before = 0  # the number of posts before that turn

        def choose(ready: Sequence[int]) -> int | None:
            nonlocal cut, last_turn, posts_before
            if last_turn is not None and network.posts() == posts_before:
                self.silent.add(last_turn)
            depth = sum(positions)
            if depth < len(path):
                chosen = path[depth]
            else:
                state = tuple(positions)
                known = state in self.seen
                self.visit(state, contents(network, buffers) if self.thorough else None)
                successors = [
                    (k, (*positions[:k], positions[k] + 1, *positions[k + 1 :])) for k in self.to_explore(ready, positions)
                ]
                unseen = [] if known else [(k, s) for k, s in successors if self.thorough or s not in self.seen]
                if not unseen:
                    cut = True
                    return None
                chosen = unseen[0][0]
                self.pending += [((*choices, k), s) for k, s in unseen[1:]]
                choices.append(chosen)
            last_turn, posts_before = (chosen, positions[chosen]), network.posts()
            positions[chosen] += 1
            return chosen

        scheduler = GreenletScheduler(len(calls), choose)
        network = CountingNetwork(self.program, self.machine, every_post=True, scheduler=scheduler, device=CPU)
        buffers: list[list[Tensor]] = [[] for _ in calls]
        correct = scheduler.run([partial(execute, Loopback(g, network, CPU), calls[g], buffers[g]) for g in range(len(calls))])
        unexpected = [e for e in scheduler.errors.values() if not isinstance(e, StuckError | PeerLostError)]
        if unexpected:
            raise unexpected[0]
        if not cut:
            self.visit(tuple(positions), contents(network, buffers) if self.thorough else None)
            self.finals[tuple(positions)] = scheduler.stopped_by is None and all(correct)

    def visit(self, state: State, content: object) -> None:
        """Record a state. At each later visit `content` must be the same: what `contents` returns, or None."""
        assert self.seen.setdefault(state, content) == content, "the positions of the ranks do not determine the contents"

    def to_explore(self, ready: Sequence[int], positions: list[int]) -> Sequence[int]:
        """Return the ranks whose next turns must be explored: one alone if its turn is known to post nothing.

        Such a turn is independent of all others and stays possible until it is executed (partial-order reduction).
        """
        silent = () if self.thorough else [k for k in ready if (k, positions[k]) in self.silent]
        return silent[:1] or ready


def explore(program: Program, machine: Machine, thorough: bool = False) -> Explored:
    """Explore all interleavings of a program on a machine. Every channel must have as many SENDs as RECVs.

    Args:
        thorough: whether every choice is taken in every state, and the contents are compared.
    """
    return Exploration(program, machine, thorough).run()


def contents(network: Network, buffers: list[list[Tensor]]) -> object:
    """Return the contents of the transport, and of the buffers of all receives and all-reduces."""
    channels = sorted(
        (k, c.sends, c.receives, c.completed, len(c.unmatched)) for k, c in network.channels.items() if c.sends + c.receives
    )
    queues = sorted((str(k), tuple((x.missing, x.complete) for x in queue)) for k, queue in network.queues.items() if queue)
    collectives = sorted((k, operation.missing, sorted(posted)) for k, (operation, posted) in network.collectives.items())
    # A receive buffer is NaN from its RECV until the message arrives. NaN is not equal to itself, so -1 takes its place.
    return channels, queues, collectives, [torch.cat(b).nan_to_num(-1).tolist() if b else [] for b in buffers]


def calls_of(program: Program) -> list[Calls]:
    """Return the calls of every rank: its posts, and a wait at the first reader of each message."""
    number_of: dict[tuple[object, ...], int] = {}  # by message or group: the number that the message or all-reduce carries
    calls: list[Calls] = []
    for g in range(program.world):
        own: Calls = []
        # By value whose message no task has read yet: (number of RECVs before its RECV, number that the message carries).
        awaited: dict[tuple[object, ...], tuple[int, int]] = {}
        posted = 0  # RECVs of the rank so far
        for i in program.stream(g):
            if isinstance(i, Send | Recv):
                message = (g // program.header.ranks, i.value, i.pipe, i.stage, i.micro_batches)
                number = number_of.setdefault(message, len(number_of))
            match i:
                case Send():
                    own.append(("send", i.peer, number))
                case Recv():
                    own.append(("recv", i.peer))
                    for m in i.micro_batches:
                        awaited[i.value, i.pipe, i.stage, m] = posted, number
                    posted += 1
                case AllReduce():
                    own.append(("all-reduce", i.ranks, number_of.setdefault((i.group,), len(number_of))))
                case Fwd() | Bwd() | BwdInput():
                    value = "act" if isinstance(i, Fwd) else "grad"
                    read = {awaited.get((value, i.pipe, i.stage, m)) for m in i.micro_batches} - {None}
                    own += [("read", *entry) for entry in sorted(read)]  # type: ignore[type-var]
                    awaited = {key: entry for key, entry in awaited.items() if entry not in read}
        calls.append(own)
    return calls


def execute(transport: Loopback, own: Calls, buffers: list[Tensor]) -> bool:
    """Execute the calls of one rank; return whether all received values and all-reduced sums are correct."""
    received, all_reduces, correct = [], [], True
    for kind, *rest in own:
        match kind:
            case "send":
                transport.send(rest[0], torch.tensor([float(rest[1])]))
            case "recv":
                buffers.append(torch.zeros(1))
                received.append((transport.recv(rest[0], buffers[-1]), buffers[-1]))
            case "read":
                pending, buffer = received[rest[0]]
                pending.wait()
                correct &= buffer.item() == rest[1]
            case _:
                ranks, number = rest
                # The programs have at most 64 ranks, so the numbers that ranks add in all-reduces are all different.
                buffers.append(torch.tensor([number * 64.0 + transport.rank]))
                expected = sum(number * 64.0 + r for r in ranks)
                all_reduces.append((transport.launch_all_reduce(ranks, buffers[-1]), buffers[-1], expected))
    transport.flush()
    for pending, total, expected in all_reduces:
        pending.wait()
        # The sum is wrong if the ranks launched two all-reduces over the same ranks in different orders.
        correct &= total.item() == expected
    return correct
