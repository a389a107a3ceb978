"""Explain a hang: the shortest cycle of waits that is found, how far the ranks get, and what would help (E440).

A note describes the cycle like this:

rank 0, instruction 0: SEND act down s1 m0 -> 1
  waits until this is posted:
rank 1, instruction 1: RECV act down s1 m0 <- 0
  comes after:
rank 1, instruction 0: SEND act up s1 m3 -> 0
  waits until this is posted:
rank 0, instruction 1: RECV act up s1 m3 <- 1
  comes after the first
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import assert_never

import numpy as np

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import Diagnostic
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.machines import machine_name
from chimerac.chimera_ir.program import Program
from chimerac.compiler.diagnose.cycle import MAX_SHOWN, consecutive_pairs, cycle_fact, shortest_cycle
from chimerac.compiler.draw.timeline import draw_timeline
from chimerac.compiler.tasks import task_times
from chimerac.compiler.verify import findings
from chimerac.compiler.verify.index import ProgramIndex
from chimerac.compiler.verify.progress import hang_on, machines
from chimerac.compiler.verify.waits import COLLECTIVES, END, Hang, Reason

NOTHING_FOUND = "it ends on no machine, and no moves of instructions were found that correct it"
MAX_MOVES = 4  # moves in one suggestion
MAX_TRIED = 2_000_000  # instructions of the changed programs that are verified in the search for moves
LARGER_WINDOWS = 8  # how many larger windows are tried


def _relation(index: ProgramIndex, hang: Hang, reason: Reason, target: int, source: int) -> str:
    """Return the words that join a node with the one that it waits for, as in the example above."""
    match reason:
        case Reason.READ:
            return "reads the value that this delivers"
        case Reason.POST:
            return "waits until this is posted"
        case Reason.END:
            return "waits until this end of it is posted"
        case Reason.WINDOW:
            return "waits, as the window of the channel requires, for"
        case Reason.QUEUE:
            return f"queues on rank {_queue_rank(index, hang, target, source)} behind"
        case _:
            assert_never(reason)


def explain_hang(index: ProgramIndex) -> Diagnostic:
    """Return the finding E440 for a program that cannot terminate on the machine of its header, with help."""
    hang = hang_on(index, index.header.machine)
    assert hang is not None, "the program terminates"
    cycle = _cycle(index, hang)
    rows = [row for node in _nodes(hang, cycle) for row in _rows(index, hang, node)]
    ranks = sorted({int(index.rank[row]) for row in rows})
    notes = ("\n".join(_chain(index, hang, cycle)), f"as far as these ranks get:\n{_drawing(index, hang, ranks[:MAX_SHOWN])}")
    name = machine_name(hang.machine, index.header.window)
    help = _suggestion(index, hang, cycle)
    return Diagnostic("E440", f"deadlock on the {name} machine: {cycle_fact(ranks)}", notes=notes, help=help, about=tuple(rows))


# --- the cycle -----------------------------------------------------------------------------------------------------


def _cycle(index: ProgramIndex, hang: Hang) -> list[int]:
    """Return the numbers of the waits in a cycle, as short as `shortest_cycle` finds.

    The source of each wait is the target of the next one, or comes after that target in its stream.
    """
    waits = hang.waits
    unsatisfied = np.flatnonzero(~hang.done[waits.source] & ~hang.done[waits.target])
    # The lanes for `shortest_cycle`: each stream, and each completion alone.
    lane = np.concatenate([index.rank, index.program.world + np.arange(waits.nodes - len(index.program))])
    numbers: list[int] = unsatisfied[shortest_cycle(waits.target[unsatisfied], waits.source[unsatisfied], lane)].tolist()
    return numbers


def _chain(index: ProgramIndex, hang: Hang, cycle: list[int]) -> Iterator[str]:
    """Yield the lines that describe the cycle. For each wait: what waits, why, for what, and what the latter comes after."""
    waits = hang.waits
    for k, (wait, following) in enumerate(consecutive_pairs(cycle)):
        if k == MAX_SHOWN:
            yield f"... and {count_text(len(cycle) - MAX_SHOWN, 'more wait')}, back to the first"
            return
        target, source, reason = int(waits.target[wait]), int(waits.source[wait]), int(waits.reason[wait])
        words = _relation(index, hang, Reason(reason), target, source)
        last, direct = k == len(cycle) - 1, source == waits.target[following]
        yield _name(index, hang, target)
        yield f"  {words} the first" if last and direct else f"  {words}:"
        if not direct:
            yield _name(index, hang, source)
            yield "  comes after the first" if last else "  comes after:"


def _queue_rank(index: ProgramIndex, hang: Hang, later: int, earlier: int) -> int:
    """Return a rank whose stream posts `earlier` before `later`. Both are nodes of transfers or collectives."""
    pairs = product(_rows(index, hang, later), _rows(index, hang, earlier))
    return next(int(index.rank[first]) for second, first in pairs if index.rank[first] == index.rank[second] and first < second)


def _nodes(hang: Hang, cycle: list[int]) -> list[int]:
    """Return the targets and sources of the cycle, in its order; a source that is also the next target is listed once."""
    ends = [int(node) for k in cycle for node in (hang.waits.target[k], hang.waits.source[k])]
    return [node for k, node in enumerate(ends) if node != ends[k - 1]]


def _rows(index: ProgramIndex, hang: Hang, node: int) -> list[int]:
    """Return the rows of a node: of an instruction its own row, of a completion the rows that post its ends."""
    if node < len(index.program):
        return [node]
    a, b = np.searchsorted(hang.waits.target, (node, node + 1))  # the waits are sorted by target
    ends = hang.waits.reason[a:b] == END
    return sorted(hang.waits.source[a:b][ends].tolist())


def _name(index: ProgramIndex, hang: Hang, node: int) -> str:
    """Return the name of a node for messages: an instruction with its place, a transfer, or the completion of a collective."""
    p, rows = index.program, _rows(index, hang, node)
    if node < len(p):
        return p.place(node)
    if p.table.op[rows[0]] in COLLECTIVES:
        return f"the completion of {p.text(rows[0])}"
    send = next(row for row in rows if p.table.op[row] == Op.SEND)
    return f"the transfer from rank {index.rank[send]}: {p.text(send)}"


# --- how far the ranks get ------------------------------------------------------------------------------------------


def _drawing(index: ProgramIndex, hang: Hang, ranks: list[int]) -> str:
    """Return a timeline of what these ranks run before they hang, each with the instruction at which it stops, if any."""
    p = index.program
    timing = task_times(p)
    done = hang.done[: len(p)]
    stops = {}
    for rank in ranks:
        a, b = p.offsets[rank : rank + 2].tolist()
        row = a + int(np.count_nonzero(done[a:b]))
        stops[rank] = f"then {p.text(row)}" if row < b else "to the end"
    timing = replace(timing, end=np.where(done, timing.end, -1))
    return draw_timeline(p, timing.timeline(p), ranks=ranks, columns=100, stops=stops, bands=2).rstrip()


# --- a change that was tried ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Move:
    """A move of one instruction.

    Attributes:
        text: the move in words.
        program: after it.
        hang: the state in which that program hangs.
    """

    text: str
    program: Program
    hang: Hang


def _suggestion(index: ProgramIndex, hang: Hang, cycle: list[int]) -> str:
    """Return the help: moves of instructions under which every check holds, else a larger window with which the program ends,
    else the other machines on which it ends, else `NOTHING_FOUND`. All of it was tried."""
    p, h = index.program, index.header
    moves: list[str] = []
    budget, current_hang = MAX_TRIED // len(p), hang  # budget: changed programs that may be verified
    while len(moves) < MAX_MOVES:
        best: _Move | None = None  # the one after which most nodes run (`executed_count`)
        index_now = ProgramIndex(p)
        current_cycle = cycle if p is index.program else _cycle(index_now, current_hang)
        for row, to in list(_moves(index_now, current_hang, current_cycle))[:budget]:
            budget -= 1
            changed = _with_move(p, row, to)
            remaining = findings(changed)
            move = f"move {p.place(row)}, right {'before' if to < row else 'after'} {p.text(to)}"
            if not remaining:
                moves.append(move)
                lines = "\n".join(moves)
                tried = "tried: it" if len(moves) == 1 else f"these {len(moves)} moves were tried together: it"
                return f"{lines}; {tried} then ends on the {machine_name(hang.machine, h.window)} machine"
            next_hang = hang_on(ProgramIndex(changed), hang.machine) if {d.code for d in remaining} == {"E440"} else None
            if next_hang is not None and (best is None or next_hang.executed_count > best.hang.executed_count):
                best = _Move(move, changed, next_hang)
        if best is None or best.hang.executed_count <= current_hang.executed_count:
            break
        moves.append(best.text)
        p, current_hang = best.program, best.hang
    window_matters = hang.machine not in ("posted", "rendezvous")
    for window in range(h.window + 1, h.window + 1 + LARGER_WINDOWS) if window_matters else ():
        if hang_on(ProgramIndex(index.program.with_header(window=window)), hang.machine) is None:
            return f"a window of {window} sends instead of {h.window}; tried: it then ends on the {hang.machine} machine"
    ends = [machine_name(m, h.window) for m, terminates in machines(index).items() if terminates]
    if ends:
        return f"it ends on other machines, which is proved: {', '.join(ends)}"
    return NOTHING_FOUND


def _moves(index: ProgramIndex, hang: Hang, cycle: list[int]) -> Iterator[tuple[int, int]]:
    """Yield moves of one row: (row, the row to put it next to). The two are on one rank, and neighbours in the cycle.

    First come all moves of the later row right before the earlier one, then all of the earlier row right after the later one.
    """
    rows = [_rows(index, hang, node) for node in _nodes(hang, cycle)]
    pairs = [
        (max(a, b), min(a, b))
        for here, there in pairwise([*rows, rows[0]])
        for a in here
        for b in there
        if index.rank[a] == index.rank[b] and a != b
    ]
    yield from pairs
    yield from ((earlier, later) for later, earlier in pairs)


def _with_move(p: Program, row: int, to: int) -> Program:
    """Return the program with a row put right before `to`, or right after it if `to` is the later one."""
    others = np.delete(np.arange(len(p)), row)
    # In `others` the rows after the deleted one have moved up by one. So a later row `to` is at to - 1, and index `to` is
    # right after it.
    return replace(p, table=p.table.take(np.insert(others, to, row)))
