"""Backends of torch.distributed, created by their own ranks alone.

torch.distributed.new_group creates the same backends, but all ranks of the world have to call it for every group. With
use_local_synchronization=True only the members call it, but all members must have created the same number of groups before.
This does not hold for channels: a rank in the middle of a pipeline has more of them than one at an end. So this module creates
the backends itself, with keys of the store that their ranks agree on. torch.distributed does not know of these backends, so
`destroy_process_group` does not close them.

A device of gloo is a network interface with a thread that sends and receives. The thread wakes up a hundred times per second,
also if nothing is sent. torch.distributed creates a device for each backend. Here all backends of a process share that of the
default process group, because such threads take processor time from the computation.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from chimerac.interpreter.transport.addresses import INTERFACE

DEFAULT_TIMEOUT = timedelta(minutes=30)  # as torch's own default for gloo


def gloo_devices() -> list[Any]:
    """Return the devices of gloo that the default process group uses. If there are none, return new ones.

    New ones are as in torch.distributed: one for each interface that INTERFACE names, or the default one. Raises RuntimeError
    if there is no such interface.
    """
    cpu, world = torch.device("cpu"), dist.group.WORLD
    if world is not None and cpu in world._device_types:
        backend = world._get_backend(cpu)
        if isinstance(backend, dist.ProcessGroupGloo):
            options: Any = backend.options
            return list(options._devices)
    if interfaces := os.environ.get(INTERFACE):
        return [dist.ProcessGroupGloo.create_device(interface=interface) for interface in interfaces.split(",")]
    return [dist.ProcessGroupGloo.create_default_device()]


def create_backend(
    name: str, store: Store, rank: int, world: int, timeout: timedelta | None, devices: Sequence[Any] = ()
) -> Any:
    """Create a backend; called by all of its ranks together.

    Args:
        name: gloo or nccl.
        store: no other backend uses its keys.
        rank: the number of this rank among those of the backend.
        world: how many ranks the backend has.
        timeout: of each operation; None: DEFAULT_TIMEOUT.
        devices: those of gloo that the backend uses; nccl uses none.
    """
    make: Any = dist.ProcessGroupGloo if name == "gloo" else dist.ProcessGroupNCCL
    options = make.Options() if name == "nccl" else make._Options()
    options._timeout = timeout or DEFAULT_TIMEOUT  # torch has no public names for these options
    if name == "gloo":
        options._devices, options._threads = list(devices), 2 * len(devices)  # as many threads as in torch.distributed
    return make(store, rank, world, options)


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
