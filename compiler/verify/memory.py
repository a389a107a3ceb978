"""What a rank holds at its worst moment, and whether that is within the program's limits (E460).

The one rule of docs/semantics.md: an activation lives from its forward to its last backward; a received activation's
buffer from its RECV to that same backward; a received gradient's from its RECV to the task that reads it; FREE ends
either later. Copies of weights are always there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from chimera_ir.diagnostics import Diagnostic
from chimera_ir.instructions import Op, Value
from chimera_ir.program import LIMITS, Ints, Program
from compiler.verify.view import FORWARD, WEIGHT, View


@dataclass(frozen=True, slots=True)
class Peaks:
    """Per global rank. activations: micro-batches of one stage alive; receive_buffers: values held or posted for;
    weight_copies: copies of stages."""

    activations: tuple[int, ...]
    receive_buffers: tuple[int, ...]
    weight_copies: tuple[int, ...]


def peaks(program: Program) -> Peaks:
    """Return the peaks of a verified program."""
    view = View(program)
    return Peaks(*(tuple(int(held.max(initial=0)) for held in _by_rank(view, name)) for name in LIMITS))


def check_limits(view: View) -> list[Diagnostic]:
    """Return a finding for every limit of the header that a rank exceeds, at the rank that exceeds it most."""
    found = []
    for name, limit in view.header.limits.items():
        held = _by_rank(view, name)
        most = [int(x.max(initial=0)) for x in held]
        rank = most.index(max(most))
        if most[rank] > limit:
            found.append(_exceeded(view, name, limit, rank, most, int(held[rank].argmax())))
    return found


def _exceeded(view: View, name: str, limit: int, rank: int, most: list[int], number: int) -> Diagnostic:
    words, notes, change = name.replace("_", " "), [], "place fewer stages on this rank"
    if name != "weight_copies":
        row = int(view.program.offsets[rank]) + number
        notes.append(f"the peak begins at {view.program.place(row)}")
        change = "let backwards come earlier on this rank"
    others = [f"rank {r} holds {x}" for r, x in enumerate(most) if x > limit and r != rank]
    if others:
        notes.append("above the limit too: " + ", ".join(others[:8]) + (", ..." if len(others) > 8 else ""))
    message = f"rank {rank} holds {most[rank]} {words} at its peak; the limit is {limit}"
    help = f"{change}, or raise the limit: this program needs {most[rank]}"
    return Diagnostic("E460", message, notes=tuple(notes), help=help, about=(f"limits.{name}",))


def _by_rank(view: View, name: str) -> list[Ints]:
    """Return for every rank how much of this is held while each of its instructions runs."""
    if name == "weight_copies":
        h = view.header
        stages: list[set[int]] = [set() for _ in range(h.ranks)]
        for pipe in h.pipes:
            for stage, rank in enumerate(pipe.placement):
                stages[rank].add(stage)
        return [np.array([len(held)]) for held in stages * h.width]
    held = _activations(view) if name == "activations" else _buffers(view)
    return [held[a:b] for a, b in pairwise(view.program.offsets.tolist())]


def _held(view: View, born: Iterable[Ints], died: Iterable[Ints]) -> Ints:
    """Return how much is held while each row runs: what is born on a rank dies there, and is held until its row is over."""
    change = np.zeros(len(view.program) + 1, np.int64)
    for rows in born:
        np.add.at(change, rows, 1)
    for rows in died:
        np.add.at(change, rows + 1, -1)
    return np.cumsum(change)[:-1]


def _last_use(view: View) -> Ints:
    """Return, by key, the row that ends an activation's life."""
    return view.weight_gradient if view.header.kind == "training" else view.forward


def _activations(view: View) -> Ints:
    rows, keys = view.tasks[FORWARD]
    last = view.tasks[WEIGHT][0] if view.header.kind == "training" else _last_use(view)[keys]
    return _held(view, [rows], [last])


def _buffers(view: View) -> Ints:
    born, died = [], []
    for value, last in ((Value.act, _last_use(view)), (Value.grad, view.input_gradient)):
        rows, keys = view.transfers[Op.RECV, value]
        freed, at = view.transfers[Op.FREE, value]
        end = last[keys]
        if len(freed):
            early = np.full(view.keys_total, -1, np.int64)
            early[at] = freed
            end = np.where(early[keys] >= 0, early[keys], end)
        born.append(rows)
        died.append(end)
    return _held(view, born, died)
