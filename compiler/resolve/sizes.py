"""Sizes, placements, costs and tied parameters (E211, E220 to E222)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic, refuse
from chimerac.chimera_ir.program import Costs, Pipe, Tied
from chimerac.compiler.resolve.expressions import Env, scalar, values_at, values_of
from chimerac.compiler.resolve.nearby import placed_otherwise
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.printer import as_written, shifted


def size(e: n.Expr, env: Env, what: str, least: int) -> int:
    value = scalar(e, env)
    if not least <= value <= limits.RANKS:
        raise refuse("E211", f"{what} = {value}; allowed are {least} to {limits.RANKS}", e.span, values_of(e, env))
    return value


def micro_batch_size(schedule: n.Schedule) -> tuple[int, int]:
    """Return numerator and denominator of a micro-batch's size."""
    for s in schedule.statements:
        if isinstance(s, n.Size):
            if not (1 <= s.numerator <= limits.RANKS and 1 <= s.denominator <= limits.RANKS):
                message = f"the size {s.numerator}/{s.denominator}: both parts lie between 1 and {limits.RANKS}"
                raise refuse("E211", message, s.span)
            return s.numerator, s.denominator
    return 1, 1


def limits_of(schedule: n.Schedule, env: Env) -> dict[str, int]:
    """Return the most that a rank may hold, by name."""
    result = {}
    for s in (s for s in schedule.statements if isinstance(s, n.MemoryLimit)):
        result[s.what.name] = value = scalar(s.value, env)
        if not 0 <= value < 2**31:
            message = f"the limit of {s.what.name} is {value}; allowed are 0 to {2**31 - 1}"
            raise refuse("E211", message, s.value.span, values_of(s.value, env))
    return result


