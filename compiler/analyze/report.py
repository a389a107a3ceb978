"""The report of a program: times and memory, predicted before it runs, as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields

import numpy as np

from chimerac.chimera_ir.counts import count_text, sizes_text
from chimerac.chimera_ir.header import stages_text
from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.chimera_ir.machines import machine_name
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Ints, Program
from chimerac.compiler.analyze.causes import CAUSES, Step, critical_path, idle_times, path_sums
from chimerac.compiler.analyze.formula import closed_equation
from chimerac.compiler.analyze.graph import task_names
from chimerac.compiler.analyze.memory import NO_STATE, HeldBytes, OptimizerState, RankMemory, held_bytes, memory_over_time
from chimerac.compiler.analyze.simulate import Simulation
from chimerac.compiler.verify import peaks
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines

MAX_STAGES = 16  # the most stages that `gradients done` names
MAX_PATH = 6  # a critical path of at most this many tasks is named in full
_IDLE_HEADS = [name.replace("_", "-") for name in CAUSES]


def report(
    program: Program, simulation: Simulation, model: ModelDescription | None = None, state: OptimizerState = NO_STATE
) -> str:
    """Return the report of a verified program.

    Args:
        simulation: of this program, by costs or by a profile.
        model: adds what the ranks hold in bytes.
        state: of the optimizer, counted in these bytes.

    Raises ChimeraError E705, E706 as `partition_for` (chimera_ir/partition.py), if a model is given.
    """
    return "\n".join(_lines(program, simulation, model, state)) + "\n"


def _lines(program: Program, s: Simulation, model: ModelDescription | None, state: OptimizerState) -> Iterator[str]:
    h = program.header
    given = " ".join(f"{k}={v}" for k, v in h.parameters.items())
    yield f"{h.schedule} {given}".rstrip()
    yield (
        f"{sizes_text(h.ranks, h.stages, h.micro_batches)}, pipes: {len(h.pipes)}, width {h.width};"
        f" {count_text(len(program), 'instruction')}"
    )
    yield f"digest {program.digest}"
    yield ""
    unit, idle = f" {s.unit}" if s.unit else "", idle_times(s)
    yield f"costs           {costs_text(s)}{f'   in {s.unit}' if s.unit else ''}"
    yield f"makespan        {s.time(s.makespan)}{unit}"
    yield f"bubble ratio    {s.bubble_ratio:.4f}   (idle over total: sum of wall bubbles / (ranks x makespan))"
    yield f"wall bubble     {_span(s, s.wall_bubbles)}{unit}   (makespan - busy)"
    yield f"own bubble      {_span(s, s.own_bubbles)}{unit}   (last end - first start - busy)"
    yield f"exposed         {_span(s, [x.exposed for x in idle])}{unit}   (communication that a rank waits for)"
    path = critical_path(s)
    tasks = np.array([step.row for step in path if step.kind == "task"], np.int64)
    sums = ", ".join(f"{count} {name} {s.time(time)}" for name, (count, time) in path_sums(s, path).items())
    yield f"critical path   {s.time(s.makespan)}{unit} = {sums or 'nothing'}"
    yield f"                {_short(program, tasks)}" if len(tasks) else "                no task takes time"
    if s.unit:
        yield from _equation(program, s)
    if h.kind == "training":
        done = [f"{stage.removeprefix('stage ')} at {s.time(time)}" for stage, time in s.gradients_done.items()]
        yield f"gradients done  stage {', '.join(done[:MAX_STAGES])}{', ...' if len(done) > MAX_STAGES else ''}"
    if h.kind == "training" and program.recomputed_stages:
        yield f"recomputed      stages {stages_text(program.recomputed_stages)}   (their forwards run again)"
    verdicts = machines(ProgramIndex(program))  # by machine, whether the program ends on it
    ending, hanging = (
        ", ".join(machine_name(machine, h.window) for machine, ends in verdicts.items() if ends == wanted)
        for wanted in (True, False)
    )
    yield f"ends on         {ending}"
    if hanging:
        yield f"hangs on        {hanging}   (--for MACHINE arranges for one)"
    yield ""
    peak = peaks(program)
    head = ["rank", "busy", "wall bubble", "own bubble", "activations", "receive buffers", "stages"]
    rows = [
        [str(g), s.time(s.busy[g]), s.time(s.wall_bubbles[g]), s.time(s.own_bubbles[g])]
        + [str(x[g]) for x in (peak.activations, peak.receive_buffers, peak.weight_copies)]
        for g in range(program.world)
    ]
    yield from table(head, rows)
    yield "activations: micro-batches of one stage alive at the peak; receive buffers: values held or posted for"
    yield ""
    yield from table(["idle: rank", *_IDLE_HEADS], [[str(g), *map(s.time, astuple(x))] for g, x in enumerate(idle)])
    yield "fill: until a value for the first task is sent; value: until one for a later task is; transfer: for one on its way;"
    yield "window: for a message of the channel; all-reduce: after the last task; drain: until the last rank ends"
    if model is not None:
        yield ""
        held = held_bytes(program, model, state)
        yield from memory_lines(model, held.ranks)
        yield ""
        yield from _peak_lines(s, held)


def _equation(program: Program, s: Simulation) -> Iterator[str]:
    """Yield the closed equation of the Chimera paper with its terms."""
    e = closed_equation(program, s.durations)
    passes = f"{e.forwards} forwards {s.time(e.forward)} + {e.backwards} backwards {s.time(e.backward)}"
    messages = f"{count_text(e.forwards + e.backwards, 'message')} of {s.time(e.message)}"
    change = 100 * (e.total / s.makespan - 1) if s.makespan else 0.0
    difference = f"{abs(change):.1f} % {'less' if change < 0 else 'more'} than simulated"
    reason = "leaves out waits" if change < 0 else "takes every stage as the slowest one, and counts a message for every pass"
    yield f"closed equation {s.time(e.total)} {s.unit} = {passes} + {messages} + all-reduces {s.time(e.unoverlapped)}"
    yield f"                {difference}: the equation {reason}"


def _peak_lines(s: Simulation, found: HeldBytes) -> Iterator[str]:
    """Yield a table: for each rank with instructions, its peak, when this peak begins, and at which instruction."""
    rows = [
        [str(g), f"{memory.peak:,}", s.time(int(s.timeline.start[row])), s.program.text(row)]
        for g, (memory, row) in enumerate(zip(found.ranks, found.peaks, strict=True))
        if row >= 0
    ]
    yield from table(["rank", "peak", "from", "on"], rows, left=1)


def memory_lines(model: ModelDescription, ranks: Sequence[RankMemory]) -> Iterator[str]:
    """Yield the table of the bytes that each rank needs."""
    yield f"memory of {model.name} in bytes, micro-batches of {model.samples} samples"
    columns = [f.name for f in fields(RankMemory)]
    rows = [[str(g)] + [f"{getattr(m, c):,}" for c in columns] for g, m in enumerate(ranks)]
    yield from table(["rank", *columns], rows)
    yield "activations: what forwards keep for backwards; buffers: posted or held for received values;"
    yield "values: outputs, until read or sent; sends: until complete;"
    yield "workspace: what a task needs only while it runs; peak: the most of all at once"


def path_text(s: Simulation) -> str:
    """Return the critical path as a table in text, one step a line."""
    rows = [_path_cells(s, step) for step in critical_path(s)]
    return "".join(f"{line}\n" for line in table(["start", "end", "rank", "step"], rows, left=1))


def memory_text(s: Simulation, model: ModelDescription | None = None, state: OptimizerState = NO_STATE) -> str:
    """Return what each rank holds over time as CSV: from `time` on, until the next line of the rank.

    With a model the amount is in bytes, without one it is the number of activations. `instruction` runs from `time` on; where
    it is empty, the rank waits or has ended. Raises ChimeraError as `report`.
    """
    found = memory_over_time(s.program, s.timeline, model, state)
    columns = zip(*(x.tolist() for x in (found.rank, found.time, found.amount)), strict=True)
    lines = [f"rank,time{f'_{s.unit}' if s.unit else ''},{'activations' if model is None else 'bytes'},instruction"]
    # Entries 2 k and 2 k + 1 are the start and the end of row k. An end has no line if the next instruction starts at once.
    is_start = np.arange(len(found.time)) % 2 == 0
    is_last = np.append(found.rank[1:] != found.rank[:-1], True)  # of its rank
    is_line = is_start | is_last | (np.append(found.time[1:], 0) > found.time)
    for k, ((rank, time, amount), shown) in enumerate(zip(columns, is_line.tolist(), strict=True)):
        if shown:
            number = time // s.scale if time % s.scale == 0 else time / s.scale
            lines.append(f"{rank},{number},{amount},{'' if k % 2 else _quoted(s.program.text(k // 2))}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a text as a field of CSV. The text contains no quotes."""
    return f'"{text}"' if "," in text else text


