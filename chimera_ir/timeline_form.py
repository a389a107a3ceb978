"""The file of a timeline, measured or simulated: JSON with each column of numbers on a line of its own.

    {"format": "chimera-timeline", "version": 1, "source": "measured", "schedule": "mine", "digest": "5f0c...",
    "unit": "ms", "scale": 1000000, "finish": 20740000,
    "rank": [0,0,1,1],
    "row": [0,1,2,3],
    "start": [0,10200000,10310000,20500000],
    "end": [10150000,10210000,20480000,20510000]}

A bar is one number of each column (`Timeline`). The digest is that of the program whose rows these are.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from json import JSONDecodeError
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.instructions import STRICT, Name
from chimerac.chimera_ir.json_checks import Kind, not_json
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.reading import VersionOne, read_part
from chimerac.chimera_ir.scanning import Excerpt, end_of, place_of
from chimerac.chimera_ir.table import Ints
from chimerac.chimera_ir.timeline import COLUMNS, Timeline

FORMAT = "chimera-timeline"
VERSION = 1

TimelineSource = Literal["measured", "simulated"]
Time = Annotated[int, Field(ge=0, le=limits.TIME)]
NoNumbers = Annotated[tuple[int, ...], Field(max_length=0)]  # a column without its numbers, which are read separately


@dataclass(frozen=True, kw_only=True)
class TimelineHead:
    """The fields of a timeline's file. The four columns are empty here."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT
    format: Literal["chimera-timeline"]
    version: VersionOne
    source: TimelineSource
    schedule: Name
    digest: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    unit: Annotated[str, Field(pattern="^[A-Za-z]{0,16}$")] = ""
    scale: Annotated[int, Field(ge=1, le=limits.TIME)] = 1
    finish: Time | None = None
    rank: NoNumbers
    row: NoNumbers
    start: NoNumbers
    end: NoNumbers


@dataclass(frozen=True, slots=True)
class TimelineFile:
    """A timeline that was read.

    Attributes:
        digest: of its program.
        name: of the file, for messages.
    """

    timeline: Timeline
    source: TimelineSource
    schedule: str
    digest: str
    name: str

    def of(self, program: Program) -> Timeline:
        """Return the timeline with a bar for every row of the program, in the order of rows.

        Raises ChimeraError: E614 if it is of another program, E613 if its bars are not those of the program.
        """
        if self.digest != program.digest:
            message = f"{self.name} is the timeline of another program: of {self.schedule} with digest {self.digest}"
            note = f"this is {program.header.schedule} with digest {program.digest}"
            help = "give the program of the timeline, or measure this one: python interpreter/run.py PROGRAM --timeline PATH"
            raise refuse("E614", message, notes=(note,), help=help)
        t = self.timeline
        if len(t) != len(program):
            raise self._wrong(f"it has {len(t)} bars, and the program {len(program)} instructions", "give one bar for each")
        t = t.take(np.argsort(t.row, kind="stable"))
        wrong = np.flatnonzero(t.row != np.arange(len(program)))
        if len(wrong):
            k = int(wrong[0])
            is_repeated = t.row[k] < k  # the bars before have the rows 0 .. k - 1
            fact = f"there are two bars of row {t.row[k]}" if is_repeated else f"there is no bar of row {k} of the program"
            raise self._wrong(f"row: {fact}", "give one bar for each row")
        wrong = np.flatnonzero(t.rank != program.rank_of)
        if len(wrong):
            k = int(wrong[0])
            fact = f"rank: row {k} has rank {t.rank[k]}, and in the program rank {program.rank_of[k]}"
            raise self._wrong(fact, "number the rows rank after rank, as in the program")
        return t

    def _wrong(self, fact: str, help: str) -> ChimeraError:
        return refuse("E613", f"{self.name}: {fact}", help=help)


_KIND = Kind(
    "chimera timeline",
    FORMAT,
    VERSION,
    ("E611", "E612", "E613"),
    "write one with: python interpreter/run.py PROGRAM --timeline PATH",
)


@cache
def _adapter() -> TypeAdapter[TimelineHead]:
    return TypeAdapter(TimelineHead)


def timeline_to_json(program: Program, timeline: Timeline, source: TimelineSource) -> str:
    """Return the JSON text of a timeline of a program."""
    head = {"format": FORMAT, "version": VERSION, "source": source, "schedule": program.header.schedule}
    more = {"digest": program.digest, "unit": timeline.unit, "scale": timeline.scale, "finish": timeline.makespan}
    columns = ((name, json.dumps(getattr(timeline, name).tolist(), separators=(",", ":"))) for name in COLUMNS)
    lines = ",\n".join(f'"{name}": {numbers}' for name, numbers in columns)
    return f"{json.dumps(head)[:-1]},\n{json.dumps(more)[1:-1]},\n{lines}}}\n"