@dataclass(slots=True)
class Declared:
    """The pipes of one declaration: pipe id -> index in the family. binder: the family's name for it."""

    decl: n.PipeDecl
    ids: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many, and the text that says so."""

    count: int
    written: n.Expr


def pipes_of(schedule: n.Schedule, env: Env, ranks: Ranks, stages: int) -> tuple[tuple[Pipe, ...], dict[str, Declared]]:
    pipes: list[Pipe] = []
    declared: dict[str, Declared] = {}
    found: list[Diagnostic] = []
    first = 0
    for decl in (s for s in schedule.statements if isinstance(s, n.PipeDecl)):
        mine = declared[decl.name.name] = Declared(decl)
        for index, name, inner in _members(decl, env):
            _room(decl, len(pipes) + 1, stages)
            count = scalar(decl.micro_batches, inner)
            if not (count >= 0 and (first + count) * stages <= limits.TASKS // 2):
                most = limits.TASKS // 2 // stages
                message = f"pipe {name} has {count} micro-batches; allowed are 0 or more, and {most} over all pipes"
                label = values_of(decl.micro_batches, inner)
                help = f"stages x micro-batches are at most {limits.TASKS // 2}, two tasks each"
                raise refuse("E211", message, decl.micro_batches.span, label, help=help)
            placement = _placement(decl, name, inner, ranks, stages, found)
            if found:
                found[:] = [replace(d, help=_nearby(decl, inner, ranks, stages, d) or d.help) for d in found[:1]]
                break
            mine.ids[len(pipes)] = index
            pipes.append(Pipe(name, placement, tuple(range(first, first + count))))
            first += count
    if found:
        raise ChimeraError(found)
    if not pipes:
        decl = next(s for s in schedule.statements if isinstance(s, n.PipeDecl))
        raise refuse("E211", "the schedule has no pipes: every family is empty", decl.span)
    return tuple(pipes), declared


def _room(decl: n.PipeDecl, pipes: int, stages: int) -> None:
    """Refuse a pipe too many, as the number `pipes` so far."""
    for what, count, most in (
        ("pipes", pipes, limits.PIPES),
        (f"pipes x {stages} stages", pipes * stages, limits.CELLS),
        (f"pipes x {len(decl.stages)} stage clauses", pipes * len(decl.stages), limits.FORMULAS),
    ):
        if count > most:
            message = f"{pipes} or more {what} are too many; at most {most}"
            raise refuse("E211", message, decl.span, help="declare fewer pipes, or smaller families")


def _members(decl: n.PipeDecl, env: Env) -> Iterator[tuple[int, str, Env]]:
    if decl.family is None:
        yield 0, decl.name.name, env
        return
    low, high = _bounds(decl.family.range, env)
    if low < 0 or high > limits.RANKS:
        raise refuse("E211", f"the family's index runs from {low} to {high}; allowed is 0 to {limits.RANKS}", decl.family.span)
    for i in range(low, high + 1):
        yield i, f"{decl.name.name}[{i}]", {**env, decl.family.binder.name: i}


def _placement(decl: n.PipeDecl, pipe: str, env: Env, ranks: Ranks, stages: int, found: list[Diagnostic]) -> tuple[int, ...]:
    placement = np.full(stages, -1, np.int64)
    for clause in decl.stages:
        low, high = 0, stages - 1
        if clause.range:
            low, high = _bounds(clause.range, env)
            if low <= high and not (low >= 0 and high < stages):
                message = f"pipe {pipe} places stages {low} .. {high}, but stages are 0 .. {stages - 1}"
                help = "a range includes both ends" if high == stages else f"'stages' says that there are {stages}"
                found.append(Diagnostic("E220", message, clause.range.span, help=help))
                continue
        at = np.arange(low, high + 1, dtype=np.int64)
        rank = values_at(clause.rank, {**env, clause.binder.name: at}, len(at))
        outside = (rank < 0) | (rank >= ranks.count)
        if outside.any():
            s = int(at[np.argmax(outside)])
            message = (
                f"stage {s} of pipe {pipe} is placed on rank {rank[np.argmax(outside)]}, but ranks are 0 .. {ranks.count - 1}"
            )
            label = values_of(clause.rank, {**env, clause.binder.name: s})
            old, new = as_written(clause.rank), f"{as_written(clause.rank, True)} % {as_written(ranks.written, True)}"
            help = f"write '{new}' instead of '{old}'; stages then go round"
            if ((rank > 0) & (rank <= ranks.count)).all():
                help = f"write '{shifted(clause.rank, -1)}' instead of '{old}'; ranks count from 0"
            found.append(Diagnostic("E220", message, clause.rank.span, label, help=help))
            continue
        twice = placement[at] >= 0
        if twice.any():
            s = int(at[np.argmax(twice)])
            message = f"stage {s} of pipe {pipe} is placed twice, on rank {placement[s]} and on rank {rank[s - low]}"
            found.append(Diagnostic("E222", message, clause.span, help="a second copy of a stage needs a pipe of its own"))
        placement[at] = rank
    missing = np.flatnonzero(placement < 0)
    if missing.size and not found:
        message = f"stage {missing[0]} of pipe {pipe} is never placed"
        if missing.size > 1:
            every = missing[-1] - missing[0] + 1 == missing.size
            some = "" if every else f"{missing.size} of "
            message = f"{some}stages {missing[0]} .. {missing[-1]} of pipe {pipe} are never placed"
        found.append(
            Diagnostic("E221", message, decl.span, help=f"place it: stage s in {missing[0]} .. {missing[-1]} on rank ...")
        )
    return tuple(placement.tolist())


def _nearby(decl: n.PipeDecl, env: Env, ranks: Ranks, stages: int, d: Diagnostic) -> str:
    """Return a change of a pipe's text with which every stage is placed once on a rank; nothing if none was found."""
    assert d.span is not None
    for changed, span, new, why in placed_otherwise(decl, d.span):
        if _empty(changed, env) > _empty(decl, env):
            continue
        wrong: list[Diagnostic] = []
        _placement(changed, "", env, ranks, stages, wrong)
        if not wrong:
            return f"{'' if d.span == span else f'{span}: '}write '{new}' instead of '{span.text}'; {why}"
    return ""


