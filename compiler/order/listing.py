"""The order form `listing`: a program for every rank, with loops and conditions.

A task may leave out what follows from the state of its rank: `F p` is the next forward of pipe p there, `W` the oldest
weight gradient pending on the rank.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from chimera_ir.diagnostics import ChimeraError, Diagnostic, Span, refuse
from chimera_ir.instructions import Op
from compiler.order.ordered import Batches, Ordered, task_program
from compiler.resolve.expressions import Env, evaluate, scalar, values_of
from compiler.resolve.spec import KINDS, LETTERS, ListingOrder, Spec
from compiler.syntax import nodes as n

MAX_FOUND = 6  # findings about missing tasks: a listing that is wrong somewhere is wrong on many ranks
MAX_TURNS = 1_000_000  # turns of loops over all ranks: an empty loop ends too

Cell = tuple[int, int]  # pipe, stage


@dataclass(slots=True)
class _Rank:
    """What one rank has listed so far, pipe-local micro-batches. done: by kind and cell; next: the same, where B and I,
    which are both the backward of a micro-batch, count as one; pending: I without W yet, the oldest first."""

    number: int
    cells: list[Cell]
    rows: list[tuple[int, int, int, int, bool, int]] = field(default_factory=list)
    done: dict[tuple[Op, Cell], set[int]] = field(default_factory=dict)
    next: dict[tuple[Op, Cell], int] = field(default_factory=dict)
    pending: deque[tuple[Cell, int]] = field(default_factory=deque)


def _turn(kind: Op) -> Op:
    return Op.BWD if kind == Op.BWD_INPUT else kind


class _Lister:
    def __init__(self, spec: Spec, order: ListingOrder) -> None:
        self.spec, self.order, self.turns = spec, order, 0
        self.batches = Batches(spec.header.micro_batches)
        self.spans: dict[Span, int] = {}

    def run(self, rank: _Rank, actions: tuple[n.Action, ...], env: Env) -> None:
        env = dict(env)
        for a in actions:
            match a:
                case n.Let():
                    env[a.name.name] = evaluate(a.value, env)
                case n.Choice():
                    self.run(rank, a.then if evaluate(a.condition, env) else a.otherwise, env)
                case n.Repeat():
                    self._repeat(rank, a, env)
                case n.TaskAction():
                    self._task(rank, a, env)

    def _repeat(self, rank: _Rank, a: n.Repeat, env: Env) -> None:
        low, high = (0, scalar(a.count, env) - 1) if a.low is None else (scalar(a.low, env), scalar(a.count, env))
        self.turns += max(high - low + 1, 0)
        if self.turns > MAX_TURNS:
            raise refuse("E306", f"the listing's loops turn more than {MAX_TURNS} times", a.span, values_of(a.count, env))
        for i in range(low, high + 1):
            self.run(rank, a.body, {**env, a.binder.name: i} if a.binder else env)

    def _task(self, rank: _Rank, a: n.TaskAction, env: Env) -> None:
        kind = KINDS[a.kind.name]
        cells = self._cells(rank, a, env)
        if kind == Op.BWD_WEIGHT and a.first is None:
            cell, ids = self._oldest(rank, a, cells)
        else:
            if len(cells) != 1:
                names = ", ".join(f"{self.spec.header.pipes[p].name} s{s}" for p, s in cells[:6]) or "none"
                message = f"{a.kind.name} could mean {len(cells)} stages of rank {rank.number}: {names}"
                raise refuse("E306", message, a.span, help="name the pipe and the stage, for instance F main(s)")
            (cell,) = cells
            ids = self._ids(rank, a, kind, cell, env)
        self._add(rank, a, kind, cell, ids)

    def _cells(self, rank: _Rank, a: n.TaskAction, env: Env) -> list[Cell]:
        cells = rank.cells
        if a.pipe is not None:
            members = self.order.families[a.pipe.name.name]
            if a.pipe.index is not None:
                index = scalar(a.pipe.index, env)
                if index not in members:
                    message = f"there is no pipe {a.pipe.name.name}[{index}]"
                    raise refuse("E306", message, a.pipe.span, values_of(a.pipe.index, env))
                members = {index: members[index]}
            cells = [c for c in cells if c[0] in members.values()]
        if a.stage is not None:
            stage = scalar(a.stage, env)
            cells = [c for c in cells if c[1] == stage]
            if not cells:
                message = f"stage {stage} does not live on rank {rank.number}"
                raise refuse("E306", message, a.stage.span, values_of(a.stage, env))
        return cells

    def _oldest(self, rank: _Rank, a: n.TaskAction, cells: list[Cell]) -> tuple[Cell, tuple[int, ...]]:
        for number, (cell, m) in enumerate(rank.pending):
            if cell in cells:
                del rank.pending[number]
                return cell, (m,)
        raise refuse("E306", f"no weight gradient is pending on rank {rank.number}", a.span, help="list its I before")

    def _ids(self, rank: _Rank, a: n.TaskAction, kind: Op, cell: Cell, env: Env) -> tuple[int, ...]:
        """Return the pipe-local micro-batches of a task."""
        if a.first is not None:
            first = scalar(a.first, env)
            last = first if a.last is None else scalar(a.last, env)
            ids = tuple(range(first, last + 1)) if last - first < 2**16 else ()
            label = values_of(a.first, env)
        else:
            ids, label = (rank.next.get((_turn(kind), cell), 0),), ""
        count = len(self.spec.header.pipes[cell[0]].micro_batches)
        if not ids or ids[0] < 0 or ids[-1] >= count:
            name = self.spec.header.pipes[cell[0]].name
            what = f"{ids[0]} .. {ids[-1]}" if len(ids) > 1 else str(ids[0]) if ids else "none"
            message = (
                f"rank {rank.number} lists {a.kind.name} of {name} s{cell[1]}, micro-batch {what}; it has 0 .. {count - 1}"
            )
            raise refuse("E306", message, a.span, label)
        return ids

    def _add(self, rank: _Rank, a: n.TaskAction, kind: Op, cell: Cell, ids: tuple[int, ...]) -> None:
        pipe = self.spec.header.pipes[cell[0]]
        done = rank.done.setdefault((kind, cell), set())
        again = [m for m in ids if m in done]
        if again:
            message = f"rank {rank.number} lists {a.kind.name} of {pipe.name} s{cell[1]}, micro-batch {again[0]} twice"
            raise refuse("E302", message, a.span)
        done.update(ids)
        turn = _turn(kind), cell
        kinds = (Op.BWD, Op.BWD_INPUT) if turn[0] == Op.BWD else (kind,)
        taken = [rank.done[k, cell] for k in kinds if (k, cell) in rank.done]
        following = rank.next.get(turn, 0)
        while any(following in x for x in taken):
            following += 1
        rank.next[turn] = following
        if kind == Op.BWD_INPUT:
            rank.pending += [(cell, m) for m in ids]
        elif kind == Op.BWD_WEIGHT and a.first is not None:
            rank.pending = deque(x for x in rank.pending if x[0] != cell or x[1] not in ids)
        batch = self.batches.number(tuple(pipe.micro_batches[m] for m in ids))
        span = self.spans.setdefault(a.span, len(self.spans))
        rank.rows.append((kind, cell[0], cell[1], batch, a.overlap, span))


def order_by_listing(spec: Spec, order: ListingOrder) -> Ordered:
    """Return the tasks that every rank lists. Raises ChimeraError: E301 a task not listed, E302 one listed twice, E306 a
    task that does not exist or is not determined, or loops without end."""
    h = spec.header
    lister, ranks = _Lister(spec, order), []
    for r in range(h.ranks):
        cells = [(p, s) for p, pipe in enumerate(h.pipes) for s, at in enumerate(pipe.placement) if at == r]
        ranks.append(_Rank(r, cells))
        lister.run(ranks[-1], order.actions, {**order.env, order.rank: r})
    found = [d for rank in ranks for d in _missing(spec, order, rank)]
    if found:
        raise ChimeraError(found[:MAX_FOUND])
    rows = np.array([row for rank in ranks for row in rank.rows], np.int64).reshape(-1, 6).T
    op, pipe, stage, batch, overlap, origin = (np.ascontiguousarray(c) for c in rows)
    offsets = np.concatenate([[0], np.cumsum([len(rank.rows) for rank in ranks])])
    program = task_program(spec, lister.batches, op, pipe, stage, batch, overlap, offsets)
    return Ordered(program, origin, tuple(lister.spans))


def _missing(spec: Spec, order: ListingOrder, rank: _Rank) -> list[Diagnostic]:
    """Return a finding per stage of a rank whose listing leaves tasks out."""
    found = []
    for cell in rank.cells:
        pipe = spec.header.pipes[cell[0]]
        every = set(range(len(pipe.micro_batches)))
        forward, full, inputs, weights = (rank.done.get((kind, cell), set()) for kind in LETTERS)
        for what, missing in (("F", every - forward), ("B", every - full - inputs - weights),
                              ("W", inputs - weights), ("I", weights - inputs)):  # fmt: skip
            if missing:
                more = f" ({len(missing)} such micro-batches)" if len(missing) > 1 else ""
                message = f"rank {rank.number} never lists {what} of {pipe.name} s{cell[1]}, micro-batch {min(missing)}{more}"
                found.append(Diagnostic("E301", message, order.span))
        both = full & (inputs | weights)
        if both:
            message = f"rank {rank.number} lists a full and a split backward of {pipe.name} s{cell[1]}, micro-batch {min(both)}"
            found.append(Diagnostic("E302", message, order.span, help="keep B, or I and W"))
    return found
