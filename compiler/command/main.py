"""chimerac, the command: a schedule's text in, a product out.

Products go to stdout, findings to stderr. Exit status 0; 1 for findings; 2 for a command line that means nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse, render, visible
from chimerac.chimera_ir.files import hang_up, read, say, write
from chimerac.compiler.command.usage import (
    GRAPHML,
    GRAPHVIZ,
    costs_of,
    explain_parser,
    format_parser,
    integer,
    make_parser,
    number_of_bytes,
    pairs,
)

if TYPE_CHECKING:
    from chimerac.chimera_ir.model import ModelDescription
    from chimerac.chimera_ir.program import Machine, Program


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    argv = sys.argv[1:] if argv is None else argv
    verb = argv[0] if argv else ""
    # A file of that name wins: `chimerac fmt` then compiles it.
    known = verb in VERBS and not (os.path.exists(verb) and not os.path.isdir(verb))
    try:
        return VERBS[verb](argv[1:]) if known else _compile(argv)
    except BrokenPipeError:  # the reader, head for instance, has seen enough
        hang_up(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return 130


def _compile(argv: Sequence[str]) -> int:
    parser = make_parser()
    options = parser.parse_args(argv)
    try:
        product = _product(options, parser)
        _write(product, options.output)
    except ChimeraError as error:
        return _refused(error, options.color)
    return 0


def _refused(error: ChimeraError, colour: str = "auto") -> int:
    """Print findings; return the exit status. On a terminal the last line says where there is more to read."""
    text = render(error.diagnostics, _colour(colour, sys.stderr))
    if sys.stderr is not None and sys.stderr.isatty():
        text += f"\nfor more: chimerac explain {' '.join(sorted({d.code for d in error.diagnostics}))}\n"
    try:
        if sys.stderr is not None:  # None where the shell closed it: the status still tells
            sys.stderr.write(text)
            sys.stderr.flush()
    except OSError:
        hang_up(sys.stderr)
    return 2 if all(d.code.startswith("E0") for d in error.diagnostics) else 1


def _format(argv: Sequence[str]) -> int:
    """Format schedules: `chimerac fmt`. Return the exit status."""
    options = format_parser().parse_args(argv)
    status = 0
    for name in options.files:
        try:
            status = max(status, _format_one(name, options.check))
        except ChimeraError as error:
            status = max(status, _refused(error))
    return status


def _format_one(name: str, check: bool) -> int:
    from chimerac.compiler.format import format_schedule

    source = _stdin() if name == "-" else Source(name, read(name))
    text = format_schedule(source)
    if check:
        say("" if text == source.text else f"{visible(source.name)} is not formatted\n")
        return int(text != source.text)
    if name == "-":
        say(text)
    elif text != source.text:
        write(text, name)
        say(f"formatted {visible(name)}\n")
    return 0


def _explain(argv: Sequence[str]) -> int:
    """Say what error codes mean: `chimerac explain`. Return the exit status."""
    from chimerac.compiler.explain.page import explain

    try:
        say(explain(explain_parser().parse_args(argv).codes, main))
    except ChimeraError as error:
        return _refused(error)
    return 0


VERBS: Mapping[str, Callable[[Sequence[str]], int]] = {"fmt": _format, "explain": _explain}


def _stdin() -> Source:
    if sys.stdin is None:
        raise refuse("E001", "<stdin> is closed")
    return Source("<stdin>", read("<stdin>", sys.stdin.buffer))


def _suffix(path: str | None) -> str:
    return Path(path).suffix if path else ""


def _product(options: argparse.Namespace, parser: argparse.ArgumentParser) -> str:
    if options.list:
        from chimerac.compiler.library import listed

        return listed(_columns(options))
    if options.emit == "schema":
        from chimerac.chimera_ir.jsonform import json_schema

        return json_schema()
    if options.schedule is None:
        parser.error("give a schedule, for instance: chimerac chimera; or --list")
    both = (options.schedule, options.output)
    if options.output and all(map(os.path.exists, both)) and os.path.samefile(*both):
        raise refuse("E002", f"-o {options.output} would write over the schedule itself", help="give another path")
    if options.columns is not None and options.columns < 20:
        raise refuse("E002", f"--columns {options.columns}: a timeline needs at least 20")
    parameters = {name: integer("-p", name, value) for name, value in pairs("-p", options.parameters)}
    costs = costs_of(options.costs)
    if options.emit == "dag" and _suffix(options.output) not in (*GRAPHVIZ, *GRAPHML):
        known = f"GraphML ({', '.join(GRAPHML[:-1])}) or for Graphviz ({', '.join(GRAPHVIZ)})"
        raise refuse("E002", f"-o {options.output}: the DAG is written as {known}")
    if options.model and options.emit not in ("report", "json") and options.memory is None:
        message = "--model is for --memory, for --emit report with bytes of memory, and for --emit json with the partition"
        raise refuse("E002", message)
    if options.memory is not None and not options.model:
        raise refuse("E002", "--memory needs a model: --model PATH", help="write one: python -m chimerac.models describe")
    memory_bytes = None if options.memory is None else number_of_bytes(options.memory)
    if costs and options.emit not in ("timeline", "report"):
        raise refuse("E002", "--cost is for --emit timeline and --emit report; a schedule's own costs are written in its text")

    from chimerac.compiler import is_program, read_program
    from chimerac.compiler.library import find
    from chimerac.compiler.pipeline import compile_source, verified

    source = _stdin() if options.schedule == "-" else find(options.schedule, VERBS)
    if is_program(source):
        if parameters or options.width is not None:
            raise refuse("E002", "a compiled program is as it is; -p and --width are for schedules")
        program = read_program(source)
        if options.machine:
            program = program.with_header(machine=options.machine)
        program = _arranged(program, options.arrange) if options.arrange else verified(program)
        recomputing = None
    else:
        width = 1 if options.width is None else options.width
        machine: Machine = options.arrange or options.machine or "window"
        arrange = options.arrange is not None
        program = compile_source(source, parameters, width, machine, arrange).program
        recomputing = partial(compile_source, source, parameters, width, machine, arrange, recompute=True)
    model = _model(options.model)
    if model is not None:
        from chimerac.chimera_ir.partition import partition_for

        program = program.with_header(partition=partition_for(program.header.partition, model, program.header.stages))
    if model is not None and memory_bytes is not None:
        from chimerac.compiler.analyze.memory import check_memory

        check_memory(program, model, memory_bytes, recomputing)
    match options.emit:
        case "streams":
            from chimerac.chimera_ir.textform import program_to_text

            return program_to_text(program)
        case "json":
            from chimerac.chimera_ir.jsonform import program_to_json

            return program_to_json(program)
        case "dag":
            from chimerac.compiler.analyze.graph import dependency_graph, dot, graphml

            graph = dependency_graph(program)
            return dot(graph) if _suffix(options.output) in GRAPHVIZ else graphml(graph)
        case "timeline":
            from chimerac.compiler.analyze.simulate import simulate
            from chimerac.compiler.draw.timeline import draw_timeline

            s = simulate(program, costs)
            colour, columns = _colour(options.color, sys.stdout) and not options.output, _columns(options)
            return draw_timeline(program, s.timing, s.scale, columns=columns, colour=colour)
        case _:
            from chimerac.compiler.analyze.report import report
            from chimerac.compiler.analyze.simulate import simulate

            return report(program, simulate(program, costs), model)


def _arranged(program: Program, machine: Machine) -> Program:
    """Return a program from a file with its transfers and sums arranged for a machine."""
    from chimerac.compiler.diagnose.blame import about_order
    from chimerac.compiler.pipeline import arranged, verified
    from chimerac.compiler.verify import verify

    try:
        verify(program)
    except ChimeraError as error:
        if not all(map(about_order, error.diagnostics)):  # what arranging does not mend
            raise
    result = arranged(program, machine)
    if result is None:
        verified(program.with_header(machine=machine))  # tasks that wait for each other are told
        message = f"--for {machine}: the tasks of this program's replicas cannot stand in one order"
        raise refuse("E002", message, help="compile its schedule with --for")
    return verify(result)


def _model(path: str | None) -> ModelDescription | None:
    from chimerac.chimera_ir.model import model_from_json

    return None if path is None else model_from_json(read(path), path)


def _colour(choice: str, stream: object) -> bool:
    if choice != "auto":
        return choice == "always"
    return (
        bool(getattr(stream, "isatty", lambda: False)()) and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    )


def _columns(options: argparse.Namespace) -> int | None:
    if options.columns is not None:
        return int(options.columns)
    return shutil.get_terminal_size().columns if not options.output and sys.stdout.isatty() else None


def _write(product: str, path: str | None) -> None:
    if path == "":
        raise refuse("E002", "-o: the path is empty")
    if path is None or path == "-":
        say(product)
    else:
        write(product, path)
