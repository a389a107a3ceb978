"""Writing the trace of a run (--trace). If it cannot be written, the run prints a message and goes on."""

from __future__ import annotations

from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.pipeline.bound import BoundPipeline


def write_trace(pipeline: BoundPipeline, path: Path | None, record: Record) -> None:
    """Write the trace of the last iteration to `path`, if there is one; called by all ranks together."""
    if path is None:
        return
    try:
        pipeline.trace(path)
        record.print_text(f"trace of the last iteration: {short_path(path)}")
    except ChimeraError as error:
        record.print_text(f"no trace: {error.diagnostics[0].message}; the run goes on")
