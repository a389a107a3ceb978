"""Is every task in the program exactly once, on the rank of its stage? (E410 missing, E411 twice, E412 wrong rank)"""

from __future__ import annotations

import numpy as np

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Ints
from chimerac.compiler.verify.view import FORWARD, INPUT, MAX_FOUND, WEIGHT, View

_WHAT = {FORWARD: "forward", INPUT: "input gradient", WEIGHT: "weight gradient"}


def check_exactly_once(view: View) -> list[Diagnostic]:
    """Return findings for every (replica, stage, micro-batch) without one forward, one input and one weight gradient."""
    required = (FORWARD, INPUT, WEIGHT) if view.header.kind == "training" else (FORWARD,)
    counts = {what: np.bincount(view.tasks[what][1], minlength=view.key_count) for what in required}
    found: list[Diagnostic] = []
    for what in required:
        rows, keys = view.tasks[what]
        for key in np.flatnonzero(counts[what] != 1)[:MAX_FOUND].tolist():
            found.append(_miscounted(view, what, key, counts, rows[keys == key].tolist()))
        found += _misplaced(view, rows, keys)
    return list(dict.fromkeys(found))  # a full backward is found for both its gradients: report it once


def _miscounted(view: View, what: int, key: int, counts: dict[int, Ints], rows: list[int]) -> Diagnostic:
    """Return the finding for a task that is missing or in the program several times. A full backward is named as one task."""
    halves = what != FORWARD and counts[INPUT][key] == counts[WEIGHT][key]
    full = halves and all(view.op[row] == Op.BWD for row in rows)
    name = f"the {'backward' if full else _WHAT[what]} of {view.name(key)}"
    if not rows:
        return Diagnostic("E410", f"{name} is missing", help=f"add it on rank {view.owner[key]}, where its stage is placed")
    places = tuple(view.program.place(row) for row in rows[:4])
    return Diagnostic("E411", f"{name} is in the program {len(rows)} times", notes=places, help="keep one of them")


def _misplaced(view: View, rows: Ints, keys: Ints) -> list[Diagnostic]:
    wrong = np.flatnonzero(view.rank[rows] != view.owner[keys])
    return [
        Diagnostic(
            "E412",
            f"{view.program.place(int(rows[i]))}: this stage is placed on rank {view.owner[keys[i]]}",
            help="move it there",
        )
        for i in wrong[:MAX_FOUND].tolist()
    ]
