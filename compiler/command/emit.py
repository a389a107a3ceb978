"""The products of --emit: a table of emitters, from which its choices and help are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.jsonform import json_schema, program_to_json
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.numbers import number_text
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_to_text
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.analyze.durations import Durations
from chimerac.compiler.analyze.memory import OptimizerState
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.command.files import suffix
from chimerac.compiler.command.pictures import PICTURES, check_picture_output
from chimerac.compiler.order.ordered import Ordered

GRAPHVIZ, GRAPHML = (".dot", ".gv"), (".graphml", ".xml", "")  # suffixes of the paths to which a DAG is written


@dataclass(frozen=True, slots=True)
class EmitOptions:
    """The options that emitters read.

    Attributes:
        costs: of --cost.
        durations: by --profile, in the place of costs; None without it.
        model: of --model, None without it.
        state: of the optimizer, by --optimizer, --zero, --precision and --profile.
        output: the path of -o, None for stdout; for a download of `chimerac serve` the name of its file.
        columns: the width of a timeline, None for the default of its drawing.
        colour: whether a timeline has colours.
        ranks: those that are drawn, None for the default of a drawing.
        inches: the width of a picture, None for one in which most numbers fit.
        memory_curve: whether a picture has the memory curve.
        measured: of --measured, a bar for every row of the program in their order; None without it.
        name: of the schedule, as the command line gives it, or for a download as its text gives it.
        command: the words of the command line without -p and its values.
        ordered: the tasks of a schedule in order, None for a program that was not compiled from a schedule.
    """

    costs: Mapping[str, Fraction]
    durations: Durations | None
    model: ModelDescription | None
    state: OptimizerState
    output: str | None
    columns: int | None
    colour: bool
    ranks: tuple[int, ...] | None = None
    inches: float | None = None
    memory_curve: bool = False
    measured: Timeline | None = None
    name: str = ""
    command: tuple[str, ...] = ()
    ordered: Ordered | None = None


@dataclass(frozen=True, slots=True)
class Emitter:
    """One product of --emit.

    Attributes:
        what: its help.
        make: makes it from a program.
        make_alone: makes it without a program, if it needs none.
        reads: the options that it depends on, out of --cost, --profile, --model, --optimizer, --measured and the options of
            drawings. `product` in compile.py refuses an option that neither the product nor another given option reads, unless
            the product needs no program.
    """

    what: str
    make: Callable[[Program, EmitOptions], str | bytes] | None = None
    make_alone: Callable[[], str] | None = None
    reads: tuple[str, ...] = ()


def _streams(program: Program, _: EmitOptions) -> str:
    return program_to_text(program)


def _json(program: Program, _: EmitOptions) -> str:
    return program_to_json(program)


def _perfetto(program: Program, options: EmitOptions) -> str:
    from chimerac.compiler.exchange.perfetto import trace_json  # start-up: 2 ms, for this product only

    return trace_json(simulate(program, options.costs, options.durations), options.measured)


def _sched(program: Program, _: EmitOptions) -> str:
    from chimerac.compiler.exchange.listing import program_to_listing  # start-up: 2 ms, for this product only

    return program_to_listing(program)


def _torch_csv(program: Program, _: EmitOptions, *, with_communication: bool) -> str:
    from chimerac.compiler.exchange.torch_csv import program_to_csv  # start-up: 2 ms, for this product only

    return program_to_csv(program, with_communication)


def _dag(program: Program, options: EmitOptions) -> str:
    from chimerac.compiler.analyze.graph import dependency_graph, dot, graphml  # start-up: 3 ms, for this product only

    graph = dependency_graph(program)
    return dot(graph) if suffix(options.output) in GRAPHVIZ else graphml(graph)


def _timeline(program: Program, options: EmitOptions) -> str:
    from chimerac.compiler.draw.timeline import draw_timeline  # start-up: 3 ms, for this product only

    s = simulate(program, options.costs, options.durations)
    if options.measured is not None:
        return _timelines(s, options.measured, options)
    return draw_timeline(program, s.timeline, ranks=options.ranks, columns=options.columns, colour=options.colour)


def _picture(form: str, program: Program, options: EmitOptions) -> bytes:
    from chimerac.compiler.analyze.panels import memory_curve, panels_beside  # start-up: 8 ms, for pictures only
    from chimerac.compiler.draw.picture import draw_picture

    s = simulate(program, options.costs, options.durations)
    curve_of = partial(memory_curve, program, model=options.model, state=options.state) if options.memory_curve else None
    panels, label = panels_beside(s, options.measured, curve_of)
    return draw_picture(panels, form, label, options.ranks, options.inches)


def _timelines(s: Simulation, measured: Timeline, options: EmitOptions) -> str:
    """Return the predicted and the measured timeline, drawn to one scale, and their differences."""
    from chimerac.compiler.analyze.beside import beside, beside_lines  # start-up: 8 ms, for --measured only
    from chimerac.compiler.draw.overview import draw_overview  # start-up: 2 ms, for --measured only

    found = beside(s, measured)
    makespans = [Fraction(figures.makespan) for figures in (found.predicted, found.measured)]
    parts = []
    for name, timeline, makespan in zip(("predicted", "measured"), (s.timeline, measured), makespans, strict=True):
        # Each timeline is in a unit of its own, so the longer makespan is converted to that unit.
        in_own_unit = Fraction(timeline.makespan, timeline.scale)
        longest = max(makespans) * in_own_unit / makespan if makespan else in_own_unit
        drawn = draw_overview(s.program, timeline, in_own_unit, longest, options.columns, options.ranks, options.colour)
        parts.append(f"{name}: {number_text(makespan)} {found.unit}".rstrip() + f"\n{drawn}\n")
    return "\n".join([*parts, *beside_lines(found)]) + "\n"


def _timeline_json(program: Program, options: EmitOptions) -> str:
    from chimerac.chimera_ir.timeline_form import timeline_to_json  # start-up: 2 ms, for this product only

    s = simulate(program, options.costs, options.durations)
    return timeline_to_json(program, replace(s.timeline, finish=s.makespan), "simulated")


def _report(program: Program, options: EmitOptions) -> str:
    from chimerac.compiler.analyze.report import report  # start-up: 8 ms, for this product only

    s = simulate(program, options.costs, options.durations)
    text = report(program, s, options.model, options.state)
    if options.measured is None:
        return text
    from chimerac.compiler.analyze.beside import beside, beside_lines  # start-up: 2 ms, for --measured only

    return text + "\n" + "\n".join(beside_lines(beside(s, options.measured))) + "\n"


def _path(program: Program, options: EmitOptions) -> str:
    from chimerac.compiler.analyze.report import path_text  # start-up: 8 ms, for this product only

    return path_text(simulate(program, options.costs, options.durations))


def _html(program: Program, options: EmitOptions) -> str:
    from chimerac.compiler.analyze.viewed import viewed  # start-up: 8 ms, for this product only
    from chimerac.compiler.draw.viewer.page import page  # start-up: 3 ms, for this product only

    s = simulate(program, options.costs, options.durations)
    panel = viewed(
        s, options.name, ordered=options.ordered, model=options.model, state=options.state, measured=options.measured
    )
    return page([panel], options.command, None if options.ordered is None else program.header.parameters)


def _memory(program: Program, options: EmitOptions) -> str:
    from chimerac.compiler.analyze.report import memory_text  # start-up: 8 ms, for this product only

    return memory_text(simulate(program, options.costs, options.durations), options.model, options.state)


_OF_PICTURES = ("--cost", "--profile", "--model", "--optimizer", "--ranks", "--picture-width", "--memory-curve",
                "--measured")  # fmt: skip

EMITTERS: Mapping[str, Emitter] = {
    "streams": Emitter("the compact text of every rank's instructions (the default)", _streams),
    "json": Emitter("the program as JSON, version 1; with --model also the partition", _json, reads=("--model",)),
    "perfetto": Emitter(
        "the simulation as a trace for Perfetto, and with --measured also the run",
        _perfetto,
        reads=("--cost", "--profile", "--measured"),
    ),
    "sched": Emitter("a schedule with the same tasks in the same order, as order listing", _sched),
    "torch-csv": Emitter("the tasks as CSV for torch.distributed.pipelining", partial(_torch_csv, with_communication=False)),
    "torch-comms": Emitter("the same with messages, which --for serial arranges", partial(_torch_csv, with_communication=True)),
    "schema": Emitter("the JSON Schema of the format of --emit json; needs no schedule", make_alone=json_schema),
    "dag": Emitter("the dependency DAG, as GraphML, or for Graphviz where PATH ends in .dot or .gv", _dag),
    "timeline": Emitter(
        "the simulated timeline, a row per rank; with --measured beside the measured one",
        _timeline,
        reads=("--cost", "--profile", "--columns", "--ranks", "--measured"),
    ),
    "timeline-json": Emitter("the simulated timeline as JSON, version 1", _timeline_json, reads=("--cost", "--profile")),
    "svg": Emitter("a picture of the timeline for papers and pages", partial(_picture, "svg"), reads=_OF_PICTURES),
    "png": Emitter("the same picture in pixels, 200 to an inch", partial(_picture, "png"), reads=_OF_PICTURES),
    "pdf": Emitter("the same picture, with its fonts", partial(_picture, "pdf"), reads=_OF_PICTURES),
    "html": Emitter(
        "an HTML file to look at in a browser: zoom, messages, idle time by cause, memory; with --model bytes",
        _html,
        reads=("--cost", "--model", "--optimizer", "--profile", "--measured"),
    ),
    "path": Emitter("the critical path of the simulation, a step a line", _path, reads=("--cost", "--profile")),
    "memory": Emitter(
        "what each rank holds over time, as CSV: activations, with --model bytes",
        _memory,
        reads=("--cost", "--model", "--optimizer", "--profile"),
    ),
    "report": Emitter(
        "makespan, bubbles, critical path, idle time, activations, buffers, machines; with --model also bytes",
        _report,
        reads=("--cost", "--model", "--optimizer", "--profile", "--measured"),
    ),
}


def readers(option: str) -> str:
    """Return the choices of --emit that read an option, as text for messages."""
    *first, last = [f"--emit {name}" for name, emitter in EMITTERS.items() if option in emitter.reads]
    return f"{', '.join(first)} and {last}" if first else last


def check_output(emit: str, output: str | None) -> None:
    """Raise ChimeraError E002 for a picture or a DAG if the path has a wrong suffix, and for PNG and PDF to a terminal.

    The path of any other product may have any suffix.
    """
    if emit in PICTURES:
        check_picture_output(emit, output)
    if emit == "dag" and suffix(output) not in (*GRAPHVIZ, *GRAPHML):
        formats = f"GraphML ({', '.join(GRAPHML[:-1])}) or for Graphviz ({', '.join(GRAPHVIZ)})"
        raise refuse("E002", f"-o {output}: the DAG is written as {formats}")
