"""What the page is told about a text: its findings with their places, its parameters, and its timeline as columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, visible
from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.draw.timeline import fused_bars, ids_text
from chimerac.compiler.pipeline import Compiled, compile_source
from chimerac.compiler.playground import limits
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import ExprValue, evaluate
from chimerac.compiler.resolve.findings import Findings
from chimerac.compiler.resolve.statements import check_globals
from chimerac.compiler.resolve.values import requirements_hold
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.verify import peaks

NAME = "the text"  # of the source, in messages


def compiled(text: str, parameters: Mapping[str, int]) -> Compiled:
    """Return a verified program and its passes. Raises ChimeraError with the findings of the first pass that has any."""
    return compile_source(Source(NAME, text.replace("\r\n", "\n").replace("\r", "\n")), parameters)


def drawn(text: str, parameters: Mapping[str, int]) -> dict[str, Any]:
    """Return the timeline of a text with its sizes and parameters, or its findings. Everything is made for JSON.

    Times are integers: `scale` of them are one unit.
    """
    try:
        results = compiled(text, parameters)
    except ChimeraError as error:
        found = findings(error)
        return {**found, "parameters": _sliders_despite_findings(text, parameters)}
    program, s = results.program, simulate(results.program)
    h = program.header
    return {
        "schedule": h.schedule,
        "parameters": sliders(results.schedule, parameters),
        "ranks": program.world,
        "stages": h.stages,
        "microBatches": h.micro_batches,
        "instructions": len(program),
        "tasks": int(program.table.is_task.sum()),
        "pipes": [pipe.name for pipe in h.pipes],
        "digest": program.digest,
        "unit": s.unit,
        "scale": s.scale,
        "makespan": s.makespan,
        "makespanText": s.time(s.makespan),
        "bubbleRatio": s.bubble_ratio,
        "idle": [s.time(x) for x in s.wall_bubbles],
        "activations": list(peaks(program).activations),
        **_bars(s),
    }


def findings(error: ChimeraError) -> dict[str, Any]:
    """Return the findings of an error, with their places: lines and columns from 1, the end just past the last character."""
    shown = [_finding(d) for d in error.diagnostics[: limits.FINDINGS]]
    return {"findings": shown, "count": len(error.diagnostics)}


def _finding(d: Diagnostic) -> dict[str, Any]:
    place = None if d.span is None else [d.span.line, d.span.column, d.span.end_line, d.span.end_column]
    return {
        "code": d.code,
        "message": visible(d.message),
        "label": visible(d.label),
        "notes": ["\n".join(map(visible, note.split("\n"))) for note in d.notes],
        "help": "\n".join(map(visible, d.help.split("\n"))),
        "place": place,
    }


def sliders(schedule: n.Schedule, given: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the parameters of a schedule, each with its value and with the values that its requirements allow.

    A value is None if it cannot be computed. given: values in the place of defaults.
    """
    values, found = _values(schedule, given), []
    names = [s.name.name for s in schedule.statements if isinstance(s, n.Param)]
    for name in names:
        value = values.get(name)
        budget = Budget(limits.OPERATIONS // len(names))
        tried = [] if value is None else _candidates(value)
        allowed = [v for v in tried if budget.left > 0 and requirements_hold(schedule, {**given, name: v}, budget)]
        found.append({"name": name, "value": value, "given": name in given, "values": allowed})
    return found


def _candidates(value: int) -> list[int]:
    """Return the values that a slider may offer: from 0 to four times the present one, which is among them."""
    end = max(4 * abs(value), 16)
    step = -(-end // limits.VALUES)
    return sorted({*range(0, end + 1, step), value})


def _values(schedule: n.Schedule, given: Mapping[str, int]) -> dict[str, int]:
    """Return the values of the parameters that can be computed."""
    env: dict[str, ExprValue] = {}
    found: dict[str, int] = {}
    budget = Budget(limits.OPERATIONS)
    for s in schedule.statements:
        try:
            if isinstance(s, n.Param) and (s.name.name in given or s.default is not None):
                value = given[s.name.name] if s.default is None or s.name.name in given else evaluate(s.default, env, budget)
                env[s.name.name] = found[s.name.name] = int(value)
            elif isinstance(s, n.Let):
                env[s.name.name] = evaluate(s.value, env, budget)
        except ChimeraError:
            break
    return found


def _sliders_despite_findings(text: str, given: Mapping[str, int]) -> list[dict[str, Any]] | None:
    """Return the sliders of a text with findings; None if its parameters are wrong themselves."""
    try:
        schedule, found = parse(Source(NAME, text)), Findings()
        check_globals(schedule, found)
        if found:
            return None
    except ChimeraError:
        return None
    names = {s.name.name for s in schedule.statements if isinstance(s, n.Param)}
    return sliders(schedule, {name: value for name, value in given.items() if name in names})


def _bars(s: Simulation) -> dict[str, Any]:
    """Return the bars of the tasks and the times of the all-reduces, at most `limits.BARS` of each.

    until: when the first task starts that is left out; None if there is none.
    """
    p, t = s.program, s.timeline
    second = fused_bars(p, t)  # each is drawn with the task before it
    fused = set(t.row[second].tolist())
    bars = t.take(np.flatnonzero(p.table.is_task[t.row] & ~second))
    until = None
    if len(bars) > limits.BARS:
        until = int(np.partition(bars.start, limits.BARS)[limits.BARS])
        bars = bars.take(np.flatnonzero(bars.start < until))
    rows = bars.row.tolist()
    names: dict[int, str] = {}

    def name(row: int) -> str:
        operand = int(p.table.operand[row])
        if operand not in names:
            names[operand] = ids_text(p.micro_batch_lists[operand])
        return names[operand]

    def second_of(row: int) -> tuple[str, int, int]:
        """Return the text, the operation and the pipe of the second task of an overlapped pair."""
        op = int(p.table.op[row])
        return f"{FORMS[op].letter}{name(row)}", op, int(p.table.pipe[row])

    begin, end = s.collective_times
    all_reduces = np.flatnonzero(p.table.op == Op.ALLREDUCE)[: limits.BARS]
    joined = p.table.operand[all_reduces]
    return {
        "until": until,
        "untilText": None if until is None else s.time(until),
        "letters": [form.letter or "" for form in FORMS],
        "bars": {
            "rank": bars.rank.tolist(),
            "start": bars.start.tolist(),
            "end": bars.end.tolist(),
            "op": p.table.op[bars.row].tolist(),
            "pipe": p.table.pipe[bars.row].tolist(),
            "stage": p.table.stage[bars.row].tolist(),
            "name": [name(row) for row in rows],
            "pair": {k: second_of(row + 1) for k, row in enumerate(rows) if row + 1 in fused},
        },
        "allReduces": {
            "rank": p.rank_of[all_reduces].tolist(),
            "start": begin[joined].tolist(),
            "end": end[joined].tolist(),
        },
    }
