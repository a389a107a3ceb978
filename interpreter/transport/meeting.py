"""How processes meet and part, how long each waits for the others, and which rank is missing when a wait was too long.

Ranks meet at a store: torchrun's, or one that rank 0 keeps. A rank that gives up calls all ranks through the store. In
every rank a thread of its own answers. A rank that is stopped or gone does not answer. So it is named, also where other
ranks wait for ranks that wait for it.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

from chimerac.interpreter.errors import PeerLostError
from chimerac.interpreter.transport import ranks_text

EVERY_S = 0.5  # how often a rank checks whether it is called
GRACE_S = 4.0  # how long a called rank has to answer
LATE_S = 3 * GRACE_S  # longer than the first rank that gives up needs to find out which ranks answer
SHOWN = 4  # how many ranks a message lists with what they do


class Meeting:
    """The waits of this process for the others. limit: of one wait; None before the ranks have met.

    roll: asks which ranks answer. waiting: what this process waits for and since when (time.monotonic); None while it works.
    """

    def __init__(self, limit: timedelta | None = None, roll: Rollcall | None = None) -> None:
        self.limit, self.roll = limit, roll
        self.waiting: tuple[str, float] | None = None

    def doing(self) -> str:
        """Return what this rank does now, in words."""
        waiting = self.waiting
        return "is at work" if waiting is None else f"has waited {time.monotonic() - waiting[1]:.1f} s for {waiting[0]}"

    @contextmanager
    def wait(self, what: str) -> Iterator[None]:
        """Note that the calls inside wait for others. Raises PeerLostError where torch says that they are gone or late."""
        self.waiting = what, time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise self.lost(what, error) from error
        self.waiting = None

    def lost(self, what: str, error: RuntimeError) -> PeerLostError:
        """Return torch's error as one that says what this rank was waiting for, and which rank is missing."""
        # The first sentence of torch's message, without its place in torch's sources.
        reason = re.sub(r"^\[[^\]]*\] ", "", str(error)).split(". ")[0]
        if self.limit is None or self.roll is None:
            return PeerLostError(f"{what} failed: {reason}")
        if not re.search("timed? ?out", reason, re.IGNORECASE):
            return PeerLostError(f"{what} failed: {reason}", _give_way_s(self.roll.first()))
        first, who = self.roll.call()
        return PeerLostError(f"{what} is not complete after {self.limit.total_seconds():g} s: {who}", _give_way_s(first))


def _give_way_s(is_first: bool) -> float:
    """Return how long a rank stays silent before it ends: the first rank to give up reports for all."""
    return 0.0 if is_first else LATE_S


class Rollcall:
    """Finds out through the store which ranks answer. hosted: rank 0 keeps the store, and not torchrun."""

    def __init__(self, store: PrefixStore, rank: int, world: int, hosted: bool) -> None:
        self._store, self.rank, self.world, self._hosted = store, rank, world, hosted
        self._is_first = True
        self._over = threading.Event()
        self._listener: threading.Thread | None = None

    def answer(self, meeting: Meeting) -> None:
        """Start the thread that answers calls."""

        def listen() -> None:
            try:
                while not self._over.wait(EVERY_S):
                    if self._store.check(["alarm"]):
                        self._store.set(f"rank {self.rank}", meeting.doing())
                        return
            except RuntimeError:
                pass  # the store has gone: nobody can call any more

        self._listener = threading.Thread(target=listen, name="roll call", daemon=True)
        self._listener.start()

    def end(self) -> None:
        """Stop the thread: if it were inside the store when Python ends, the process would crash."""
        self._over.set()
        if self._listener is not None:
            self._listener.join(GRACE_S)

    def first(self) -> bool:
        """Return whether this rank is the first to give up; True where the store does not answer."""
        self._ask(self._claim, GRACE_S)
        return self._is_first

    def call(self) -> tuple[bool, str]:
        """Call every rank. Return whether this rank is the first to call, and which ranks do not answer, or what they do."""
        answers: dict[int, str] = {}
        if not self._ask(self._claim, GRACE_S) or not self._ask(lambda: self._gather(answers), 2 * GRACE_S):
            return True, "rank 0 does not answer" if self._hosted else "the store of torchrun does not answer"
        silent = [r for r in range(self.world) if r not in answers and r != self.rank]
        if silent:
            return self._is_first, f"{ranks_text(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
        others = [f"rank {r} {words}" for r, words in sorted(answers.items()) if r != self.rank]
        # Ranks at work come first: the others wait for them.
        others.sort(key=lambda words: "is at work" not in words)
        return self._is_first, f"every rank answers; {'; '.join(others[:SHOWN])}{'; ...' if len(others) > SHOWN else ''}"

    def _ask(self, question: Callable[[], None], within_s: float) -> bool:
        """Return whether the store answered in time: the process that keeps it may be stopped too."""
        done = threading.Event()

        def ask() -> None:
            try:
                question()
                done.set()
            except RuntimeError:
                pass

        threading.Thread(target=ask, daemon=True).start()
        return done.wait(within_s)

    def _claim(self) -> None:
        self._is_first = self._store.add("alarm", 1) == 1

    def _gather(self, answers: dict[int, str]) -> None:
        missing, until = [r for r in range(self.world) if r != self.rank], time.monotonic() + GRACE_S
        while missing and time.monotonic() < until:
            time.sleep(EVERY_S / 5)
            for rank in [r for r in missing if self._store.check([f"rank {r}"])]:
                answers[rank] = self._store.get(f"rank {rank}").decode()
                missing.remove(rank)


_meeting = Meeting()


def meeting() -> Meeting:
    """Return the meeting of this process."""
    return _meeting


def meet(timeout_s: float) -> None:
    """Meet the other ranks that torchrun started. timeout_s: how long a wait for them may last, this one too."""
    global _meeting
    if absent := [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE") if name not in os.environ]:
        raise PeerLostError(f"torchrun tells every rank where to meet, and nothing here says {', '.join(absent)}")
    limit, where = timedelta(seconds=timeout_s), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    _meeting = Meeting(limit)
    keeper = "rank 0" if hosted else "torchrun"
    with _meeting.wait(f"reaching {keeper} at {where[0]}:{where[1]}, where ranks meet,"):
        store = TCPStore(*where, is_master=hosted and rank == 0, timeout=limit, wait_for_workers=False)
        # A second connection: the first may be busy with a wait.
        aside = TCPStore(*where, is_master=False, timeout=limit, wait_for_workers=False)
    roll = Rollcall(PrefixStore(f"chimerac/roll/{attempt}", aside), rank, world, hosted)
    _meeting = Meeting(limit, roll)
    roll.answer(_meeting)
    with _meeting.wait("the meeting of all ranks"):
        meeting_place = PrefixStore(f"chimerac/{attempt}", store)
        dist.init_process_group("gloo", store=meeting_place, rank=rank, world_size=world, timeout=limit)


def part() -> None:
    """Part from the others, all together, so that no connection closes before the last message has arrived."""
    global _meeting
    with _meeting.wait("the parting of all ranks"):
        dist.barrier()
    if _meeting.roll is not None:
        _meeting.roll.end()
    dist.destroy_process_group()
    _meeting = Meeting()
