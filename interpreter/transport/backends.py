"""Connections of some ranks: backends of torch.distributed, made by these ranks alone.

torch.distributed.new_group makes the same backends, but every rank of the world has to call it for every group. With
use_local_synchronization=True only the members call it. Their stores then have the same keys only if every member has made as
many groups before, which is not so for channels: a rank in the middle has more of them than one at an end. So this module
makes the backends itself, with keys that the members agree on. They belong to the transport, and not to torch's list of groups.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

DEFAULT_LIMIT = timedelta(minutes=30)  # torch's own


def connected(backend: str, store: Store, rank: int, world: int, limit: timedelta | None) -> Any:
    """Return the connections of this rank to some others; called by all of them together. limit: the timeout of its operations.

    backend: gloo or nccl; store: with keys that no other connections use; rank, world: among these ranks.
    """
    limit = limit or DEFAULT_LIMIT
    if backend == "gloo":
        return dist.ProcessGroupGloo(store, rank, world, limit)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit  # torch has no other name for it
    return dist.ProcessGroupNCCL(store, rank, world, options)


def summed(group: Any, buffer: Tensor) -> Any:
    """Launch a sum of a tensor over the ranks of these connections, in place, and return its work."""
    buffer = torch.view_as_real(buffer) if buffer.is_complex() else buffer  # backends know no complex numbers
    options = dist.AllreduceOptions()
    options.asyncOp = True
    return group.allreduce([buffer], options)


def broadcast(group: Any, source: int, buffer: Tensor) -> Any:
    """Launch a broadcast of a tensor from rank `source` of these connections, and return its work."""
    options = dist.BroadcastOptions()
    options.rootRank, options.asyncOp = source, True
    return group.broadcast([buffer], options)
