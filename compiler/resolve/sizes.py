"""Sizes, costs, limits and tied parameters (E211, E220)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chimerac.chimera_ir import limits
from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.program import Costs, Tied
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.expressions import Env, scalar, values_at, values_of
from chimerac.compiler.syntax import nodes as n

MAX_LIMIT = 2**31 - 1  # the largest value of a limit of what a rank may hold


def size(e: n.Expr, env: Env, what: str, least: int, budget: Budget) -> int:
    """Return a number of ranks, stages and so on.

    Args:
        what: its name, for the message.
        least: the least that is allowed.

    Raises ChimeraError: E211 if it is out of bounds; E205, E206 and E211 (`evaluate`).
    """
    value = scalar(e, env, budget)
    if not least <= value <= limits.RANKS:
        raise refuse("E211", f"{what} = {value}; allowed are {least} to {limits.RANKS}", e.span, values_of(e, env))
    return value


def micro_batch_size(schedule: n.Schedule) -> tuple[int, int]:
    """Return the numerator and the denominator of `size A/B`; 1 and 1 without it. Raises ChimeraError E211 if out of bounds."""
    for s in schedule.statements:
        if isinstance(s, n.Size):
            if not (1 <= s.numerator <= limits.RANKS and 1 <= s.denominator <= limits.RANKS):
                message = f"the size {s.numerator}/{s.denominator}: both numbers must lie between 1 and {limits.RANKS}"
                raise refuse("E211", message, s.span)
            return s.numerator, s.denominator
    return 1, 1


def limits_of(schedule: n.Schedule, env: Env, budget: Budget) -> dict[str, int]:
    """Return the limits of what a rank may hold, by name.

    Raises ChimeraError: E211 for a limit that is out of bounds; E205, E206 and E211 (`evaluate`).
    """
    result = {}
    for s in (s for s in schedule.statements if isinstance(s, n.MemoryLimit)):
        result[s.what.name] = value = scalar(s.value, env, budget)
        if not 0 <= value <= MAX_LIMIT:
            message = f"the limit of {s.what.name} is {value}; allowed are 0 to {MAX_LIMIT}"
            raise refuse("E211", message, s.value.span, values_of(s.value, env))
    return result


def costs_of(schedule: n.Schedule, env: Env, stages: int, budget: Budget) -> Costs:
    """Return the costs of tasks and of a hop. The default of F, I and W is 1, of B it is I + W, of R it is F, of hop it is 0.

    Raises ChimeraError: E211 for a cost that is out of bounds; E205, E206 and E211 (`evaluate`).
    """
    values: dict[str, tuple[int, ...]] = {}
    for cost in all_costs(schedule):
        at = np.arange(stages, dtype=np.int64)
        inner = {**env, cost.stage.name: at} if cost.stage else env
        value = values_at(cost.value, inner, stages, budget)
        outside = (value < 0) | (value > limits.COST)
        if outside.any():
            s = int(np.argmax(outside))
            place = f" at stage {s}" if cost.stage else ""
            allowed = f"allowed are 0 to 2^{limits.COST.bit_length() - 1}"
            label = values_of(cost.value, {**env, cost.stage.name: s} if cost.stage else env)
            raise refuse("E211", f"the cost of {cost.kind.name} is {value[s]}{place}; {allowed}", cost.value.span, label)
        values[cost.kind.name] = tuple(value.tolist())
    ones = (1,) * stages
    inputs, weights = values.get("I", ones), values.get("W", ones)
    sums = tuple(i + w for i, w in zip(inputs, weights, strict=True))
    hop = values.get("hop", (0,))[0]
    return Costs(values.get("F", ones), values.get("B", sums), inputs, weights, hop, RECOMPUTE=values.get("R", ()))


def all_costs(schedule: n.Schedule) -> Iterator[n.Cost]:
    """Yield the costs that a schedule gives, including those in a greedy block."""
    for s in schedule.statements:
        for statement in [s] if isinstance(s, n.CostStatement) else s.costs if isinstance(s, n.Greedy) else []:
            yield from statement.costs


def tied_of(schedule: n.Schedule, env: Env, stages: int, budget: Budget) -> tuple[Tied, ...]:
    """Return the tied sets.

    Raises ChimeraError: E220 for a stage that does not exist, or fewer than two stages; E205, E206 and E211 (`evaluate`).
    """
    result = []
    for decl in (s for s in schedule.statements if isinstance(s, n.TiedDecl)):
        members = [scalar(e, env, budget) for e in decl.stages]
        for e, s in zip(decl.stages, members, strict=True):
            if not 0 <= s < stages:
                message = f"tied {decl.name.name} names stage {s}, but stages are 0 .. {stages - 1}"
                raise refuse("E220", message, e.span, help="stages count from 0")
        if len(set(members)) < 2:
            message = f"tied {decl.name.name} names one stage; parameters are tied between at least two"
            help = "name another stage too, or remove the statement"
            raise refuse("E220", message, decl.span, label=f"stage {members[0]}", help=help)
        result.append(Tied(decl.name.name, tuple(members)))
    return tuple(result)
