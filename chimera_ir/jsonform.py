"""The JSON form of a program: its published schema, and a parser for untrusted files.

`canonical.py` writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from json import JSONDecodeError, JSONDecoder
from typing import Annotated, Any, Literal

from pydantic import FailFast, Field, TypeAdapter

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, refuse
from chimerac.chimera_ir.instructions import STRICT, Instruction
from chimerac.chimera_ir.json_checks import Kind, not_json
from chimerac.chimera_ir.partition import Partition
from chimerac.chimera_ir.program import FORMAT, VERSION, Costs, Header, Program
from chimerac.chimera_ir.reading import VersionOne, read_part
from chimerac.chimera_ir.scanning import Excerpt, after, after_space, end_of, place_of
from chimerac.chimera_ir.streams import Streams

_NO_COSTS = Costs((), (), (), ())  # stands for the costs of a file that has none; compared by identity


@dataclass(frozen=True, kw_only=True)
class ProgramFile(Header):
    """A program as JSON: the header's fields, `costs`, `partition`, and `streams`, one per global rank (width x ranks)."""

    format: Literal["chimera-program"]
    version: VersionOne
    costs: Costs = field(default_factory=lambda: _NO_COSTS)
    partition: Partition | None = None
    streams: Annotated[
        tuple[Annotated[tuple[Annotated[Instruction, Field(discriminator="op")], ...], FailFast()], ...], FailFast()
    ]


KIND = Kind(
    "chimera program",
    FORMAT,
    VERSION,
    ("E601", "E602", "E603"),
    "compile one with: chimerac schedules/chimera.sched --emit json -o program.json",
)

SMALLER_HELP = "docs/language.md lists the limits; compile a smaller program"


@cache
def _adapter() -> TypeAdapter[ProgramFile]:
    return TypeAdapter(ProgramFile)


@cache
def _stream_adapter() -> TypeAdapter[tuple[Any, ...]]:
    return TypeAdapter(tuple[Any, ...], config=STRICT)


@cache
def _instruction_adapter() -> TypeAdapter[Instruction]:
    return TypeAdapter(Annotated[Instruction, Field(discriminator="op")])


def json_schema() -> str:
    """Return the JSON Schema of program version 1, so that other tools can check a file without this code."""
    schema = _adapter().json_schema(mode="validation")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "chimera-program version 1"}
    return json.dumps(schema, indent=2) + "\n"


def program_to_json(program: Program) -> str:
    """Return the canonical JSON text of a program with its costs and its partition."""
    return program.json(program.costs, program.partition)


def program_from_json(text: str, name: str = "<json>") -> Program:
    """Return the program that a JSON text holds. Its streams are not verified yet.

    Args:
        name: the name of the text in messages.

    Raises ChimeraError: E601 not JSON, E602 not a chimera program of version 1, E603 a field that is missing, unknown or out of
    range, or that contradicts another one, E604 sizes beyond the limits.
    """
    source = Source(name, text)
    if len(text) > limits.FILE:
        raise refuse("E604", f"{name} has {len(text)} characters; a program may have at most {limits.FILE}")
    try:
        begin = place_of(text, "streams")
        parser = StreamsParser(source, begin) if begin is not None and text[begin : begin + 1] == "[" else None
    except JSONDecodeError as error:
        raise not_json(KIND, Excerpt(text, source), error) from None
    if parser is None or begin is None:
        return program_from(Excerpt(text, source), Streams(), [])
    header = Excerpt.of(source, (0, begin), "[]", (parser.end, len(text)))
    return program_from(header, parser.streams, parser.found)


def program_from(header: Excerpt, streams: Streams, found: Sequence[Diagnostic]) -> Program:
    """Return the program of a header and its streams.

    Args:
        header: the JSON text of the program, with [] for its list of streams where it has one.
        found: findings about the streams; findings about the header come before them.

    Raises ChimeraError as `program_from_json`.
    """
    name = header.source.name
    if len(header.text) > limits.HEADER:
        fact = f"{name} has {len(header.text)} characters apart from its instructions"
        raise refuse("E604", f"{fact}; a program may have at most {limits.HEADER}")
    try:
        file = read_part(_adapter(), KIND, header)
    except ChimeraError as error:
        if error.diagnostics[0].code != KIND.codes[2]:
            raise
        raise ChimeraError([*error.diagnostics, *found]) from None
    if found:
        raise ChimeraError(found)
    excess = file.excess() or file.costs.excess(file.micro_batches) or streams.excess()
    if excess:
        raise refuse("E604", f"{name} has {excess}", help=SMALLER_HELP)
    if file.partition is not None and len(file.partition.stages) != file.stages:
        message = f"{name}: partition: it has {len(file.partition.stages)} stages, and the program has {file.stages}"
        raise ChimeraError([Diagnostic(KIND.codes[2], message, about=("partition",))])
    costs = Costs.default(file.stages) if file.costs is _NO_COSTS else file.costs
    return streams.program(Header(**{f.name: getattr(file, f.name) for f in fields(Header)}), costs, file.partition)


