"""Executing programs, on torch.distributed or in one process: `Pipeline` for your own training loop, and the script run.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chimerac.interpreter.pipeline.checkpoint import load_checkpoint, save_checkpoint
    from chimerac.interpreter.pipeline.pipeline import Pipeline
    from chimerac.interpreter.pipeline.stages import held_stages

__all__ = ["Pipeline", "held_stages", "load_checkpoint", "save_checkpoint"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        # Importing torch takes 2 s. run.py imports this package, and reports most wrong options before it imports torch.
        from chimerac.interpreter.pipeline import checkpoint, pipeline, stages

        module = {"Pipeline": pipeline, "held_stages": stages}.get(name, checkpoint)
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
