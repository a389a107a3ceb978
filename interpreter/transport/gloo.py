"""Real ranks over gloo, on CPUs.

Every channel and every collective has a process group of its own, created and used once in one global order before the
first iteration: the connections then exist, and no later call can meet another rank's set-up.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from chimera_ir.instructions import Op
from chimera_ir.program import Program
from interpreter.transport import Pending


@contextmanager
def _talking(what: str) -> Iterator[None]:
    """Turn gloo's error into one that says whom this rank was talking to."""
    try:
        yield
    except RuntimeError as error:
        # Gloo's first sentence, without the place in its own sources.
        reason = re.sub(r"^\[[^\]]*\] ", "", str(error)).split(". ")[0]
        raise ConnectionError(f"{what} failed: {reason}") from error


@dataclass(frozen=True, slots=True)
class Posted:
    """A transfer or a collective that gloo has taken on."""

    work: dist.Work | None
    what: str

    def wait(self) -> None:
        """Return when it is complete. Raises ConnectionError where a peer has gone or does not answer in time."""
        assert self.work is not None, "this rank is in the group"
        with _talking(self.what):
            self.work.wait()


def join(timeout_s: float) -> None:
    """Meet the other ranks that torchrun started. timeout_s: how long a wait may last before it is an error."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))


def leave() -> None:
    """Part from the others, all together: nobody's connections close under another's last message."""
    dist.barrier()
    dist.destroy_process_group()


class Gloo:
    """One rank's channels and collectives. The ranks have met."""

    def __init__(self) -> None:
        self.rank, self.world = dist.get_rank(), dist.get_world_size()

    def connect(self, program: Program) -> None:
        """Create this program's channels and collectives; called by all ranks together, once they have agreed on it."""
        self._window = program.header.window
        sends = program.table.op == Op.SEND
        channels = np.unique(np.stack([program.rank_of[sends], program.table.peer[sends]], axis=1), axis=0)
        # All ranks create all groups, in this order: new_group is itself a collective.
        self._channels = {(a, b): dist.new_group([a, b], backend="gloo") for a, b in channels.tolist()}
        sets = sorted({c.ranks for c in program.collectives})
        self._collectives = {ranks: dist.new_group(list(ranks), backend="gloo") for ranks in sets}
        receivers = [b for a, b in self._channels if a == self.rank]
        self._sends: dict[int, deque[tuple[Posted, Tensor]]] = {b: deque() for b in receivers}
        self._use_once()

    def _use_once(self) -> None:
        for sender, receiver in self._channels:
            if self.rank == sender:
                self.send(receiver, torch.zeros(1))
                self.flush()
            elif self.rank == receiver:
                self.recv(sender, torch.zeros(1)).wait()
        for ranks in self._collectives:
            if self.rank in ranks:
                self.sum(ranks, torch.zeros(1)).wait()

    def send(self, peer: int, buffer: Tensor) -> None:
        """Post a send, after waiting for the oldest of its channel where the window is full."""
        queue = self._sends[peer]
        while queue and len(queue) >= self._window:
            queue.popleft()[0].wait()
        what = f"the send to rank {peer}"
        with _talking(what):
            work = dist.isend(buffer, peer, group=self._channels[self.rank, peer])
        # The buffer belongs to the send until it is complete.
        queue.append((Posted(work, what), buffer))
        if self._window == 0:
            queue.popleft()[0].wait()

    def recv(self, peer: int, buffer: Tensor) -> Pending:
        """Post a receive into `buffer`."""
        what = f"the receive from rank {peer}"
        with _talking(what):
            return Posted(dist.irecv(buffer, peer, group=self._channels[peer, self.rank]), what)

    def sum(self, ranks: tuple[int, ...], buffer: Tensor) -> Pending:
        """Launch the sum of `buffer`, in place, over these ranks."""
        what = f"the sum over ranks {', '.join(map(str, ranks))}"
        with _talking(what):
            return Posted(dist.all_reduce(buffer, group=self._collectives[ranks], async_op=True), what)

    def flush(self) -> None:
        """Wait for every send."""
        for queue in self._sends.values():
            while queue:
                queue.popleft()[0].wait()

    def sum_all(self, buffer: Tensor) -> None:
        """Sum `buffer`, in place, over all ranks; called by all ranks together, outside the streams."""
        with _talking("a sum over all ranks"):
            dist.all_reduce(buffer)

    def copy_from(self, rank: int, buffer: Tensor) -> None:
        """Overwrite `buffer` with that of `rank`; called by all ranks together, outside the streams."""
        with _talking(f"the copy of rank {rank}'s weights"):
            dist.broadcast(buffer, rank)

    def tell_all(self, words: str) -> Sequence[str]:
        """Return what each rank said; called by all ranks together, outside the streams."""
        heard = [""] * self.world
        with _talking("the comparison of all ranks"):
            dist.all_gather_object(heard, words)
        return heard
