"""The compact text form of a program, made for reading and reviewing; it round-trips.

    chimera-program 1
    schedule chimera  D=4 N=4 f=1
    sizes width=1 ranks=4 stages=4 micro_batches=4 window=2 machine=window kind=training micro_batch_size=1/1
    costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
    pipe down[0]  on 0 1 2 3  micro_batches 0 1

    rank 0:
      RECV grad down[0] s0 m0 <- 1; RECV act up[0] s3 m2 <- 1
      FWD down[0] s0 m0; SEND act down[0] s1 m0 -> 1

A line of a stream is a task with the transfers and collectives that follow it. Reading goes through the JSON form, so
that one reader decides what a program may hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from chimera_ir import limits
from chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, did_you_mean, refuse
from chimera_ir.instructions import Op, Task, instruction_text, stage_group
from chimera_ir.jsonform import program_from_json
from chimera_ir.program import FORMAT, VERSION, Program

_SIZES = ("width", "ranks", "stages", "micro_batches", "window", "machine", "kind")


def program_to_text(program: Program) -> str:
    """Return the compact text of a program."""
    return "\n".join(_lines(program)) + "\n"


def _lines(program: Program) -> Iterator[str]:
    h = program.header
    yield f"{FORMAT} {VERSION}"
    yield f"schedule {h.schedule}  {_pairs(h.parameters)}".rstrip()
    sizes = {k: getattr(h, k) for k in _SIZES} | {"micro_batch_size": "/".join(map(str, h.micro_batch_size))}
    yield f"sizes {_pairs(sizes)}"
    costs = {f.name: getattr(h.costs, f.name) for f in fields(h.costs)}
    yield f"costs {_pairs({k: v if k == 'hop' else _stages(v) for k, v in costs.items()})}"
    if h.limits:
        yield f"limits {_pairs(h.limits)}"
    for pipe in h.pipes:
        yield f"pipe {pipe.name}  on {_words(pipe.placement)}  micro_batches {_words(pipe.micro_batches)}".rstrip()
    for tied in h.tied:
        yield f"tied {tied.name}  stages {_words(tied.stages)}"
    for g in range(program.world):
        yield f"\nrank {g}:"
        line: list[str] = []
        for i in program.stream(g):
            if isinstance(i, Task) and line:
                yield f"  {'; '.join(line)}"
                line = []
            line.append(instruction_text(i, program.pipe_names))
        if line:
            yield f"  {'; '.join(line)}"


def _pairs(values: Any) -> str:
    return " ".join(f"{k}={v}" for k, v in values.items())


def _words(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))


def _stages(costs: tuple[int, ...]) -> str:
    return str(costs[0]) if len(set(costs)) == 1 else ",".join(map(str, costs))


_N = r"(?:0|[1-9]\d*)"  # one way to write a number
_INT = rf"-?{_N}"
_INSTRUCTION = re.compile(
    rf"""(?P<op>[A-Z_]+)\s+(?:
      (?:(?P<value>act|grad)\s+)? (?P<pipe>[A-Za-z_]\w*(?:\[\d+\])?) \s+ s(?P<stage>{_N}) \s+ m(?P<ids>{_N}(?:,{_N})*)
      (?:\s*(?P<arrow>->|<-)\s*(?P<peer>{_N}))? (?P<flags>(?:\s+(?:recompute|overlap))*)
    | (?:(?P<group>[A-Za-z_]\w*)\s+)? s(?P<gstage>{_N}) \s+ over \s+ (?P<ranks>{_N}(?:,{_N})*)
    )""",
    re.VERBOSE | re.ASCII,
)
_ARROWS = {"SEND": "->", "RECV": "<-"}
_FLAGS = {"FWD": {"recompute", "overlap"}} | {op: {"overlap"} for op in ("BWD", "BWD_INPUT", "BWD_WEIGHT")}
# Whether an instruction has a value, which arrow, and whether it has ranks.
_SHAPES = {op: (op in ("SEND", "RECV", "FREE"), _ARROWS.get(op), op == "ALLREDUCE") for op in Op.__members__}
_FORMS = {op: f"{op} PIPE sS mIDS" for op in Op.__members__} | {
    "FWD": "FWD PIPE sS mIDS, then recompute or overlap or both",
    "SEND": "SEND act PIPE sS mIDS -> PEER",
    "RECV": "RECV act PIPE sS mIDS <- PEER",
    "ALLREDUCE": "ALLREDUCE sS over RANKS",
    "FREE": "FREE act PIPE sS mIDS",
}


def program_from_text(text: str, name: str = "<streams>") -> Program:
    """Return the program that a compact text holds. Its streams are not verified yet.

    Raises ChimeraError: E602 not this format, E605 a line that does not read, E603 and E604 as for JSON.
    """
    source = Source(name, text)
    file: dict[str, Any] = {"format": FORMAT, "version": VERSION, "pipes": [], "tied": [], "limits": {}, "streams": []}
    if len(text) > limits.LINES:
        raise refuse("E604", f"{name} has {len(text)} characters, a program as text at most {limits.LINES}")
    lines = text.split("\n")
    if lines[0].split() != [FORMAT, str(VERSION)]:
        raise refuse("E602", f"{name} does not begin with '{FORMAT} {VERSION}'", _span(source, 1, lines[0]))
    pipes: dict[str, int] = {}
    for number, line in enumerate(lines[1:], 2):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            if words[0] == "rank":
                _rank_line(line, file)
            elif line[0].isspace():
                if len(pipes) < len(file["pipes"]):
                    pipes = {pipe["name"]: p for p, pipe in enumerate(file["pipes"])}
                file["streams"][-1] += [_instruction(part.strip(), pipes) for part in line.split(";")]
            else:
                _header_line(words, file)
        except (ValueError, LookupError, AttributeError) as error:
            known = "a header line, 'rank G:' or instructions joined by ';'"
            if not isinstance(error, _UnreadableError):
                error = _UnreadableError(f"line {number} does not read as {known}")
            raise refuse("E605", str(error), _span(source, number, line), help=error.help) from None
    file.pop("lines", None)
    stages = file.get("stages")
    for kind, costs in file.get("costs", {}).items():
        if kind != "hop" and len(costs) == 1 and isinstance(stages, int):
            file["costs"][kind] = costs * max(1, min(stages, limits.RANKS))
    try:
        return program_from_json(json.dumps(file), name)
    except ChimeraError as error:
        raise ChimeraError(_placed(d, source) for d in error.diagnostics) from None


def _placed(d: Diagnostic, source: Source) -> Diagnostic:
    """Return a finding about the JSON form with its place in the text."""
    if not d.about:
        return d
    field, *inner = d.about
    rank, number, nth = -1, -1, -1
    for at, line in enumerate(source.text.split("\n")[1:], 2):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        span = _span(source, at, line)
        if words[0] == "rank":
            rank, number = rank + 1, -1
        elif line[0].isspace():
            end = -1
            for part in line.split(";"):
                number, end = number + 1, end + 1 + len(part)
                if (field, inner[:2]) == ("streams", [rank, number]):
                    text = part.strip()
                    column = end - len(part.lstrip()) + 1
                    fault = d.message.removeprefix(f"{source.name}: streams[{rank}][{number}]").lstrip(".: ")
                    return replace(d, message=f"'{text}': {fault}", span=Span(source, at, column, at, column + len(text)))
        elif _LINES.get(str(field), "sizes") == words[0]:
            nth += 1
            if words[0] not in ("pipe", "tied") or inner[:1] == [nth]:
                key = str(inner[0]) if field in ("costs", "parameters", "limits") and inner else str(field)
                found = re.search(rf"(?<!\S){re.escape(key)}=\S*", line)
                return replace(d, span=Span(source, at, found.start() + 1, at, found.end() + 1) if found else span)
    return d


# The line of the header in which a field stands; the others stand in `sizes`.
_LINES = {
    "streams": "",
    "schedule": "schedule",
    "parameters": "schedule",
    "costs": "costs",
    "limits": "limits",
    "pipes": "pipe",
    "tied": "tied",
}


class _UnreadableError(ValueError):
    """A line whose fault is known better than that it does not read. help: how to mend it."""

    def __init__(self, message: str, help: str = ""):
        super().__init__(message)
        self.help = help


def _span(source: Source, number: int, line: str) -> Span:
    start = len(line) - len(line.lstrip()) + 1
    return Span(source, number, start, number, len(line.rstrip()) + 1)


def _rank_line(line: str, file: dict[str, Any]) -> None:
    found = re.fullmatch(rf"rank\s+({_N}):\s*", line, re.ASCII)
    if not found or int(found[1]) != len(file["streams"]):
        raise _UnreadableError(f"expected 'rank {len(file['streams'])}:', the streams stand in the order of their ranks")
    file["streams"].append([])


def _header_line(words: list[str], file: dict[str, Any]) -> None:
    key, *rest = words
    if key not in ("pipe", "tied") and file.setdefault("lines", {}).setdefault(key, words) is not words:
        raise _UnreadableError(f"the line '{key}' stands twice")
    match key:
        case "schedule":
            file["schedule"] = rest[0]
            file["parameters"] = {k: _int(v) for k, v in _split(rest[1:])}
        case "sizes":
            for k, v in _split(rest):
                if k not in (*_SIZES, "micro_batch_size"):
                    raise _UnreadableError(f"unknown size '{k}': {did_you_mean(k, _SIZES)}")
                size: Any = [_int(x) for x in v.split("/")] if k == "micro_batch_size" else v
                file[k] = _int(v) if re.fullmatch(_INT, v, re.ASCII) else size
        case "costs":
            file["costs"] = {k: _int(v) if k == "hop" else [_int(x) for x in v.split(",")] for k, v in _split(rest)}
        case "limits":
            file["limits"] = {k: _int(v) for k, v in _split(rest)}
        case "pipe":
            on, ids = rest.index("on"), rest.index("micro_batches")
            placement, micro_batches = list(map(_int, rest[on + 1 : ids])), list(map(_int, rest[ids + 1 :]))
            file["pipes"].append({"name": rest[0], "placement": placement, "micro_batches": micro_batches})
        case "tied":
            file["tied"].append({"name": rest[0], "stages": list(map(_int, rest[2:]))})
        case _:
            known = ["schedule", "sizes", "costs", "limits", "pipe", "tied", "rank"]
            raise _UnreadableError(f"unknown header line '{key}': {did_you_mean(key, known)}")


def _split(words: list[str]) -> list[tuple[str, str]]:
    pairs = [(k, v) for k, _, v in (word.partition("=") for word in words)]
    if len(dict(pairs)) < len(pairs):
        raise _UnreadableError("a name stands twice in this line")
    return pairs


def _int(text: str) -> int:
    """Return a number of the text: digits, perhaps with a minus sign, and no more of them than any number has."""
    if not re.fullmatch(_INT, text, re.ASCII) or len(text) > 20:
        raise _UnreadableError(f"'{text}' is not a number that a program has")
    return int(text)


def _instruction(text: str, pipes: dict[str, int]) -> dict[str, Any]:
    found = _INSTRUCTION.fullmatch(text)
    part = found.groupdict() if found else {}
    flags = part["flags"].split() if part.get("flags") else []
    shape = part and (part["value"] is not None, part["arrow"], part["ranks"] is not None)
    if not part or _SHAPES.get(part["op"]) != shape or not _fit(part["op"], flags):
        raise _misspelt(text)
    if part["ranks"]:
        stage = int(part["gstage"])
        ranks = [int(x) for x in part["ranks"].split(",")]
        return {"op": part["op"], "group": part["group"] or stage_group(stage), "stage": stage, "ranks": ranks}
    if part["pipe"] not in pipes:
        raise _UnreadableError(f"unknown pipe '{part['pipe']}': {did_you_mean(part['pipe'], pipes)}")
    result: dict[str, Any] = {"op": part["op"], "pipe": pipes[part["pipe"]], "stage": int(part["stage"])}
    result["micro_batches"] = [int(x) for x in part["ids"].split(",")]
    if part["value"]:
        result["value"] = part["value"]
    if part["peer"]:
        result["peer"] = int(part["peer"])
    return result | dict.fromkeys(flags, True)


def _fit(op: str, flags: list[str]) -> bool:
    return not flags or (len(set(flags)) == len(flags) and _FLAGS.get(op, set()).issuperset(flags))


def _misspelt(text: str) -> _UnreadableError:
    """Return what is wrong with the text of an instruction."""
    op = text.split(maxsplit=1)[0] if text else ""
    if text and op not in _FORMS:
        return _UnreadableError(f"unknown instruction '{op}': {did_you_mean(op, _FORMS)}")
    help = f"write {_FORMS[op]}" if op else "an instruction stands between two ';'"
    found = _INSTRUCTION.fullmatch(text)
    if not found:
        shorter = re.sub(r"(?<=[\s,sm])0+(?=\d)", "", text)
        if _INSTRUCTION.fullmatch(shorter):
            return _UnreadableError(f"a number of '{text}' begins with 0", f"write {shorter}")
        return _UnreadableError(f"'{text}' does not read as an instruction", help)
    arrow, wanted = found["arrow"], _ARROWS.get(op)
    if arrow == wanted:
        twice = next((flag for flag in ("recompute", "overlap") if text.split().count(flag) > 1), "")
        fault = f"'{twice}' stands twice in '{text}'" if twice else f"'{text}' does not read as an instruction"
        return _UnreadableError(fault, help)
    if arrow and wanted:
        return _UnreadableError(f"the arrow of {op} is '{wanted}', not '{arrow}'", help)
    return _UnreadableError(f"'{text}' names no peer" if wanted else f"{op} has no peer, but '{text}' names one", help)
