"""The ranks of a pipeline: how they find each other, and checks that they agree."""

from __future__ import annotations

import torch
import torch.distributed as dist

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.transport import Transport, gloo, nccl


def joined(device: torch.device, timeout_s: float) -> tuple[bool, Transport]:
    """Return whether a process group had to be created, and the transport of this rank.

    Tensors on a GPU are sent over NCCL if that is the backend of the default process group, otherwise through host memory.
    """
    created = not dist.is_initialized()
    if created:
        gloo.join(timeout_s)
    if device.type == "cuda" and dist.get_backend() == "nccl":
        torch.cuda.set_device(device)
        return created, nccl.Nccl()
    return created, gloo.Gloo(device)


def check_equal(transport: Transport, what: str, code: str, digest: str) -> None:
    """Compare a digest with every rank's. Raises ChimeraError on all ranks if two differ."""
    digests = transport.all_gather(digest)
    other = next((r for r, its in enumerate(digests) if its != digests[0]), None)
    if other is not None:
        raise refuse(
            code,
            f"rank 0 and rank {other} have a different {what}: {digests[0][:12]} and {digests[other][:12]}",
            help="start every rank with the same files, options and versions",
        )
