"""How processes meet and part, how long each waits for the others, and who is not there when that was too long.

Ranks meet at a store: torchrun's, or one that rank 0 keeps. There every rank also answers for itself, from a thread of its
own: one that is stopped or gone does not, and is named even where ranks wait for ranks that wait for it.
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

from chimerac.interpreter.transport import ranks_text

EVERY_S = 0.5  # how often a rank looks whether it is called
GRACE_S = 4.0  # how long a called rank has to answer
LATE_S = 3 * GRACE_S  # longer than the first rank that has given up takes to find out who is there
SHOWN = 4  # ranks of which a message says what they do


class LostError(ConnectionError):
    """A rank is gone, or was waited for too long. give_way_s: how long to keep silent, where another rank says so first:
    torchrun ends all ranks as soon as one has failed."""

    def __init__(self, message: str, first: bool = True) -> None:
        super().__init__(message)
        self.give_way_s = 0.0 if first else LATE_S


class Meeting:
    """How this process met the others. limit: how long it waits for them; None where it has met nobody.

    waiting: what it waits for and since when (time.monotonic); None while it works.
    """

    def __init__(self, limit: timedelta | None = None, roll: Rollcall | None = None) -> None:
        self.limit, self.roll = limit, roll
        self.waiting: tuple[str, float] | None = None

    def doing(self) -> str:
        """Return what this rank does just now, for the others."""
        waiting = self.waiting
        return "is at work" if waiting is None else f"has waited {time.monotonic() - waiting[1]:.1f} s for {waiting[0]}"

    @contextmanager
    def wait(self, what: str) -> Iterator[None]:
        """Wait for others in here. Raises LostError where torch says that they are gone or late."""
        self.waiting = what, time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise self.lost(what, error) from error
        self.waiting = None

    def lost(self, what: str, error: RuntimeError) -> LostError:
        """Return torch's error as one that says whom this rank was waiting for."""
        # Its first sentence, without the place in its own sources.
        reason = re.sub(r"^\[[^\]]*\] ", "", str(error)).split(". ")[0]
        if self.limit is None or self.roll is None:
            return LostError(f"{what} failed: {reason}")
        if not re.search("timed? ?out", reason, re.IGNORECASE):
            return LostError(f"{what} failed: {reason}", self.roll.first())
        first, who = self.roll.call()
        return LostError(f"{what} is not complete after {self.limit.total_seconds():g} s: {who}", first)


class Rollcall:
    """The store as ranks use it to find out who is there. hosted: rank 0 keeps it, and not torchrun."""

    def __init__(self, store: PrefixStore, rank: int, world: int, hosted: bool) -> None:
        self._store, self.rank, self.world, self._hosted = store, rank, world, hosted
        self._is_first = True
        self._over = threading.Event()
        self._listener: threading.Thread | None = None

    def answer(self, meeting: Meeting) -> None:
        """Answer when somebody calls, from now on."""

        def listen() -> None:
            try:
                while not self._over.wait(EVERY_S):
                    if self._store.check(["alarm"]):
                        self._store.set(f"rank {self.rank}", meeting.doing())
                        return
            except RuntimeError:
                pass  # the store has gone, and with it whoever could ask

        self._listener = threading.Thread(target=listen, name="roll call", daemon=True)
        self._listener.start()

    def end(self) -> None:
        """Answer no longer. A thread that is still inside the store when Python ends would take the process with it."""
        self._over.set()
        if self._listener is not None:
            self._listener.join(GRACE_S)

    def first(self) -> bool:
        """Return whether this rank is the first to give up; so it is where nobody can be asked."""
        self._ask(self._claim, GRACE_S)
        return self._is_first

    def call(self) -> tuple[bool, str]:
        """Call every rank. Return whether this one is the first to do so, and who is not there, or what all others do."""
        answers: dict[int, str] = {}
        if not self._ask(self._claim, GRACE_S) or not self._ask(lambda: self._gather(answers), 2 * GRACE_S):
            return True, "rank 0 does not answer" if self._hosted else "the store of torchrun does not answer"
        silent = [r for r in range(self.world) if r not in answers and r != self.rank]
        if silent:
            return self._is_first, f"{ranks_text(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
        others = [f"rank {r} {words}" for r, words in sorted(answers.items()) if r != self.rank]
        # Those that hold the others up come first.
        others.sort(key=lambda words: "is at work" not in words)
        return self._is_first, f"every rank answers; {'; '.join(others[:SHOWN])}{'; ...' if len(others) > SHOWN else ''}"

    def _ask(self, question: Callable[[], None], within_s: float) -> bool:
        """Return whether the store has answered a question: the process that keeps it may be stopped too."""
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
    """Return how this process met the others."""
    return _meeting


def meet(timeout_s: float) -> None:
    """Meet the other ranks that torchrun started. timeout_s: how long a wait for them may last, this one too."""
    global _meeting
    if absent := [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE") if name not in os.environ]:
        raise LostError(f"torchrun tells every rank where to meet, and nothing here says {', '.join(absent)}")
    limit, where = timedelta(seconds=timeout_s), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    _meeting = Meeting(limit)
    keeper = "rank 0" if hosted else "torchrun"
    with _meeting.wait(f"reaching {keeper} at {where[0]}:{where[1]}, where ranks meet,"):
        store = TCPStore(*where, is_master=hosted and rank == 0, timeout=limit, wait_for_workers=False)
        # A connection of its own: the other one may be held by a wait.
        aside = TCPStore(*where, is_master=False, timeout=limit, wait_for_workers=False)
    roll = Rollcall(PrefixStore(f"chimerac/roll/{attempt}", aside), rank, world, hosted)
    _meeting = Meeting(limit, roll)
    roll.answer(_meeting)
    with _meeting.wait("the meeting of all ranks"):
        meeting_place = PrefixStore(f"chimerac/{attempt}", store)
        dist.init_process_group("gloo", store=meeting_place, rank=rank, world_size=world, timeout=limit)


def part() -> None:
    """Part from the others, all together: nobody's connections close under another's last message."""
    global _meeting
    with _meeting.wait("the parting of all ranks"):
        dist.barrier()
    if _meeting.roll is not None:
        _meeting.roll.end()
    dist.destroy_process_group()
    _meeting = Meeting()
