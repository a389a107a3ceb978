"""Is every value available when a task reads it, and is no transfer or FREE superfluous or misplaced? (E420 to E426)

Every task is on the rank of its stage: tasks.py has checked that before. A value must be sent if and only if the tasks that
make and read it are on different ranks.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.counts import times_text
from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op, Value
from chimerac.chimera_ir.program import OVERLAP, Ints
from chimerac.compiler.verify.index import MAX_FOUND, ProgramIndex

Mask = npt.NDArray[np.bool_]


def check_dataflow(index: ProgramIndex) -> list[Diagnostic]:
    """Return the findings about tasks that come before what they need or overlap with it, and about transfers and FREEs."""
    found: list[Diagnostic] = []
    if index.header.kind == "training":
        found += _order_findings(index, index.forward, index.input_gradient, "the backward comes before its forward")
        found += _order_findings(
            index, index.input_gradient, index.weight_gradient, "the weight gradient comes before the input gradient"
        )
        found += _order_findings(index, index.forward, index.recomputation, "the recomputation comes before its forward")
        found += _order_findings(
            index, index.recomputation, index.input_gradient, "the backward comes before the recomputation that it reads"
        )
        for maker, reader in (
            (index.forward, index.input_gradient),
            (index.input_gradient, index.weight_gradient),
            (index.forward, index.recomputation),
            (index.recomputation, index.input_gradient),
        ):
            found += _overlap_findings(index, maker, reader)
    for value in Value:
        if value == Value.act or index.header.kind == "training":
            found += _value_findings(index, value)
    return found


def _order_findings(index: ProgramIndex, first: Ints, second: Ints, fact: str) -> list[Diagnostic]:
    """Return findings where the row in `second` comes before the row in `first`.

    Args:
        fact: the beginning of the message.
        first, second: rows indexed by key, -1 for none. The two rows of a key are on one rank, and may be the same row.
    """
    wrong = np.flatnonzero((first >= 0) & (second >= 0) & (second < first))
    p = index.program
    needs = "what it needs is {}, which must come first"
    return [
        Diagnostic("E420", f"{fact}: {p.place(int(second[k]))}", notes=(needs.format(p.place(int(first[k]))),))
        for k in wrong[:MAX_FOUND].tolist()
    ]


def _overlap_findings(index: ProgramIndex, maker: Ints, reader: Ints) -> list[Diagnostic]:
    """Return findings where a task overlaps with one that needs its result. The two tasks of an overlapped pair begin together.

    Args:
        maker, reader: rows, -1 for none; each row of `reader` needs the result of the row of `maker` at the same index.
    """
    overlap = (index.program.table.flags & OVERLAP).astype(bool)
    wrong = np.flatnonzero((maker >= 0) & (reader == maker + 1) & overlap[maker])
    place = index.program.place
    return [
        Diagnostic("E420", f"{place(int(reader[k]))}: it overlaps with a task that it needs: {place(int(maker[k]))}")
        for k in wrong[:MAX_FOUND].tolist()
    ]


def _value_findings(index: ProgramIndex, value: Value) -> list[Diagnostic]:
    """Return findings about the values of one kind: activations, which go to the next stage, or gradients, which go back."""
    h, p = index.header, index.program
    keys = np.arange(index.key_count)
    stage = keys // h.micro_batches % h.stages
    # A value has the key of the task that reads it. An activation is made by the stage before that task's stage, a gradient by
    # the stage after it.
    keys = keys[stage > 0] if value == Value.act else keys[stage < h.stages - 1]
    tasks = index.reader(value)  # by key; the same tasks make the values of this kind
    reader, maker = tasks[keys], tasks[keys + (-h.micro_batches if value == Value.act else h.micro_batches)]
    source, target = index.rank[maker], index.rank[reader]
    crosses = source != target
    found = []

    def find(code: str, wrong: Mask, row: Ints, fact: str, help: str = "", count: Ints | None = None) -> None:
        """Add findings.

        Args:
            wrong, row: by index in `keys`, whether the value has a fault, and the row of the instruction at fault.
            fact: may contain {value}, the value's name, and {times}, which is its `count` in words.
            help: may contain {source} and {target}, the ranks that make and read the value.
            count: by index in `keys`.
        """
        for i in np.flatnonzero(wrong)[:MAX_FOUND].tolist():
            note = f"it is made at {p.place(int(maker[i]))}"
            name, times = f"{value.name} {index.name(int(keys[i]))}", "" if count is None else times_text(int(count[i]))
            message = f"{p.place(int(row[i]))}: {fact.format(value=name, times=times)}"
            change = help.format(source=source[i], target=target[i])
            found.append(Diagnostic(code, message, notes=(note,), help=change))

    find(
        "E420",
        ~crosses & (maker > reader),
        reader,
        "{value} is read before it is made",
        "move the task that makes it before this one",
    )
    found += _overlap_findings(index, maker, reader)
    for op, verb in ((Op.SEND, "sent"), (Op.RECV, "received")):
        rows, row_keys = index.value_instructions[op, value]
        count = np.bincount(row_keys, minlength=index.key_count)[keys]
        find("E421", crosses & (count == 0), reader, f"{{value}} is read here but never {verb}", f"add its {op.name}")
        last = index.by_key((rows, row_keys))[keys]
        fact = f"{{value}} is {verb} {{times}}, but needed once"
        find("E422", crosses & (count > 1), last, fact, f"keep one {op.name}", count)
        find("E422", ~crosses & (count > 0), last, f"{{value}} is {verb}, but it stays on its rank", f"remove the {op.name}")
    if found:
        return found
    send, receive = (index.by_key(index.value_instructions[op, value])[keys] for op in (Op.SEND, Op.RECV))
    peer, route = p.table.peer, "it goes from rank {source} to rank {target}"
    find("E423", crosses & (index.rank[send] != source), send, "{value} is sent from a rank that does not make it", route)
    find("E423", crosses & (peer[send] != target), send, "{value} is sent to a rank that does not read it", route)
    wrong_rank, wrong_peer = crosses & (index.rank[receive] != target), crosses & (peer[receive] != source)
    find("E423", wrong_rank, receive, "{value} is received on a rank that does not read it", route)
    find("E423", wrong_peer, receive, "{value} is received from a rank that does not make it", route)
    if found:
        return found
    find("E424", crosses & (send < maker), send, "{value} is sent before it is made", "send it after that")
    for i in np.flatnonzero(crosses & (receive > reader))[:MAX_FOUND].tolist():
        message = f"{p.place(int(receive[i]))}: {value.name} {index.name(int(keys[i]))} is received after it is read"
        found.append(Diagnostic("E425", message, notes=(f"it is read at {p.place(int(reader[i]))}",), help="post it earlier"))
    return found or _free_findings(index, value, keys, reader, crosses)


def _free_findings(index: ProgramIndex, value: Value, keys: Ints, reader: Ints, crosses: Mask) -> list[Diagnostic]:
    """Return findings about a FREE of a value that was never received, several FREEs of one buffer, and a FREE before the last
    reader or on another rank than this reader.

    Args:
        keys: of all values of this kind; by index in `keys`, reader: the row that first reads the value.
        crosses: whether it is sent to another rank.
    """
    rows, row_keys = index.value_instructions[Op.FREE, value]
    if not len(rows):
        return []
    last = np.full(index.key_count, -1, np.int64)  # by key: the last task that reads the value
    last[keys] = reader if value == Value.grad or index.header.kind == "evaluation" else index.weight_gradient[keys]
    is_received = np.zeros(index.key_count, bool)
    is_received[keys] = crosses
    count = np.bincount(row_keys, minlength=index.key_count)[row_keys]  # by index in `rows`: how many FREEs free its buffer
    last_reader = last[row_keys]
    misplaced = (index.rank[rows] != index.rank[last_reader]) | (rows < last_reader)
    wrong = ~is_received[row_keys] | (count > 1) | misplaced

    def fault(i: int) -> str:
        if count[i] > 1:
            return times_text(int(count[i]))
        if not is_received[row_keys[i]]:
            return "but was never received"
        return "too early" if index.rank[rows[i]] == index.rank[last_reader[i]] else "on another rank than its last reader"

    return [
        Diagnostic(
            "E426",
            f"{index.program.place(int(rows[i]))}: the buffer is freed {fault(i)}",
            notes=(f"it is last read at {index.program.place(int(last_reader[i]))}",),
            help="keep one FREE, after that, on that rank" if is_received[row_keys[i]] else "remove the FREE",
        )
        for i in np.flatnonzero(wrong)[:MAX_FOUND].tolist()
    ]
