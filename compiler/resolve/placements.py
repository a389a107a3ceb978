"""The rank of every stage of every pipe, and which stages recompute (E211, E220 to E222)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, refuse
from chimerac.chimera_ir.program import Pipe
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import Env, scalar, values_at, values_of
from chimerac.compiler.resolve.nearby import pipe_variants
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import as_written, shifted

MAX_SEARCH = 2**20  # operations of the search for a change that corrects a placement


@dataclass(slots=True)
class PipeDeclaration:
    """The pipes of one declaration.

    Attributes:
        indices: the number of each pipe -> its index in the family; 0 for a single pipe.
    """

    node: n.PipeDecl
    indices: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankCount:
    """The number of ranks, and the expression that gives it."""

    count: int
    expression: n.Expr


def pipes_of(
    schedule: n.Schedule, env: Env, ranks: RankCount, stages: int, budget: Budget
) -> tuple[tuple[Pipe, ...], dict[str, PipeDeclaration]]:
    """Return the pipes of a schedule, and the declarations of pipes by name.

    Raises ChimeraError: E211 for no pipe or too many, and for an index of a family or a number of micro-batches that is not
    allowed; E220 to E222 for a wrong placement; E205, E206 and E211 (`evaluate`).
    """
    pipes: list[Pipe] = []
    declared: dict[str, PipeDeclaration] = {}
    first_micro_batch = 0  # of the next pipe: micro-batches are numbered across all pipes
    for decl in (s for s in schedule.statements if isinstance(s, n.PipeDecl)):
        declaration = declared[decl.name.name] = PipeDeclaration(decl)
        for index, name, inner in _members(decl, env, budget):
            _check_pipe_count(decl, len(pipes) + 1, stages)
            count = scalar(decl.micro_batches, inner, budget)
            if not (count >= 0 and (first_micro_batch + count) * stages <= limits.TASKS // 2):
                maximum = limits.TASKS // 2 // stages
                message = f"pipe {name} has {count} micro-batches; allowed are 0 or more, and {maximum} over all pipes"
                label = values_of(decl.micro_batches, inner)
                help = f"stages x micro-batches are at most {limits.TASKS // 2}, two tasks each"
                raise refuse("E211", message, decl.micro_batches.span, label, help=help)
            placement = _placement(decl, name, inner, ranks, stages, budget)
            if isinstance(placement, Diagnostic):
                help = _placement_help(decl, inner, ranks, stages, placement, budget)
                raise ChimeraError([replace(placement, help=help or placement.help)])
            declaration.indices[len(pipes)] = index
            pipes.append(Pipe(name, placement, tuple(range(first_micro_batch, first_micro_batch + count))))
            first_micro_batch += count
    if not pipes:
        decl = next(s for s in schedule.statements if isinstance(s, n.PipeDecl))
        raise refuse("E211", "the schedule has no pipes: every family is empty", decl.span)
    return tuple(pipes), declared


def _check_pipe_count(decl: n.PipeDecl, pipes: int, stages: int) -> None:
    """Raise ChimeraError E211 if this number of pipes exceeds a limit.

    Args:
        decl: the declaration of the last one.
    """
    for what, count, most in (
        ("pipes", pipes, limits.PIPES),
        (f"pipes x {stages} stages", pipes * stages, limits.CELLS),
        (f"pipes x {len(decl.stages)} stage clauses", pipes * len(decl.stages), limits.FORMULAS),
    ):
        if count > most:
            message = f"{pipes} or more {what} are too many; at most {most}"
            raise refuse("E211", message, decl.span, help="declare fewer pipes, or smaller families")


def _members(decl: n.PipeDecl, env: Env, budget: Budget) -> Iterator[tuple[int, str, Env]]:
    """Yield for each pipe of a declaration its index in the family, its name, and the values of the names that it may use."""
    if decl.family is None:
        yield 0, decl.name.name, env
        return
    low, high = _bounds(decl.family.range, env, budget)
    if low <= high and (low < 0 or high > limits.RANKS):
        raise refuse("E211", f"the family's index runs from {low} to {high}; allowed is 0 to {limits.RANKS}", decl.family.span)
    for i in range(low, high + 1):
        yield i, f"{decl.name.name}[{i}]", {**env, decl.family.binder.name: i}


def _placement(
    decl: n.PipeDecl, pipe: str, env: Env, ranks: RankCount, stages: int, budget: Budget
) -> tuple[int, ...] | Diagnostic:
    """Return the rank of every stage of a pipe, or the first finding about it.

    Args:
        pipe: its name.
    """
    placement = np.full(stages, -1, np.int64)
    for clause in decl.stages:
        budget.spend(8, clause.span)  # for the clause itself, besides its expressions
        low, high = 0, stages - 1
        if clause.range:
            low, high = _bounds(clause.range, env, budget)
            if low <= high and not (low >= 0 and high < stages):
                message = f"pipe {pipe} places stages {low} .. {high}, but stages are 0 .. {stages - 1}"
                help = "a range includes both ends" if high == stages else f"the statement 'stages' gives {stages}"
                return Diagnostic("E220", message, clause.range.span, help=help)
        placed = np.arange(low, high + 1, dtype=np.int64)  # the stages of the clause
        rank = values_at(clause.rank, {**env, clause.binder.name: placed}, len(placed), budget)
        outside = (rank < 0) | (rank >= ranks.count)
        if outside.any():
            s = int(placed[np.argmax(outside)])
            message = (
                f"stage {s} of pipe {pipe} is placed on rank {rank[np.argmax(outside)]}, but ranks are 0 .. {ranks.count - 1}"
            )
            label = values_of(clause.rank, {**env, clause.binder.name: s})
            old, new = as_written(clause.rank), f"{as_written(clause.rank, True)} % {as_written(ranks.expression, True)}"
            help = f"write '{new}' instead of '{old}'; stages then wrap around"
            if ((rank > 0) & (rank <= ranks.count)).all():
                help = f"write '{shifted(clause.rank, -1)}' instead of '{old}'; ranks count from 0"
            return Diagnostic("E220", message, clause.rank.span, label, help=help)
        is_placed_twice = placement[placed] >= 0
        if is_placed_twice.any():
            s = int(placed[np.argmax(is_placed_twice)])
            message = f"stage {s} of pipe {pipe} is placed twice, on rank {placement[s]} and on rank {rank[s - low]}"
            return Diagnostic("E222", message, clause.span, help="a second copy of a stage needs a pipe of its own")
        placement[placed] = rank
    missing = np.flatnonzero(placement < 0)
    if missing.size:
        message = f"stage {missing[0]} of pipe {pipe} is never placed"
        if missing.size > 1:
            is_range = missing[-1] - missing[0] + 1 == missing.size
            how_many = "" if is_range else f"{missing.size} of "
            message = f"{how_many}stages {missing[0]} .. {missing[-1]} of pipe {pipe} are never placed"
        last = missing[0] + np.argmin(np.append(np.diff(missing) == 1, False))  # of the first missing stages without a gap
        return Diagnostic("E221", message, decl.span, help=f"place it: stage s in {missing[0]} .. {last} on rank ...")
    return tuple(placement.tolist())


def _placement_help(decl: n.PipeDecl, env: Env, ranks: RankCount, stages: int, d: Diagnostic, budget: Budget) -> str:
    """Return the help for a finding: a change of the pipe that was tried and corrects it; '' if none is found.

    With the change, every stage is placed exactly once, and no more ranges are empty than before.

    Args:
        d: the finding.
    """
    assert d.span is not None
    trials = Budget(min(budget.left, MAX_SEARCH))
    for changed, edits, why in pipe_variants(decl, d.span):
        if trials.left <= 0:
            return ""
        try:
            if _empty_range_count(changed, env, trials) > _empty_range_count(decl, env, trials):
                continue
            is_correct = not isinstance(_placement(changed, "", env, ranks, stages, trials), Diagnostic)
        except ChimeraError:  # the changed formula divides by zero, has too large a value or takes too much work
            continue
        if is_correct:
            writes = [f"{'' if d.span == span else f'{span}: '}write '{new}' instead of '{span.text}'" for span, new in edits]
            return "\n".join(writes) + f"; {why}"
    return ""


def _empty_range_count(decl: n.PipeDecl, env: Env, budget: Budget) -> int:
    """Return how many ranges of a pipe's stages are empty."""
    return sum(low > high for low, high in (_bounds(c.range, env, budget) for c in decl.stages if c.range))


def recompute_of(
    declared: Mapping[str, PipeDeclaration], env: Env, stages: int, budget: Budget
) -> tuple[tuple[bool, ...], ...]:
    """Return for every pipe and stage whether the stage recomputes: its forward keeps only its input and is run again."""
    result = []
    for declaration in declared.values():
        for index in declaration.indices.values():
            family = declaration.node.family
            inner = {**env, family.binder.name: index} if family else env
            recomputed = np.zeros(stages, bool)
            for clause in declaration.node.stages:
                low, high = (0, stages - 1) if clause.range is None else _bounds(clause.range, inner, budget)
                placed = np.arange(low, high + 1, dtype=np.int64)  # the stages of the clause
                if clause.recompute is not None:
                    condition, names = clause.recompute.condition, {**inner, clause.binder.name: placed}
                    recomputed[placed] = True if condition is None else values_at(condition, names, len(placed), budget, bool)
            result.append(tuple(recomputed.tolist()))
    return tuple(result)


def _bounds(r: n.Range, env: Env, budget: Budget) -> tuple[int, int]:
    """Return the low and the high end of a range, both included."""
    return scalar(r.low, env, budget), scalar(r.high, env, budget)
