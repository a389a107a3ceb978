"""The JSON form of a program: writing it, its published schema, and reading what may come from a stranger.

One instruction a line, fields in one order: equal programs are equal bytes, and a diff shows what changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, refuse
from chimera_ir.instructions import Instruction, Op, Value
from chimera_ir.program import FORMAT, OVERLAP, RECOMPUTE, VERSION, Header, Program, program_of

MAX_RANKS = 2**16  # streams, stages and pipes of a file from outside: bounds what its header can make a reader allocate
MAX_TASKS = 2**24  # stages x micro-batches x width
MAX_BYTES = 2**31


@dataclass(frozen=True, kw_only=True)
class ProgramFile(Header):
    """A program as JSON: the header's fields, and `streams`, one per global rank (width x ranks)."""

    format: Literal["chimera-program"]
    version: Literal[1]
    streams: tuple[tuple[Annotated[Instruction, Field(discriminator="op")], ...], ...]


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
    source = Source(name, text)
    if len(text) > MAX_BYTES:
        raise refuse("E604", f"{name} has {len(text)} characters, a program at most {MAX_BYTES}")
    try:
        file = _adapter().validate_json(text)
    except ValidationError as error:
        raise _explain(error, text, source) from None
    sizes = {"ranks": file.width * file.ranks, "stages": file.stages, "pipes": len(file.pipes)}
    for what, size in sizes.items():
        if size > MAX_RANKS:
            raise refuse("E604", f"{name} has {size} {what}, a program at most {MAX_RANKS}")
    if file.stages * file.micro_batches * file.width > MAX_TASKS:
        raise refuse(
            "E604",
            f"{name} has {file.stages} stages x {file.micro_batches} micro-batches x {file.width} replicas,"
            f" together at most {MAX_TASKS}",
        )
    ids = sum(len(pipe.micro_batches) for pipe in file.pipes)
    if ids != file.micro_batches:
        raise refuse("E603", f"{name}: micro_batches is {file.micro_batches}, but the pipes list {ids} of them")
    header = Header(**{f.name: getattr(file, f.name) for f in fields(Header)})
    return program_of(header, file.streams)


def _explain(error: ValidationError, text: str, source: Source) -> ChimeraError:
    """Return the findings that say what is wrong with a file, in this project's words."""
    found = error.errors(include_url=False, include_context=True)
    if found[0]["type"] == "json_invalid":
        return _not_json(text, source)
    by_place = {e["loc"]: e for e in found if len(e["loc"]) == 1}
    for key, wanted in (("format", "chimera-program"), ("version", VERSION)):
        wrong = by_place.get((key,))
        if wrong:
            given = "is missing" if wrong["type"] == "missing" else f"is {wrong['input']!r}"
            return refuse(
                "E602",
                f"{source.name} is not a chimera program of version {VERSION}: '{key}' {given}, not {wanted!r}",
                help="compile one with: chimerac schedules/chimera.sched --emit json -o program.json",
            )
    if found[0]["loc"] == ():
        return refuse("E602", f"{source.name} is not a chimera program: {_reason(found[0])}")
    return ChimeraError(Diagnostic("E603", f"{source.name}: {_place(e['loc'])}: {_reason(e)}") for e in found[:100])


def _place(loc: tuple[int | str, ...]) -> str:
    """Return a path into the file. The discriminator's value, which pydantic adds to the path, is left out."""
    ops = set(_OPS)
    parts = [f"[{p}]" if isinstance(p, int) else f".{p}" for p in loc if p not in ops]
    return "".join(parts).lstrip(".")


def _reason(e: Any) -> str:
    given = repr(e["input"])
    given = given if len(given) <= 60 else given[:57] + "..."
    match e["type"]:
        case "missing":
            return "this field is missing"
        case "unexpected_keyword_argument" | "extra_forbidden" | "dataclass_exact_type":
            return "this field is unknown"
        case "union_tag_invalid":
            return f"unknown instruction {e['ctx']['tag']!r}; known: {', '.join(_OPS)}"
        case "union_tag_not_found":
            return "this instruction has no 'op'"
        case _:
            reason = e["msg"][0].lower() + e["msg"][1:]
            return f"{reason}, found {given}"


def _not_json(text: str, source: Source) -> ChimeraError:
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        span = Span(source, error.lineno, error.colno, error.lineno, error.colno + 1)
        return refuse("E601", f"{source.name} is not JSON: {error.msg[0].lower()}{error.msg[1:]}", span, label="here")
    except (RecursionError, ValueError):
        pass
    return refuse("E601", f"{source.name} is not JSON that a program can be read from")
