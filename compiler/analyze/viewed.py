"""What the viewer shows of a program: its instructions, their times and waits, idle time, critical path and memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from chimerac.chimera_ir.diagnostics import Source, visible
from chimerac.chimera_ir.instructions import FORMS
from chimerac.chimera_ir.machines import machine_name
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Ints, Program
from chimerac.chimera_ir.table import Mask
from chimerac.chimera_ir.timeline import Timeline
from chimerac.compiler.analyze.beside import time_factor
from chimerac.compiler.analyze.causes import CAUSES, critical_path, idle_bars
from chimerac.compiler.analyze.memory import NO_STATE, OptimizerState, memory_over_time
from chimerac.compiler.analyze.report import costs_text
from chimerac.compiler.analyze.simulate import Simulation
from chimerac.compiler.draw.viewer.columns import Column, column
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.tasks import TaskIndex, data_edges

Panel = dict[str, Any]


def viewed(
    s: Simulation,
    name: str,
    *,
    ordered: Ordered | None = None,
    model: ModelDescription | None = None,
    state: OptimizerState = NO_STATE,
    measured: Timeline | None = None,
    most: int | None = None,
) -> Panel:
    """Return the data of a program for the viewer, as a value for JSON.

    Args:
        name: of the schedule or of its file.
        ordered: of a compiled schedule, for the lines of its text.
        model: for memory in bytes; with None it is in activations.
        state: of the optimizer, counted in these bytes.
        measured: a bar for every row of the program, in their order.
        most: how many instructions the data may have. Of a longer program it has only those that start before a time `until`.
            None: no limit. most and measured exclude each other.

    In the data, times are integers, of which `scale` make one unit. `until` is None if the data has all instructions. `slot` is
    the longest time that divides the start and the end of every task.

    Raises ChimeraError E705, E706 as `partition_for` (chimera_ir/partition.py), if a model is given.
    """
    assert most is None or measured is None, "a measured timeline has a bar for every instruction"
    p, h, t = s.program, s.program.header, s.program.table
    start, end = s.separate_bars
    until = None if most is None or len(p) <= most else int(np.partition(start, most)[most])
    kept = np.ones(len(p), bool) if until is None else start < until
    number = np.cumsum(kept) - 1  # of each row that is kept, its number among them
    edges, w, bars = data_edges(p, TaskIndex.of(p), hop=0), s.waits, idle_bars(s)
    kept_edges = kept[edges.source] & kept[edges.target]
    kept_messages = kept[w.send] & kept[w.receive]
    kept_values = kept_messages[w.message] & kept[w.consumer]
    kept_idle = np.full(len(bars.start), True) if until is None else bars.start < until
    path = [x for x in critical_path(s) if kept[x.row]]
    over_time = memory_over_time(p, s.timeline, model, state)
    began, ended = s.collective_times
    tasks = t.is_task
    return {
        "name": visible(name),
        "schedule": visible(h.schedule),
        "parameters": dict(h.parameters),
        "unit": s.unit,
        "scale": s.scale,
        "makespan": s.makespan,
        "until": until,
        "slot": int(np.gcd.reduce(np.concatenate([start[tasks], end[tasks]]), initial=0)),
        "costs": costs_text(s),
        "ranks": p.world,
        "replicas": h.width,
        "stages": h.stages,
        "microBatches": h.micro_batches,
        "machine": machine_name(h.machine, h.window),
        "forms": [{"op": f.op.name, "fields": list(f.fields), "letter": f.letter, "arrow": f.arrow} for f in FORMS],
        "pipes": [{"name": x.name, "microBatches": list(x.micro_batches)} for x in h.pipes],
        "severalStages": any(len(set(x.placement)) < len(x.placement) for x in h.pipes),
        "groups": [list(x) for x in p.micro_batch_lists[h.micro_batches :]],
        "collectives": [
            {"group": c.group, "stage": c.stage, "ranks": list(c.ranks), "start": a, "end": b}
            for c, a, b in zip(p.collectives, began.tolist(), ended.tolist(), strict=True)
        ],
        "offsets": column(np.concatenate([[0], np.cumsum(kept)])[p.offsets]),
        **{x: column(getattr(t, x)[kept]) for x in ("op", "value", "pipe", "stage", "operand", "peer", "flags")},
        "start": column(start[kept]),
        "end": column(end[kept]),
        "edges": _columns(source=number[edges.source[kept_edges]], target=number[edges.target[kept_edges]]),
        "messages": _columns(
            send=number[w.send[kept_messages]],
            receive=number[w.receive[kept_messages]],
            leaves=s.departures[kept_messages],
            arrives=s.arrivals[kept_messages],
        ),
        "values": _columns(
            message=(np.cumsum(kept_messages) - 1)[w.message[kept_values]], consumer=number[w.consumer[kept_values]]
        ),
        "causes": list(CAUSES),
        "idle": _columns(**{x: getattr(bars, x)[kept_idle] for x in ("rank", "start", "end", "cause")}),
        "path": {
            "kind": [x.kind for x in path],
            "row": column(number[_ints([x.row for x in path])]),
            **_columns(**{name: _ints([getattr(x, name) for x in path]) for name in ("start", "end")}),
        },
        "memory": {
            "unit": "activations" if model is None else "bytes",
            **_columns(during=over_time.amount[::2][kept], after=over_time.amount[1::2][kept]),
        },
        "text": None if ordered is None else _text(p, ordered, kept),
        "measured": None if measured is None else _measured(s, measured),
    }


def _ints(numbers: list[int]) -> Ints:
    return np.array(numbers, np.int64)


def _columns(**numbers: Any) -> dict[str, Column]:
    return {name: column(values) for name, values in numbers.items()}


def _text(p: Program, ordered: Ordered, kept: Mask) -> dict[str, Any]:
    """Return the schedule's lines that placed rows: each line once, and for each kept row the index of its line.

    For an instruction that is no task, the docstring of `Ordered.origins` says which line counts as its own. The index is -1
    for a row without a line.
    """
    origin = ordered.origins(p)
    known = origin >= 0
    lines = np.full(len(p), -1, np.int64)
    lines[known] = _ints([span.line for span in ordered.spans])[origin[known]]
    numbers = np.unique(lines[known])
    source = ordered.spans[0].source if ordered.spans else Source("", "")
    texts = source.text.split("\n")
    return {
        "name": visible(source.name),
        "lines": [[number, visible(texts[number - 1].strip())] for number in numbers.tolist()],
        "of": column(np.where(known, np.searchsorted(numbers, lines), -1)[kept]),
    }


def _measured(s: Simulation, measured: Timeline) -> dict[str, Any]:
    """Return the measured bars. `factor`: by what a measured time is multiplied to be in the simulation's integers.

    Measured times count from the start of the first measured bar. `makespan`: until the iteration ended, with its all-reduces.
    `unitOfCost`: `Beside.unit_of_cost` (beside.py).
    """
    to_measured_unit, unit_of_cost = time_factor(s, measured)
    begin = int(measured.start.min()) if len(measured) else 0
    return {
        "unit": measured.unit,
        "scale": measured.scale,
        "factor": s.scale / measured.scale / to_measured_unit,
        "unitOfCost": unit_of_cost,
        "makespan": measured.makespan - begin,
        **_columns(start=measured.start - begin, end=measured.end - begin),
    }
