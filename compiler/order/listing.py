"""The order form `listing`: the tasks of every rank, one after another, with loops and conditions.

A task may omit what the state of its rank determines. `F p` is the next forward of pipe p there, if p has only one stage on the
rank. `W` is the oldest weight gradient that is pending on the rank.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Span, refuse
from chimerac.compiler.order.listing_state import KIND_OF, PHASE, RECOMPUTATION, WEIGHT_GRADIENT, Cell, Rank
from chimerac.compiler.order.ordered import MicroBatchLists, Ordered, task_program
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import Env, evaluate, scalar, values_of
from chimerac.compiler.resolve.spec import ListingOrder, Spec
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.kinds import KINDS
from chimerac.compiler.syntax.printer import expression
from chimerac.compiler.syntax.walk import names_in

# The values of `Cell.listed` of complete micro-batches: F and B; F, I and W; each without and with R.
_COMPLETE = bytes([0b00011, 0b01101, 0b10011, 0b11101])
MAX_FOUND = 6  # findings about full and split backwards of one micro-batch: such an error usually affects many ranks
MAX_NOTED = 5  # other stages with the same omitted kinds that a finding lists, at most


def _bound_in_loops(actions: tuple[n.Action, ...], inside: bool = False) -> Iterator[str]:
    """Yield the names whose values loops change.

    Args:
        inside: whether the actions are in a loop.
    """
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
    """Runs the actions of a listing, for one rank after another.

    A meaning of an action is what all tasks that it lists for one stage of a pipe have in common: an entry of `meanings`.
    """

    def __init__(self, spec: Spec, order: ListingOrder, budget: Budget) -> None:
        self.spec, self.order, self.budget = spec, order, budget
        self.repetitions = 0  # of the bodies of all loops, over all ranks so far
        self.lists = MicroBatchLists(spec.header.micro_batches)
        self.varying = frozenset(_bound_in_loops(order.actions))  # the names whose values loops change
        self.is_fixed: dict[int, bool] = {}  # id() of an action -> whether no loop changes the cells that it could mean
        self.spans: dict[Span, int] = {}  # the span of an action -> its number
        self.meanings: list[tuple[int, int, int, bool, int]] = []  # kind, pipe, stage, overlap, number of the span

    def run(self, rank: Rank, actions: tuple[n.Action, ...], env: Env) -> None:
        """List the tasks of a block of actions.

        Args:
            env: the values of the names before it.
        """
        env = dict(env)
        self.budget.spend(len(env) // 16 + len(actions), self.order.span)
        for a in actions:
            match a:
                case n.TaskAction():
                    self._task(rank, a, env)
                case n.Let():
                    env[a.name.name] = evaluate(a.value, env, self.budget)
                case n.Choice():
                    self.run(rank, a.then if evaluate(a.condition, env, self.budget) else a.otherwise, env)
                case n.Repeat():
                    self._repeat(rank, a, env)

    def _scalar(self, e: n.Expr, env: Env) -> int:
        return scalar(e, env, self.budget)

    def _repeat(self, rank: Rank, a: n.Repeat, env: Env) -> None:
        low, count_or_high = 0 if a.low is None else self._scalar(a.low, env), self._scalar(a.count, env)
        high = count_or_high - 1 if a.low is None else count_or_high
        self.repetitions += max(high - low + 1, 0)
        if self.repetitions > limits.REPETITIONS:  # loops with an empty body count too
            message = f"the bodies of the listing's loops are repeated more than {limits.REPETITIONS} times"
            raise refuse("E306", message, a.span, values_of(a.count, env))
        for i in range(low, high + 1):
            self.run(rank, a.body, {**env, a.binder.name: i} if a.binder else env)
            # After one repetition the meaning of each action is known. Where `_repeatable` and `rank.repeat` allow it, all
            # other repetitions are listed at once, in much less time.
            if i == low < high and (tasks := self._repeatable(rank, a.body)) is not None and rank.repeat(tasks, high - low):
                return

    def _repeatable(self, rank: Rank, actions: tuple[n.Action, ...]) -> list[tuple[int, int, Cell]] | None:
        """Return the meaning, kind and cell of each action of a loop's body, after one repetition.

        Return None unless each action is a task without a micro-batch that could mean one cell only, whatever the values of the
        names that loops change.
        """
        tasks = []
        for a in actions:
            cells = rank.candidates.get(id(a), [])
            if not isinstance(a, n.TaskAction) or a.first is not None or len(cells) != 1:
                return None
            (cell,) = cells
            tasks.append((cell.meanings[id(a)], KIND_OF[a.kind.name], cell))
        return tasks

    def _task(self, rank: Rank, a: n.TaskAction, env: Env) -> None:
        kind = KIND_OF[a.kind.name]
        cells = rank.candidates.get(id(a)) or self._cells(rank, a, env)
        if kind == WEIGHT_GRADIENT and a.first is None:
            cell = self._oldest(rank, a, cells)
            first = last = next(iter(cell.pending))
        else:
            if len(cells) != 1:
                raise self._ambiguous(rank, a, kind, cells)
            (cell,) = cells
            first = last = cell.next[PHASE[kind]]
            if a.first is not None or first == len(cell.micro_batches):  # if there is no next one, `_ids` raises E306
                first, last = self._ids(rank, a, kind, cell, env)
        self._add(rank, a, kind, cell, first, last)

    def _ambiguous(self, rank: Rank, a: n.TaskAction, kind: int, cells: list[Cell]) -> ChimeraError:
        """Return the finding about a task that could mean no stage, or several; a stage of the rank, if any, is its example."""
        pipes = self.spec.header.pipes
        names = ", ".join(f"{pipes[c.pipe].name} s{c.stage}" for c in cells[:6]) or "none"
        message = f"{a.kind.name} could mean {count_text(len(cells), 'stage')} of rank {rank.number}: {names}"
        examples = cells or rank.cells
        if not examples:
            return refuse("E306", message, a.span, help=f"rank {rank.number} has no stage: list nothing there")
        cell = next((c for c in examples if c.next[PHASE[kind]] < len(c.micro_batches)), examples[0])
        ids = " .. ".join(expression(e) for e in (a.first, a.last) if e)
        example = f"{a.kind.name} {pipes[cell.pipe].name}({cell.stage}{f', {ids}' if ids else ''})"
        return refuse("E306", message, a.span, help=f"name the pipe and the stage, for instance {example}")

    def _cells(self, rank: Rank, a: n.TaskAction, env: Env) -> list[Cell]:
        """Return the cells of a rank that an action could mean.

        They are kept in `rank.candidates` if they depend on no name whose value a loop changes. Raises ChimeraError E306 for a
        pipe that does not exist, for a stage that the named pipe does not have on the rank, and, if no pipe is named, for a
        stage that no pipe has there.
        """
        self.budget.spend(len(rank.cells) // 4, a.span)
        cells, selecting = rank.cells, [e for e in (a.stage, a.pipe and a.pipe.index) if e]
        of_pipe = ""
        if a.pipe is not None:
            of_pipe = f" of {a.pipe.name.name}"
            members = self.order.pipes[a.pipe.name.name]
            if a.pipe.index is not None:
                index = self._scalar(a.pipe.index, env)
                if index not in members:
                    message = f"there is no pipe {a.pipe.name.name}[{index}]"
                    help = f"known: {', '.join(f'{a.pipe.name.name}[{i}]' for i in sorted(members)[:20])}"
                    raise refuse("E306", message, a.pipe.span, values_of(a.pipe.index, env), help=help)
                members = {index: members[index]}
                of_pipe += f"[{index}]"
            pipes = frozenset(members.values())
            cells = [c for c in cells if c.pipe in pipes]
        if a.stage is not None:
            stage, possible = self._scalar(a.stage, env), cells
            cells = [c for c in possible if c.stage == stage]
            if not cells:
                message = f"stage {stage}{of_pipe} is not placed on rank {rank.number}"
                held = ", ".join(str(s) for s in sorted({c.stage for c in possible}))
                where = f"{of_pipe} on" if of_pipe else " of"
                help = f"stages{where} rank {rank.number}: {held or 'none'}"
                raise refuse("E306", message, a.stage.span, values_of(a.stage, env), help=help)
        if id(a) not in self.is_fixed:
            self.is_fixed[id(a)] = self.varying.isdisjoint(name for e in selecting for name in names_in(e))
        if self.is_fixed[id(a)]:
            rank.candidates[id(a)] = cells
        return cells

    def _oldest(self, rank: Rank, a: n.TaskAction, cells: list[Cell]) -> Cell:
        """Return the one of these cells whose weight gradient is pending longest. Raises ChimeraError E306 if none is."""
        self.budget.spend(len(cells) // 4, a.span)
        pending = [cell for cell in cells if cell.pending]
        if not pending:
            named = "" if len(cells) == len(rank.cells) else " that this W could mean"
            message = f"no weight gradient{named} is pending on rank {rank.number}"
            raise refuse("E306", message, a.span, help="list its I before")
        return pending[0] if len(pending) == 1 else min(pending, key=lambda c: next(iter(c.pending.values())))

    def _ids(self, rank: Rank, a: n.TaskAction, kind: int, cell: Cell, env: Env) -> tuple[int, int]:
        """Return the first and last of a task's micro-batches, counted within the pipe.

        Raises ChimeraError E306 if there are none, or if the pipe does not have all of them.
        """
        first = cell.next[PHASE[kind]] if a.first is None else self._scalar(a.first, env)
        last = first if a.last is None else self._scalar(a.last, env)
        count = len(cell.micro_batches)
        if not 0 <= first <= last < count:
            name, label = self.spec.header.pipes[cell.pipe].name, "" if a.first is None else values_of(a.first, env)
            named = "none" if last < first else f"{first} .. {last}" if last > first else str(first)
            held = f"0 .. {count - 1}" if count else "none"
            message = f"rank {rank.number} lists {a.kind.name} of {name} s{cell.stage}, micro-batch {named}; it has {held}"
            help = f"each task is listed once: {a.kind.name} for {count_text(count, 'micro-batch')} in all"
            if a.first is not None and count:
                help = "micro-batches are numbered from 0 in their pipe, and a range includes both ends"
            elif kind == RECOMPUTATION:
                help = "each micro-batch is recomputed at most once, before its backward"
            raise refuse("E306", message, a.span, label, help=help)
        return first, last

    def _add(self, rank: Rank, a: n.TaskAction, kind: int, cell: Cell, first: int, last: int) -> None:
        """List a task of the micro-batches first .. last, counted within the pipe.

        Raises ChimeraError E302 if the task of one of them is listed already.
        """
        ids = cell.micro_batches
        operand = ids[first] if first == last else self.lists.number(ids[first : last + 1])
        meaning = cell.meanings.get(id(a))
        if meaning is None:
            meaning = cell.meanings[id(a)] = len(self.meanings)
            span = self.spans.setdefault(a.span, len(self.spans))
            self.meanings.append((kind, cell.pipe, cell.stage, a.overlap, span))
        duplicate = rank.add(meaning, kind, cell, first, last, operand)
        if duplicate is not None:
            name = self.spec.header.pipes[cell.pipe].name
            message = f"rank {rank.number} lists {a.kind.name} of {name} s{cell.stage}, micro-batch {duplicate} a second time"
            raise refuse("E302", message, a.span, help="keep one of them")


def order_by_listing(spec: Spec, order: ListingOrder, budget: Budget) -> Ordered:
    """Return the tasks that every rank lists.

    Raises ChimeraError: E301 a task that is not listed, E302 a task that is listed twice, or a full and a split backward of one
    micro-batch, E306 a task that does not exist or is not determined, or loops with too many repetitions; E205, E206 and E211
    (`evaluate`).
    """
    h = spec.header
    ranks = [Rank(r) for r in range(h.ranks)]
    for p, x in enumerate(h.pipes):
        for s, r in enumerate(x.placement):
            ranks[r].cells.append(Cell(p, s, x.micro_batches, bytearray(len(x.micro_batches))))
    lister = _Lister(spec, order, budget)
    for rank in ranks:
        lister.run(rank, order.actions, {**order.env, order.rank: rank.number})
    found = _omitted_or_mixed(spec, order, ranks)
    if found:
        raise ChimeraError(found)
    meaning, operand = np.concatenate([np.array(rank.rows, np.int64) for rank in ranks]).reshape(-1, 2).T.copy()
    op, pipe, stage, overlap, origin = np.array(lister.meanings, np.int64).reshape(-1, 5)[meaning].T.copy()
    offsets = np.concatenate([[0], np.cumsum([len(rank.rows) // 2 for rank in ranks])])
    program = task_program(spec, lister.lists, op, pipe, stage, operand, overlap, offsets)
    return Ordered(program, origin, tuple(lister.spans))


def _omitted_or_mixed(spec: Spec, order: ListingOrder, ranks: list[Rank]) -> list[Diagnostic]:
    """Return the findings about tasks that a listing omits, and about micro-batches with a full and a split backward.

    Stages that omit the same kinds share one finding.
    """
    omitted_by_kinds: dict[str, list[str]] = {}
    mixed: list[Diagnostic] = []
    for rank in ranks:
        for cell in rank.cells:
            if not cell.listed.strip(_COMPLETE):  # nothing is left if all micro-batches are complete
                continue
            name = f"{spec.header.pipes[cell.pipe].name} s{cell.stage}"
            bits = np.frombuffer(cell.listed, np.uint8)
            forward, full, inputs, weights, _ = ((bits & 1 << kind).astype(bool) for kind in KINDS.values())
            half_i, half_w = inputs & ~weights & ~full, weights & ~inputs & ~full
            # By kind: the micro-batches that omit it.
            masks = {"F": ~forward, "B": ~full & ~inputs & ~weights, "W": half_i, "I": half_w}
            kinds_by_mask: dict[bytes, list[str]] = {}
            for kind, mask in masks.items():
                if mask.any():
                    kinds_by_mask.setdefault(mask.tobytes(), []).append(kind)
            if kinds_by_mask:
                omitted = ", and ".join(_tasks_in_words(kinds, name, masks[kinds[0]]) for kinds in kinds_by_mask.values())
                key = ", ".join(kind for kinds in kinds_by_mask.values() for kind in kinds)
                omitted_by_kinds.setdefault(key, []).append(f"rank {rank.number} never lists {omitted}")
            is_mixed = full & (inputs | weights)
            if is_mixed.any() and len(mixed) < MAX_FOUND:
                message = f"rank {rank.number} lists a full and a split backward of {name}, micro-batch {is_mixed.argmax()}"
                mixed.append(Diagnostic("E302", message, order.span, help="keep B, or I and W"))
    omissions = []
    for kinds, (first, *others) in omitted_by_kinds.items():
        more = f"\n... and {len(others) - MAX_NOTED} more" if len(others) > MAX_NOTED else ""
        notes = ("\n".join(others[:MAX_NOTED]) + more,) if others else ()
        omissions.append(Diagnostic("E301", first, order.span, notes=notes, help=f"list the missing {kinds}"))
    return [*omissions, *mixed]


def _tasks_in_words(kinds: list[str], name: str, mask: npt.NDArray[np.bool_]) -> str:
    """Return 'F and B of main s0, micro-batch 7': omitted tasks.

    Args:
        mask: the micro-batches that omit these kinds.
    """
    more = f" ({mask.sum()} such micro-batches)" if mask.sum() > 1 else ""
    return f"{' and '.join(kinds)} of {name}, micro-batch {mask.argmax()}{more}"
