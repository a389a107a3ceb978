"""The targets of the fuzzing: readers of input from outside, and the properties that must hold for every input.

A target takes bytes and returns an answer, a short text; the engine `builtin` keeps inputs with new answers. A target refuses
an input with a ChimeraError, whose findings must render without control characters. Any other exception is a failure;
`Failure` names the property that does not hold. Most targets also write what they have read: read again, it must have the same
meaning.
"""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, get_args

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Source, render
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.model import model_from_json, model_to_json
from chimerac.chimera_ir.partition import balanced
from chimerac.chimera_ir.program import Machine, Program
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.chimera_ir.timeline import COLUMNS
from chimerac.chimera_ir.timeline_form import timeline_from_json, timeline_to_json
from chimerac.compiler import compile_schedule, evaluation_of, simulate, verify
from chimerac.compiler.analyze.beside import beside, beside_lines
from chimerac.compiler.analyze.report import report
from chimerac.compiler.command.main import main
from chimerac.compiler.draw.timeline import draw_timeline
from chimerac.compiler.exchange.torch_csv import program_from_csv, program_to_csv
from chimerac.compiler.format import format_schedule
from chimerac.compiler.library import find
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.syntax.printer import print_schedule
from tests.helpers import SMALL
from tools import ROOT

# Lower values for these limits of chimera_ir/limits.py. Every program that is within them compiles quickly.
LOW = {"TASKS": 2**9, "RANKS": 2**7, "PIPES": 2**4, "CELLS": 2**9, "MEMBERS": 2**12, "WORK": 2**18, "REPETITIONS": 2**12}


class Failure(AssertionError):  # noqa: N818
    """A property that must hold for every input does not."""


