"""The ranks of a pipeline: how they find each other, and checks that they agree."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.transport import Transport, gloo, nccl
from chimerac.interpreter.transport.group import meet, part
from chimerac.interpreter.transport.rendezvous import Rendezvous

_users = 0  # pipelines that use the default process group which the first of them has created


def joined(device: torch.device, timeout_s: float, group: ProcessGroup | None) -> tuple[Transport, Callable[[], None]]:
    """Return the transport of this rank, and the function that leaves the others; both called by all ranks together.

    group: of the ranks; by default the default process group, which is created if there is none. Tensors on a GPU are sent over
    NCCL if that is the backend of the group, otherwise through host memory.
    """
    if group is None and not dist.is_initialized():
        gloo.join(timeout_s)
        return _job(device)
    if group is None and _users:
        return _job(device)
    group = dist.group.WORLD if group is None else group
    assert group is not None, "the default process group was destroyed"
    ranks = meet(group, timeout_s)
    if device.type == "cuda" and dist.get_backend(group) == "nccl":
        torch.cuda.set_device(device)
        return _with_end(nccl.Nccl(ranks), ranks)
    return _with_end(gloo.Gloo(device, ranks=ranks), ranks)


def _job(device: torch.device) -> tuple[Transport, Callable[[], None]]:
    """Return the transport among the ranks that torchrun started. The last pipeline that is left ends the default group."""
    global _users
    _users += 1
    transport = gloo.Gloo(device)

    def leave() -> None:
        global _users
        _users -= 1
        if _users:
            transport.all_reduce(torch.zeros(1))  # no connection closes before the last message has arrived
        else:
            gloo.leave()
        transport.close()

    return transport, leave


def _with_end(transport: gloo.Gloo | nccl.Nccl, ranks: Rendezvous) -> tuple[Transport, Callable[[], None]]:
    def leave() -> None:
        transport.all_reduce(torch.zeros(1))  # no connection closes before the last message has arrived
        transport.close()
        part(ranks)

    return transport, leave


def check_equal(transport: Transport, what: str, code: str, digest: str) -> None:
    """Compare a digest with every rank's. Raises ChimeraError on all ranks if two differ."""
    digests = transport.all_gather(digest)
    other = next((r for r, its in enumerate(digests) if its != digests[0]), None)
    if other is not None:
        raise refuse(
            code,
            f"{transport.named([0])} and {transport.named([other])} have a different {what}: "
            f"{digests[0][:12]} and {digests[other][:12]}",
            help="start every rank with the same files, options and versions",
        )
