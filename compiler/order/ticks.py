"""The order form `ticks`: each task has a tick, a logical time, and a rank executes its tasks in the order of their ticks."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, Span, refuse
from chimerac.chimera_ir.instructions import FORMS, Op
from chimerac.chimera_ir.program import Ints
from chimerac.compiler.order.ordered import MicroBatchLists, Ordered, formatted, plus, task_program
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import evaluate, subset, values_at
from chimerac.compiler.resolve.spec import Filling, Formula, Spec, TicksOrder
from chimerac.compiler.syntax.kinds import KINDS
from chimerac.compiler.syntax.nodes import Range

MAX_FOUND = 20  # findings about equal ticks, at most; after so many about omitted or repeated tasks, no further pipe is checked
MAX_NAMED = 8  # omitted micro-batches, conditions, or other formulas that a finding names, at most


@dataclass(frozen=True, slots=True)
class _FormulaTasks:
    """The tasks that one formula places.

    Attributes:
        formula: its number.
        stage, operand, tick: one entry per task.
        operand: the number of its list of micro-batches.
        each_stage, each_id: one entry per micro-batch of each task: the task's stage, and the number of the micro-batch in the
            program.
    """

    formula: int
    op: int
    pipe: int
    stage: Ints
    operand: Ints
    tick: Ints
    each_stage: Ints
    each_id: Ints


def order_by_ticks(spec: Spec, order: TicksOrder, budget: Budget) -> Ordered:
    """Return every rank's tasks in the order of their ticks.

    Raises ChimeraError: E303 two tasks of one rank on one tick, except a W that `fill` places on the tick of its I; and what
    `order_with_ties` raises.
    """
    ordered, tick = order_with_ties(spec, order, budget)
    collides = (np.diff(tick) == 0) & (np.diff(ordered.program.rank_of) == 0)  # with the next row
    if order.filling is not None and collides.any():
        collides &= ~_is_before_its_weight_gradient(ordered)  # `fill` may place a W on the tick of its I
    if collides.any():
        raise ChimeraError(_collisions(ordered, np.flatnonzero(collides), tick))
    return ordered


def order_with_ties(spec: Spec, order: TicksOrder, budget: Budget) -> tuple[Ordered, Ints]:
    """Return every rank's tasks in the order of their ticks, and the ticks.

    Tasks of one rank on one tick are accepted, in the order of the formulas. Those of `fill` come last. `order_by_ticks`
    refuses such tasks. compiler/diagnose/suggest.py reads this order, to suggest an edit that changes little of it.

    Raises ChimeraError: E301 a task without a formula, or a group that begins before micro-batch 0; E302 a task with two
    formulas or in two groups, or a full and a split backward of one micro-batch and stage; E205, E206 and E211 (`evaluate`).
    """
    h, lists = spec.header, MicroBatchLists(spec.header.micro_batches)
    placed, remaining = [], len(KINDS) * h.stages * h.micro_batches
    for number, f in enumerate(order.formulas):
        placed.append(_place(spec, lists, number, f, budget))
        remaining -= len(placed[-1].each_id)
        if remaining < 0:  # more than all tasks of all kinds: some task has been placed twice
            break
    _check_complete(spec, order, placed, budget)
    formula = np.concatenate([np.full(len(p.stage), p.formula) for p in placed])
    op = np.concatenate([np.full(len(p.stage), p.op) for p in placed])
    pipe = np.concatenate([np.full(len(p.stage), p.pipe) for p in placed])
    stage = np.concatenate([p.stage for p in placed])
    operand = np.concatenate([p.operand for p in placed])
    tick = np.concatenate([p.tick for p in placed])
    rank = np.array([p.placement for p in h.pipes], np.int64)[pipe, stage]
    spans = [f.span for f in order.formulas]
    if order.filling is not None:
        inputs = np.flatnonzero(op == Op.BWD_INPUT)
        inputs = inputs[np.lexsort((tick[inputs], rank[inputs]))]
        filled = _fill(order.filling, rank[inputs], tick[inputs], budget)
        tick, op = np.concatenate([tick, filled]), np.concatenate([op, np.full(len(inputs), Op.BWD_WEIGHT)])
        formula = np.concatenate([formula, np.full(len(inputs), len(spans))])
        pipe, stage, operand, rank = (np.concatenate([x, x[inputs]]) for x in (pipe, stage, operand, rank))
        spans.append(order.filling.span)
    by_tick = np.lexsort((tick, rank))  # of equal ticks, the W that is filled in comes last
    op, pipe, stage, operand, tick, rank, formula = (x[by_tick] for x in (op, pipe, stage, operand, tick, rank, formula))
    offsets = np.searchsorted(rank, np.arange(h.ranks + 1))
    program = task_program(spec, lists, op, pipe, stage, operand, np.zeros(len(op), np.int64), offsets)
    return Ordered(program, formula, tuple(spans)), tick


def _fill(filling: Filling, rank: Ints, input_tick: Ints, budget: Budget) -> Ints:
    """Return the ticks of the weight gradients that `fill` places, given the ranks and the ticks of their input gradients.

    The input gradients are sorted by rank, then by tick. A weight gradient that the formula places before its input gradient
    gets the tick of its input gradient.
    """
    count = len(rank)
    budget.spend(64 + count // 4, filling.span)
    number = np.arange(count, dtype=np.int64) - np.searchsorted(rank, rank)
    env = {**filling.env, filling.rank: rank, filling.number: number}
    for let in filling.lets if count else ():
        env[let.name.name] = evaluate(let.value, env, budget)
    return np.maximum(values_at(filling.tick, env, count, budget), input_tick)


def _is_before_its_weight_gradient(ordered: Ordered) -> npt.NDArray[np.bool_]:
    """Return, for every row but the last, whether it is an I and the next row is its W."""
    t = ordered.program.table
    result: npt.NDArray[np.bool_] = (t.op[:-1] == Op.BWD_INPUT) & (t.op[1:] == Op.BWD_WEIGHT)
    for column in (t.pipe, t.stage, t.operand):
        result &= column[:-1] == column[1:]
    return result


def _place(spec: Spec, lists: MicroBatchLists, number: int, f: Formula, budget: Budget) -> _FormulaTasks:
    """Return the tasks that a formula places.

    Args:
        number: of the formula.
    """
    pipe = spec.header.pipes[f.pipe]
    budget.spend(64 + spec.header.stages * len(pipe.micro_batches) // 16, f.span)
    low, high, counter = _groups(f, len(pipe.micro_batches), budget)
    ids = np.array(pipe.micro_batches, np.int64)
    if f.group is None:
        operand_of = ids[low]
    else:
        budget.spend(int((high - low + 1).sum()), f.group.span)
        groups = [pipe.micro_batches[a : b + 1] for a, b in zip(low.tolist(), high.tolist(), strict=True)]
        operand_of = np.array([lists.number(g) for g in groups], np.int64)
    stage = np.repeat(np.arange(spec.header.stages, dtype=np.int64), len(low))
    group = np.tile(np.arange(len(low), dtype=np.int64), spec.header.stages)
    env = {**f.env, f.stage: stage, f.micro_batch: low[group]} | ({f.counter: counter[group]} if f.counter else {})
    for let in f.lets if len(stage) else ():  # without tasks nothing is computed, also no let with one value for all tasks
        env[let.name.name] = evaluate(let.value, env, budget)
    if f.condition is not None:
        holds = values_at(f.condition, env, len(stage), budget, bool)
        env, stage, group = subset(env, holds, budget, f.condition.span), stage[holds], group[holds]
    tick = values_at(f.tick, env, len(stage), budget)
    count = (high - low + 1)[group]
    budget.spend(int(count.sum()) // 2, f.span)
    offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    each_id = ids[np.repeat(low[group], count) + offset]
    return _FormulaTasks(number, int(f.kind), f.pipe, stage, operand_of[group], tick, np.repeat(stage, count), each_id)


def _groups(f: Formula, count: int, budget: Budget) -> tuple[Ints, Ints, Ints]:
    """Return the first and last micro-batch of every group, and the numbers of the groups.

    Args:
        count: the pipe's micro-batches.

    Micro-batches are numbered within the pipe. A group ends at the pipe's last micro-batch at the latest. Groups that are empty
    or begin after it are left out. Without `m = LOW .. HIGH` every micro-batch is a group. Raises ChimeraError E301 for a group
    that begins before micro-batch 0.
    """
    numbers = np.arange(count, dtype=np.int64)
    if f.group is None:
        return numbers, numbers, numbers
    env = {**f.env, f.counter: numbers}
    low, high = (values_at(e, env, count, budget) for e in (f.group.low, f.group.high))
    if (low < 0).any():
        g = int(np.argmax(low < 0))
        raise refuse("E301", f"group {g} begins at micro-batch {low[g]}", f.group.span, help="groups begin at 0 or later")
    kept = (low < count) & (low <= high)
    return low[kept], np.minimum(high, count - 1)[kept], numbers[kept]


def _check_complete(spec: Spec, order: TicksOrder, placed: list[_FormulaTasks], budget: Budget) -> None:
    """Check that every (stage, micro-batch) has one F, at most one R, and either one B, or one I and one W.

    With a fill every I has its W. Raises ChimeraError E301 and E302.

    Args:
        placed: the tasks of the formulas, or of the first ones if these place too many.
    """
    h = spec.header
    found: list[Diagnostic] = []
    by_pipe: dict[int, list[_FormulaTasks]] = {}
    for tasks in placed:
        by_pipe.setdefault(tasks.pipe, []).append(tasks)
    for p, pipe in enumerate(h.pipes):
        if len(found) >= MAX_FOUND:
            break
        pipe_tasks = by_pipe.get(p, [])
        first, count = (pipe.micro_batches[0] if pipe.micro_batches else 0), len(pipe.micro_batches)
        counts = np.zeros((len(KINDS), h.stages, count), np.int64)
        for tasks in pipe_tasks:
            np.add.at(counts[tasks.op], (tasks.each_stage, tasks.each_id - first), 1)
        is_partial = len(placed) < len(order.formulas)
        found += _duplicate_findings(spec, order, pipe_tasks, counts, p, is_partial)
        if is_partial:
            continue  # the other formulas have not placed their tasks, so nothing is known to be missing
        forward, full, inputs, weights, _ = counts > 0
        missing_backward = "B(s, m) at ..., or I and W"
        if order.filling is not None:
            weights, missing_backward = inputs, "B(s, m) at ..., or I, whose W the fill places"
        for missing, letter, addition in (
            (~forward, "F", "F(s, m) at s + m"),
            (~full & ~inputs & ~weights, "B", missing_backward),
            (inputs & ~weights & ~full, "W", "W(s, m) at ..., the weight gradient that belongs to I"),
            (weights & ~inputs & ~full, "I", "I(s, m) at ..., the input gradient that belongs to W"),
        ):
            if missing.any():
                s, m = np.argwhere(missing)[0]
                many = f" ({missing.sum()} such tasks)" if missing.sum() > 1 else ""
                message = f"no formula places {letter} of pipe {pipe.name}, stage {s}, micro-batch {m}{many}"
                grouped = [f for f in order.formulas if f.pipe == p and f.kind == KINDS[letter] and f.group]
                if grouped:
                    found.append(_omission_finding(message, grouped, count, np.flatnonzero(missing[s]), budget))
                else:
                    found.append(_unplaced_finding(message, order, p, KINDS[letter], f"add: {addition}"))
        is_mixed = full & (inputs | weights)
        if is_mixed.any():
            s, m = np.argwhere(is_mixed)[0]
            message = f"pipe {pipe.name}, stage {s}, micro-batch {m} has a full backward B and a split one"
            found.append(Diagnostic("E302", message, order.span, help="keep B, or I and W"))
    if found:
        raise ChimeraError(found)


def _unplaced_finding(message: str, order: TicksOrder, pipe: int, kind: Op, help: str) -> Diagnostic:
    """Return E301 for a task that no formula places: its pipe has no formula of its kind, or none whose `when` holds.

    Args:
        help: for an order without a formula of this kind.
    """
    formulas = [f for f in order.formulas if f.kind == kind]
    of_pipe, other_spans = [f for f in formulas if f.pipe == pipe], {f.span for f in formulas if f.pipe != pipe}
    if not of_pipe and formulas:
        help = f"all formulas of {FORMS[kind].letter} are for other pipes: add one for this pipe, or one that names no pipe"
    if not of_pipe:
        return Diagnostic("E301", message, order.span, help=help)
    conditions = ", ".join(f"{f.condition.span.text} (line {f.span.line})" for f in of_pipe[:MAX_NAMED] if f.condition)
    notes = (
        ("a formula that names a pipe takes the place of those that name none",)
        if other_spans - {f.span for f in of_pipe}
        else ()
    )
    return Diagnostic("E301", message, of_pipe[0].span, "places others", notes, f"no 'when' holds there: {conditions}")


def _omission_finding(message: str, formulas: list[Formula], count: int, missing: Ints, budget: Budget) -> Diagnostic:
    """Return E301 for groups that omit micro-batches. Another range is suggested only if it omits and repeats none.

    Args:
        missing: the omitted micro-batches of a stage.
        count: the pipe's micro-batches.
    """
    first, group = formulas[0], formulas[0].group
    assert group is not None
    more = ", ..." if len(missing) > MAX_NAMED else ""
    groups = "groups whose 'when' holds" if any(f.condition for f in formulas) else "groups"
    help = f"the {groups} leave out {first.micro_batch} = {', '.join(map(str, missing[:MAX_NAMED]))}{more}"
    longer = _longer_groups(first, group, count, budget) if len(formulas) == 1 and first.condition is None else None
    if longer is not None:
        help += f": write {first.micro_batch} = {formatted(longer.low)} .. {formatted(longer.high)}"
    return Diagnostic("E301", message, group.span, "these groups", help=help)


def _longer_groups(f: Formula, group: Range, count: int, budget: Budget) -> Range | None:
    """Return a range in which all groups of a formula are longer by one amount, so that they omit and repeat no micro-batch.

    Args:
        count: the pipe's micro-batches.

    Returns None if there is no such amount.
    """
    try:
        low, high, _ = _groups(f, count, budget.share())
        gap = int((low[1] if len(low) > 1 else count) - high[0]) - 1 if len(low) else 0
        longer = Range(group.low, plus(group.high, gap), span=group.span)
        if gap > 0:
            low, high, _ = _groups(replace(f, group=longer), count, budget.share())
    except ChimeraError:  # the longer range has too large a value, or takes too much work
        return None
    return longer if gap > 0 and low[0] == 0 and high[-1] == count - 1 and (low[1:] == high[:-1] + 1).all() else None


def _duplicate_findings(
    spec: Spec, order: TicksOrder, pipe_tasks: list[_FormulaTasks], counts: Ints, pipe: int, is_partial: bool
) -> list[Diagnostic]:
    """Return E302 for the first task of a pipe that is placed more than once, [] if there is none.

    Args:
        counts: how often each task is placed, by kind, stage and micro-batch.
        is_partial: whether there are formulas that have not placed their tasks.
    """
    if counts.max(initial=0) <= 1:
        return []
    op, s, m = np.argwhere(counts > 1)[0]
    ids = spec.header.pipes[pipe].micro_batches
    placing = [tasks for tasks in pipe_tasks if tasks.op == op and ((tasks.each_stage == s) & (tasks.each_id == ids[m])).any()]
    formulas = [order.formulas[tasks.formula] for tasks in placing]
    name = f"{FORMS[op].letter} of pipe {spec.header.pipes[pipe].name}, stage {s}, micro-batch {m}"
    if len(formulas) == 1:
        return [
            Diagnostic(
                "E302",
                f"{counts[op, s, m]} groups hold {name}",
                formulas[0].span,
                "of this formula",
                help="change the groups so that they do not overlap",
            )
        ]
    notes = [f"also by {f.span}" for f in formulas[1 : 1 + MAX_NAMED]]
    if len(formulas) > 1 + MAX_NAMED:
        notes.append("...")
    help = "remove one, or narrow it with 'when'"
    # Formulas that have not placed their tasks yet may place it too.
    number = f"{'at least ' if is_partial else ''}{len(formulas)}"
    return [Diagnostic("E302", f"{number} formulas place {name}", formulas[0].span, "one of them", tuple(notes), help)]


def _collisions(ordered: Ordered, rows: Ints, tick: Ints) -> list[Diagnostic]:
    """Return one finding for each pair of formulas that place a row of `rows` and the row after it, with the first such rows.

    There are at most MAX_FOUND findings. A pair may be one formula twice, and the fill counts as a formula.

    Args:
        rows: each collides with the row after it, which is on the same rank and has the same tick.
        tick: of every row.
    """
    program = ordered.program
    pairs: dict[tuple[int, int], list[int]] = {}
    for row in rows.tolist():
        pairs.setdefault((int(ordered.origin[row]), int(ordered.origin[row + 1])), []).append(row)
    found = []
    for collisions in list(pairs.values())[:MAX_FOUND]:
        row = collisions[0]
        rank = int(program.rank_of[row])
        message = f"rank {rank} has two tasks on tick {tick[row]}: {program.text(row)} and {program.text(row + 1)}"
        notes = [f"{program.text(row + 1)} is placed by {_line(ordered.span(row + 1))}"]
        if len(collisions) > 1:
            first, second = (" ".join(program.text(r).split()[:2]) for r in (row, row + 1))  # such as 'FWD down'
            notes.append(f"{len(collisions)} such pairs of {first} and {second}")
        help = "shift one formula; a rank runs one task at a time"
        if ordered.span(row) == ordered.span(row + 1):
            help = "one formula places both: change its ticks so that they differ"
            if program.table.stage[row] != program.table.stage[row + 1]:
                help += ", or place their stages on different ranks"
            if ordered.origin[row] != ordered.origin[row + 1]:  # one rule, which is a formula for each of several pipes
                help = "one formula places both: write one for each pipe, or place their stages on different ranks"
        found.append(Diagnostic("E303", message, ordered.span(row), f"places {program.text(row)}", tuple(notes), help))
    return found


def _line(span: Span) -> str:
    """Return 'NAME:LINE: TEXT': the line of the text on which a span begins."""
    return f"{span.source.name}:{span.line}: {span.source.line(span.line).strip()}"