def read_instruction(part: Excerpt, rank: int, number: int) -> Instruction:
    """Return the instruction that a JSON text holds.

    Args:
        rank, number: its place in the file, for findings.

    Raises ChimeraError: E601 not JSON, E603 a wrong field, E604 a text that is too long.
    """
    if len(part.text) > limits.INSTRUCTION:
        fact = f"{part.source.name}: streams[{rank}][{number}] has {len(part.text)} characters"
        raise refuse("E604", f"{fact}; an instruction may have at most {limits.INSTRUCTION}")
    return read_part(_instruction_adapter(), KIND, part, ("streams", rank, number))


# An object without a brace inside, and the comma or bracket after it. Other texts go to `read_instruction`, which is slower.
_ITEM = re.compile(rf"({{[^{{}}]{{0,{limits.INSTRUCTION}}}}})[ \t\n\r]*([],])[ \t\n\r]*")


class StreamsParser:
    """Parses the streams of a JSON text one instruction at a time, so that few of them are in memory as Python values.

    Args:
        begin: the position of the list of streams.

    Attributes:
        streams: the instructions.
        end: the position after the list.
        found: findings about the first wrong instruction or stream.

    Raises ChimeraError E601 and E604 for other defects, JSONDecodeError where the list of streams is not JSON.
    """

    def __init__(self, source: Source, begin: int) -> None:
        self.source, self.text, self.streams = source, source.text, Streams()
        self.found: tuple[Diagnostic, ...] = ()
        self.end = begin
        try:
            self.end = self._streams(begin)
        except ChimeraError as error:
            if error.diagnostics[0].code != KIND.codes[2]:
                raise
            self.found, self.end = error.diagnostics, end_of(self.text, begin)

    def _streams(self, at: int) -> int:
        """Read all streams, whose list begins here; return the position after it."""
        text, at = self.text, after(self.text, at, "[")
        if text[at : at + 1] == "]":
            return at + 1
        while True:
            if text[at : at + 1] != "[":
                part = Excerpt.of(self.source, (at, end_of(text, at)))
                read_part(_stream_adapter(), KIND, part, ("streams", len(self.streams)))  # raises: this is no list
            self.streams.begin()
            self._check()
            at = after_space(text, self._stream(after(text, at, "[")))
            if text[at : at + 1] == "]":
                return at + 1
            at = after(text, at, ",")

    def _stream(self, at: int) -> int:
        """Read the instructions of one stream from here to its closing bracket; return a position after this bracket."""
        text, streams, scan, match = self.text, self.streams, _scan, _ITEM.match
        if text[at : at + 1] == "]":
            return at + 1
        while True:
            item = match(text, at)
            try:
                is_added = item is not None and streams.add_if_valid(scan(item[1])[0])
            except (ValueError, RecursionError):
                is_added = False
            if is_added and item is not None:
                at, symbol = item.end(), item[2]
            else:
                part = Excerpt.of(self.source, (at, end_of(text, at)))
                streams.add(read_instruction(part, len(streams) - 1, streams.last_length))
                at = after_space(text, at + len(part.text))
                symbol = text[at : at + 1]
                at = after(text, at, ",]")
            if symbol == "]":
                return at
            if streams.last_length % 1024 == 0:  # a check for each instruction would be slow
                self._check()

    def _check(self) -> None:
        """Raise ChimeraError E604 if the streams exceed a limit."""
        if excess := self.streams.excess():
            raise refuse("E604", f"{self.source.name} has {excess}", help=SMALLER_HELP)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the fields of an object. Raises ValueError if two have one name."""
    result = dict(pairs)
    if len(result) < len(pairs):
        raise ValueError
    return result


_scan = JSONDecoder(object_pairs_hook=_unique).raw_decode
