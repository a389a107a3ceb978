"""The check before the first iteration that the ranks of this host have the memory that they need (E818)."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.model import ModelDescription
from chimerac.interpreter.launch import available_memory
from chimerac.interpreter.launch.plan import Plan
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.transport.gloo import gpu_of

HELP = "take a smaller model, smaller micro-batches or more hosts; --no-memory-check starts without this check"


def check_memory(plan: Plan, settings: RunSettings, model: ModelDescription, ranks_here: int, checks_gradients: bool) -> None:
    """Raise ChimeraError E818 if the ranks that share this rank's memory need more than is available.

    Nothing is checked with --no-memory-check, or without the compiler, which predicts the memory.

    Args:
        ranks_here: the number of ranks of this host.
        checks_gradients: whether every rank builds the whole model once, to check the gradients.
    """
    if plan.memory is None or not settings.memory_check:
        return
    device, sharing = _sharing(settings, ranks_here)
    by_rank = plan.memory(model, settings.zero)
    ranks = [by_rank[rank] for rank in sharing]
    whole = model.stage_sums((range(len(model.layers)),))[0]
    # The check of the gradients frees the whole model before the optimizer allocates its state.
    check_bytes = whole.weight_bytes + whole.gradient_bytes if checks_gradients else 0
    needed_bytes = sum(sum(r) - r.optimizer + max(r.optimizer, check_bytes) for r in ranks)
    available_bytes = available_memory.available_memory_bytes(device)
    if needed_bytes <= available_bytes:
        return
    place = "this host" if device.type == "cpu" else f"GPU {device.index} of this host"
    count = count_text(len(ranks), "rank")
    parts = {
        "weights": sum(r.weights for r in ranks),
        "gradients": sum(r.gradients for r in ranks),
        "optimizer state": sum(r.optimizer for r in ranks),
        "activations and messages": sum(r.others for r in ranks),
    }
    notes = [", ".join(f"{name} {size:,}" for name, size in parts.items())]
    if check_bytes:
        notes.append(f"the check of the gradients: {check_bytes:,} for each rank once, before there is optimizer state")
    raise refuse(
        "E818",
        f"{place} has {available_bytes:,} bytes available, and its {count} need {needed_bytes:,} to train {model.name}",
        notes=tuple(notes),
        help=HELP,
    )


def _sharing(settings: RunSettings, ranks_here: int) -> tuple[torch.device, Sequence[int]]:
    """Return the device whose memory this rank uses, and all global ranks of this host that use it."""
    local = int(os.environ.get("LOCAL_RANK", "0"))
    first = 0 if settings.loopback else int(os.environ.get("RANK", "0")) - local
    here = range(first, first + ranks_here)
    if settings.transport == "gloo":
        return torch.device("cpu"), here
    gpu = gpu_of(local)
    return gpu, [rank for k, rank in enumerate(here) if gpu_of(k) == gpu]
