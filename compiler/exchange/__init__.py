"""Other tools' formats, and programs as texts of schedules: one file per format."""

from __future__ import annotations

from chimerac.chimera_ir.diagnostics import Source


def is_torch_csv(source: Source) -> bool:
    """Return whether a text is a CSV of torch.distributed.pipelining, by the suffix of its path."""
    return source.name.endswith(".csv")
