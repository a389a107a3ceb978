"""Is every task there exactly once, where its stage lives? (E410 missing, E411 twice, E412 wrong rank)"""

from __future__ import annotations

import numpy as np

from chimera_ir.diagnostics import Diagnostic
from chimera_ir.program import Ints
from compiler.verify.view import FORWARD, INPUT, MAX_FOUND, WEIGHT, View

_WHAT = {FORWARD: "forward", INPUT: "input gradient", WEIGHT: "weight gradient"}


def check_exactly_once(view: View) -> list[Diagnostic]:
    """Return findings for every (replica, stage, micro-batch) without one forward, one input and one weight gradient."""
    found: list[Diagnostic] = []
    wanted = (FORWARD, INPUT, WEIGHT) if view.header.kind == "training" else (FORWARD,)
    for what in wanted:
        rows, keys = view.tasks[what]
        count = np.bincount(keys, minlength=view.keys_total)
        for key in np.flatnonzero(count == 0)[:MAX_FOUND].tolist():
            place = f"rank {view.owner[key]} should run it"
            found.append(Diagnostic("E410", f"the {_WHAT[what]} of {view.name(key)} is missing", notes=(place,)))
        for key in np.flatnonzero(count > 1)[:MAX_FOUND].tolist():
            places = tuple(view.program.place(row) for row in rows[keys == key].tolist()[:4])
            message = f"the {_WHAT[what]} of {view.name(key)} is there {count[key]} times"
            found.append(Diagnostic("E411", message, notes=places))
        found += _elsewhere(view, rows, keys)
    return list(dict.fromkeys(found))  # a full backward that is elsewhere is said once


def _elsewhere(view: View, rows: Ints, keys: Ints) -> list[Diagnostic]:
    wrong = np.flatnonzero(view.rank[rows] != view.owner[keys])
    return [
        Diagnostic("E412", f"{view.program.place(int(rows[i]))}: this stage lives on rank {view.owner[keys[i]]}")
        for i in wrong[:MAX_FOUND].tolist()
    ]
