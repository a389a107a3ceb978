"""Is every task in the program exactly once, on the rank of its stage? (E410 missing, E411 several times, E412 wrong rank)

A recomputation may be missing. If there is one, its forward must have `recompute` (E413).
"""

from __future__ import annotations

import numpy as np

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import RECOMPUTE, Ints
from chimerac.compiler.verify.index import FORWARD, INPUT_GRADIENT, MAX_FOUND, RECOMPUTATION, WEIGHT_GRADIENT, ProgramIndex

_NAMES = {
    FORWARD: "forward",
    INPUT_GRADIENT: "input gradient",
    WEIGHT_GRADIENT: "weight gradient",
    RECOMPUTATION: "recomputation",
}


def check_exactly_once(index: ProgramIndex) -> list[Diagnostic]:
    """Return the findings about tasks: at most MAX_FOUND for each kind of task and each fact about it.

    Every (replica, stage, micro-batch) must have exactly one forward and, in a training program, one input gradient and one
    weight gradient. In a training program it may also have one recomputation, whose forward must have `recompute`. Every task
    must be on the rank of its stage.
    """
    required = (FORWARD, INPUT_GRADIENT, WEIGHT_GRADIENT) if index.header.kind == "training" else (FORWARD,)
    counts = {kind: np.bincount(index.tasks[kind][1], minlength=index.key_count) for kind in required}
    found: list[Diagnostic] = []
    for kind in required:
        rows, keys = index.tasks[kind]
        for key in np.flatnonzero(counts[kind] != 1)[:MAX_FOUND].tolist():
            found.append(_count_finding(index, kind, key, counts, rows[keys == key].tolist()))
        found += _rank_findings(index, rows, keys)
    if index.header.kind == "training":
        found += _recomputation_findings(index)
    return list(dict.fromkeys(found))  # a full backward is found for both its gradients: report it once


def _count_finding(index: ProgramIndex, kind: int, key: int, counts: dict[int, Ints], rows: list[int]) -> Diagnostic:
    """Return the finding for a task that is missing or in the program several times. A full backward is named as one task,
    and so are the two halves of a backward if both are missing.

    Args:
        kind: an index into `ProgramIndex.tasks`.
        counts: by kind and key, the number of tasks.
        rows: those of this kind and key.
    """
    same_count = kind in (INPUT_GRADIENT, WEIGHT_GRADIENT) and counts[INPUT_GRADIENT][key] == counts[WEIGHT_GRADIENT][key]
    is_full_backward = same_count and all(index.op[row] == Op.BWD for row in rows)
    name = f"the {'backward' if is_full_backward else _NAMES[kind]} of {index.name(key)}"
    if not rows:
        return Diagnostic("E410", f"{name} is missing", help=f"add it on rank {index.owner[key]}, where its stage is placed")
    return _repeated_finding(index, name, rows)


def _repeated_finding(index: ProgramIndex, name: str, rows: list[int]) -> Diagnostic:
    """Return the finding for a task that is in the program several times.

    Args:
        name: of the task.
        rows: all that contain it.
    """
    places = tuple(index.program.place(row) for row in rows[:4])
    return Diagnostic("E411", f"{name} is in the program {len(rows)} times", notes=places, help="keep one of them")


def _recomputation_findings(index: ProgramIndex) -> list[Diagnostic]:
    """Return findings about recomputations: several of one forward, one of a forward that keeps everything, or a wrong rank."""
    rows, keys = index.tasks[RECOMPUTATION]
    found = []
    for key in np.flatnonzero(np.bincount(keys, minlength=index.key_count) > 1)[:MAX_FOUND].tolist():
        name = f"the {_NAMES[RECOMPUTATION]} of {index.name(key)}"
        found.append(_repeated_finding(index, name, rows[keys == key].tolist()))
    forward, flags = index.forward[keys], index.program.table.flags
    place = index.program.place
    for i in np.flatnonzero((forward >= 0) & (flags[forward] & RECOMPUTE == 0))[:MAX_FOUND].tolist():
        message = f"{place(int(rows[i]))}: its forward keeps everything: {place(int(forward[i]))}"
        found.append(Diagnostic("E413", message, help="remove it, or write 'recompute' after the forward"))
    return found + _rank_findings(index, rows, keys)


def _rank_findings(index: ProgramIndex, rows: Ints, keys: Ints) -> list[Diagnostic]:
    """Return at most MAX_FOUND findings about tasks that are not on the rank of their stage.

    Args:
        rows, keys: the entries of all tasks of one kind, as in `ProgramIndex.tasks`.
    """
    wrong = np.flatnonzero(index.rank[rows] != index.owner[keys])
    return [
        Diagnostic(
            "E412",
            f"{index.program.place(int(rows[i]))}: this stage is placed on rank {index.owner[keys[i]]}",
            help="move it there",
        )
        for i in wrong[:MAX_FOUND].tolist()
    ]
