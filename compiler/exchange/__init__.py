"""Programs in the formats of other tools, and as texts of schedules."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import Source


def is_torch_csv(source: Source) -> bool:
    """Return whether a text is a CSV of torch.distributed.pipelining: its path ends in .csv."""
    return source.name.endswith(".csv")
