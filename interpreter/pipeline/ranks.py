"""The ranks of a pipeline: how they connect to each other, and the check that they agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.transport import Transport, gloo, nccl
from chimerac.interpreter.transport.group import join_group, leave_group

_job_pipelines = 0  # how many pipelines use the default process group that one of them created
_has_created_group = False  # whether that group exists


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection of this rank to the others of its pipeline.

    Attributes:
        leave: disconnects, and all ranks call it together.
        abandon: disconnects this rank alone, after an error.
    """

    transport: Transport
    leave: Callable[[], None]
    abandon: Callable[[], None]


def join_ranks(device: torch.device, timeout_s: float, group: ProcessGroup | None) -> Connection:
    """Connect to the other ranks of a pipeline; called by all of them together.

    Args:
        group: the process group of these ranks; None: the default one, which is created with the backend gloo if there is none.
            Tensors on a GPU are sent over NCCL if that is the backend of the group, otherwise through host memory.
    """
    global _has_created_group
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if group is None and not dist.is_initialized():
        gloo.join(timeout_s)
        _has_created_group = True
    if group is None and _has_created_group:
        return _join_job(device)
    group = dist.group.WORLD if group is None else group
    assert group is not None, "the default process group was destroyed"
    over_nccl = device.type == "cuda" and dist.get_backend(group) == "nccl"
    if over_nccl:
        torch.cuda.set_device(device)
    ranks = join_group(group, timeout_s)
    if over_nccl:
        transport: gloo.Gloo | nccl.Nccl = nccl.Nccl(ranks)
    else:
        transport = gloo.Gloo(device, ranks=ranks)

    def abandon() -> None:
        transport.close()
        leave_group(ranks)

    def leave() -> None:
        _wait_for_all(transport)
        abandon()

    return Connection(transport, leave, abandon)


def _join_job(device: torch.device) -> Connection:
    """Connect the ranks of the default process group that a pipeline has created. The last pipeline to leave destroys it."""
    global _job_pipelines
    _job_pipelines += 1
    transport = gloo.Gloo(device)

    def leave() -> None:
        global _job_pipelines, _has_created_group
        _job_pipelines -= 1
        if _job_pipelines:
            _wait_for_all(transport)
        else:
            gloo.leave()
            _has_created_group = False
        transport.close()

    def abandon() -> None:  # the group stays for the next pipeline
        global _job_pipelines
        _job_pipelines -= 1
        transport.close()

    return Connection(transport, leave, abandon)


def _wait_for_all(transport: Transport) -> None:
    """Wait for all ranks, so that no connection closes before the last message has arrived."""
    transport.all_reduce(torch.zeros(1))


def check_equal(transport: Transport, what: str, code: str, digest: str) -> None:
    """Compare a digest with that of every rank.

    Args:
        what: the thing that has this digest, for the message.
        code: of the error.

    Raises ChimeraError on all ranks if two digests differ.
    """
    digests = transport.all_gather(digest)
    other = next((rank for rank, d in enumerate(digests) if d != digests[0]), None)
    if other is not None:
        raise refuse(
            code,
            f"{transport.named([0])} and {transport.named([other])} have a different {what}: "
            f"{digests[0][:12]} and {digests[other][:12]}",
            help="start every rank with the same files, options and versions",
        )
