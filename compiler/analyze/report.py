"""The report of a program: times and memory, predicted before it runs, as text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

from chimerac.chimera_ir.header import stages_text
from chimerac.chimera_ir.instructions import FORMS
from chimerac.chimera_ir.machines import machine_name
from chimerac.chimera_ir.model import ModelDescription
from chimerac.chimera_ir.program import Ints, Program
from chimerac.compiler.analyze.graph import critical_path, dependency_graph, names
from chimerac.compiler.analyze.memory import NO_STATE, OptimizerState, RankMemory, memory
from chimerac.compiler.analyze.simulate import Simulation
from chimerac.compiler.verify import peaks
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import machines


def report(
    program: Program, simulation: Simulation, model: ModelDescription | None = None, state: OptimizerState = NO_STATE
) -> str:
    """Return the report of a verified program."""
    return "\n".join(_lines(program, simulation, model, state)) + "\n"


def _lines(program: Program, s: Simulation, model: ModelDescription | None, state: OptimizerState) -> Iterator[str]:
    h = program.header
    given = " ".join(f"{k}={v}" for k, v in h.parameters.items())
    yield f"{h.schedule} {given}".rstrip()
    yield (
        f"{h.ranks} ranks, {h.stages} stages, {h.micro_batches} micro-batches, pipes: {len(h.pipes)}, width {h.width};"
        f" {len(program)} instructions"
    )
    yield f"digest {program.digest}"
    yield ""
    yield f"costs           {_costs(s)}"
    yield f"makespan        {s.time(s.makespan)}"
    yield f"bubble ratio    {s.bubble_ratio:.4f}   (idle over total: sum of wall bubbles / (ranks x makespan))"
    yield f"wall bubble     {_span(s, s.wall_bubbles)}   (makespan - busy)"
    yield f"own bubble      {_span(s, s.own_bubbles)}   (last end - first start - busy)"
    path, length = critical_path(dependency_graph(replace(program, costs=s.costs)))
    yield f"critical path   {s.time(length)}   {len(path)} tasks: {_short(program, path)}"
    ends = ", ".join(f"{stage.removeprefix('stage ')} at {s.time(t)}" for stage, t in list(s.synced.items())[:16])
    more = ", ..." if len(s.synced) > 16 else ""
    if h.kind == "training":
        yield f"gradients done  stage {ends}{more}"
    if program.recomputed_stages:
        yield f"recomputed      stages {stages_text(program.recomputed_stages)}   (their forwards run again)"
    ends_on = machines(ProgramIndex(program))
    ending, hanging = (", ".join(machine_name(m, h.window) for m, x in ends_on.items() if x == ends) for ends in (True, False))
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
    if model is not None:
        yield ""
        yield from memory_lines(program, model, state)


def memory_lines(program: Program, model: ModelDescription, state: OptimizerState) -> Iterator[str]:
    """Yield the table of the bytes that each rank needs."""
    yield f"memory of {model.name} in bytes, micro-batches of {model.samples} samples"
    columns = [f.name for f in fields(RankMemory)]
    rows = [[str(g)] + [f"{getattr(m, c):,}" for c in columns] for g, m in enumerate(memory(program, model, state))]
    yield from table(["rank", *columns], rows)
    yield "activations: what forwards keep for backwards; buffers: posted or held for received values;"
    yield "values: outputs, until read or sent; sends: until complete; peak: the most of all at once"
    yield "not counted: what an instruction needs only while it runs"


def _costs(s: Simulation) -> str:
    c = s.costs
    used = [form for form in FORMS if form.letter and (s.program.table.op == form.op).any()]
    parts = [f"{form.letter}={_span(s, c.of(form.op))}" for form in used]
    return "  ".join([*parts, f"hop={s.time(c.hop)}"])


def _span(s: Simulation, values: tuple[int, ...]) -> str:
    low, high = min(values), max(values)
    return s.time(low) if low == high else f"{s.time(low)} to {s.time(high)}"


def _short(program: Program, path: Ints) -> str:
    """Return the names of the tasks of a path, of a long one only those at its ends."""
    if len(path) <= 6:
        return ", ".join(names(program, path))
    return ", ".join([*names(program, path[:3]), "...", *names(program, path[-2:])])


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    """Yield the lines of a table with columns aligned to the right."""
    widths = [max(len(r[k]) for r in [head, *rows]) for k in range(len(head))]
    for r in [head, *rows]:
        yield "  ".join(f"{cell:>{w}}" for cell, w in zip(r, widths, strict=True))
