"""Reads files that are written for other tools: traces, whose format is checked, and scalars and images of TensorBoard.

The format of traces is Chrome's "Trace Event Format". Their times are in microseconds.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program

# The fields that an event must have, by its phase `ph`: slices, starts of arrows, ends of arrows, counters. Every event must
# also have pid, tid and name.
REQUIRED = {"X": {"ts", "dur", "name"}, "s": {"ts", "id", "name", "cat"}, "f": {"ts", "id", "name", "cat", "bp"}, "C": {"ts"}}
NUMBERS = ("ts", "dur")  # fields that are numbers of at least 0
ERROR_US = 0.01  # the sum of two rounded times may be wrong by at most this

Event = dict[str, Any]


def events_of(path: Path) -> list[Event]:
    """Return the events of a trace, after checks of its format.

    Each event has the fields of its phase. Slices of one track do not overlap. Every arrow has one start and one end,
    each within a slice.
    """
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    for e in events:
        assert e["ph"] == "M" or REQUIRED[e["ph"]] <= e.keys(), e
        assert isinstance(e["pid"], int) and isinstance(e["tid"], int) and isinstance(e["name"], str)
        for name in NUMBERS:
            assert name not in e or (isinstance(e[name], int | float) and e[name] >= 0), e
    slices = defaultdict(list)
    for e in phase(events, "X"):
        slices[e["pid"], e["tid"]].append(e)
    for track in slices.values():
        track.sort(key=lambda e: (e["ts"], e["ts"] + e["dur"]))
        for a, b in pairwise(track):
            assert a["ts"] + a["dur"] <= b["ts"] + ERROR_US, f"slices overlap: {a} {b}"
    starts, ends = ({e["id"]: e for e in phase(events, ph)} for ph in "sf")
    assert len(starts) == len(phase(events, "s")) and len(ends) == len(phase(events, "f")) and starts.keys() == ends.keys()
    for start, end in ((starts[id], ends[id]) for id in starts):
        # bp "e": the arrow ends at the slice around this time, not at the next one.
        assert (start["name"], start["cat"], end["bp"]) == (end["name"], end["cat"], "e")
        for e in (start, end):
            assert any(s["ts"] <= e["ts"] <= s["ts"] + s["dur"] for s in slices[e["pid"], e["tid"]]), f"in no slice: {e}"
    return events


def phase(events: list[Event], ph: str) -> list[Event]:
    """Return the events of one phase, such as "X" for slices."""
    return [e for e in events if e["ph"] == ph]


def check_trace(path: Path, program: Program) -> list[Event]:
    """Return the events of a trace of one iteration, after the checks of `events_of` and checks against its program.

    The trace has the ranks' names, every instruction once, its wait as a slice if it waited, and as many arrows as messages.
    """
    events = events_of(path)
    instructions = [e for e in phase(events, "X") if e["cat"] != "wait"]
    found = Counter((e["pid"], e["args"]["number"], e["name"]) for e in instructions)
    rows = range(len(program))
    ranks = program.rank_of.tolist()
    assert found == Counter((ranks[row], row - int(program.offsets[ranks[row]]), program.text(row)) for row in rows)
    named = {e["pid"]: e["args"]["name"] for e in phase(events, "M") if e["name"] == "process_name"}
    assert named == {rank: f"rank {rank}" for rank in range(program.world)}
    for e in instructions:
        waits = [w for w in phase(events, "X") if w["cat"] == "wait" and w["pid"] == e["pid"]]
        own = [w["dur"] for w in waits if w["args"].get("number") == e["args"]["number"]]
        assert own == ([e["args"]["waited_us"]] if e["args"]["waited_us"] else []), e
    assert len(phase(events, "s")) == int((program.table.op == Op.SEND).sum())
    return events


def slice_at(events: list[Event], arrow: Event) -> Event:
    """Return the slice of the instruction in which an arrow begins or ends.

    Args:
        arrow: the event of this start or end.
    """
    [found] = [
        e for e in phase(events, "X")
        if e["pid"] == arrow["pid"] and e["cat"] != "wait" and e["ts"] <= arrow["ts"] <= e["ts"] + e["dur"]
    ]  # fmt: skip
    return found


def accumulator(folder: Path) -> Any:
    """Return TensorBoard's reader of a folder, after it has read the files."""
    # Imported here, because the tests of traces need no tensorboard.
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def images(folder: Path) -> dict[str, list[tuple[int, int, int, bytes]]]:
    """Return the pictures that TensorBoard reads from a folder, by tag: step, width, height and bytes of the file."""
    reader = accumulator(folder)
    tags = reader.Tags()["images"]
    return {tag: [(e.step, e.width, e.height, e.encoded_image_string) for e in reader.Images(tag)] for tag in tags}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the scalars that TensorBoard reads from a folder, by tag: pairs of step and value."""
    reader = accumulator(folder)
    return {tag: [(e.step, e.value) for e in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}
