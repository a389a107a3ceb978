"""The times of all ranks in an iteration by one clock, and files that rank 0 writes from them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import write
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.timeline import Timeline
from chimerac.chimera_ir.timeline_form import timeline_to_json
from chimerac.interpreter.runtime.clocks import clock_offsets
from chimerac.interpreter.runtime.times import Times
from chimerac.interpreter.transport import Transport


def aligned_times(times: Times, transport: Transport) -> list[Times]:
    """Return the times of each rank by the clock of rank 0; called by all ranks together.

    Args:
        times: of this rank, by its own clock.
    """
    offsets = clock_offsets(transport)
    gathered = transport.all_gather(times.to_json())
    return [Times.from_json(text).shifted(offset) for text, offset in zip(gathered, offsets, strict=True)]


def beginning(times: Sequence[Times]) -> int:
    """Return when the earliest rank began its first instruction.

    Args:
        times: of each rank, by one clock.

    For a rank without instructions the end of its sends counts.
    """
    return min(int(t.start[0]) if len(t.start) else t.sent for t in times)


def measured_timeline(program: Program, times: Sequence[Times]) -> Timeline:
    """Return the timeline of an iteration in milliseconds after its beginning.

    Args:
        times: of each rank, by one clock.

    A bar begins when its instruction no longer waits. `finish` is when the last rank has completed its all-reduces.
    """
    origin = beginning(times)
    bars = Timeline.concatenate([t.shifted(-origin).timeline(program, rank) for rank, t in enumerate(times)])
    return replace(bars, finish=max(t.finish for t in times) - origin)


def write_timeline(program: Program, times: Times, transport: Transport, path: str | os.PathLike[str]) -> None:
    """Write the timeline of an iteration; called by all ranks together.

    Args:
        times: of this rank, by its own clock.

    Rank 0 writes the file, as `write` of chimera_ir/files.py does. Raises ChimeraError E811 on all ranks if it cannot be
    written.
    """

    def text(aligned: Sequence[Times]) -> str:
        return timeline_to_json(program, measured_timeline(program, aligned), "measured")

    write_gathered("timeline", text, times, transport, path)


def write_gathered(
    what: str, text: Callable[[Sequence[Times]], str], times: Times, transport: Transport, path: str | os.PathLike[str]
) -> None:
    """Write a text that rank 0 makes from the aligned times of all ranks; called by all ranks together.

    Args:
        what: what the file has, for messages.
        text: makes the text from the aligned times.
        times: of this rank, by its own clock.

    Raises ChimeraError E811 on all ranks if the file cannot be written.
    """
    aligned = aligned_times(times, transport)
    failure = ""
    if transport.rank == 0:
        try:
            write(text(aligned), os.fspath(path))
        except ChimeraError as error:
            failure = error.diagnostics[0].message
    if failure := transport.all_gather(failure)[0]:
        raise refuse("E811", f"the {what} {failure}", help="give another path")
