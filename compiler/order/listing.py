"""The order form `listing`: a program for every rank, with loops and conditions.

A task may leave out what follows from the state of its rank: `F p` is the next forward of pipe p there, `W` the oldest
weight gradient pending on the rank.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from chimera_ir import limits
from chimera_ir.diagnostics import ChimeraError, Diagnostic, Span, refuse
from chimera_ir.instructions import Op
from compiler.order.ordered import Batches, Ordered, task_program
from compiler.resolve.expressions import Env, evaluate, names_in, scalar, spend, values_of
from compiler.resolve.spec import KINDS, LETTERS, ListingOrder, Spec
from compiler.syntax import nodes as n
from compiler.syntax.printer import expression

MAX_FOUND = 6  # findings about missing tasks: a listing that is wrong somewhere is wrong on many ranks

_I, _W = int(Op.BWD_INPUT), int(Op.BWD_WEIGHT)
_NUMBERS = {letter: int(op) for letter, op in KINDS.items()}
# By kind: which turn it takes, since B and I are both the backward of a micro-batch; and the bits of all kinds that do.
_TURN = (0, 1, 1, 2)
_SAME_TURN = (0b0001, 0b0110, 0b0110, 0b1000)


@dataclass(slots=True)
class _Cell:
    """What one rank has listed of a stage of a pipe. listed: a bit per kind, by pipe-local micro-batch; next: by turn, the
    first micro-batch that has not had it; pending: I without W yet, numbered in the order of the rank's I; meanings: numbers
    of what actions, by their identity, mean here."""

    pipe: int
    stage: int
    micro_batches: tuple[int, ...]
    listed: bytearray
    next: list[int] = field(default_factory=lambda: [0, 0, 0])
    pending: OrderedDict[int, int] = field(default_factory=OrderedDict)
    meanings: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Rank:
    """What one rank has listed so far. rows: the meaning and the batch of each task, in one flat list, since the garbage
    collector would count and walk tuples; meant: by an action's identity, the cells that it could mean, where no loop
    changes that; inputs: how many I."""

    number: int
    cells: list[_Cell] = field(default_factory=list)
    meant: dict[int, list[_Cell]] = field(default_factory=dict)
    rows: list[int] = field(default_factory=list)
    inputs: int = 0


def _bound_in_loops(actions: tuple[n.Action, ...], inside: bool = False) -> Iterator[str]:
    """Yield the names whose values loops change."""
    for a in actions:
        match a:
            case n.Let() if inside:
                yield a.name.name
            case n.Choice():
                yield from _bound_in_loops(a.then + a.otherwise, inside)
            case n.Repeat():
                yield from [a.binder.name] if a.binder else []
                yield from _bound_in_loops(a.body, inside=True)


class _Lister:
    def __init__(self, spec: Spec, order: ListingOrder) -> None:
        self.spec, self.order, self.turns = spec, order, 0
        self.batches = Batches(spec.header.micro_batches)
        self.varying = frozenset(_bound_in_loops(order.actions))
        self.spans: dict[Span, int] = {}
        self.meanings: list[tuple[int, int, int, bool, int]] = []  # kind, pipe, stage, overlap, number of the span

    def run(self, rank: _Rank, actions: tuple[n.Action, ...], env: Env) -> None:
        env = dict(env)
        spend(len(env) // 16 + len(actions), self.order.span)
        for a in actions:
            match a:
                case n.TaskAction():
                    self._task(rank, a, env)
                case n.Let():
                    env[a.name.name] = evaluate(a.value, env)
                case n.Choice():
                    self.run(rank, a.then if evaluate(a.condition, env) else a.otherwise, env)
                case n.Repeat():
                    self._repeat(rank, a, env)

    def _repeat(self, rank: _Rank, a: n.Repeat, env: Env) -> None:
        low, high = (0, scalar(a.count, env) - 1) if a.low is None else (scalar(a.low, env), scalar(a.count, env))
        self.turns += max(high - low + 1, 0)
        if self.turns > limits.TURNS:  # an empty loop ends too
            message = f"the listing's loops turn more than {limits.TURNS} times"
            raise refuse("E306", message, a.span, values_of(a.count, env))
        for i in range(low, high + 1):
            self.run(rank, a.body, {**env, a.binder.name: i} if a.binder else env)

    def _task(self, rank: _Rank, a: n.TaskAction, env: Env) -> None:
        kind = _NUMBERS[a.kind.name]
        cells = rank.meant.get(id(a)) or self._cells(rank, a, env)
        if kind == _W and a.first is None:
            cell = self._oldest(rank, a, cells)
            first = last = next(iter(cell.pending))
        else:
            if len(cells) != 1:
                raise self._several(rank, a, kind, cells)
            (cell,) = cells
            first = last = cell.next[_TURN[kind]]
            if a.first is not None or first == len(cell.micro_batches):
                first, last = self._ids(rank, a, kind, cell, env)
        self._add(rank, a, kind, cell, first, last)

    def _several(self, rank: _Rank, a: n.TaskAction, kind: int, cells: list[_Cell]) -> ChimeraError:
        """Return the finding of a task that means no stage, or several, with one that it can mean here."""
        pipes = self.spec.header.pipes
        names = ", ".join(f"{pipes[c.pipe].name} s{c.stage}" for c in cells[:6]) or "none"
        message = f"{a.kind.name} could mean {len(cells)} stages of rank {rank.number}: {names}"
        known = cells or rank.cells
        if not known:
            return refuse("E306", message, a.span, help=f"no stage lives on rank {rank.number}; list nothing there")
        c = next((c for c in known if c.next[_TURN[kind]] < len(c.micro_batches)), known[0])
        ids = " .. ".join(expression(e) for e in (a.first, a.last) if e)
        example = f"{a.kind.name} {pipes[c.pipe].name}({c.stage}{', ' * bool(ids)}{ids})"
        return refuse("E306", message, a.span, help=f"name the pipe and the stage, for instance {example}")

    def _cells(self, rank: _Rank, a: n.TaskAction, env: Env) -> list[_Cell]:
        """Return the cells of a rank that an action could mean."""
        spend(len(rank.cells) // 4, a.span)
        cells, used = rank.cells, [e for e in (a.stage, a.pipe and a.pipe.index) if e]
        if a.pipe is not None:
            members = self.order.families[a.pipe.name.name]
            if a.pipe.index is not None:
                index = scalar(a.pipe.index, env)
                if index not in members:
                    message = f"there is no pipe {a.pipe.name.name}[{index}]"
                    help = f"known: {', '.join(f'{a.pipe.name.name}[{i}]' for i in sorted(members)[:20])}"
                    raise refuse("E306", message, a.pipe.span, values_of(a.pipe.index, env), help=help)
                members = {index: members[index]}
            pipes = frozenset(members.values())
            cells = [c for c in cells if c.pipe in pipes]
        if a.stage is not None:
            stage = scalar(a.stage, env)
            cells = [c for c in cells if c.stage == stage]
            if not cells:
                message = f"stage {stage} does not live on rank {rank.number}"
                held = ", ".join(str(s) for s in sorted({c.stage for c in rank.cells}))
                help = f"stages of rank {rank.number}: {held or 'none'}"
                raise refuse("E306", message, a.stage.span, values_of(a.stage, env), help=help)
        if self.varying.isdisjoint(name for e in used for name in names_in(e)):
            rank.meant[id(a)] = cells
        return cells

    def _oldest(self, rank: _Rank, a: n.TaskAction, cells: list[_Cell]) -> _Cell:
        """Return the stage whose weight gradient is pending longest."""
        spend(len(cells) // 4, a.span)
        pending = [cell for cell in cells if cell.pending]
        if not pending:
            raise refuse("E306", f"no weight gradient is pending on rank {rank.number}", a.span, help="list its I before")
        return pending[0] if len(pending) == 1 else min(pending, key=lambda c: next(iter(c.pending.values())))

    def _ids(self, rank: _Rank, a: n.TaskAction, kind: int, cell: _Cell, env: Env) -> tuple[int, int]:
        """Return the first and last of a task's micro-batches, counted within the pipe."""
        first = cell.next[_TURN[kind]] if a.first is None else scalar(a.first, env)
        last = first if a.last is None else scalar(a.last, env)
        count = len(cell.micro_batches)
        if not 0 <= first <= last < count:
            name, label = self.spec.header.pipes[cell.pipe].name, "" if a.first is None else values_of(a.first, env)
            what = "none" if last < first else f"{first} .. {last}" if last > first else str(first)
            message = (
                f"rank {rank.number} lists {a.kind.name} of {name} s{cell.stage}, micro-batch {what}; it has 0 .. {count - 1}"
            )
            help = f"each task is listed once: {a.kind.name} for {count} micro-batches in all"
            raise refuse("E306", message, a.span, label, help=help)
        return first, last

    def _add(self, rank: _Rank, a: n.TaskAction, kind: int, cell: _Cell, first: int, last: int) -> None:
        listed, bit, m = cell.listed, 1 << kind, first
        while m <= last:
            if listed[m] & bit:
                name = self.spec.header.pipes[cell.pipe].name
                message = f"rank {rank.number} lists {a.kind.name} of {name} s{cell.stage}, micro-batch {m} twice"
                raise refuse("E302", message, a.span, help="keep one of them")
            listed[m] |= bit
            if kind == _I:
                cell.pending[m] = rank.inputs
                rank.inputs += 1
            elif kind == _W:
                cell.pending.pop(m, None)
            m += 1
        turn, same = _TURN[kind], _SAME_TURN[kind]
        following, count = cell.next[turn], len(listed)
        while following < count and listed[following] & same:
            following += 1
        cell.next[turn] = following
        ids = cell.micro_batches
        batch = ids[first] if first == last else self.batches.number(ids[first : last + 1])
        meaning = cell.meanings.get(id(a))
        if meaning is None:
            meaning = cell.meanings[id(a)] = len(self.meanings)
            span = self.spans.setdefault(a.span, len(self.spans))
            self.meanings.append((kind, cell.pipe, cell.stage, a.overlap, span))
        rank.rows += (meaning, batch)


