"""Rendezvous and shutdown of the processes, and the error that is raised when a wait for other ranks fails.

Ranks connect to a key-value store: torchrun's, one that rank 0 hosts, or that of a user's process group. When a wait fails, all
ranks that are still running write to the store what they are doing (liveness.py). So the error names the rank that is missing,
even if the failed wait was for another rank, which itself waits for the missing one.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from chimerac.interpreter.errors import MAX_TIMEOUT_S, MIN_TIMEOUT_S, PeerLostError
from chimerac.interpreter.transport import ranks_text
from chimerac.interpreter.transport.addresses import check_own_address
from chimerac.interpreter.transport.liveness import LivenessCheck
from chimerac.interpreter.transport.progress import Awaited, Kind, Position, Progress, Status, own_progress_file, position_of
from chimerac.interpreter.transport.stall import Stall

ANSWER_AFTER_TIMEOUT_S = 4.0  # how long the ranks have to answer after a wait has timed out
ANSWER_AFTER_CLOSE_S = 2.0  # how long the ranks have to answer after a connection was closed
SHOWN = 8  # how many hosts a message lists


class Host(NamedTuple):
    """A host.

    Attributes:
        number: of its launcher in the job, as text; without a launcher, its name.
        name: another host may have it too.
    """

    number: str
    name: str


class Rendezvous:
    """What this process needs to wait for the other ranks of a job, or of a process group of a user.

    Args:
        limit: the timeout of one wait; None before `initialize`.
        liveness: determines which ranks answer; None before the store is connected.
        progress: what this process is doing; by default nothing yet.
        hosts: the host of each rank; empty if all ranks are on this host, and before they have connected.
        store: with keys that only these ranks use; None before it is connected.
        global_ranks: for each rank of a process group, its rank among all of torch's processes; None for the ranks of a job.
    """

    def __init__(
        self,
        limit: timedelta | None = None,
        liveness: LivenessCheck | None = None,
        progress: Progress | None = None,
        hosts: Sequence[Host] = (),
        store: Store | None = None,
        global_ranks: Sequence[int] | None = None,
    ) -> None:
        self.limit, self.liveness, self.hosts, self.global_ranks = limit, liveness, hosts, global_ranks
        self._store, self._transports = store, 0
        self.progress = Progress() if progress is None else progress

    @property
    def rank(self) -> int:
        """Return the number of this rank; 0 before the store is connected."""
        return 0 if self.liveness is None else self.liveness.rank

    @property
    def world(self) -> int:
        """Return the number of ranks; 1 before the store is connected."""
        return 1 if self.liveness is None else self.liveness.world

    def new_store(self) -> Store:
        """Return a store for a transport, with keys that nothing else uses; called by all ranks together."""
        assert self._store is not None, "the ranks have not joined"
        self._transports += 1
        return PrefixStore(f"transport {self._transports}", self._store)

    def named(self, ranks: Sequence[int]) -> str:
        """Return ranks as text for a message, such as `rank 1 (global rank 3)`.

        The text has their hosts if the ranks of this rendezvous are on several hosts, and their global ranks if these have
        other numbers.
        """
        text = ranks_of_hosts(ranks, self.hosts)
        if self.global_ranks is None or list(self.global_ranks) == list(range(self.world)):
            return text
        return f"{text} (global {ranks_text([self.global_ranks[r] for r in ranks])})"

    def close(self) -> None:
        """Stop answering the other ranks."""
        if self.liveness is not None:
            self.liveness.stop()

    def terminate(self) -> None:
        """Record that this process got SIGTERM: it exits soon after another rank has failed or the store is lost."""
        if self.liveness is not None:
            self.liveness.terminate()

    @contextmanager
    def wait(self, what: str, kind: Kind = "all", ranks: Sequence[int] | None = None) -> Iterator[None]:
        """Record that the calls inside wait for these ranks, by default for all.

        Args:
            what, kind: as in `Awaited`.

        Raises PeerLostError if one of the calls raises RuntimeError, as those of torch do when a wait fails.
        """
        others = tuple(r for r in (range(self.world) if ranks is None else ranks) if r != self.rank)
        if kind == "all":
            self.progress.collectives += 1
        awaited = Awaited(what, kind, others)
        self.progress.begin_wait(awaited, self.progress.collectives)
        try:
            yield
        except RuntimeError as error:
            raise self.lost(awaited, error) from error
        self.progress.end_wait()

    def lost(self, awaited: Awaited, error: RuntimeError) -> PeerLostError:
        """Return the error to raise instead of torch's: it says what this rank was waiting for, and why the wait failed.

        The reason names the ranks that are missing, or the store if it does not answer. If every rank answers, it says after a
        timeout what the ranks are doing; for any other error it is torch's reason. Before the store is connected, it is always
        torch's reason.
        """
        # The first sentence of torch's message, without the source location at its start and the keys of the store.
        reason = re.sub(r"^\[[^\]]*\] |, keys: .*", "", str(error)).split(". ")[0].split("\n")[0]
        if self.limit is None or self.liveness is None:
            return PeerLostError(f"{awaited.what} failed: {reason}")
        if re.search("timed? ?out", reason, re.IGNORECASE):
            return self._timed_out(self.liveness, f"{awaited.what} is not complete after {self.limit.total_seconds():g} s")
        return PeerLostError(f"{awaited.what} failed: {self._ended(self.liveness, awaited, reason)}", peer_ended=True)

    def _timed_out(self, liveness: LivenessCheck, what: str) -> PeerLostError:
        """Return the error for a wait that has timed out.

        Args:
            what: the wait and its timeout, as text.
        """
        statuses = liveness.collect_statuses(ANSWER_AFTER_TIMEOUT_S)
        if statuses is None:
            return PeerLostError(f"{what}: {self._store_text(liveness)} does not answer")
        if missing := [r for r in range(liveness.world) if r not in statuses]:
            positions = self._positions(missing)
            verb = "does" if len(missing) == 1 else "do"
            message = f"{what}: {self.named(missing)} {verb} not answer{self._places(missing, positions)}"
            return PeerLostError(message, hanging=[p.pid for p in positions.values() if p.pid > 0])
        return PeerLostError(f"{what}: {Stall(self.progress, statuses, self.named).reason(liveness.rank)}")

    def _ended(self, liveness: LivenessCheck, awaited: Awaited, reason: str) -> str:
        """Return as text which ranks have ended, after a connection was closed.

        Args:
            reason: torch's; used if every rank answers.
        """
        statuses = liveness.collect_statuses(ANSWER_AFTER_CLOSE_S)
        if statuses is None:
            return f"{self._store_text(liveness)} has ended"
        missing = [r for r in awaited.ranks if r not in statuses] or [r for r in range(liveness.world) if r not in statuses]
        if not missing:
            return f"{reason}; every rank answers"
        missing = self._with_lost_hosts(missing, statuses)
        verb = "has" if len(missing) == 1 else "have"
        return f"{self.named(missing)} {verb} ended{self._places(missing, self._positions(missing))}"

    def _with_lost_hosts(self, missing: Sequence[int], statuses: Mapping[int, Status]) -> list[int]:
        """Return these ranks, and for each of their hosts on which no rank answers, all ranks of that host."""
        if not self.hosts:
            return list(missing)
        lost = {self.hosts[r] for r in missing} - {self.hosts[r] for r in statuses}
        return [r for r, host in enumerate(self.hosts) if r in missing or host in lost]

    def _positions(self, ranks: Sequence[int]) -> dict[int, Position]:
        """Return the known positions of those of these ranks that are on this host.

        Only the ranks of a job write their positions to files.
        """
        return _positions_here(ranks) if self.global_ranks is None else {}

    def _store_text(self, liveness: LivenessCheck) -> str:
        """Return what a message calls the store, or the rank that hosts it.

        In a job of several hosts, the text names the ranks of the store's host, if that is not this one.
        """
        if self.global_ranks is not None:
            return "the store of the process group"
        text = "rank 0" if liveness.hosted else "the store of torchrun"
        if not self.hosts or self.hosts[0] == self.hosts[liveness.rank]:
            return text
        ranks = [r for r, host in enumerate(self.hosts) if host == self.hosts[0]]
        return f"{text}, on the host of {ranks_of_hosts(ranks, self.hosts)},"

    def _places(self, ranks: Sequence[int], positions: Mapping[int, Position]) -> str:
        """Return the positions of these ranks, as far as they are known, as text that is appended to a message."""
        places = {r: self.progress.place(r, position) for r, position in positions.items()}
        if len(ranks) == 1:  # the message has named it
            return "".join(f", in {place}" for place in places.values())
        return "".join(f"\n  rank {r}: in {place}" for r, place in places.items())


_rendezvous = Rendezvous()
_count = 0  # how often this process has called `initialize`; each call has its own keys in the store


def rendezvous() -> Rendezvous:
    """Return the rendezvous of this process with the other ranks of its job; before `initialize`, one that knows no others."""
    return _rendezvous


def limit_of(timeout_s: float) -> timedelta:
    """Return the limit of a wait, from seconds. Raises ValueError outside MIN_TIMEOUT_S to MAX_TIMEOUT_S."""
    if not MIN_TIMEOUT_S <= timeout_s <= MAX_TIMEOUT_S:
        expected = f"a number from {MIN_TIMEOUT_S:g} to {MAX_TIMEOUT_S:,.0f}, which is a year"
        raise ValueError(f"the timeout of a wait is {timeout_s} s: give {expected}")
    return timedelta(seconds=timeout_s)


def initialize(timeout_s: float) -> None:
    """Create the default process group of the ranks that torchrun started.

    Args:
        timeout_s: of this wait and every later one.

    Raises ValueError for a timeout that is too short or too long. Raises PeerLostError if the environment lacks a variable that
    torchrun sets, or if the ranks cannot connect. Raises ChimeraError E819 if other hosts cannot connect to this one.
    """
    global _rendezvous, _count
    limit = limit_of(timeout_s)
    _count += 1
    if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE") if name not in os.environ]:
        sets = "torchrun sets the address of the rendezvous, the rank and the number of ranks"
        problem = f"{sets} in the environment, which lacks {', '.join(missing)}"
        raise PeerLostError(f"{problem}: start the script with torchrun --nproc-per-node RANKS")
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    attempt = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_count}"
    own_file = own_progress_file()
    progress = Progress(own_file)
    _rendezvous = Rendezvous(limit, progress=progress)
    store_host = "rank 0" if hosted else "torchrun"
    with _rendezvous.wait(f"connecting to {store_host} at {address[0]}:{address[1]}, the address of the rendezvous,", "other"):
        store = TCPStore(*address, is_master=hosted and rank == 0, timeout=limit, wait_for_workers=False)
        # The liveness check has a connection of its own: a wait may block the first one.
        liveness_connection = TCPStore(*address, is_master=False, timeout=limit, wait_for_workers=False)
    # If the store is lost, the rank that first creates this file, in torchrun's folder of this host, reports for the host.
    claim = None if own_file is None else own_file.parent.parent / f"report{_count}"
    liveness_store = PrefixStore(f"chimerac/liveness/{attempt}", liveness_connection)
    liveness = LivenessCheck(liveness_store, rank, world, hosted, progress, claim=claim)
    group_store = PrefixStore(f"chimerac/{attempt}", store)
    _rendezvous = Rendezvous(limit, liveness, progress, store=group_store)
    liveness.start()
    with _rendezvous.wait("the rendezvous of all ranks", "other"):
        _rendezvous.hosts = hosts_of(group_store, rank, world)
        if _rendezvous.hosts:
            check_own_address()
        dist.init_process_group("gloo", store=group_store, rank=rank, world_size=world, timeout=limit)


def shutdown() -> None:
    """Wait for all ranks at a barrier, so that no connection closes before the last message has arrived, and disconnect."""
    global _rendezvous
    with _rendezvous.wait("the shutdown barrier"):
        dist.barrier()
    _rendezvous.close()
    dist.destroy_process_group()
    _rendezvous = Rendezvous()


def ranks_of_hosts(ranks: Sequence[int], hosts: Sequence[Host]) -> str:
    """Return ranks for a message, with the names of their hosts: `ranks 2, 3 (node2)`.

    Args:
        hosts: of all ranks, or empty.
    """
    if not hosts:
        return ranks_text(ranks)
    by_host: dict[Host, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(hosts[rank], []).append(rank)
    texts = [f"{ranks_text(on_host)} ({host.name})" for host, on_host in by_host.items()]
    return ", ".join(texts[:SHOWN]) + (", ..." if len(texts) > SHOWN else "")


def hosts_of(store: Store, rank: int, world: int) -> list[Host]:
    """Return the host of each rank; empty if all ranks are on this one. Called by all ranks together."""
    if os.environ.get("LOCAL_WORLD_SIZE", "") == os.environ.get("WORLD_SIZE"):
        return []
    name = socket.gethostname()
    store.set(f"host {rank}", json.dumps([os.environ.get("GROUP_RANK", name), name]))
    texts = store.multi_get([f"host {r}" for r in range(world)])  # waits for all ranks
    hosts = [Host(*json.loads(text)) for text in texts]
    return hosts if len(set(hosts)) > 1 else []


def _positions_here(ranks: Sequence[int]) -> dict[int, Position]:
    """Return the known positions of those of these ranks that are on this host, also if their processes have ended."""
    first = int(os.environ["RANK"]) - int(os.environ.get("LOCAL_RANK", "0"))
    local = range(first, first + int(os.environ.get("LOCAL_WORLD_SIZE", "0")))
    positions = {r: position_of(r - first) for r in ranks if r in local}
    return {r: position for r, position in positions.items() if position is not None}
