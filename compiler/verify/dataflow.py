"""Is every value available when a task reads it? (E420 to E426)

The ranks of tasks are checked earlier, by tasks.py. So a value must be sent exactly if the tasks that make and read it
run on different ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.program import OVERLAP, Ints
from chimerac.compiler.verify.view import MAX_FOUND, View

Mask = npt.NDArray[np.bool_]


def check_dataflow(view: View) -> list[Diagnostic]:
    """Return findings for values that are not available when they are read."""
    found: list[Diagnostic] = []
    if view.header.kind == "training":
        found += _before(view, view.forward, view.input_gradient, "the backward comes before its forward")
        found += _before(view, view.input_gradient, view.weight_gradient, "the weight gradient comes before the input gradient")
        found += _paired(view, view.forward, view.input_gradient) + _paired(view, view.input_gradient, view.weight_gradient)
    for value in Value:
        if value == Value.act or view.header.kind == "training":
            found += _value(view, value)
    return found


def _before(view: View, first: Ints, second: Ints, fact: str) -> list[Diagnostic]:
    """Return findings where `second` comes before `first`.

    Both are arrays of rows, indexed by key. The two rows of a key are on one rank, and may be the same row.
    """
    wrong = np.flatnonzero((first >= 0) & (second >= 0) & (second < first))
    p = view.program
    needs = "what it needs is {}, which must come first"
    return [
        Diagnostic("E420", f"{fact}: {p.place(int(second[k]))}", notes=(needs.format(p.place(int(first[k]))),))
        for k in wrong[:MAX_FOUND].tolist()
    ]


def _paired(view: View, maker: Ints, reader: Ints) -> list[Diagnostic]:
    """Return findings where a task overlaps with one that needs its result: the two tasks of a pair begin together."""
    overlap = (view.program.table.flags & OVERLAP).astype(bool)
    wrong = np.flatnonzero((maker >= 0) & (reader == maker + 1) & overlap[maker])
    place = view.program.place
    return [
        Diagnostic("E420", f"{place(int(reader[k]))}: it overlaps with a task that it needs: {place(int(maker[k]))}")
        for k in wrong[:MAX_FOUND].tolist()
    ]


def _value(view: View, value: Value) -> list[Diagnostic]:
    """Return findings about all activations, or all gradients, that go from one stage to the next."""
    h, p = view.header, view.program
    keys = np.arange(view.key_count)
    stage = keys // h.micro_batches % h.stages
    # A key is that of the reader. An activation is made by the stage before it, a gradient by the stage after it.
    keys = keys[stage > 0] if value == Value.act else keys[stage < h.stages - 1]
    reader = view.reader(value)[keys]
    maker = view.reader(value)[keys + (-h.micro_batches if value == Value.act else h.micro_batches)]
    source, target = view.rank[maker], view.rank[reader]
    crosses = source != target
    found = []

    def find(code: str, wrong: Mask, row: Ints, fact: str, help: str = "") -> None:
        for i in np.flatnonzero(wrong)[:MAX_FOUND].tolist():
            note = f"it is made at {p.place(int(maker[i]))}"
            message = f"{p.place(int(row[i]))}: {fact.format(value=f'{value.name} {view.name(int(keys[i]))}')}"
            change = help.format(source=source[i], target=target[i])
            found.append(Diagnostic(code, message, notes=(note,), help=change))

    find("E420", ~crosses & (maker > reader), reader, "{value} is read before it is made", "let that come first")
    found += _paired(view, maker, reader)
    for op, verb in ((Op.SEND, "sent"), (Op.RECV, "received")):
        rows, at = view.value_instructions[op, value]
        count = np.bincount(at, minlength=view.key_count)[keys]
        find("E421", crosses & (count == 0), reader, f"{{value}} is read here but never {verb}", f"add its {op.name}")
        extra = view.by_key((rows, at))[keys]
        find("E422", count > crosses, extra, f"{{value}} is {verb} once more than it is needed", "remove one of them")
    if found:
        return found
    send, receive = (view.by_key(view.value_instructions[op, value])[keys] for op in (Op.SEND, Op.RECV))
    peer, route = p.table.peer, "it goes from rank {source} to rank {target}"
    find("E423", crosses & (view.rank[send] != source), send, "{value} is sent from a rank that does not make it", route)
    find("E423", crosses & (peer[send] != target), send, "{value} is sent to a rank that does not read it", route)
    wrong_rank, wrong_peer = crosses & (view.rank[receive] != target), crosses & (peer[receive] != source)
    find("E423", wrong_rank, receive, "{value} is received on a rank that does not read it", route)
    find("E423", wrong_peer, receive, "{value} is received from a rank that does not make it", route)
    if found:
        return found
    find("E424", crosses & (send < maker), send, "{value} is sent before it is made", "send it after that")
    for i in np.flatnonzero(crosses & (receive > reader))[:MAX_FOUND].tolist():
        message = f"{p.place(int(receive[i]))}: {value.name} {view.name(int(keys[i]))} is received after it is read"
        found.append(Diagnostic("E425", message, notes=(f"it is read at {p.place(int(reader[i]))}",), help="post it earlier"))
    return found or _freed(view, value, keys, reader, receive, crosses)


def _freed(view: View, value: Value, keys: Ints, reader: Ints, receive: Ints, crosses: Mask) -> list[Diagnostic]:
    """Return findings where FREE releases a buffer that was never received, releases it twice, or before its last reader."""
    rows, at = view.value_instructions[Op.FREE, value]
    if not len(rows):
        return []
    last = np.full(view.key_count, -1, np.int64)
    last[keys] = reader if value == Value.grad or view.header.kind == "evaluation" else view.weight_gradient[keys]
    there = np.zeros(view.key_count, bool)
    there[keys] = crosses
    twice = np.bincount(at, minlength=view.key_count) > 1
    wrong = ~there[at] | twice[at] | (view.rank[rows] != view.rank[last[at]]) | (rows < last[at])
    return [
        Diagnostic(
            "E426",
            f"{view.program.place(int(rows[i]))}: the buffer is freed "
            + ("twice" if twice[at[i]] else "too early" if there[at[i]] else "but was never received"),
            notes=(f"it is last read at {view.program.place(int(last[at[i]]))}",),
            help="keep one FREE, after that, on that rank" if there[at[i]] else "remove the FREE",
        )
        for i in np.flatnonzero(wrong)[:MAX_FOUND].tolist()
    ]