def order_by_listing(spec: Spec, order: ListingOrder) -> Ordered:
    """Return the tasks that every rank lists. Raises ChimeraError: E301 a task not listed, E302 one listed twice, E306 a
    task that does not exist or is not determined, or loops without end."""
    h = spec.header
    ranks = [_Rank(r) for r in range(h.ranks)]
    for p, x in enumerate(h.pipes):
        for s, r in enumerate(x.placement):
            ranks[r].cells.append(_Cell(p, s, x.micro_batches, bytearray(len(x.micro_batches))))
    lister = _Lister(spec, order)
    for rank in ranks:
        lister.run(rank, order.actions, {**order.env, order.rank: rank.number})
    found: list[Diagnostic] = []
    for rank in ranks:
        found += _missing(spec, order, rank)
        if len(found) >= MAX_FOUND:
            break
    if found:
        raise ChimeraError(found[:MAX_FOUND])
    meaning, batch = np.concatenate([np.array(rank.rows, np.int64) for rank in ranks]).reshape(-1, 2).T.copy()
    op, pipe, stage, overlap, origin = np.array(lister.meanings, np.int64).reshape(-1, 5)[meaning].T.copy()
    offsets = np.concatenate([[0], np.cumsum([len(rank.rows) // 2 for rank in ranks])])
    program = task_program(spec, lister.batches, op, pipe, stage, batch, overlap, offsets)
    return Ordered(program, origin, tuple(lister.spans))


def _missing(spec: Spec, order: ListingOrder, rank: _Rank) -> list[Diagnostic]:
    """Return a finding per stage of a rank whose listing leaves tasks out."""
    found = []
    for cell in rank.cells:
        name = spec.header.pipes[cell.pipe].name
        bits = np.frombuffer(cell.listed, np.uint8)
        forward, full, inputs, weights = ((bits & 1 << kind).astype(bool) for kind in LETTERS)
        for what, wrong in (("F", ~forward), ("B", ~full & ~inputs & ~weights),
                            ("W", inputs & ~weights & ~full), ("I", weights & ~inputs & ~full)):  # fmt: skip
            if wrong.any():
                more = f" ({wrong.sum()} such micro-batches)" if wrong.sum() > 1 else ""
                message = f"rank {rank.number} never lists {what} of {name} s{cell.stage}, micro-batch {wrong.argmax()}{more}"
                found.append(Diagnostic("E301", message, order.span, help=f"list it: {what} once for each micro-batch"))
        both = full & (inputs | weights)
        if both.any():
            message = (
                f"rank {rank.number} lists a full and a split backward of {name} s{cell.stage}, micro-batch {both.argmax()}"
            )
            found.append(Diagnostic("E302", message, order.span, help="keep B, or I and W"))
    return found
