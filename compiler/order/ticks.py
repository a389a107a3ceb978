"""The order form `ticks`: each task has a logical time, and a rank executes its tasks in the order of their ticks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chimera_ir.diagnostics import ChimeraError, Diagnostic, Span
from chimera_ir.instructions import Op
from chimera_ir.program import Ints, Program, Table
from compiler.resolve.expressions import evaluate, subset
from compiler.resolve.spec import LETTERS, Formula, Spec


@dataclass(frozen=True, slots=True)
class _Placed:
    """The tasks that one formula places, one entry each. micro_batch: the program's ids."""

    formula: int
    op: int
    pipe: int
    stage: Ints
    micro_batch: Ints
    tick: Ints


def order_by_ticks(spec: Spec) -> Program:
    """Return every rank's tasks in the order of their ticks.

    Raises ChimeraError: E301 a task without a formula, E302 a task with two, E303 two tasks of one rank on one tick.
    """
    h = spec.header
    placed = [_place(spec, number, f) for number, f in enumerate(spec.order)]
    _complete(spec, placed)
    formula = np.concatenate([np.full(len(p.stage), p.formula) for p in placed])
    op = np.concatenate([np.full(len(p.stage), p.op) for p in placed])
    pipe = np.concatenate([np.full(len(p.stage), p.pipe) for p in placed])
    stage = np.concatenate([p.stage for p in placed])
    batch = np.concatenate([p.micro_batch for p in placed])
    tick = np.concatenate([p.tick for p in placed])
    rank = np.array([p.placement for p in h.pipes], np.int64)[pipe, stage]
    by_time = np.lexsort((tick, rank))
    table = Table.of(op[by_time], pipe=pipe[by_time], stage=stage[by_time], batch=batch[by_time])
    offsets = np.searchsorted(rank[by_time], np.arange(h.ranks + 1))
    program = Program(h, table, offsets, tuple((m,) for m in range(h.micro_batches)), ())
    same = (np.diff(tick[by_time]) == 0) & (np.diff(rank[by_time]) == 0)
    if same.any():
        raise ChimeraError(_collisions(spec, program, np.flatnonzero(same), tick[by_time], formula[by_time]))
    return program


def _place(spec: Spec, number: int, f: Formula) -> _Placed:
    pipe = spec.header.pipes[f.pipe]
    count = len(pipe.micro_batches)
    stage = np.repeat(np.arange(spec.header.stages, dtype=np.int64), count)
    micro_batch = np.tile(np.arange(count, dtype=np.int64), spec.header.stages)
    env = {**f.env, f.stage: stage, f.micro_batch: micro_batch}
    for let in f.lets:
        env[let.name.name] = evaluate(let.value, env)
    if f.condition is not None:
        holds = np.broadcast_to(np.asarray(evaluate(f.condition, env)), stage.shape)
        env, stage, micro_batch = dict(subset(env, holds)), stage[holds], micro_batch[holds]
    tick = np.broadcast_to(np.asarray(evaluate(f.tick, env), np.int64), stage.shape)
    ids = np.array(pipe.micro_batches, np.int64)
    return _Placed(number, int(f.kind), f.pipe, stage, ids[micro_batch], tick)


def _complete(spec: Spec, placed: list[_Placed]) -> None:
    """Check that every (stage, micro-batch) of every pipe has one forward, and one B or one I and one W."""
    h = spec.header
    found: list[Diagnostic] = []
    for p, pipe in enumerate(h.pipes):
        mine = [x for x in placed if x.pipe == p]
        counts = np.zeros((4, h.stages, h.micro_batches), np.int64)
        for x in mine:
            np.add.at(counts[x.op], (x.stage, x.micro_batch), 1)
        counts = counts[:, :, list(pipe.micro_batches)]
        found += _twice(spec, mine, counts, p)
        forward, full, inputs, weights = counts > 0
        for missing, what, example in (
            (~forward, "F", "F(s, m) at s + m"),
            (~full & ~inputs & ~weights, "B", "B(s, m) at ..., or I and W"),
            (inputs & ~weights, "W", "W(s, m) at ..., the weight gradient that belongs to I"),
            (weights & ~inputs, "I", "I(s, m) at ..., the input gradient that belongs to W"),
        ):
            if missing.any():
                s, m = np.argwhere(missing)[0]
                many = f" ({missing.sum()} such tasks)" if missing.sum() > 1 else ""
                message = f"no formula places {what} of pipe {pipe.name}, stage {s}, micro-batch {m}{many}"
                found.append(Diagnostic("E301", message, spec.spans["order"], help=f"add: {example}"))
        both = full & (inputs | weights)
        if both.any():
            s, m = np.argwhere(both)[0]
            message = f"pipe {pipe.name}, stage {s}, micro-batch {m} has a full backward B and a split one"
            found.append(Diagnostic("E302", message, spec.spans["order"], help="keep B, or I and W"))
    if found:
        raise ChimeraError(found)


def _twice(spec: Spec, mine: list[_Placed], counts: Ints, pipe: int) -> list[Diagnostic]:
    if counts.max(initial=0) <= 1:
        return []
    op, s, m = np.argwhere(counts > 1)[0]
    ids = spec.header.pipes[pipe].micro_batches
    rules = [spec.order[x.formula] for x in mine if x.op == op and ((x.stage == s) & (x.micro_batch == ids[m])).any()]
    name = f"{LETTERS[Op(op)]} of pipe {spec.header.pipes[pipe].name}, stage {s}, micro-batch {m}"
    notes = tuple(f"also by {r.span}" for r in rules[1:])
    return [Diagnostic("E302", f"two formulas place {name}", rules[0].span, "one of them", notes, "narrow one with 'when'")]


def _collisions(spec: Spec, program: Program, rows: Ints, tick: Ints, formula: Ints) -> list[Diagnostic]:
    """Return one finding per pair of formulas that collide, with the first collision of each."""
    pairs: dict[tuple[int, int], list[int]] = {}
    for row in rows.tolist():
        pairs.setdefault((int(formula[row]), int(formula[row + 1])), []).append(row)
    found = []
    for (a, b), collisions in pairs.items():
        row = collisions[0]
        rank = int(program.rank_of[row])
        message = f"rank {rank} has two tasks on tick {tick[row]}: {program.text(row)} and {program.text(row + 1)}"
        notes = [f"{program.text(row + 1)} is placed by {_line(spec.order[b].span)}"]
        if len(collisions) > 1:
            notes.append(f"{len(collisions)} such pairs in all")
        help = "shift one formula; a rank runs one task at a time"
        found.append(Diagnostic("E303", message, spec.order[a].span, f"places {program.text(row)}", tuple(notes), help))
    return found


def _line(span: Span) -> str:
    return f"{span.source.name}:{span.line}: {span.source.line(span.line).strip()}"