@contextmanager
def low_limits() -> Iterator[None]:
    """Lower the limits in LOW, so that the fuzzing tests their checks but compiles no large programs."""
    before = {name: getattr(limits, name) for name in LOW}
    for name, value in LOW.items():
        setattr(limits, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(limits, name, value)


def text_of(data: bytes) -> str:
    """Return the text of an input. Invalid UTF-8 becomes lone surrogates.

    No file that is read can pass these, but a command line and a caller from Python can.
    """
    return data.decode("utf-8", "surrogateescape")


def require(holds: bool, failure: str) -> None:
    """Raise Failure with this text if a property does not hold."""
    if not holds:
        raise Failure(failure)


def check_printable(shown: str) -> None:
    """Check that a text has no characters that a terminal would interpret, besides line ends and tabs."""
    # Categories: control, format and surrogate characters, and separators of lines and paragraphs.
    bad = [c for c in shown if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")]
    require(not bad, f"the output has the control character {bad[:1]!r}")


def codes_of(error: ChimeraError) -> str:
    """Check that findings render as printable text of limited length; return their codes."""
    check_printable(render(error.diagnostics))
    render(error.diagnostics, colour=True).encode()  # raises if the text has lone surrogates
    require(len(render(error.diagnostics)) < 200_000, "the findings have 200,000 characters or more")
    return " ".join(sorted({d.code for d in error.diagnostics}))


def schedule_text(data: bytes) -> str:
    """Parse, print and format a schedule."""
    source = Source("a.sched", text_of(data))
    tree = parse(source)
    printed = print_schedule(tree)
    require(print_schedule(parse(Source("printed", printed))) == printed, "the printed tree parses as another tree")
    formatted = format_schedule(source)
    require(format_schedule(Source("formatted", formatted)) == formatted, "formatting twice differs from formatting once")
    require(print_schedule(parse(Source("formatted", formatted))) == printed, "formatting changes the meaning")
    return "tree " + " ".join(sorted({type(s).__name__ for s in tree.statements}))


def schedule(data: bytes) -> str:
    """Compile a schedule twice under low limits. The first byte selects machine, width and `arrange`."""
    # 20 choices: 5 machines, 2 widths, with and without `arrange`.
    options, text = (data[0] if data else 0), text_of(data[1:])
    machine: Machine = get_args(Machine)[options % 5]
    width, arrange = 1 + options // 5 % 2, options // 10 % 2 == 1
    with low_limits():
        compiled = compile_source(Source("a.sched", text), {}, width, machine, arrange=arrange)
        program = compiled.program
        second = compile_source(Source("a.sched", text), {}, width, machine, arrange=arrange)
        require(second.program == program, "compiling twice gives different programs")
        check_forms_and_drawings(program)
        verify(evaluation_of(program))
    return f"program {type(compiled.spec.order).__name__} {options % 20} {len(program.header.pipes) > 1}"


def check_forms_and_drawings(program: Program) -> None:
    """Check that a verified program reads back from both its text forms, and can be simulated and drawn."""
    require(program_from_json(program_to_json(program)) == program, "the JSON form reads as another program")
    require(program_from_text(program_to_text(program)) == program, "the text form reads as another program")
    simulation = simulate(program)
    require(simulation.makespan >= max(simulation.busy), "a rank is busy for longer than the makespan")
    check_printable(report(program, simulation, None))
    check_printable(draw_timeline(program, simulation.timeline, columns=80, colour=False))


def program_json(data: bytes) -> str:
    """Read a JSON program, and verify it."""
    with low_limits():
        program = program_from_json(text_of(data), "a.json")
        check_forms_and_drawings(verify(program))
    return f"program {program.header.kind} {program.header.machine}"


def program_text(data: bytes) -> str:
    """Read a program in its compact text form, and verify it."""
    with low_limits():
        program = program_from_text(text_of(data), "a.streams")
        check_forms_and_drawings(verify(program))
    return f"program {program.header.kind} {program.header.machine}"


def model(data: bytes) -> str:
    """Read a model description, partition it, and sum its stages."""
    description = model_from_json(text_of(data), "model.json")
    require(model_from_json(model_to_json(description)) == description, "the JSON form reads as another model")
    layers = len(description.layers)
    for stages in {1, min(3, layers), layers}:
        sums = description.stage_sums(balanced(description, stages).layers)
        require(sum(len(s.layers) for s in sums) == layers, "a partition loses layers")
    return f"model {layers > 1} {bool(description.tied)}"


@cache
def timed_program() -> Program:
    """Return the program whose timelines are read."""
    return compile_schedule("1f1b", {"D": 2, "N": 2}).program


def timeline(data: bytes) -> str:
    """Read a timeline, and compare it with the simulation of its program."""
    file = timeline_from_json(text_of(data), "times.json")
    again = timeline_from_json(timeline_to_json(timed_program(), file.timeline, file.source)).timeline
    same = all(np.array_equal(getattr(again, c), getattr(file.timeline, c)) for c in COLUMNS)
    require(same, "the JSON form reads as another timeline")
    measured = file.of(timed_program())
    lines = beside_lines(beside(simulate(timed_program()), measured))
    check_printable("\n".join(lines))
    return f"timeline {file.source} {bool(measured.unit)}"


def torch_csv(data: bytes) -> str:
    """Read a schedule of torch.distributed.pipelining, and write it again."""
    with low_limits():
        program = program_from_csv(Source("a.csv", text_of(data)))
        check_forms_and_drawings(program)
        has_messages = b"SEND" in data or b"RECV" in data
        again = program_from_csv(Source("a.csv", program_to_csv(program, with_communication=False)))
        # The CSV that `again` is read from has no messages, so the reader plans them. Messages that `data` has stay in their
        # places, which may be others.
        if not has_messages:
            require(again == program, "the CSV reads as another program")
    return f"program {len(program.header.pipes[0].placement)} {has_messages}"


OPTIONS = ("-p", "--cost", "--width", "--columns", "--machine", "--for", "--emit", "--color")


def command(data: bytes) -> str:
    """Run chimerac with options, one per line.

    The first character of a line selects the option by its number modulo 8: p to w are the first to the last of OPTIONS. The
    rest of the line is the value.
    """
    arguments = ["1f1b"]
    for line in text_of(data).split("\n")[:20]:
        if line:
            arguments += [OPTIONS[ord(line[0]) % len(OPTIONS)], line[1:].replace("\0", "")]
    out, err = io.StringIO(), io.StringIO()
    with low_limits(), redirect_stdout(out), redirect_stderr(err):
        try:
            status: Any = main(arguments)
        except SystemExit as end:
            status = end.code
    check_printable(err.getvalue())
    require(status in (0, 1, 2), f"the command ends with {status!r}")
    codes = re.findall(r"error\[(E\d+)\]", err.getvalue())
    return f"status {status} {' '.join(sorted(set(codes)))}"


@dataclass(frozen=True)
class Target:
    """A target.

    Attributes:
        run: takes an input and returns the answer.
        seeds: the first inputs.
        words: inputs are built from these, and from the words of the seeds.
    """

    run: Callable[[bytes], str]
    seeds: Callable[[], list[bytes]]
    words: tuple[str, ...]


def _schedules() -> list[bytes]:
    files = [*sorted((ROOT / "schedules").glob("*.sched")), *sorted((ROOT / "tests/golden").rglob("*.sched"))]
    return [f.read_bytes() for f in files]


@cache
def _programs() -> list[Program]:
    """Return small programs: of every schedule, every third with two replicas; of chimera for every machine; an evaluation."""
    programs = [
        compile_schedule(name, sizes[0], width=2 if k % 3 == 0 else 1).program for k, (name, sizes) in enumerate(SMALL.items())
    ]
    source = find("chimera")
    programs += [compile_source(source, {"D": 2}, machine=machine, arrange=True).program for machine in get_args(Machine)]
    return [*programs, evaluation_of(programs[0])]


def _models() -> list[bytes]:
    layer = '{"name": "%s", "parameters": 5, "weight_bytes": 20, "kept_bytes": 8, "weight_kept_bytes": 4, "cost": %d, '
    layer += '"boundary": [{"shape": [2, 3], "dtype": "float32", "gradient": true}]}'
    text = '{"format": "chimera-model", "version": 1, "name": "m", "samples": 2, "layers": [%s], "tied": [%s]}'
    tied = '{"name": "t", "layers": [0, 2], "parameters": 1, "weight_bytes": 4}'
    layers = ", ".join(layer % (name, cost) for name, cost in (("a", 1), ("b", 7), ("c", 2)))
    return [(text % (layers, tied)).encode(), (text % (layer % ("a", 0), "")).encode()]


def _timelines() -> list[bytes]:
    program, simulated = timed_program(), simulate(timed_program()).timeline
    measured = replace(simulated, scale=10**9, unit="s", finish=int(simulated.end.max()) + 1)
    return [timeline_to_json(program, t, s).encode() for t, s in ((simulated, "simulated"), (measured, "measured"))]


def _torch_files() -> list[bytes]:
    one_copy = [
        compile_schedule(name, {"D": 2, "N": 4}).program for name in ("gpipe", "1f1b", "interleaved", "zb_v", "dualpipev")
    ]
    serial = compile_source(find("1f1b"), {"D": 2, "N": 2}, machine="serial", arrange=True).program
    tasks_only = [program_to_csv(p, with_communication=False).encode() for p in one_copy]
    return [*tasks_only, program_to_csv(serial, with_communication=True).encode()]


_NUMBERS = ("0", "1", "-1", "2", "7", "64", "65", "2147483647", "2147483648", "2305843009213693952", "1" * 30)
_SCHEDULE_WORDS = (
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "+",
    "-",
    "*",
    "//",
    "%",
    "..",
    "&",
    ",",
    "=",
    "==",
    "<=",
    "not",
    "#",
    "\n",
    "\x1b[31m",
    "é",
)
_JSON_WORDS = ("{", "}", "[", "]", ",", ":", '"', "null", "true", "NaN", "1e9", "1.0", '"\\ud800"', '"\\u001b[31m"', "Infinity")
TARGETS = {
    "schedule text": Target(schedule_text, _schedules, (*_NUMBERS, *_SCHEDULE_WORDS)),
    "schedule": Target(
        schedule, lambda: [bytes([k % 20]) + s for k, s in enumerate(_schedules())], (*_NUMBERS, *_SCHEDULE_WORDS)
    ),
    "program json": Target(program_json, lambda: [program_to_json(p).encode() for p in _programs()], (*_NUMBERS, *_JSON_WORDS)),
    "program text": Target(
        program_text,
        lambda: [program_to_text(p).encode() for p in _programs()],
        (
            *_NUMBERS,
            ";",
            "->",
            "<-",
            "=",
            ",",
            "/",
            "\n  ",
            "\nrank ",
            "recompute",
            "RECOMPUTE",
            "overlap",
            "FREE",
            "tied",
            "limits",
        ),
    ),
    "model": Target(model, _models, (*_NUMBERS, *_JSON_WORDS)),
    "timeline": Target(timeline, _timelines, (*_NUMBERS, *_JSON_WORDS)),
    "torch csv": Target(
        torch_csv,
        _torch_files,
        (*_NUMBERS, "F", "B", "I", "W", "SEND_F", "RECV_B", "OVERLAP_F_B", "UNSHARD", "(", ";", ",", "\n"),
    ),
    "command": Target(
        command,
        lambda: [b"pD=4\npN=8\n", b"hD=2\nqhop=0.5\nqF=1/3\nr2\n", b"s40\ntpaired\nvtimeline\nwnever\n", b"userial\nvreport"],
        (*_NUMBERS, "=", "/", ".", "D", "N", "hop", "timeline", "report", "serial", "\n", "\x1b[31m", "'"),
    ),
}
