"""What a rank holds at its worst moment, and whether that is within the program's limits (E460).

The one rule of docs/semantics.md: an activation lives from its forward to its last backward; a received activation's
buffer from its RECV to that same backward; a received gradient's from its RECV to the task that reads it; FREE ends
either later.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from chimera_ir.diagnostics import Diagnostic
from chimera_ir.instructions import Op, Value
from chimera_ir.program import Ints, Program
from compiler.verify.view import FORWARD, WEIGHT, View


@dataclass(frozen=True, slots=True)
class Peaks:
    """Per global rank. activations: micro-batches of one stage alive; receive_buffers: values held or posted for;
    weights: copies of stages."""

    activations: tuple[int, ...]
    receive_buffers: tuple[int, ...]
    weights: tuple[int, ...]


def peaks(program: Program) -> Peaks:
    """Return the peaks of a verified program."""
    view = View(program)
    h = program.header
    local = [len({s for p in h.pipes for s, r in enumerate(p.placement) if r == rank}) for rank in range(h.ranks)]
    return Peaks(_activations(view), _buffers(view), tuple(local * h.width))


def _peak(view: View, born: list[Ints], died: list[Ints]) -> tuple[int, ...]:
    """Return, per rank, the most that is alive at once; what dies at a row is alive while it runs."""
    size = len(view.program) + 1
    change = np.zeros(size, np.int64)
    for rows in born:
        np.add.at(change, rows, 1)
    for rows in died:
        np.add.at(change, rows + 1, -1)
    alive = np.cumsum(change)  # whatever is born on a rank dies there, so each stream starts from nothing
    bounds = view.program.offsets.tolist()
    return tuple(int(alive[a:b].max(initial=0)) for a, b in pairwise(bounds))


def _last_use(view: View) -> Ints:
    """Return, by key, the row that ends an activation's life."""
    return view.weight_gradient if view.header.kind == "training" else view.forward


def _activations(view: View) -> tuple[int, ...]:
    rows, keys = view.tasks[FORWARD]
    last = view.tasks[WEIGHT][0] if view.header.kind == "training" else _last_use(view)[keys]
    return _peak(view, [rows], [last])


def _buffers(view: View) -> tuple[int, ...]:
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
    return _peak(view, born, died)


def check_limits(view: View) -> list[Diagnostic]:
    """Return findings for ranks that hold more than the header's limits allow."""
    limits = view.header.limits
    known = {"activations": _activations, "receive_buffers": _buffers}
    found = [
        Diagnostic("E460", f"unknown limit '{name}'", help=f"known: {', '.join(known)}") for name in limits if name not in known
    ]
    for name, measure in known.items():
        if name in limits:
            found += [
                Diagnostic(
                    "E460",
                    f"rank {rank} holds {peak} {name.replace('_', ' ')} at its peak; the limit is {limits[name]}",
                    help="let backwards come earlier on this rank, or raise the limit",
                )
                for rank, peak in enumerate(measure(view))
                if peak > limits[name]
            ]
    return found
