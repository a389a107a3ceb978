"""The result of every order form: the tasks of each rank in order, and the text that ordered each of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chimerac.chimera_ir.diagnostics import Span
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import OVERLAP, RECOMPUTE, Ints, Program, Table
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import expression


@dataclass(frozen=True, slots=True)
class Ordered:
    """Tasks in order.

    Attributes:
        program: of tasks only.
        origin: for every row, the index in `spans` of the text that ordered it.
    """

    program: Program
    origin: Ints
    spans: tuple[Span, ...]

    def span(self, row: int) -> Span:
        """Return the text that ordered the task of a row."""
        return self.spans[int(self.origin[row])]

    def origins(self, lowered: Program) -> Ints:
        """Return, for every row of a program that was lowered from `program`, the index of its text in `spans`.

        A SEND or ALLREDUCE has the text of the task before it on its rank, a RECV that of the task after it. If there is none,
        it has the text of the rank's first or last task. On a rank without tasks the index is -1.
        """
        tasks, is_task = self.program, lowered.table.is_task
        count = np.concatenate([[0], np.cumsum(is_task)])
        before = count[:-1] - count[lowered.offsets[lowered.rank_of]]  # tasks of the rank before this row
        number = np.where(is_task | (lowered.table.op == Op.RECV), before, before - 1)
        local = lowered.rank_of % tasks.world
        first, stop = tasks.offsets[local], tasks.offsets[local + 1]
        known = np.flatnonzero(first < stop)
        result = np.full(len(lowered), -1, np.int64)
        result[known] = self.origin[first[known] + np.clip(number[known], 0, stop[known] - first[known] - 1)]
        return result


class MicroBatchLists:
    """The distinct lists of micro-batches of a program, numbered: number m is the list (m,), and the groups follow."""

    def __init__(self, micro_batches: int) -> None:
        self._micro_batches = micro_batches
        self._groups: dict[tuple[int, ...], int] = {}

    def number(self, ids: tuple[int, ...]) -> int:
        """Return the number of the list of these micro-batches."""
        if len(ids) == 1:
            return ids[0]
        return self._groups.setdefault(ids, self._micro_batches + len(self._groups))

    def all(self) -> tuple[tuple[int, ...], ...]:
        """Return all lists, by their numbers."""
        return (*((m,) for m in range(self._micro_batches)), *self._groups)


def task_program(
    spec: Spec, lists: MicroBatchLists, op: Ints, pipe: Ints, stage: Ints, operand: Ints, overlap: Ints, offsets: Ints
) -> Program:
    """Return the program of these tasks, given rank after rank.

    Args:
        operand: the numbers of their lists of micro-batches.
        overlap: 1 for the first task of an overlapped pair, else 0.
        offsets: the first task of each rank, and the number of tasks.
    """
    recomputed = np.array(spec.recompute, bool)[pipe, stage] & (op == Op.FWD)
    table = Table.of(op, pipe=pipe, stage=stage, operand=operand, flags=recomputed * RECOMPUTE + overlap * OVERLAP)
    return Program(spec.header, spec.costs, table, offsets, lists.all(), ())


def plus(e: n.Expr, amount: int) -> n.Expr:
    """Return an expression with this amount added, for the help of a finding."""
    match e:
        case n.Int():
            return replace(e, value=e.value + amount)
        case n.Binary(op="+", right=n.Int()):
            return replace(e, right=plus(e.right, amount))
        case _:
            return n.Binary("+", e, n.Int(amount, span=e.span), span=e.span)


def formatted(e: n.Expr) -> str:
    """Return the text of an expression with products as `fmt` writes them: a*b."""
    return expression(e).replace(" * ", "*")