def _empty(decl: n.PipeDecl, env: Env) -> int:
    """Return how many ranges of a pipe's stages are empty."""
    return sum(low > high for low, high in (_bounds(c.range, env) for c in decl.stages if c.range))


def recompute_of(declared: Mapping[str, Declared], env: Env, stages: int) -> tuple[tuple[bool, ...], ...]:
    """Return, per pipe and stage, whether the forward keeps only its input and is run again before the backward."""
    result = []
    for mine in declared.values():
        for index in mine.ids.values():
            family = mine.decl.family
            inner = {**env, family.binder.name: index} if family else env
            again = np.zeros(stages, bool)
            for clause in mine.decl.stages:
                low, high = (0, stages - 1) if clause.range is None else _bounds(clause.range, inner)
                at = np.arange(low, high + 1, dtype=np.int64)
                if clause.recompute is not None:
                    condition, point = clause.recompute.condition, {**inner, clause.binder.name: at}
                    again[at] = True if condition is None else values_at(condition, point, len(at), bool)
            result.append(tuple(again.tolist()))
    return tuple(result)


def _bounds(r: n.Range, env: Env) -> tuple[int, int]:
    return scalar(r.low, env), scalar(r.high, env)


def costs_of(schedule: n.Schedule, env: Env, stages: int) -> Costs:
    """Return the costs of tasks: F = I = W = 1 unless given, B = I + W unless given."""
    values: dict[str, tuple[int, ...]] = {}
    for cost in all_costs(schedule):
        at = np.arange(stages, dtype=np.int64)
        inner = {**env, cost.stage.name: at} if cost.stage else env
        value = values_at(cost.value, inner, stages)
        outside = (value < 0) | (value > limits.COST)
        if outside.any():
            s = int(np.argmax(outside))
            of = f" at stage {s}" if cost.stage else ""
            allowed = f"allowed are 0 to 2^{limits.COST.bit_length() - 1}"
            label = values_of(cost.value, {**env, cost.stage.name: s} if cost.stage else env)
            raise refuse("E211", f"the cost of {cost.kind.name} is {value[s]}{of}; {allowed}", cost.value.span, label)
        values[cost.kind.name] = tuple(value.tolist())
    one = (1,) * stages
    inputs, weights = values.get("I", one), values.get("W", one)
    both = tuple(i + w for i, w in zip(inputs, weights, strict=True))
    return Costs(values.get("F", one), values.get("B", both), inputs, weights, values.get("hop", (0,))[0])


def all_costs(schedule: n.Schedule) -> Iterator[n.Cost]:
    """Yield the costs of a schedule, those in a greedy block too."""
    for s in schedule.statements:
        for statement in [s] if isinstance(s, n.CostStatement) else s.costs if isinstance(s, n.Greedy) else []:
            yield from statement.costs


def tied_of(schedule: n.Schedule, env: Env, stages: int) -> tuple[Tied, ...]:
    result = []
    for decl in (s for s in schedule.statements if isinstance(s, n.TiedDecl)):
        members = [scalar(e, env) for e in decl.stages]
        for e, s in zip(decl.stages, members, strict=True):
            if not 0 <= s < stages:
                message = f"tied {decl.name.name} names stage {s}, but stages are 0 .. {stages - 1}"
                raise refuse("E220", message, e.span, help="stages count from 0")
        if len(set(members)) < 2:
            message = f"tied {decl.name.name} names one stage; parameters are tied between at least two"
            raise refuse("E220", message, decl.span, label=f"stage {members[0]}", help="name another stage too, or remove it")
        result.append(Tied(decl.name.name, tuple(members)))
    return tuple(result)
