"""How many bytes each rank needs at its worst moment, from a model description: known before any run, without torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chimera_ir.diagnostics import ChimeraError, refuse
from chimera_ir.instructions import Op, Value
from chimera_ir.model import ModelDescription, StageSum
from chimera_ir.program import RECOMPUTE, Ints, Program
from compiler.tasks import TaskIndex, expand

if TYPE_CHECKING:
    from compiler.pipeline import Compiled


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of one global rank. weights: all its stages once; gradients: as much again; activations: kept between
    forward and backward, at their peak; buffers: posted or held for received values, at their peak; peak: the most of
    activations and buffers together, with weights and gradients. Optimizer state and workspace are not counted."""

    weights: int
    gradients: int
    activations: int
    buffers: int
    peak: int


def memory(program: Program, model: ModelDescription) -> tuple[RankMemory, ...]:
    """Return the memory of every global rank. Raises ChimeraError E705 for more stages than layers."""
    h = program.header
    stages = model.stage_sums(h.stages)
    activations = _activations(program, stages)
    buffers = _buffers(program, stages)
    result = []
    for g, (a, b) in enumerate(zip(program.offsets.tolist(), program.offsets[1:].tolist(), strict=False)):
        held = {s for p in h.pipes for s, r in enumerate(p.placement) if r == g % h.ranks}
        weights = sum(stages[s].weight_bytes for s in held)
        both = activations[a:b] + buffers[a:b]
        tops = [int(x.max(initial=0)) for x in (activations[a:b], buffers[a:b], both)]
        gradients = weights if h.kind == "training" else 0
        result.append(RankMemory(weights, gradients, tops[0], tops[1], weights + gradients + tops[2]))
    return tuple(result)


def check_memory(
    program: Program, model: ModelDescription, limit_bytes: int, recomputing: Callable[[], Compiled] | None = None
) -> None:
    """Raise ChimeraError E461 where a rank needs more bytes than it has.

    recomputing: compiles the same schedule with every forward run again, to say whether that helps.
    """
    needs = memory(program, model)
    worst = max(needs, key=lambda x: x.peak)
    if worst.peak <= limit_bytes:
        return
    rank = needs.index(worst)
    over = sum(x.peak > limit_bytes for x in needs)
    parts = {"weights": worst.weights, "gradients": worst.gradients, "activations": worst.activations, "buffers": worst.buffers}
    notes = [", ".join(f"{name} {size:,}" for name, size in parts.items()) + "; optimizer state is not counted"]
    notes += [f"{over} of {len(needs)} ranks need more than there is"] if over > 1 else []
    help = f"take smaller micro-batches or more ranks; this program needs {worst.peak:,} bytes"
    if recomputing is not None and (again := _least(recomputing, model)) is not None and again <= limit_bytes:
        help = f"write 'recompute' after every 'stage ... on rank ...'; tried: it then needs {again:,} bytes"
    raise refuse(
        "E461",
        f"rank {rank} needs {worst.peak:,} bytes of {model.name} at its worst moment, and has {limit_bytes:,}",
        notes=tuple(notes),
        help=help,
    )


def _least(compiled: Callable[[], Compiled], model: ModelDescription) -> int | None:
    """Return what the worst rank of a program needs; nothing where it cannot be compiled."""
    try:
        return max(x.peak for x in memory(compiled().program, model))
    except ChimeraError:
        return None


def _alive(program: Program, born: list[tuple[Ints, Ints]], died: list[tuple[Ints, Ints]]) -> Ints:
    """Return what is alive while each row runs, from (rows, bytes) that appear with a row or vanish after it."""
    change = np.zeros(len(program) + 1, np.int64)
    for rows, size in born:
        np.add.at(change, rows, size)
    for rows, size in died:
        np.add.at(change, rows + 1, -size)
    return np.cumsum(change)[:-1]


def _activations(program: Program, stages: tuple[StageSum, ...]) -> Ints:
    t = program.table
    kept = np.array([s.kept_bytes for s in stages], np.int64)
    weight_kept = np.array([s.weight_kept_bytes for s in stages], np.int64)
    inputs = np.array([0] + [s.act_bytes for s in stages[:-1]], np.int64)
    index = TaskIndex.of(program)
    stage, op = t.stage[index.rows], t.op[index.rows]
    training = program.header.kind == "training"
    again = (t.flags[index.forward[index.keys]] & RECOMPUTE).astype(bool) & training
    held = np.where(again, inputs[stage], kept[stage])  # from the forward on

    def of(*ops: Op) -> tuple[Ints, Ints, Ints]:
        mask = np.isin(op, ops)
        return index.rows[mask], stage[mask], held[mask]

    forward, backward = of(Op.FWD), of(Op.BWD, Op.BWD_INPUT)
    rebuilt = kept[backward[1]] - backward[2]  # recomputed at the start of the backward
    born = [(forward[0], forward[2]), (backward[0], rebuilt)]
    died = [(backward[0], kept[backward[1]])]
    inputs_only, weights = of(Op.BWD_INPUT), of(Op.BWD_WEIGHT)
    born.append((inputs_only[0] + 1, weight_kept[inputs_only[1]]))
    died.append((weights[0], weight_kept[weights[1]]))
    if not training:
        died.append((forward[0], forward[2]))
    return _alive(program, born, died)


def _buffers(program: Program, stages: tuple[StageSum, ...]) -> Ints:
    h, t, index = program.header, program.table, TaskIndex.of(program)
    act = np.array([0] + [s.act_bytes for s in stages[:-1]], np.int64)
    grad = np.array([s.grad_bytes for s in stages], np.int64)
    ends = index.weight if h.kind == "training" else index.forward
    born, died = [], []

    def values(op: Op, value: Value) -> tuple[Ints, Ints]:
        rows = np.flatnonzero((t.op == op) & (t.value == value))
        position, ids = expand(program, rows)
        rows = rows[position]
        return rows, (program.rank_of[rows] // h.ranks * h.stages + t.stage[rows]) * h.micro_batches + ids

    for value, size, last in ((Value.act, act, ends), (Value.grad, grad, index.backward)):
        rows, keys = values(Op.RECV, value)
        freed, at = values(Op.FREE, value)
        last = last.copy()
        last[at] = freed  # given back there, instead of right after its last reader
        born.append((rows, size[t.stage[rows]]))
        died.append((last[keys], size[t.stage[rows]]))
    return _alive(program, born, died)
