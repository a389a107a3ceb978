"""spec -> program of tasks: one function for the three order forms."""

from __future__ import annotations

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic
from chimerac.chimera_ir.instructions import Op
from chimerac.compiler.order.greedy import order_greedily
from chimerac.compiler.order.listing import order_by_listing
from chimerac.compiler.order.ordered import Ordered
from chimerac.compiler.order.ticks import order_by_ticks
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.spec import GreedyOrder, ListingOrder, Spec, TicksOrder


def order_tasks(spec: Spec, budget: Budget) -> Ordered:
    """Return the tasks of every rank in the order that the schedule's order form says.

    Raises ChimeraError: E301 to E303 and E305 to E307; E205 and E206 (`evaluate` in resolve/expressions.py); E211
    (`Budget.spend`).
    """
    match spec.order:
        case TicksOrder():
            ordered = order_by_ticks(spec, spec.order, budget)
        case GreedyOrder():
            ordered = order_greedily(spec, spec.order, budget)
        case ListingOrder():
            ordered = order_by_listing(spec, spec.order, budget)
    _check_recomputations(spec, ordered)
    return ordered


def _check_recomputations(spec: Spec, ordered: Ordered) -> None:
    """Raise ChimeraError E307 for recomputations of stages that keep everything, once for each text that orders them."""
    program, t = ordered.program, ordered.program.table
    rows = np.flatnonzero(t.op == Op.RECOMPUTE)
    wrong = rows[~np.array(spec.recompute, bool)[t.pipe[rows], t.stage[rows]]]
    if not len(wrong):
        return
    _, first = np.unique(ordered.origin[wrong], return_index=True)
    found = []
    for row in wrong[np.sort(first)].tolist():
        stage, pipe = int(t.stage[row]), spec.header.pipes[int(t.pipe[row])].name
        message = f"{program.text(row)}: the forwards of stage {stage} of pipe {pipe} keep everything"
        help = "write 'recompute' after the rank of the stage, or leave out its R"
        if spec.is_recompute_chosen:
            help = f"choose stage {stage} too (--recompute), or leave out its R"
        found.append(Diagnostic("E307", message, ordered.span(row), help=help))
    raise ChimeraError(found)
