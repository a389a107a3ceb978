"""Buffers of modules that change in training, such as the running statistics of batch normalization.

Each copy of a stage sees its own micro-batches, so the copies' statistics differ. This does not affect training: there, batch
normalization uses the statistics of its micro-batch. Before an evaluation or a checkpoint reads the running statistics, each
copy gets the mean of all copies. Running statistics are linear in the statistics of the micro-batches. So it does not matter
how often the mean is taken, if all copies compute equally many micro-batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from chimerac.interpreter.runtime.memory import bits_digest
from chimerac.interpreter.runtime.model import Stage
from chimerac.interpreter.transport import Transport


def has_buffers(stages: Mapping[int, Stage], transport: Transport) -> bool:
    """Return whether a stage of any rank has buffers that `average_buffers` may change; called by all ranks together."""
    own = any(True for stage in stages.values() for _ in _buffers(stage))
    return any(transport.all_gather("buffers" if own else ""))


def average_buffers(stages: Mapping[int, Stage], transport: Transport) -> None:
    """Set each floating-point buffer that differs between copies of its stage to their mean; called by all ranks together."""
    own = {f"{s} {path}": b for s, stage in stages.items() for path, b in _buffers(stage).items()}
    digests_and_sizes = {name: [bits_digest([b]), b.numel()] for name, b in own.items()}
    copies: dict[str, list[list[Any]]] = {}  # by the name of a buffer, the digest and the size of each copy
    for text in transport.all_gather(json.dumps(digests_and_sizes)):
        for name, copy in json.loads(text).items():
            copies.setdefault(name, []).append(copy)
    # For each buffer whose copies differ, by name, how many copies it has.
    counts = {name: len(of_name) for name, of_name in sorted(copies.items()) if any(c != of_name[0] for c in of_name)}
    if not counts:
        return
    parts = [torch.zeros(size, dtype=torch.float64) for _, size in (copies[name][0] for name in counts)]
    for name, part in zip(counts, parts, strict=True):
        if name in own:
            part.copy_(own[name].reshape(-1))
    total = torch.cat(parts)
    transport.all_reduce(total)
    with torch.no_grad():
        for (name, count), part in zip(counts.items(), torch.split(total, [len(part) for part in parts]), strict=True):
            if name in own:
                own[name].copy_((part / count).view(own[name].shape))


@contextmanager
def unchanged_buffers(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restore the buffers of these modules at the end of the context, also those that a forward replaces by others."""
    held = [
        (submodule._buffers, name, b, b.clone())
        for module in modules
        for submodule in module.modules()
        for name, b in submodule._buffers.items()
        if b is not None
    ]
    try:
        yield
    finally:
        for table, name, b, values in held:
            # Autograd does not notice a change of `data`. If it did, a backward whose graph has saved the buffer would fail.
            b.data.copy_(values)
            table[name] = b


def _buffers(stage: Stage) -> dict[str, Tensor]:
    """Return the floating-point buffers of a stage that have elements, by name."""
    return {path: b for path, b in stage.named_buffers() if b.is_floating_point() and b.numel()}
