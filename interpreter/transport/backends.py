"""Backends of torch.distributed, created by their own ranks alone.

torch.distributed.new_group creates the same backends, but all ranks of the world have to call it for every group. With
use_local_synchronization=True only the members call it, but all members must have created the same number of groups before.
This does not hold for channels: a rank in the middle of a pipeline has more of them than one at an end. So this module creates
the backends itself, with keys of the store that their ranks agree on. torch.distributed does not know of these backends, so
`destroy_process_group` does not close them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

DEFAULT_TIMEOUT = timedelta(minutes=30)  # as torch's own default for gloo


def create_backend(name: str, store: Store, rank: int, world: int, timeout: timedelta | None) -> Any:
    """Create a backend; called by all of its ranks together.

    Args:
        name: gloo or nccl.
        store: no other backend uses its keys.
        rank: the number of this rank among those of the backend.
        world: how many ranks the backend has.
        timeout: of each operation; None: DEFAULT_TIMEOUT.
    """
    timeout = timeout or DEFAULT_TIMEOUT
    if name == "gloo":
        return dist.ProcessGroupGloo(store, rank, world, timeout)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout  # torch has no public name for it
    return dist.ProcessGroupNCCL(store, rank, world, options)


def all_reduce(backend: Any, buffer: Tensor) -> Any:
    """Launch an all-reduce (sum) of a tensor, in place, and return torch's handle of it."""
    buffer = torch.view_as_real(buffer) if buffer.is_complex() else buffer  # that of gloo supports no complex numbers
    options = dist.AllreduceOptions()
    options.asyncOp = True
    return backend.allreduce([buffer], options)


def broadcast(backend: Any, buffer: Tensor, source: int) -> Any:
    """Launch a broadcast of a tensor from the rank `source` of the backend, and return torch's handle of it."""
    options = dist.BroadcastOptions()
    options.rootRank, options.asyncOp = source, True
    return backend.broadcast([buffer], options)