def _path_cells(s: Simulation, step: Step) -> list[str]:
    rank = s.program.rank_of[step.row]
    return [s.time(step.start), s.time(step.end), str(rank), s.program.text(step.row)]


def costs_text(s: Simulation) -> str:
    """Return the durations of a simulation as text: those of tasks, by their letters, and the hop.

    With a profile they are those of tasks, messages and all-reduces.
    """
    c = s.costs
    used = [form for form in FORMS if form.letter and (s.program.table.op == form.op).any()]
    parts = [f"{form.letter}={_span(s, c.of(form.op))}" for form in used]
    if not s.unit:
        return "  ".join([*parts, f"hop={s.time(c.hop)}"])
    sends, d = np.flatnonzero(s.program.table.op == Op.SEND), s.durations
    if len(sends):
        parts.append(f"message={_span(s, (d.latency + d.occupied)[sends].tolist())}")
    if len(d.collectives):
        parts.append(f"all-reduce={_span(s, d.collectives.tolist())}")
    return "  ".join(parts)


def _span(s: Simulation, values: Sequence[int]) -> str:
    """Return the least and the most of these times as text; one number if they are equal."""
    low, high = min(values), max(values)
    return s.time(low) if low == high else f"{s.time(low)} to {s.time(high)}"


def _short(program: Program, path: Ints) -> str:
    """Return the names of the tasks of a path as text; of more than MAX_PATH only the first three and the last two."""
    if len(path) <= MAX_PATH:
        return ", ".join(task_names(program, path))
    return ", ".join([*task_names(program, path[:3]), "...", *task_names(program, path[-2:])])


def table(head: list[str], rows: list[list[str]], left: int = 0) -> Iterator[str]:
    """Yield the lines of a table with columns aligned to the right, and the last `left` ones to the left."""
    widths = [max(len(r[k]) for r in [head, *rows]) for k in range(len(head))]
    alignment = [">"] * (len(head) - left) + ["<"] * left
    for r in [head, *rows]:
        yield "  ".join(f"{cell:{a}{w}}" for cell, a, w in zip(r, alignment, widths, strict=True)).rstrip()
