"""The ranks of a user's process group: they connect through its store, and have the same numbers as in the group."""

from __future__ import annotations

import atexit

import torch.distributed as dist
from torch.distributed import PrefixStore, ProcessGroup, Store  # type: ignore[attr-defined]

from chimerac.interpreter.transport.liveness import LivenessCheck
from chimerac.interpreter.transport.progress import Progress
from chimerac.interpreter.transport.rendezvous import Rendezvous, hosts_of, limit_of


def join_group(group: ProcessGroup, timeout_s: float) -> Rendezvous:
    """Connect to the other ranks of a group, and return their rendezvous; called by all of them together.

    Args:
        timeout_s: of every wait for another rank.

    Each call uses its own keys in the store of the group, so several pipelines may use a group at the same time. After a wait
    has failed, this rank asks the others what they are doing. No process is ended, because the processes are the user's.

    Raises ValueError if this rank is not in the group, or for a timeout that is too short or too long. Raises PeerLostError if
    a wait for the other ranks fails. If torchrun has started all ranks on one host, this function does not wait for them.
    """
    if not isinstance(group, ProcessGroup):
        raise ValueError("this rank is not in the process group: only its members create the pipeline")
    limit, progress, rank, world = limit_of(timeout_s), Progress(), group.rank(), group.size()
    # The timeout is a setting of a connection, so the user's connection is not used. The liveness check has a connection of its
    # own, because a wait may block the other one.
    store, liveness_connection = _connect_to_store(group), _connect_to_store(group)
    store.set_timeout(limit)
    # The number of this call. No rank makes its next call before all ranks have made this one: in between it creates a
    # transport, which waits for all ranks.
    number = (store.add("chimerac/pipelines", 1) - 1) // world
    liveness_store = PrefixStore(f"chimerac/liveness/{number}", liveness_connection)
    liveness = LivenessCheck(liveness_store, rank, world, hosted=False, progress=progress, end=None)
    own_store = PrefixStore(f"chimerac/{number}", store)
    ranks = Rendezvous(limit, liveness, progress, store=own_store, global_ranks=dist.get_process_group_ranks(group))
    liveness.start()
    atexit.register(ranks.close)  # a thread that is inside a call of the store when Python exits would crash the process
    with ranks.wait("the rendezvous of all ranks", "other"):
        ranks.hosts = hosts_of(own_store, rank, world)
    return ranks


def leave_group(ranks: Rendezvous) -> None:
    """Disconnect from the other ranks of a group: this rank answers them no longer, and its connections may be freed."""
    ranks.close()
    atexit.unregister(ranks.close)


def _connect_to_store(group: ProcessGroup) -> Store:
    """Return a new connection to the store of a group."""
    store: Store = group.get_group_store().clone()  # type: ignore[attr-defined]  # not in torch's types yet
    return store
