"""Writing the trace and the timeline of a run (--trace, --timeline). If one cannot be written, the run says so and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import short_path
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.pipeline.bound import BoundPipeline


def write_times(pipeline: BoundPipeline, settings: RunSettings, record: Record) -> None:
    """Write the trace and the timeline of the last iteration to the paths of the settings; called by all ranks together."""
    _write("trace", pipeline.trace, settings.trace, record)
    _write("timeline", pipeline.write_timeline, settings.timeline, record)


def _write(what: str, write: Callable[[Path], None], path: Path | None, record: Record) -> None:
    if path is None:
        return
    try:
        write(path)
        record.print_text(f"{what} of the last iteration: {short_path(path)}")
    except ChimeraError as error:
        record.print_text(f"no {what}: {error.diagnostics[0].message}; the run goes on")
