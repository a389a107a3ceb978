"""The compact text form of a program, for reading and reviewing. Parsing the text gives the same program.

    chimera-program 1
    schedule chimera  D=4 N=4 f=1
    sizes width=1 ranks=4 stages=4 micro_batches=4 window=2 machine=window kind=training micro_batch_size=1/1
    costs FWD=1 BWD=2 BWD_INPUT=1 BWD_WEIGHT=1 hop=0
    partition 0:2 2:3 3:5 5:6  model "gpt-small"
    pipe down[0]  on 0 1 2 3  micro_batches 0 1
    pipe up[0]  on 3 2 1 0  micro_batches 2 3

    rank 0:
      RECV act up[0] s3 m2 <- 1; RECV act up[0] s3 m3 <- 1
      FWD down[0] s0 m0; SEND act down[0] s1 m0 -> 1

A line of a stream is a task with the other instructions up to the next task. Instructions before the first task have a line of
their own. Empty lines and lines that begin with `#` are skipped. Parsing the text produces the fields of the JSON form. So both
forms have the same checks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, Span, did_you_mean, refuse
from chimerac.chimera_ir.instructions import Instruction, Task
from chimerac.chimera_ir.jsonform import SMALLER_HELP, program_from, read_instruction
from chimerac.chimera_ir.program import FORMAT, VERSION, Costs, Program
from chimerac.chimera_ir.scanning import SURROGATE, Excerpt, string
from chimerac.chimera_ir.streams import Streams
from chimerac.chimera_ir.textline import NUMBER, UnreadableError, instruction, instruction_text

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
    yield f"costs {_pairs({k: v if k == 'hop' else _stage_costs(v) for k, v in program.costs.given().items()})}"
    if program.partition:
        partition = program.partition.to_json()
        cut = " ".join(f"{first}:{end}" for first, end in partition["stages"])
        yield f"partition {cut}  model {json.dumps(partition['model'])}"
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


def _stage_costs(costs: tuple[int, ...]) -> str:
    return str(costs[0]) if len(set(costs)) == 1 else ",".join(map(str, costs))


_KINDS = tuple(f.name for f in fields(Costs) if f.name != "hop")  # of tasks, by the names of their costs
_WORD = re.compile(r"\s*(\S+)")
_INT = re.compile(rf"-?{NUMBER}", re.ASCII)
_RANK = re.compile(rf"rank\s+({NUMBER}):\s*", re.ASCII)


def program_from_text(text: str, name: str = "<streams>") -> Program:
    """Return the program that a compact text holds. Its streams are not verified yet.

    Args:
        name: the name of the text in messages.

    Raises ChimeraError: E602 not this format, E605 a line that cannot be parsed, E603 and E604 as for JSON.
    """
    source = Source(name, text)
    if len(text) > limits.FILE:
        raise refuse("E604", f"{name} has {len(text)} characters; a program may have at most {limits.FILE}")
    parser = _TextParser(source)
    found: tuple[Diagnostic, ...] = ()
    try:
        parser.parse()
    except ChimeraError as error:
        found = error.diagnostics
        if found[0].code != "E603":
            raise
    try:
        return program_from(Excerpt(json.dumps(parser.header()), source, ()), parser.streams, found)
    except ChimeraError as error:
        raise ChimeraError(parser.with_place(d) for d in error.diagnostics) from None


class _TextParser:
    """Parses a compact text line by line. Here the header includes costs and partition.

    Attributes:
        streams: the instructions.
        fields: those of the header, as in JSON.
        pipes: their numbers, by name.
        lines: number and text of each header line, by (first word, index). The index counts the lines of pipes and those of
            tied sets; it is 0 for others.
    """

    def __init__(self, source: Source) -> None:
        self.source, self.streams = source, Streams()
        self.fields: dict[str, Any] = {"pipes": [], "tied": [], "limits": {}}
        self.pipes: dict[str, int] = {}
        self.lines: dict[tuple[str, int], tuple[int, str]] = {}
        self.length = 0  # characters of the header's lines

    def parse(self) -> None:
        """Parse the whole text into `streams` and `fields`. Raises ChimeraError E602 to E605."""
        has_first_line = False
        for number, line in enumerate(_parts(self.source.text, "\n"), 1):
            word = _WORD.match(line)
            if not word or word[1][0] == "#":
                continue
            if not has_first_line:
                self._check_first_line(number, line)
                has_first_line = True
                continue
            try:
                if word[1] == "rank":
                    self._rank(line)
                elif line[0].isspace():
                    self._instructions(number, line)
                else:
                    self._header_line(number, line)
            except (ValueError, LookupError) as error:
                expected, help = "a header line, 'rank G:' or instructions joined by ';'", _USAGE.get(word[1], "")
                if not isinstance(error, UnreadableError):
                    error = UnreadableError(f"line {number} cannot be parsed as {expected}", help and f"write {help}")
                raise refuse("E605", str(error), _span(self.source, number, line), help=error.help) from None
        if not has_first_line:
            self._check_first_line(1, "")

    def header(self) -> dict[str, Any]:
        """Return the JSON object of the header, with empty streams. A cost that is given once is that of every stage."""
        stages = self.fields.get("stages")
        for kind, costs in self.fields.get("costs", {}).items():
            if kind in _KINDS and len(costs) == 1 and isinstance(stages, int):
                self.fields["costs"][kind] = costs * max(1, min(stages, limits.RANKS))
        return {"format": FORMAT, "version": VERSION, **self.fields, "streams": []}

    def _check_first_line(self, number: int, line: str) -> None:
        """Raise ChimeraError E602 unless this line names the format and its version."""
        if line.split() != [FORMAT, str(VERSION)]:
            message = f"{self.source.name} does not begin with '{FORMAT} {VERSION}'"
            raise refuse("E602", message, _span(self.source, number, line))

    def _rank(self, line: str) -> None:
        found, expected = _RANK.fullmatch(line), len(self.streams)
        if not found or found[1] != str(expected):
            raise UnreadableError(f"expected 'rank {expected}:', streams come in the order of their ranks")
        self.streams.begin()
        self._check()

    def _instructions(self, number: int, line: str) -> None:
        if not len(self.streams):
            raise UnreadableError("instructions come after the line 'rank 0:'")
        start = 0
        for part in _parts(line, ";"):
            fields = instruction(part.strip(), self.pipes)
            if not self.streams.add_if_valid(fields):
                self.streams.add(self._read_rejected(number, start, part, fields))
            start += len(part) + 1
            if self.streams.last_length % 1024 == 0:  # a check for each instruction would be slow
                self._check()
        self._check()

    def _read_rejected(self, number: int, start: int, part: str, fields: dict[str, Any]) -> Instruction:
        """Let pydantic read an instruction that `Streams.add_if_valid` rejected, and return it.

        Raises ChimeraError with the place in the text: E603, or E604 if the JSON of the instruction is too long.

        Args:
            start: the position of `part` in its line.
        """
        rank, nth = len(self.streams) - 1, self.streams.last_length
        try:
            return read_instruction(Excerpt(json.dumps(fields), self.source, ()), rank, nth)
        except ChimeraError as error:
            text, column = part.strip(), start + len(part) - len(part.lstrip()) + 1
            span = Span(self.source, number, column, number, column + len(text))
            beginning = f"{self.source.name}: streams[{rank}][{nth}]"  # a place in JSON, which the text does not have
            raise ChimeraError(
                replace(d, message=f"'{text}': {d.message.removeprefix(beginning).lstrip('.: ')}", span=span, about=())
                for d in error.diagnostics
            ) from None

    def _check(self) -> None:
        """Raise ChimeraError E604 if the streams exceed a limit."""
        if excess := self.streams.excess():
            raise refuse("E604", f"{self.source.name} has {excess}", help=SMALLER_HELP)

    def _header_line(self, number: int, line: str) -> None:
        self.length += len(line)
        if self.length > limits.HEADER:
            fact = f"{self.source.name} has more than {limits.HEADER} characters apart from its instructions"
            raise refuse("E604", fact, help=SMALLER_HELP)
        _check_characters(line)
        key, *rest = line.split()
        nth = len(self.fields[_LISTS[key]]) if key in _LISTS else 0
        if self.lines.setdefault((key, nth), (number, line))[0] != number:  # an earlier line has this key
            raise UnreadableError(f"the line '{key}' appears twice")
        match key:
            case "schedule":
                self.fields["schedule"] = rest[0]
                self.fields["parameters"] = {k: _int(v) for k, v in _named_values(rest[1:])}
            case "sizes":
                for k, v in _named_values(rest):
                    if k not in (known := (*_SIZES, "micro_batch_size")):
                        raise UnreadableError(f"unknown size '{k}': {did_you_mean(k, known)}")
                    size: Any = [_int(x) for x in v.split("/")] if k == "micro_batch_size" else v
                    self.fields[k] = _int(v) if _INT.fullmatch(v) else size  # pydantic refuses a wrong type later
            case "costs":
                costs = _named_values(rest)
                self.fields["costs"] = {k: _int(v) if k == "hop" else [_int(x) for x in v.split(",")] for k, v in costs}
            case "partition":
                at = line.index('"')
                model, end = string(line, at)
                *cut, word = line[:at].split()[1:]
                if word != "model" or line[end:].strip():
                    raise ValueError
                _check_characters(model)
                stages = [[_int(x) for x in stage.split(":")] for stage in cut]
                self.fields["partition"] = {"model": model, "stages": stages}
            case "limits":
                self.fields["limits"] = {k: _int(v) for k, v in _named_values(rest)}
            case "pipe":
                name, on, *others = rest
                ids = others.index("micro_batches")
                if on != "on":
                    raise ValueError
                placement, micro_batches = list(map(_int, others[:ids])), list(map(_int, others[ids + 1 :]))
                self.pipes[name] = nth
                self.fields["pipes"].append({"name": name, "placement": placement, "micro_batches": micro_batches})
            case "tied":
                name, word, *numbers = rest
                if word != "stages":
                    raise ValueError
                self.fields["tied"].append({"name": name, "stages": list(map(_int, numbers))})
            case _:
                raise UnreadableError(f"unknown header line '{key}': {did_you_mean(key, _USAGE)}")

    def with_place(self, d: Diagnostic) -> Diagnostic:
        """Return a finding about the header with its place in the text; unchanged if it is about no single line."""
        if not d.about:
            return d
        field, *inner = d.about
        word = _WORDS.get(str(field), "sizes")
        nth = inner[0] if word in _LISTS and inner else 0
        number, line = self.lines.get((word, int(nth)), (0, ""))
        if not number or (word in _LISTS and not inner):
            return d
        key = str(inner[0]) if field in ("costs", "parameters", "limits") and inner else str(field)
        found = re.search(rf"(?<!\S){re.escape(key)}=\S*", line)  # KEY=VALUE as a whole word
        span = Span(self.source, number, found.start() + 1, number, found.end() + 1) if found else None
        return replace(d, span=span or _span(self.source, number, line))


# The first word of the line with a field of the header; the other fields are in the line `sizes`.
_WORDS = {
    "schedule": "schedule",
    "parameters": "schedule",
    "costs": "costs",
    "partition": "partition",
    "limits": "limits",
    "pipes": "pipe",
    "tied": "tied",
}
_LISTS = {"pipe": "pipes", "tied": "tied"}  # the fields that are lists, by the first word of their lines
# How each line but the first one and those of instructions is written, by its first word.
_USAGE = {
    "schedule": "schedule NAME  PARAMETER=VALUE ...",
    "sizes": "sizes width=W ranks=D stages=S micro_batches=N ...",
    "costs": "costs FWD=C BWD=C BWD_INPUT=C BWD_WEIGHT=C [RECOMPUTE=C] hop=C",
    "partition": 'partition FIRST:END ...  model "NAME"',
    "limits": "limits NAME=VALUE ...",
    "pipe": "pipe NAME  on RANK ...  micro_batches ID ...",
    "tied": "tied NAME  stages STAGE ...",
    "rank": "rank G:",
}


def _parts(text: str, separator: str) -> Iterator[str]:
    """Yield the parts of a text between separators of one character, without a list of all of them in memory."""
    at = 0
    while (end := text.find(separator, at)) >= 0:
        yield text[at:end]
        at = end + 1
    yield text[at:]


def _span(source: Source, number: int, line: str) -> Span:
    """Return the span of a line without the white space around it."""
    start = len(line) - len(line.lstrip()) + 1
    return Span(source, number, start, number, len(line.rstrip()) + 1)


def _check_characters(text: str) -> None:
    """Raise UnreadableError for half of a surrogate pair, which cannot be written as UTF-8."""
    if not text.isascii() and (found := SURROGATE.search(text)):
        raise UnreadableError(f"{found[0]} is half of a surrogate pair, which is no character", "write the character itself")


def _named_values(words: list[str]) -> list[tuple[str, str]]:
    """Return the name and the value of each NAME=VALUE; the value is '' where '=' is missing.

    Raises UnreadableError for too many words, and for a name given twice.
    """
    if len(words) > limits.FIELDS:
        raise UnreadableError(f"this line gives {len(words)} values; at most {limits.FIELDS}")
    pairs = [(k, v) for k, _, v in (word.partition("=") for word in words)]
    if len(dict(pairs)) < len(pairs):
        raise UnreadableError("a name appears twice in this line")
    return pairs


def _int(text: str) -> int:
    """Return an integer of at most 20 characters, without leading zeros. Raises UnreadableError for anything else."""
    if not _INT.fullmatch(text) or len(text) > 20:
        without_zeros = re.sub(r"^(-?)0+(?=\d)", r"\1", text)
        if len(text) <= 20 and _INT.fullmatch(without_zeros):
            raise UnreadableError(f"the number '{text}' begins with 0", f"write {without_zeros}")
        raise UnreadableError(f"'{text}' is not an integer of at most 20 characters")
    return int(text)