def timeline_from_json(text: str, name: str = "<json>") -> TimelineFile:
    """Return the timeline that a JSON text holds, in time linear in its length.

    Args:
        name: of the text, for messages.

    `TimelineFile.of` checks whether it belongs to a program. Raises ChimeraError: E611 not JSON, E612 not a chimera timeline of
    version 1, or too long, E613 a field that is missing, unknown or not valid, or that contradicts another one.
    """
    source = Source(name, text)
    if len(text) > limits.FILE:
        raise refuse("E612", f"{name} has {len(text)} characters; a timeline may have at most {limits.FILE}")
    spans: dict[str, tuple[int, int]] = {}
    try:
        for column in COLUMNS:
            begin = place_of(text, column)
            if begin is not None and text[begin : begin + 1] == "[":
                spans[column] = (begin, end_of(text, begin))
    except JSONDecodeError as error:
        raise not_json(_KIND, Excerpt(text, source), error) from None
    parts: list[tuple[int, int] | str] = []
    at = 0
    for begin, end in sorted(spans.values()):
        parts += [(at, begin), "[]"]
        at = end
    excerpt = Excerpt.of(source, *parts, (at, len(text)))
    if len(excerpt.text) > limits.HEADER:
        count = f"{len(excerpt.text)} characters apart from its columns"
        raise refuse("E612", f"{name} has {count}; it may have at most {limits.HEADER}")
    head = read_part(_adapter(), _KIND, excerpt)
    columns = {column: _numbers(source, column, *spans[column]) for column in COLUMNS}
    lengths = {column: len(numbers) for column, numbers in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{column} {count}" for column, count in lengths.items())
        raise refuse("E613", f"{name}: the columns have different lengths: {counts}", help="give each bar one number in each")
    if lengths["row"] > limits.INSTRUCTIONS:
        raise refuse("E613", f"{name}: it has {lengths['row']} bars; at most {limits.INSTRUCTIONS}")
    timeline = Timeline(**columns, scale=head.scale, unit=head.unit, finish=head.finish)
    early = np.flatnonzero(timeline.end < timeline.start)
    if len(early):
        k = int(early[0])
        message = f"{name}: end[{k}] is {timeline.end[k]}, before start[{k}], which is {timeline.start[k]}"
        raise refuse("E613", message, help="give each bar an end that is not before its start")
    last = int(timeline.end.max(initial=0))
    if head.finish is not None and head.finish < last:
        raise refuse("E613", f"{name}: finish is {head.finish}, before the end of the last bar, which is {last}")
    return TimelineFile(timeline, head.source, head.schedule, head.digest, name)


# A number of at most 19 digits, as many as limits.TIME has. `_numbers` reports the first item that does not match.
_NUMBER = re.compile(r"[ \t\n\r]*(0|[1-9][0-9]{0,18})[ \t\n\r]*")
# A list of such numbers. `*+` never goes back, so the time is linear also for a list that does not match.
_LIST = re.compile(rf"\[(?:{_NUMBER.pattern}(?:,{_NUMBER.pattern})*+|[ \t\n\r]*)\]")


def _numbers(source: Source, column: str, begin: int, end: int) -> Ints:
    """Return the numbers of a column.

    Args:
        begin, end: where its JSON list is in the source.

    Raises ChimeraError E613 if an item is not an integer from 0 to limits.TIME.
    """
    if not _LIST.fullmatch(source.text, begin, end):
        at, index = begin + 1, 0
        while (found := _NUMBER.match(source.text, at)) and source.text[found.end()] == ",":
            at, index = found.end() + 1, index + 1
        shown = re.sub(r"\s+", " ", source.text[at : min(end, at + 40)]).split(",")[0].strip(" ]")
        message = f"{source.name}: {column}[{index}]: expected an integer from 0 to {limits.TIME}, found {shown or 'nothing'}"
        raise refuse("E613", message, source.span(at, at + 1), "here")
    text = source.text[begin + 1 : end - 1].strip()
    if not text:
        return np.zeros(0, np.int64)
    numbers = np.fromstring(text, np.int64, sep=",")  # a number beyond 64 bits becomes the largest one, which is refused
    beyond = np.flatnonzero((numbers > limits.TIME) | (numbers < 0))
    if len(beyond):
        raise refuse("E613", f"{source.name}: {column}[{beyond[0]}]: expected an integer from 0 to {limits.TIME}")
    return numbers
