"""Why a wait has taken too long: a rank does not answer, still computes, never sent, or the ranks wait in a cycle.

The judgement uses the program: a RECV waits for the SEND of the same number on its channel, and a sum for the ALLREDUCE of each
of its ranks. A rank that is past the awaited instruction, or has never to run it, has done its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Program
from chimerac.interpreter.transport import ranks_text
from chimerac.interpreter.transport.progress import NONE, Progress, Status

SHOWN = 8  # how many ranks a message lists


class Stall:
    """The ranks of a job in which a wait has taken too long.

    statuses: by rank, of those that answered; named: returns ranks for a message.
    """

    def __init__(
        self, progress: Progress, statuses: Mapping[int, Status], named: Callable[[Sequence[int]], str] = ranks_text
    ) -> None:
        self.progress, self.statuses, self._named = progress, statuses, named

    def reason(self, rank: int) -> str:
        """Return why the wait of `rank` takes so long, and what the other ranks are doing, as lines."""
        lost, late, edges = self._search(rank)
        if lost:
            headline = f"never sent: {self._lost(*lost[0])}"
        elif late:
            headline = f"late: {self._named(late[:1])} still computes, {self._place(late[0])}"
        elif cycle := _cycle(rank, edges):
            headline = f"cycle: {len(cycle)} ranks wait for each other"
            return "\n".join([headline, *self._lines(cycle)])
        else:
            headline = "every rank answers, and has done its part"
        others = [r for r in self.statuses if r != rank]
        others.sort(key=lambda r: (r not in late, r not in edges, r))
        return "\n".join([headline, *self._lines(others)])

    def _search(self, start: int) -> tuple[list[tuple[int, int]], list[int], dict[int, list[int]]]:
        """Follow the waits from a rank.

        Return the pairs of a waiting rank and a rank that is past its part, the ranks that compute, and for each rank the
        ranks that it waits for.
        """
        lost: list[tuple[int, int]] = []
        late: list[int] = []
        edges: dict[int, list[int]] = {}
        left = [start]
        while left:
            rank = left.pop(0)
            status = self.statuses.get(rank)
            if rank in edges or status is None:
                continue
            edges[rank] = []
            if status.awaited is None:
                late.append(rank)
                continue
            behind = [r for r in status.awaited.ranks if r != rank and r in self.statuses and self._is_behind(rank, r)]
            if not behind and status.awaited.kind == "receive":
                lost += [(rank, r) for r in status.awaited.ranks if r in self.statuses]
            edges[rank] = behind
            left += behind
        return lost, late, edges

    def _is_behind(self, rank: int, other: int) -> bool:
        """Return whether `other` has not yet done its part in what `rank` waits for."""
        mine, its = self.statuses[rank], self.statuses[other]
        assert mine.awaited is not None
        if mine.awaited.kind == "setup":
            return its.awaited is None or its.awaited.what != mine.awaited.what
        if mine.awaited.kind == "all":
            return its.collectives < mine.posted
        part = self._part(rank, other)
        if part == NONE:
            return its.awaited is None or its.position.run <= mine.position.run
        return (its.position.run, its.position.number) <= (mine.position.run, part)

    def _part(self, rank: int, other: int) -> int:
        """Return the number of the instruction of `other` for which `rank` waits; NONE if there is none."""
        mine = self.statuses[rank]
        program = self.progress.programs.get(mine.position.program)
        if program is None or mine.awaited is None or mine.posted == NONE:
            return NONE
        match mine.awaited.kind:
            case "receive":
                own, its = _transfers(program, rank, Op.RECV, other), _transfers(program, other, Op.SEND, rank)
            case "send":
                own, its = _transfers(program, rank, Op.SEND, other), _transfers(program, other, Op.RECV, rank)
            case _:
                members = tuple(sorted({rank, *mine.awaited.ranks}))
                own, its = _sums(program, rank, members), _sums(program, other, members)
        return _matching(own, mine.posted, its)

    def _lost(self, rank: int, other: int) -> str:
        """Return that `other` is past the SEND for which `rank` waits."""
        number = self._part(rank, other)
        send = self.progress.instruction(other, replace(self.statuses[rank].position, number=number))
        return f"{self._named([other])} is past {'its SEND' if number == NONE else send}, but no message came"

    def _lines(self, ranks: Sequence[int]) -> list[str]:
        lines = [f"  {self._named([r])}, {self._place(r)}: {self._doing(r)}" for r in ranks[:SHOWN]]
        return lines + ([f"  and {len(ranks) - SHOWN} more ranks"] if len(ranks) > SHOWN else [])

    def _place(self, rank: int) -> str:
        return self.progress.instruction(rank, self.statuses[rank].position)

    def _doing(self, rank: int) -> str:
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
    found = np.flatnonzero((program.table.op[rows] == op) & (program.table.peer[rows] == peer))
    return [int(n) for n in found]


def _sums(program: Program, rank: int, members: tuple[int, ...]) -> list[int]:
    """Return the numbers of a rank's ALLREDUCEs over these ranks, in order."""
    first, end = (int(n) for n in program.offsets[rank : rank + 2])
    rows = [int(n) for n in np.flatnonzero(program.table.op[first:end] == Op.ALLREDUCE)]
    found = program.instructions(first + n for n in rows)
    return [n for n, i in zip(rows, found, strict=True) if getattr(i, "ranks", ()) == members]


def _matching(mine: Sequence[int], number: int, its: Sequence[int]) -> int:
    """Return the instruction of a peer that has the same place in its list as `number` has in `mine`; NONE if there is none."""
    k = mine.index(number) if number in mine else len(its)
    return its[k] if k < len(its) else NONE


def _cycle(start: int, edges: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the ranks of a cycle of waits that can be reached from a rank, in order; empty if there is none."""
    path: list[int] = []
    done: set[int] = set()

    def visit(rank: int) -> list[int]:
        if rank in path:
            return path[path.index(rank) :]
        if rank in done:
            return []
        path.append(rank)
        for other in edges.get(rank, ()):
            if found := visit(other):
                return found
        path.pop()
        done.add(rank)
        return []

    return visit(start)
