"""Writing the trace and the timeline of a run (--trace, --timeline). If one cannot be written, the run says so and goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.files import read, short_path
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline_form import timeline_from_json
from chimerac.interpreter.launch.record import Record
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.pipeline.bound import BoundPipeline


def write_times(pipeline: BoundPipeline, settings: RunSettings, record: Record, iteration: int) -> None:
    """Write the trace and the timeline of the last iteration to the paths of the settings; called by all ranks together.

    With both --timeline and --tensorboard, TensorBoard gets pictures of the measured and of the predicted timeline.

    Args:
        iteration: the number of the last iteration, counted from 1.
    """
    _write("trace", pipeline.trace, settings.trace, record)
    is_written = _write("timeline", pipeline.write_timeline, settings.timeline, record)
    if is_written and settings.timeline is not None and record.writes_pictures:
        _show_pictures(pipeline.program, settings.timeline, record, iteration)


def _show_pictures(program: Program, timeline: Path, record: Record, iteration: int) -> None:
    """Write pictures for TensorBoard.

    Args:
        timeline: the file that was just written; it has the times of all ranks.
    """
    try:
        # The compiler may not be installed. Its import takes 0.2 s, which a run without pictures does not need.
        from chimerac.interpreter.launch.compiling import timeline_pictures
    except ImportError as error:
        record.print_text(f"no picture of the timeline: {error}; the run goes on")
        return
    try:
        for name, png in timeline_pictures(program, timeline_from_json(read(timeline)).of(program)).items():
            record.write_picture(f"timeline/{name}", png, iteration)
    except ChimeraError as error:
        record.print_text(f"no picture of the timeline: {error.diagnostics[0].message}; the run goes on")


def _write(what: str, write: Callable[[Path], None], path: Path | None, record: Record) -> bool:
    """Call `write` with the path, if there is one, on all ranks together; return whether rank 0 has written the file.

    Args:
        what: the contents of the file, for messages.
    """
    if path is None:
        return False
    try:
        write(path)
        record.print_text(f"{what} of the last iteration: {short_path(path)}")
        return True
    except ChimeraError as error:
        record.print_text(f"no {what}: {error.diagnostics[0].message}; the run goes on")
        return False
