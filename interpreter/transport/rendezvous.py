"""Rendezvous and shutdown of the processes, the timeout of their waits, and which rank is missing after a timeout.

Ranks connect to a key-value store: torchrun's, or one that rank 0 hosts. A rank whose wait times out sets an abort flag in
the store. In every rank a thread polls the flag and answers with what its rank is doing. A rank that is stopped or gone
does not answer. So the error names it, even where the rank that timed out was waiting for another rank that waits for it.
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

EVERY_S = 0.5  # interval at which a rank polls the abort flag
GRACE_S = 4.0  # how long a rank has to answer after the abort flag is set
LATE_S = 3 * GRACE_S  # longer than the probe of the first rank whose wait failed
ABORT_FLAG = "abort"  # key in the store: how many ranks have set the flag
WORKING = "is at work"  # the answer of a rank that waits for no other
SHOWN = 4  # how many ranks an error message lists with what they are doing


class Rendezvous:
    """The waits of this process for other ranks. limit: the timeout of one wait; None before the rendezvous.

    liveness: finds out which ranks answer. waiting: what this process waits for and since when (time.monotonic); None while
    it computes.
    """

    def __init__(self, limit: timedelta | None = None, liveness: LivenessCheck | None = None) -> None:
        self.limit, self.liveness = limit, liveness
        self.waiting: tuple[str, float] | None = None

    def doing(self) -> str:
        """Return what this rank is doing now, as text."""
        waiting = self.waiting
        return WORKING if waiting is None else f"has waited {time.monotonic() - waiting[1]:.1f} s for {waiting[0]}"

    @contextmanager
    def wait(self, what: str) -> Iterator[None]:
        """Record that the calls inside wait for other ranks. Raises PeerLostError if torch reports an error."""
        self.waiting = what, time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise self.lost(what, error) from error
        self.waiting = None

    def lost(self, what: str, error: RuntimeError) -> PeerLostError:
        """Return the error to raise for torch's: it names what this rank was waiting for, and which rank is missing."""
        # The first sentence of torch's message, without the source location in front of it.
        reason = re.sub(r"^\[[^\]]*\] ", "", str(error)).split(". ")[0]
        if self.limit is None or self.liveness is None:
            return PeerLostError(f"{what} failed: {reason}")
        if not re.search("timed? ?out", reason, re.IGNORECASE):
            return PeerLostError(f"{what} failed: {reason}", _exit_delay_s(self.liveness.is_first()))
        first, who = self.liveness.probe()
        return PeerLostError(f"{what} is not complete after {self.limit.total_seconds():g} s: {who}", _exit_delay_s(first))


def _exit_delay_s(is_first: bool) -> float:
    """Return how long a rank waits before it reports and exits. The first rank whose wait failed does so at once.

    torchrun ends all ranks as soon as one has failed, so normally only the first one reports.
    """
    return 0.0 if is_first else LATE_S


