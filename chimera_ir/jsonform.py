"""The JSON form of a program: writing it, its published schema, and reading what may come from a stranger.

One instruction a line, fields in one order: equal programs are equal bytes, and a diff shows what changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Literal

from pydantic import FailFast, Field, TypeAdapter

from chimera_ir import limits
from chimera_ir.diagnostics import refuse
from chimera_ir.instructions import Instruction, Op, Value
from chimera_ir.program import FORMAT, OVERLAP, RECOMPUTE, VERSION, Header, Program, program_of
from chimera_ir.reading import Kind, read_json

# What a text of that length may hold, since each is an object in memory: more than twice what a program has.
_MARKS = {"[": limits.FILE // 32, "{": limits.FILE // 32, '"': limits.FILE // 4}


@dataclass(frozen=True, kw_only=True)
class ProgramFile(Header):
    """A program as JSON: the header's fields, and `streams`, one per global rank (width x ranks)."""

    format: Literal["chimera-program"]
    version: Literal[1]
    streams: Annotated[
        tuple[Annotated[tuple[Annotated[Instruction, Field(discriminator="op")], ...], FailFast()], ...], FailFast()
    ]


_KIND = Kind(
    "chimera program",
    FORMAT,
    VERSION,
    ("E601", "E602", "E603"),
    "compile one with: chimerac schedules/chimera.sched --emit json -o program.json",
)


@cache
def _adapter() -> TypeAdapter[ProgramFile]:
    return TypeAdapter(ProgramFile)


def json_schema() -> str:
    """Return the JSON Schema of program version 1, so that an outside tool can check a file without this code."""
    schema = _adapter().json_schema(mode="validation")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "chimera-program version 1"}
    return json.dumps(schema, indent=2) + "\n"


def program_to_json(program: Program) -> str:
    """Return the canonical JSON text of a program."""
    return "".join(_lines(program))


def _lines(program: Program) -> Iterator[str]:
    h = program.header
    yield f'{{"format": "{FORMAT}", "version": {VERSION},\n'
    for f in fields(Header):
        value = getattr(h, f.name)
        if f.name in ("pipes", "tied"):
            listed = ",\n  ".join(json.dumps({k.name: getattr(row, k.name) for k in fields(row)}) for row in value)
            yield f'"{f.name}": [{listed}],\n'
        elif f.name == "costs":
            yield f'"costs": {json.dumps({k.name: getattr(value, k.name) for k in fields(value)})},\n'
        else:
            yield f'"{f.name}": {json.dumps(dict(value) if f.name in ("parameters", "limits") else value)},\n'
    batches = [json.dumps(b) for b in program.batches]
    collectives = [json.dumps({"op": c.op, "group": c.group, "stage": c.stage, "ranks": c.ranks}) for c in program.collectives]
    yield '"streams": [\n'
    for g in range(program.world):
        stream = slice(int(program.offsets[g]), int(program.offsets[g + 1]))
        rows = zip(*(c[stream].tolist() for c in program.table.columns()), strict=True)
        yield " [" + ",\n  ".join(_row(row, batches, collectives) for row in rows) + "]"
        yield ",\n" if g + 1 < program.world else "\n"
    yield "]}\n"


_OPS = [op.name for op in Op]
_VALUES = [v.name for v in Value]
_FLAGS = {
    0: "",
    RECOMPUTE: ', "recompute": true',
    OVERLAP: ', "overlap": true',
    RECOMPUTE | OVERLAP: ', "recompute": true, "overlap": true',
}


def _row(row: tuple[int, ...], batches: list[str], collectives: list[str]) -> str:
    # Written by hand, not from instruction values: a program of a million instructions is written in seconds.
    op, value, pipe, stage, batch, peer, flags = row
    if op == Op.ALLREDUCE:
        return collectives[batch]
    name, ids = _OPS[op], f'"pipe": {pipe}, "stage": {stage}, "micro_batches": {batches[batch]}'
    if op < Op.SEND:
        return f'{{"op": "{name}", {ids}{_FLAGS[flags]}}}'
    if op == Op.FREE:
        return f'{{"op": "FREE", "value": "{_VALUES[value]}", {ids}}}'
    return f'{{"op": "{name}", "value": "{_VALUES[value]}", {ids}, "peer": {peer}}}'


def program_from_json(text: str, name: str = "<json>") -> Program:
    """Return the program that a JSON text holds. Its streams are not verified yet.

    name: what the user calls the text. Raises ChimeraError: E601 not JSON, E602 not a chimera program of version 1,
    E603 a field that is missing, unknown or out of range, E604 sizes that no reader should allocate.
    """
    if len(text) > limits.FILE:
        raise refuse("E604", f"{name} has {len(text)} characters, a program at most {limits.FILE}")
    for mark, most in _MARKS.items():
        if text.count(mark) > most:
            raise refuse("E604", f"{name} has more than {most} times the character {mark}, which no program has")
    file = read_json(_adapter(), _KIND, text, name)
    excess = file.excess()
    if excess:
        raise refuse("E604", f"{name} has {excess}", help="docs/language.md lists the limits; compile a smaller program")
    header = Header(**{f.name: getattr(file, f.name) for f in fields(Header)})
    return program_of(header, file.streams)
