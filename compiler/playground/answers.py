"""What the page is told about a text: its parameters, costs and timeline as columns, or its findings with their places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Source, visible
from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.analyze.viewed import viewed
from chimerac.compiler.given import COSTS
from chimerac.compiler.playground import limits
from chimerac.compiler.playground.setting import NAME, Setting
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import ExprValue, evaluate
from chimerac.compiler.resolve.findings import Findings
from chimerac.compiler.resolve.statements import check_globals
from chimerac.compiler.resolve.values import requirements_hold
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.verify import peaks


def drawn(text: str, setting: Setting) -> dict[str, Any]:
    """Return the timeline of a text with its sizes, parameters and costs, as values for JSON.

    `panel` is what `viewed` returns. Its times are integers: `scale` of them are one unit. For a wrong text or a wrong setting,
    return what `findings` returns, and `parameters`, which is None where `_sliders_of_wrong_text` returns None.
    """
    try:
        results = setting.compiled(text)
        simulation = simulate(results.program, setting.cost_numbers())
    except ChimeraError as error:
        return {**findings(error, setting), "parameters": _sliders_of_wrong_text(text, setting.parameters)}
    program = results.program
    header = program.header
    panel = viewed(simulation, header.schedule, ordered=results.ordered, most=limits.ROWS)
    return {
        "parameters": sliders(results.schedule, setting.parameters),
        "costs": _costs(simulation, setting.costs),
        "ranks": program.world,
        "stages": header.stages,
        "microBatches": header.micro_batches,
        "instructions": len(program),
        "digest": program.digest,
        "unit": simulation.unit,
        "makespanText": simulation.time(simulation.makespan),
        "untilText": None if panel["until"] is None else simulation.time(panel["until"]),
        "bubbleRatio": simulation.bubble_ratio,
        "idle": [simulation.time(x) for x in simulation.wall_bubbles],
        "activations": list(peaks(program).activations),
        "panel": panel,
    }


def findings(error: ChimeraError, setting: Setting) -> dict[str, Any]:
    """Return the first limits.FINDINGS findings of an error, and the count of all.

    `place`: lines and columns from 1, the end just past the last character; None without a place in the text. `fields`: the
    names of the page's fields that a finding without a place is probably about.
    """
    shown = [_finding(d, setting) for d in error.diagnostics[: limits.FINDINGS]]
    return {"findings": shown, "count": len(error.diagnostics)}


def _finding(d: Diagnostic, setting: Setting) -> dict[str, Any]:
    place = None if d.span is None else [d.span.line, d.span.column, d.span.end_line, d.span.end_column]
    return {
        "code": d.code,
        "message": visible(d.message),
        "label": visible(d.label),
        "notes": ["\n".join(map(visible, note.split("\n"))) for note in d.notes],
        "help": "\n".join(map(visible, d.help.split("\n"))),
        "place": place,
        "fields": [] if d.span else _fields(d, setting),
    }


def _fields(d: Diagnostic, setting: Setting) -> list[str]:
    """Return the names of the page's fields that a finding is probably about: fields of costs, 'width', 'machine' or none."""
    if d.code == "E002":  # about one cost, or about all costs together
        wrong = setting.wrong_costs()
        own = [name for name, error in wrong.items() if d in error.diagnostics]
        return [f"cost-{name}" for name in own or setting.costs]
    if d.code == "E211" and setting.width != 1:
        return ["width"]
    return ["machine"] if d.code.startswith("E4") and setting.machine != "window" else []


def _costs(simulation: Simulation, given: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the costs that the page shows: of each kind of task in the program, of a transfer, and the given ones.

    The cost of R is also shown if a stage recomputes in its backwards.

    `value`: the text that is given, else the program's own cost, such as '1 to 3' where it differs by stage.
    """
    program, names = simulation.program, {form.letter: Op(op) for op, form in enumerate(FORMS) if form.letter}
    used = {name for name, op in names.items() if (program.table.op == op).any()}
    used |= {"hop"} | ({"R"} if program.recomputed_stages else set())

    def own(name: str) -> str:
        costs = (program.costs.hop,) if name == "hop" else program.costs.of(names[name])
        low, high = min(costs), max(costs)
        return str(low) if low == high else f"{low} to {high}"

    return [
        {"name": name, "value": given.get(name, own(name)), "given": name in given}
        for name in COSTS
        if name in used or name in given
    ]


def sliders(schedule: n.Schedule, given: Mapping[str, int]) -> list[dict[str, Any]]:
    """Return the parameters of a schedule, each with its value and with the values that its slider offers.

    A slider offers values with which the schedule's requirements hold if no other parameter is given another value. It offers
    only those that can be tried within limits.OPERATIONS. `value` is None if `_values` has none for the parameter.

    Args:
        given: values that replace defaults, by name.
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
    """Return the values that a slider may offer: evenly spaced ones from 0 on, and the present value.

    They go up to four times the present value, without its sign, or to 16 if this is more.
    """
    end = max(4 * abs(value), 16)
    step = -(-end // limits.VALUES)
    return sorted({*range(0, end + 1, step), value})


def _values(schedule: n.Schedule, given: Mapping[str, int]) -> dict[str, int]:
    """Return the values of the parameters above the first default or let that cannot be computed.

    A parameter that is not given and has no default is left out.
    """
    env: dict[str, ExprValue] = {}
    found: dict[str, int] = {}
    budget = Budget(limits.OPERATIONS)
    for s in schedule.statements:
        try:
            if isinstance(s, n.Param) and s.name.name in given:
                env[s.name.name] = found[s.name.name] = given[s.name.name]
            elif isinstance(s, n.Param) and s.default is not None:
                env[s.name.name] = found[s.name.name] = int(evaluate(s.default, env, budget))
            elif isinstance(s, n.Let):
                env[s.name.name] = evaluate(s.value, env, budget)
        except ChimeraError:
            break
    return found


def _sliders_of_wrong_text(text: str, given: Mapping[str, int]) -> list[dict[str, Any]] | None:
    """Return the sliders of a text when the text or the setting has findings.

    None for syntax errors, for wrong names and types in params, lets and requirements, and for a parameter without a value. A
    requirement that does not hold is none of these: a slider can correct it.
    """
    try:
        schedule, found = parse(Source(NAME, text)), Findings()
        check_globals(schedule, found)
        if found:
            return None
    except ChimeraError:
        return None
    params = [s for s in schedule.statements if isinstance(s, n.Param)]
    if any(s.default is None and s.name.name not in given for s in params):
        return None
    names = {s.name.name for s in params}
    return sliders(schedule, {name: value for name, value in given.items() if name in names})
