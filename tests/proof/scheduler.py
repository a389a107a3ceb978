"""Loopback's own scheduler, run over all choices instead of drawn ones.

Every rank is a stream walked on the real transport, with messages of one number. It has a place at each hand-over: before
each post and at each wait, whether or not it has to wait, so that the places are the same under every interleaving.
A state is the vector of places. Runs are repeated from the start with other choices until every state that can be
reached has been.

That the places are the whole state, since nothing is decided while a program runs, is checked too: `thorough` takes
every choice of every state and compares all that the world holds with what it held there the first time.
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
from chimerac.interpreter.transport.machines import Queue, World
from chimerac.interpreter.transport.turns import Turns
from tests.proof.model import Found

State = tuple[int, ...]
Path = tuple[int, ...]
Life = list[tuple[Any, ...]]  # what a rank does with its transport
CPU = torch.device("cpu")


class Chosen(Turns):
    """Turns of greenlets, which start quickly and all run in one thread. Each hands over wherever it might."""

    def __init__(self, count: int, choose: Callable[[Sequence[int]], int | None]) -> None:
        super().__init__(count)
        self._choose, self._next = choose, None

    def wait(self, me: int, ready: Callable[[], bool], what: str) -> None:
        self.hand_over(me, ready)
        super().wait(me, ready, what)

    def pause(self, me: int) -> None:
        self.hand_over(me)
        if self.over:
            raise self.over("it is over")

    def choose(self, able: Sequence[int]) -> int:
        chosen = self._choose(able)
        if chosen is None:  # nothing new can come of this run
            self.over = PeerLostError
            return able[0]
        return chosen

    def start(self, lives: Sequence[Callable[[], None]]) -> None:
        self._hub, self._lives = greenlet.getcurrent(), [greenlet(life) for life in lives]

    def give(self, to: int | None) -> None:
        self._next = to

    def take(self, me: int) -> None:
        self._hub.switch()

    def finish(self) -> None:
        while self._next is not None:
            self._lives[self._next].switch()


class Watched(World):
    """A world that knows how much has been posted in it."""

    launched = 0

    def collectives(self, rank: int) -> Queue:
        self.launched += 1
        return super().collectives(rank)

    def posts(self) -> int:
        return self.launched + sum(c.sends + c.receives for c in self.channels.values())


@dataclass
class Exploration:
    """One program on one machine. seen: what the world held at each state, where that is compared."""

    program: Program
    machine: Machine
    thorough: bool = False
    seen: dict[State, object] = field(default_factory=dict)
    todo: list[tuple[Path, State]] = field(default_factory=list)
    silent: set[tuple[int, int]] = field(default_factory=set)  # (rank, place) of turns that post nothing
    finals: dict[State, bool] = field(default_factory=dict)

    def run(self) -> Found:
        """Visit every state."""
        lives = lives_of(self.program)
        self.todo.append(((), (0,) * self.program.world))
        while self.todo:
            path, state = self.todo.pop()
            if self.thorough or state not in self.seen:
                self.repeat(lives, path)
        return Found(len(self.seen), tuple(self.finals.values()))

    def repeat(self, lives: list[Life], path: Path) -> None:
        """Run the program along a path, and then on through states not seen yet."""
        at, taken = [0] * len(lives), list(path)
        cut, before = False, 0
        turn: tuple[int, int] | None = None

        def choose(able: Sequence[int]) -> int | None:
            nonlocal cut, turn, before
            if turn is not None and world.posts() == before:
                self.silent.add(turn)
            depth = sum(at)
            if depth < len(path):
                chosen = path[depth]
            else:
                state = tuple(at)
                known = state in self.seen
                self.meet(state, held(world, buffers) if self.thorough else None)
                following = [(k, (*at[:k], at[k] + 1, *at[k + 1 :])) for k in self.worth(able, at)]
                fresh = [] if known else [(k, s) for k, s in following if self.thorough or s not in self.seen]
                if not fresh:
                    cut = True
                    return None
                chosen = fresh[0][0]
                self.todo += [((*taken, k), s) for k, s in fresh[1:]]
                taken.append(chosen)
            turn, before = (chosen, at[chosen]), world.posts()
            at[chosen] += 1
            return chosen

        turns = Chosen(len(lives), choose)
        world = Watched(self.program, self.machine, every_post=True, turns=turns)
        buffers: list[list[Tensor]] = [[] for _ in lives]
        right = turns.run([partial(live, Loopback(g, world, CPU), lives[g], buffers[g]) for g in range(len(lives))])
        unexpected = [e for e in turns.errors.values() if not isinstance(e, StuckError | PeerLostError)]
        if unexpected:
            raise unexpected[0]
        if not cut:
            self.meet(tuple(at), held(world, buffers) if self.thorough else None)
            self.finals[tuple(at)] = turns.over is None and all(right)

    def meet(self, state: State, holds: object) -> None:
        """Note a state. Whenever it is met again, the world must hold the same."""
        assert self.seen.setdefault(state, holds) == holds, "the places of the ranks are not the whole state"

    def worth(self, able: Sequence[int], at: list[int]) -> Sequence[int]:
        """Return who should go on, of those that could: one alone where it is known to post nothing until its next place.

        Nobody can tell when such a turn was taken, and it remains possible until it is.
        """
        silent = () if self.thorough else [k for k in able if (k, at[k]) in self.silent]
        return silent[:1] or able


def explore(program: Program, machine: Machine, thorough: bool = False) -> Found:
    """Visit every state of a program whose channels have as many SENDs as RECVs."""
    return Exploration(program, machine, thorough).run()


def held(world: World, buffers: list[list[Tensor]]) -> object:
    """Return all that the ranks have in common, and all that they have received."""
    channels = sorted(
        (k, c.sends, c.receives, c.done, len(c.waiting)) for k, c in world.channels.items() if c.sends + c.receives
    )
    queues = sorted((str(k), tuple((d.missing, d.complete) for d in q)) for k, q in world.queues.items() if q)
    sums = sorted((k, d.missing, sorted(parts)) for k, (d, parts) in world.sums.items())
    return channels, queues, sums, [torch.cat(b).nan_to_num(-1).tolist() if b else [] for b in buffers]


def lives_of(program: Program) -> list[Life]:
    """Return what every rank does: posts, and a wait at the first reader of what it receives."""
    content: dict[tuple[object, ...], int] = {}
    lives: list[Life] = []
    for g in range(program.world):
        life: Life = []
        awaited: dict[tuple[object, ...], tuple[int, int]] = {}
        posted = 0
        for i in program.stream(g):
            if isinstance(i, Send | Recv):
                message = (g // program.header.ranks, i.value, i.pipe, i.stage, i.micro_batches)
                number = content.setdefault(message, len(content))
            match i:
                case Send():
                    life.append(("send", i.peer, number))
                case Recv():
                    life.append(("recv", i.peer))
                    for m in i.micro_batches:
                        awaited[i.value, i.pipe, i.stage, m] = posted, number
                    posted += 1
                case AllReduce():
                    life.append(("sum", i.ranks, content.setdefault((i.group,), len(content))))
                case Fwd() | Bwd() | BwdInput():
                    value = "act" if isinstance(i, Fwd) else "grad"
                    first = {awaited.get((value, i.pipe, i.stage, m)) for m in i.micro_batches} - {None}
                    life += [("read", *message) for message in sorted(first)]  # type: ignore[type-var]
                    awaited = {key: message for key, message in awaited.items() if message not in first}
        lives.append(life)
    return lives


def live(transport: Loopback, life: Life, buffers: list[Tensor]) -> bool:
    """Be a rank; return whether what it received and summed is what it should be."""
    received, sums, right = [], [], True
    for what, *rest in life:
        match what:
            case "send":
                transport.send(rest[0], torch.tensor([float(rest[1])]))
            case "recv":
                buffers.append(torch.zeros(1))
                received.append((transport.recv(rest[0], buffers[-1]), buffers[-1]))
            case "read":
                pending, buffer = received[rest[0]]
                pending.wait()
                right &= buffer.item() == rest[1]
            case _:
                ranks, number = rest
                buffers.append(torch.tensor([number * 64.0 + transport.rank]))
                sums.append(
                    (transport.launch_all_reduce(ranks, buffers[-1]), buffers[-1], sum(number * 64.0 + r for r in ranks))
                )
    transport.flush()
    for pending, total, wanted in sums:
        pending.wait()
        right &= total.item() == wanted  # sums over the same ranks are told apart by their order alone
    return right
