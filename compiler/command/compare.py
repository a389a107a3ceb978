"""`chimerac compare`: schedules side by side for one setting, as a table, JSON, Markdown, drawings, a page or a picture."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse, visible
from chimerac.chimera_ir.header import stages_text
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.numbers import number_text
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.compare import Compared, Figures, ForModel, LeastAndMost, Setting, compare, fastest_first
from chimerac.compiler.analyze.durations import UNIT, Durations
from chimerac.compiler.command.files import (
    check_columns,
    check_inputs_not_overwritten,
    coloured,
    columns,
    print_findings,
    write_product,
)
from chimerac.compiler.command.modelled import (
    check_model_options,
    durations_for,
    model_for,
    model_of,
    profile_of,
    state_for,
    with_partition,
)
from chimerac.compiler.command.pictures import PICTURES, check_picture_output, inches
from chimerac.compiler.command.values import costs_of, number_of_bytes, parameters_of, without_parameters
from chimerac.compiler.command.verbs import compare_parser
from chimerac.compiler.given import stage_choice
from chimerac.compiler.library import find, names

HEAD = ("schedule", "makespan", "speed", "bubble ratio", "wall bubble", "activations", "weights", "messages", "all-reduce")
NOTES = """\
speed: makespan of the first row that can run, divided by that of this row; bubble ratio: idle share of all ranks;
wall bubble: idle time of a rank; activations: micro-batches alive on a rank at its peak; weights: copies that a rank
holds; messages: values that the rank with most of them sends; all-reduce: what the rank with most of it sends in
all-reduces, each over a ring. "3 to 4" is the least and the most over the ranks."""
NOTES_SHARES = """\
Activations, weights and all-reduce are in shares of the model: a share is the model divided by the ranks."""
NOTES_TIMED = """\
exposed: communication that the rank with most of it waits for."""
NOTES_RECOMPUTED = """\
recomputed: the stages that run their forward again before the backward, and keep only their input until then."""
NOTES_BYTES = """\
Activations and weights are in shares of the model: a share is the model divided by the ranks.
Messages, all-reduce and memory are bytes of the rank with most of them; memory is at its peak."""


def run(argv: Sequence[str]) -> int:
    """Print the comparison, and return the exit status: that of the findings, else 1 if no schedule can run, else 0."""
    options = compare_parser().parse_args(argv)
    try:
        if options.columns is not None:
            check_columns(options.columns, options.emit == "timeline", "--emit timeline")
        if options.emit in PICTURES:
            check_picture_output(options.emit, options.output)
        elif options.picture_width is not None:
            raise refuse("E002", "--picture-width is for --emit svg, png and pdf")
        picture_inches = inches(options.picture_width)
        setting, rows = _rows(options)
        write_product(_product(options, setting, rows, picture_inches, argv), options.output)
    except ChimeraError as error:
        return print_findings(error, options.color)
    return 0 if any(row.figures for row in rows) else 1


def _product(
    options: argparse.Namespace, setting: Setting, rows: Sequence[Compared], picture_inches: float | None, argv: Sequence[str]
) -> str | bytes:
    """Return what --emit names.

    Args:
        picture_inches: the width of a picture.
        argv: the words of the command line, for the page.
    """
    match options.emit:
        case "timeline":
            colour = coloured(options.color, sys.stdout) and not options.output
            return _draw(setting, rows, columns(options.columns, options.output), colour)
        case "html":
            return _html(options, rows, ["chimerac", "compare", *without_parameters(argv)], setting)
        case form if form in PICTURES:
            return _picture(setting, rows, form, picture_inches)
        case _:
            return EMITTERS[options.emit](setting, rows)


def _rows(options: argparse.Namespace) -> tuple[Setting, list[Compared]]:
    """Return the setting and a row for each schedule: in the given order, or of the whole library the fastest first."""
    check_model_options(options)
    schedules = {name: find(name) for name in options.schedules or names()}
    check_inputs_not_overwritten(options.output, schedules.values(), options)
    parameters = parameters_of(options.parameters)
    width = 1 if options.width is None else options.width
    for option, value in (("-p D=", parameters.get("D", 1)), ("-p N=", parameters.get("N", 1)), ("--width ", width)):
        if value < 1:
            raise refuse("E002", f"{option}{value}: expected 1 or more")
    recompute = None if options.recompute is None else stage_choice(options.recompute)
    setting = Setting(parameters, costs_of(options.costs), width, recompute, unit=UNIT if options.profile else "")
    rows = compare(schedules, setting, _for_model(options))
    return setting, rows if options.schedules else fastest_first(rows)


def _for_model(options: argparse.Namespace) -> ForModel | None:
    profile = profile_of(options)
    state = state_for(options, profile)
    if options.model is None:
        return None
    # An unknown model, or a profile of another model, is refused here, once for all rows. Whether a description fits the
    # --micro-batch depends on the schedule: if not, the row of this schedule has the reason.
    model_of(options, profile)

    def describe(program: Program) -> tuple[Program, ModelDescription]:
        model = model_for(program, options, profile)
        assert model is not None, "--model is given"
        return with_partition(program, model, options), model

    def durations(program: Program, model: ModelDescription) -> Durations:
        found = durations_for(program, model, profile, options)
        assert found is not None, "--profile is given"
        return found

    limit = None if options.memory is None else number_of_bytes(options.memory)
    return ForModel(describe, state, limit, None if profile is None else durations)


def _table(setting: Setting, rows: Sequence[Compared]) -> str:
    head, cells = _cells(setting, rows)
    widths = [max([len(head[k]), *(len(row[k]) for row in cells if len(row) == len(head))]) for k in range(len(head))]
    widths[0] = max(len(row[0]) for row in [head, *cells])
    lines = [_title(setting, rows), ""]
    for row in [head, *cells]:
        name, *others = row
        # A schedule that cannot run has one long cell, the reason, which is not padded to the width of a column.
        padded = others if len(row) < len(head) else [f"{cell:>{w}}" for cell, w in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([f"{name:<{widths[0]}}", *padded]))
    return "\n".join([*lines, *_notes(setting, rows)]) + "\n"


def _markdown(setting: Setting, rows: Sequence[Compared]) -> str:
    head, cells = _cells(setting, rows)
    lines = [_title(setting, rows), "", _markdown_row(head), _markdown_row(["---", *["---:"] * (len(head) - 1)])]
    lines += [_markdown_row([*row, *[""] * (len(head) - len(row))]) for row in cells]
    if notes := _notes(setting, rows):
        lines += ["", *notes]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _json(setting: Setting, rows: Sequence[Compared]) -> str:
    """Return the setting and all rows as JSON. Fractions that are no integers become floats."""
    costs = {name: _number(cost) for name, cost in setting.all_costs().items()}
    sizes = {**setting.parameters, "D": setting.ranks, "N": setting.micro_batches}
    timed = {"unit": setting.unit} if setting.unit else {"costs": costs}
    found = {"parameters": sizes, "width": setting.width, **timed, "schedules": [_fields(row) for row in rows]}
    return json.dumps(found, indent=2) + "\n"


EMITTERS: Mapping[str, Callable[[Setting, Sequence[Compared]], str]] = {"table": _table, "json": _json, "markdown": _markdown}


def _draw(setting: Setting, rows: Sequence[Compared], width: int | None, colour: bool) -> str:
    """Return the timelines of all schedules that can run, drawn to one scale, and the reasons of the others.

    Args:
        width: the characters of a line of the longest timeline; None for the default of `draw_overview`.
    """
    from chimerac.compiler.draw.overview import draw_overview  # start-up: 2 ms, for this product only

    shown = [row.figures for row in rows if row.figures]
    longest = max((figures.makespan for figures in shown), default=Fraction(0))
    parts = [_title(setting, rows)]
    for row in rows:
        if row.figures is None:
            parts.append(f"{visible(row.schedule)}: {visible(row.reason)}")
            continue
        f = row.figures
        unit = f" {setting.unit}" if setting.unit else ""
        head = f"{visible(row.schedule)}: makespan {number_text(f.makespan)}{unit}, bubble ratio {100 * f.bubble_ratio:.1f} %"
        drawn = draw_overview(f.simulation.program, f.simulation.timeline, f.makespan, longest, width, colour=colour)
        parts.append(f"{head}\n{drawn}")
    return "\n\n".join(parts) + "\n"


def _picture(setting: Setting, rows: Sequence[Compared], form: str, picture_inches: float | None) -> bytes:
    """Return the timelines of all schedules that can run, one under the other on one time axis; the others are named below.

    Raises ChimeraError E002 if no schedule can run.
    """
    from chimerac.compiler.analyze.panels import simulated_panel  # start-up: 8 ms, for pictures only
    from chimerac.compiler.draw.picture import draw_picture

    panels = [simulated_panel(row.figures.simulation, visible(row.schedule)) for row in rows if row.figures]
    if not panels:
        reasons = tuple(f"{visible(row.schedule)}: {visible(row.reason)}" for row in rows)
        raise refuse("E002", f"--emit {form}: no schedule can run at this size, so there is nothing to draw", notes=reasons)
    missing = [f"{visible(row.schedule)} is not drawn: {visible(row.reason)}" for row in rows if row.figures is None]
    return draw_picture(panels, form, f"time, for {_title(setting, rows)}", inches=picture_inches, remarks=missing)


def _html(options: argparse.Namespace, rows: Sequence[Compared], command: Sequence[str], setting: Setting) -> str:
    """Return the page with all schedules that can run, one above another on one axis of time, and the reasons of the others.

    Args:
        command: the words of the command line without -p and its values; the page adds the setting's sizes.
    """
    from chimerac.compiler.analyze.viewed import viewed  # start-up: 8 ms, for this product only
    from chimerac.compiler.draw.viewer.page import page  # start-up: 3 ms, for this product only

    state = state_for(options, profile_of(options))
    panels = []
    for row in rows:
        f = row.figures
        if f is None:
            panels.append({"name": visible(row.schedule), "reason": visible(row.reason)})
        else:
            panels.append(viewed(f.simulation, row.schedule, ordered=f.ordered, model=f.description, state=state))
    sizes = {"D": setting.ranks, "N": setting.micro_batches, **setting.parameters}
    return page(panels, command, sizes)


def _fields(row: Compared) -> dict[str, Any]:
    f = row.figures
    if f is None:
        return {"schedule": row.schedule, "reason": row.reason}
    found: dict[str, Any] = {
        "schedule": row.schedule,
        "makespan": _number(f.makespan),
        "exposed": _number(f.exposed),
        "bubble_ratio": round(f.bubble_ratio, 6),
    }
    for name in ("wall_bubble", "activations", "weights"):
        found[name] = [_number(x) for x in getattr(f, name)]
    found |= {"messages": _number(f.messages), "all_reduced": _number(f.all_reduced), "recomputed_stages": list(f.recomputed)}
    if f.bytes is not None:
        found |= {"memory_bytes": f.bytes.memory, "message_bytes": f.bytes.messages, "all_reduced_bytes": f.bytes.all_reduced}
    return found


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _title(setting: Setting, rows: Sequence[Compared]) -> str:
    own = [f"{name}={value}" for name, value in setting.parameters.items() if name not in ("D", "N")]
    ranks, micro_batches = count_text(setting.ranks, "rank"), count_text(setting.micro_batches, "micro-batch")
    sizes = ", ".join([f"D={ranks}", f"N={micro_batches}", *own, f"width {setting.width}"])
    recompute = "" if setting.recompute is None else f"; recompute {setting.recompute.text}"
    if setting.unit:
        return f"{sizes}; times in {setting.unit}, by the profile{recompute}"
    costs = setting.all_costs()
    tasks = ("F", "B", "I", "W", "R") if _recomputes(rows) else ("F", "B", "I", "W")
    shown = " ".join(f"{name}={number_text(costs[name])}" for name in tasks)
    return f"{sizes}; {shown} for the share of one rank, hop={number_text(costs['hop'])}{recompute}"


def _recomputes(rows: Sequence[Compared]) -> bool:
    """Return whether any schedule recomputes a stage."""
    return any(row.figures and row.figures.recomputed for row in rows)


def _cells(setting: Setting, rows: Sequence[Compared]) -> tuple[list[str], list[list[str]]]:
    """Return the heads of the columns and the cells of each row; a row that cannot run has its name and the reason."""
    first = next((row.figures for row in rows if row.figures), None)
    in_bytes = first is not None and first.bytes is not None
    recomputes = _recomputes(rows)
    has_unit = bool(setting.unit)
    optional = (("exposed", has_unit), ("memory", in_bytes), ("recomputed", recomputes))
    head = [*HEAD, *(name for name, is_there in optional if is_there)]
    cells = []
    for row in rows:
        if row.figures is None or first is None:
            cells.append([visible(row.schedule), visible(row.reason)])
            continue
        f = row.figures
        cells.append(
            [
                visible(row.schedule),
                *_shown(f, first),
                *([number_text(f.exposed)] if has_unit else []),
                *([f"{f.bytes.memory:,}"] if f.bytes else []),
                *([stages_text(f.recomputed)] if recomputes else []),
            ]
        )
    return head, cells


def _shown(f: Figures, first: Figures) -> Iterator[str]:
    """Yield the cells of the columns of HEAD after the name.

    Args:
        first: the figures of the first row that can run.
    """
    yield number_text(f.makespan)
    yield f"{float(first.makespan / f.makespan):.2f}" if f.makespan else "-"
    yield f"{100 * f.bubble_ratio:.1f} %"
    yield from (_span(x) for x in (f.wall_bubble, f.activations, f.weights))
    yield from (
        (f"{f.bytes.messages:,}", f"{f.bytes.all_reduced:,}")
        if f.bytes
        else (number_text(f.messages), number_text(f.all_reduced))
    )


def _span(span: LeastAndMost) -> str:
    low, high = map(number_text, span)
    return low if low == high else f"{low} to {high}"


def _notes(setting: Setting, rows: Sequence[Compared]) -> list[str]:
    shown = [row.figures for row in rows if row.figures]
    if not shown:
        return []
    exposed = [NOTES_TIMED] if setting.unit else []
    recomputed = [NOTES_RECOMPUTED] if _recomputes(rows) else []
    return [NOTES, *exposed, *recomputed, NOTES_BYTES if shown[0].bytes else NOTES_SHARES]
