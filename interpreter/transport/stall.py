"""Why a wait has taken too long though every rank answers: a rank computes, a message never came, or ranks wait in a cycle.

The reason follows from what each rank waits for, and from how far each rank is. For transfers and all-reduces of the streams
the positions of the ranks in the program decide. SEND number i and RECV number i of a channel wait for each other. ALLREDUCE
number i of a rank waits for ALLREDUCE number i of each rank that joins it; the numbers count only the ALLREDUCEs over these
ranks. A rank is behind if it has not yet executed the instruction that another rank waits for. For collectives of all ranks
outside the streams, the numbers of those that the ranks have begun decide. For a wait of the kind `other` (progress.py) a rank
is taken to be behind, unless it waits for the same.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.transport import ranks_text
from chimerac.interpreter.transport.progress import NONE, Progress, Status

SHOWN = 8  # how many ranks a message lists


class Stall:
    """The ranks of a job in which a wait has taken too long.

    Args:
        progress: has the programs of the ranks.
        statuses: by rank, of those that answered.
        named: returns ranks as text.
    """

    def __init__(
        self, progress: Progress, statuses: Mapping[int, Status], named: Callable[[Sequence[int]], str] = ranks_text
    ) -> None:
        self.progress, self.statuses, self._named = progress, statuses, named

    def reason(self, rank: int) -> str:
        """Return why the wait of `rank` takes so long, and on further lines what the other ranks, or those of a cycle, do."""
        lost, late, waits_for = self._search(rank)
        if lost:
            headline = f"never sent: {self._lost_message(*lost[0])}"
        elif late:
            headline = f"late: {self._named(late[:1])} still computes, {self._place(late[0])}"
        elif cycle := _cycle(waits_for):
            headline = f"cycle: {len(cycle)} ranks wait for each other"
            return "\n".join([headline, *self._lines(cycle)])
        else:
            headline = "every rank answers, and has posted its side of the operation"
        others = [r for r in self.statuses if r != rank]
        others.sort(key=lambda r: (r not in late, r not in waits_for, r))
        return "\n".join([headline, *self._lines(others)])

    def _search(self, start: int) -> tuple[list[tuple[int, int]], list[int], dict[int, list[int]]]:
        """Follow the waits from a rank, breadth first, and return what was found.

        lost: pairs of a rank that waits for a message, and the rank that is past the SEND of this message. late: the ranks that
        compute. waits_for: for each rank that was reached, those of the ranks it waits for that are behind.
        """
        lost: list[tuple[int, int]] = []
        late: list[int] = []
        waits_for: dict[int, list[int]] = {}
        pending = [start]
        while pending:
            rank = pending.pop(0)
            status = self.statuses.get(rank)
            if rank in waits_for or status is None:
                continue
            waits_for[rank] = []
            if status.awaited is None:
                late.append(rank)
                continue
            peers = [r for r in status.awaited.ranks if r != rank and r in self.statuses]
            behind = [r for r in peers if self._is_behind(rank, r)]
            if not behind and status.awaited.kind == "receive":
                lost += [(rank, r) for r in peers]
            waits_for[rank] = behind
            pending += behind
        return lost, late, waits_for

    def _is_behind(self, rank: int, other: int) -> bool:
        """Return whether `other` is behind `rank`: it has not yet posted its side of the operation that `rank` waits for."""
        status, other_status = self.statuses[rank], self.statuses[other]
        assert status.awaited is not None
        if status.awaited.kind == "other":
            return other_status.awaited is None or other_status.awaited.what != status.awaited.what
        if status.awaited.kind == "all":
            return other_status.collectives < status.posted
        number = self._awaited_instruction(rank, other)
        if number == NONE:  # without such an instruction `other` counts as behind, unless it waits in a later run
            return other_status.awaited is None or other_status.position.run <= status.position.run
        return (other_status.position.run, other_status.position.number) <= (status.position.run, number)

    def _awaited_instruction(self, rank: int, other: int) -> int:
        """Return the number of the instruction of `other` that `rank` waits for; NONE if there is none."""
        status = self.statuses[rank]
        program = self.progress.programs.get(status.position.program)
        if program is None or status.awaited is None or status.posted == NONE:
            return NONE
        match status.awaited.kind:
            case "receive":
                own, others = _transfers(program, rank, Op.RECV, other), _transfers(program, other, Op.SEND, rank)
            case "send":
                own, others = _transfers(program, rank, Op.SEND, other), _transfers(program, other, Op.RECV, rank)
            case _:
                members = tuple(sorted({rank, *status.awaited.ranks}))
                own, others = _all_reduces(program, rank, members), _all_reduces(program, other, members)
        # Instruction own[k] waits for instruction others[k].
        k = own.index(status.posted) if status.posted in own else len(others)
        return others[k] if k < len(others) else NONE

    def _lost_message(self, rank: int, other: int) -> str:
        """Return as text that `other` is past the SEND that `rank` waits for."""
        number = self._awaited_instruction(rank, other)
        send = self.progress.instruction(other, replace(self.statuses[rank].position, number=number))
        return f"{self._named([other])} is past {'its SEND' if number == NONE else send}, but no message came"

    def _lines(self, ranks: Sequence[int]) -> list[str]:
        """Return what these ranks are doing, one line each."""
        lines = [f"  {self._named([r])}, {self._place(r)}: {self._activity(r)}" for r in ranks[:SHOWN]]
        return lines + ([f"  and {count_text(len(ranks) - SHOWN, 'more rank')}"] if len(ranks) > SHOWN else [])

    def _place(self, rank: int) -> str:
        return self.progress.instruction(rank, self.statuses[rank].position)

    def _activity(self, rank: int) -> str:
        status = self.statuses[rank]
        if status.awaited is None:
            return "computes"
        text = f"has waited {status.waited_s:.1f} s for {status.awaited.what}"
        if status.position.waits_for == NONE:
            return text
        return f"{text}, {self.progress.instruction(rank, replace(status.position, number=status.position.waits_for))}"


def _transfers(program: Program, rank: int, op: Op, peer: int) -> list[int]:
    """Return the numbers of a rank's SENDs to, or RECVs from, a peer, in order."""
    rows = slice(int(program.offsets[rank]), int(program.offsets[rank + 1]))
    numbers = np.flatnonzero((program.table.op[rows] == op) & (program.table.peer[rows] == peer))
    return [int(n) for n in numbers]


def _all_reduces(program: Program, rank: int, members: tuple[int, ...]) -> list[int]:
    """Return the numbers of a rank's ALLREDUCEs over these ranks, in order."""
    first, end = (int(n) for n in program.offsets[rank : rank + 2])
    numbers = [int(n) for n in np.flatnonzero(program.table.op[first:end] == Op.ALLREDUCE)]
    instructions = program.instructions(first + n for n in numbers)
    return [n for n, i in zip(numbers, instructions, strict=True) if getattr(i, "ranks", ()) == members]


def _cycle(waits_for: Mapping[int, Sequence[int]]) -> list[int]:
    """Return a cycle of ranks, each of which waits for the next, from the lowest one; empty if there is none."""
    try:
        graphlib.TopologicalSorter(waits_for).prepare()
    except graphlib.CycleError as error:
        cycle: list[int] = error.args[1][:0:-1]  # its first rank is also its last one, and each waits for the one before it
        lowest = cycle.index(min(cycle))
        return cycle[lowest:] + cycle[:lowest]
    return []
