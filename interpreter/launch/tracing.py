"""Writing the trace of a run (--trace). A trace that cannot be written is a message: the run goes on."""

from __future__ import annotations

from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.pipeline.bound import BoundPipeline


def write_trace(pipeline: BoundPipeline, path: Path | None, record: Record) -> None:
    """Write the trace of the last iteration, if one is asked for; called by all ranks together.

    It is a by-product: if it cannot be written, the run says so and goes on.
    """
    if path is None:
        return
    try:
        pipeline.trace(path)
        record.say(f"trace of the last iteration: {short_path(path)}")
    except ChimeraError as error:
        record.say(f"no trace: {error.diagnostics[0].message}; the run goes on")
