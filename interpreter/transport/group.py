"""The ranks of a process group of a user: they meet at its store, and their numbers are those that they have in the group."""

from __future__ import annotations

import atexit
from datetime import timedelta

import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, Store  # type: ignore[attr-defined]

from chimerac.interpreter.transport.liveness import LivenessCheck
from chimerac.interpreter.transport.progress import Progress
from chimerac.interpreter.transport.rendezvous import Rendezvous, hosts_of


def meet(group: ProcessGroup, timeout_s: float) -> Rendezvous:
    """Return the waits of this rank for the others of a group; called by all of them together. timeout_s: of every wait.

    The store is that of the group. Every call takes keys of its own there, so several pipelines may use one group, at the same
    time too. A rank that waits for too long asks the others what they are doing, but ends no process: they are the user's.

    Raises ValueError if this rank is not in the group.
    """
    if not isinstance(group, ProcessGroup):
        raise ValueError("this rank is not in the process group: only its members create the pipeline")
    limit, progress, rank, world = timedelta(seconds=timeout_s), Progress(), group.rank(), group.size()
    # Connections of its own: the timeout of the group's store stays as it is, and the liveness check may ask during a wait.
    store, second = _connection(group), _connection(group)
    store.set_timeout(limit)
    number = (store.add("chimerac/pipelines", 1) - 1) // world  # all members count to the same number before any counts on
    liveness = LivenessCheck(
        PrefixStore(f"chimerac/liveness/{number}", second), rank, world, hosted=False, progress=progress, end=None
    )
    own = PrefixStore(f"chimerac/{number}", store)
    found = Rendezvous(limit, liveness, progress, store=own, global_ranks=dist.get_process_group_ranks(group))
    liveness.start()
    atexit.register(found.close)  # a thread that asks the store when Python exits would crash the process
    with found.wait("the rendezvous of all ranks", "setup"):
        found.hosts = hosts_of(own, rank, world)
    return found


def part(ranks: Rendezvous) -> None:
    """Leave the others of a group: stop answering them, and keep no connection to their store."""
    ranks.close()
    atexit.unregister(ranks.close)


def _connection(group: ProcessGroup) -> Store:
    """Return a connection of its own to the store of a group."""
    store: Store = group.get_group_store().clone()  # type: ignore[attr-defined]  # not in torch's types yet
    return store
