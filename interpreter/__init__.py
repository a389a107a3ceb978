"""Executing programs on torch.distributed: `Pipeline` for one's own training loop, and run.py, the trainer that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chimerac.interpreter.pipeline.pipeline import Pipeline

__all__ = ["Pipeline"]


def __getattr__(name: str) -> Any:
    if name == "Pipeline":
        # torch takes 2.6 s to import, which the parts of run.py that come before it should not need.
        from chimerac.interpreter.pipeline.pipeline import Pipeline

        return Pipeline
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