class LivenessCheck:
    """Finds out through the store which ranks answer. hosted: rank 0 hosts the store; otherwise torchrun does."""

    def __init__(self, store: PrefixStore, rank: int, world: int, hosted: bool) -> None:
        self._store, self.rank, self.world, self._hosted = store, rank, world, hosted
        self._is_first = True
        self._stopped = threading.Event()
        self._poller: threading.Thread | None = None

    def start(self, rendezvous: Rendezvous) -> None:
        """Start the thread that answers once the abort flag is set."""

        def poll() -> None:
            try:
                while not self._stopped.wait(EVERY_S):
                    if self._store.check([ABORT_FLAG]):
                        self._store.set(f"rank {self.rank}", rendezvous.doing())
                        return
            except RuntimeError:
                pass  # the store is gone: no rank can set the flag any more

        self._poller = threading.Thread(target=poll, name="liveness check", daemon=True)
        self._poller.start()

    def stop(self) -> None:
        """Stop the thread. A thread that is inside a call of the store when Python exits would crash the process."""
        self._stopped.set()
        if self._poller is not None:
            self._poller.join(GRACE_S)

    def is_first(self) -> bool:
        """Set the abort flag, and return whether this rank is the first to set it; True if the store does not answer."""
        self._ask(self._set_abort_flag, GRACE_S)
        return self._is_first

    def probe(self) -> tuple[bool, str]:
        """Set the abort flag and collect the answers.

        Return whether this rank is the first to set it, and as text which ranks do not answer, or what all are doing.
        """
        answers: dict[int, str] = {}
        if not self._ask(self._set_abort_flag, GRACE_S) or not self._ask(lambda: self._collect(answers), 2 * GRACE_S):
            return True, "rank 0 does not answer" if self._hosted else "the store of torchrun does not answer"
        silent = [r for r in range(self.world) if r not in answers and r != self.rank]
        if silent:
            return self._is_first, f"{ranks_text(silent)} {'does' if len(silent) == 1 else 'do'} not answer"
        others = [f"rank {r} {doing}" for r, doing in sorted(answers.items()) if r != self.rank]
        # Ranks that compute come first: the others wait for them.
        others.sort(key=lambda text: WORKING not in text)
        return self._is_first, f"every rank answers; {'; '.join(others[:SHOWN])}{'; ...' if len(others) > SHOWN else ''}"

    def _ask(self, question: Callable[[], None], within_s: float) -> bool:
        """Return whether the store answered in time. The process that hosts it may be stopped too."""
        done = threading.Event()

        def ask() -> None:
            try:
                question()
                done.set()
            except RuntimeError:
                pass

        threading.Thread(target=ask, daemon=True).start()
        return done.wait(within_s)

    def _set_abort_flag(self) -> None:
        self._is_first = self._store.add(ABORT_FLAG, 1) == 1

    def _collect(self, answers: dict[int, str]) -> None:
        missing, until = [r for r in range(self.world) if r != self.rank], time.monotonic() + GRACE_S
        while missing and time.monotonic() < until:
            time.sleep(EVERY_S / 5)
            for rank in [r for r in missing if self._store.check([f"rank {r}"])]:
                answers[rank] = self._store.get(f"rank {rank}").decode()
                missing.remove(rank)


_rendezvous = Rendezvous()
_count = 0  # of the rendezvous of this process so far: each has keys of its own in the store


def rendezvous() -> Rendezvous:
    """Return the rendezvous of this process."""
    return _rendezvous


def initialize(timeout_s: float) -> None:
    """Set up the default process group of the ranks that torchrun started. timeout_s: of every wait, this one included."""
    global _rendezvous, _count
    _count += 1
    if absent := [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE") if name not in os.environ]:
        raise PeerLostError(f"torchrun sets the address of the rendezvous in the environment, which lacks {', '.join(absent)}")
    limit, address = timedelta(seconds=timeout_s), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    attempt = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_count}"
    _rendezvous = Rendezvous(limit)
    host = "rank 0" if hosted else "torchrun"
    with _rendezvous.wait(f"connecting to {host} at {address[0]}:{address[1]}, the address of the rendezvous,"):
        store = TCPStore(*address, is_master=hosted and rank == 0, timeout=limit, wait_for_workers=False)
        # The liveness check has its own connection: the other one may be blocked by a wait.
        second = TCPStore(*address, is_master=False, timeout=limit, wait_for_workers=False)
    liveness = LivenessCheck(PrefixStore(f"chimerac/liveness/{attempt}", second), rank, world, hosted)
    _rendezvous = Rendezvous(limit, liveness)
    liveness.start(_rendezvous)
    with _rendezvous.wait("the rendezvous of all ranks"):
        group_store = PrefixStore(f"chimerac/{attempt}", store)
        dist.init_process_group("gloo", store=group_store, rank=rank, world_size=world, timeout=limit)


def shutdown() -> None:
    """Wait for all ranks at a barrier, so that no connection closes before the last message has arrived, and disconnect."""
    global _rendezvous
    with _rendezvous.wait("the shutdown barrier"):
        dist.barrier()
    if _rendezvous.liveness is not None:
        _rendezvous.liveness.stop()
    dist.destroy_process_group()
    _rendezvous = Rendezvous()
