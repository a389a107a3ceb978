"""The pass from a syntax tree and parameters to a spec (E002, E2xx)."""

from __future__ import annotations

from collections.abc import Mapping

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.program import Header
from chimerac.compiler.given import StageChoice
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.findings import Findings
from chimerac.compiler.resolve.orders import order_of
from chimerac.compiler.resolve.placements import RankCount, pipes_of, recompute_of
from chimerac.compiler.resolve.sizes import costs_of, limits_of, micro_batch_size, size, tied_of
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.resolve.statements import check_globals, check_parameters, check_settings, check_statements
from chimerac.compiler.resolve.values import values
from chimerac.compiler.syntax import nodes as n

DEFAULT_WINDOW = 2  # sends of a channel that may be incomplete, if the schedule has no `window`


def check_text(schedule: n.Schedule, given: Mapping[str, int], budget: Budget) -> dict[str, n.Setting]:
    """Check what needs no values of expressions. Return the statements `ranks`, `stages` and `window` by their first word.

    Args:
        given: values of parameters.
        budget: as of `resolve`.

    Raises ChimeraError as `resolve`, for the errors of names, types and statements, and of the given values.
    """
    found = Findings()
    settings = check_settings(schedule, found)
    check_parameters(schedule, given, found)
    scope = check_globals(schedule, found)
    check_statements(schedule, scope, found, budget)
    if found:
        raise ChimeraError(found)
    return settings


def resolve(schedule: n.Schedule, given: Mapping[str, int], budget: Budget, recompute: StageChoice | None = None) -> Spec:
    """Return the spec of a schedule for given parameters.

    Args:
        given: values of parameters; the others have their defaults.
        budget: the operations that resolving may take.
        recompute: the stages that recompute, in the place of those of the text; None: as the text says.

    Raises ChimeraError: E002 a stage in `recompute` that does not exist, E201 unknown name, E202 wrong type or form, E203
    unknown parameter, E204 parameter without a value, E205 division by zero, E206 value not between -2^61 and 2^61, E207 name,
    cost, limit, fill or preferred kind given twice, or name with another meaning, E208 statement missing or given twice, or no
    `prefer`, E209 unused let of an order, E210 requirement not met, E211 size out of bounds, or too much to compute, E220 stage
    or rank that does not exist, or tied set of one stage, E221 stage never placed, E222 stage placed twice.
    """
    settings = check_text(schedule, given, budget)
    env = values(schedule, given, budget)
    ranks = size(settings["ranks"].value, env, "ranks", 1, budget)
    stages = size(settings["stages"].value, env, "stages", 1, budget)
    window = DEFAULT_WINDOW if "window" not in settings else size(settings["window"].value, env, "window", 0, budget)
    pipes, declared = pipes_of(schedule, env, RankCount(ranks, settings["ranks"].value), stages, budget)
    micro_batches = sum(len(p.micro_batches) for p in pipes)
    if micro_batches == 0:
        span = next(s.span for s in schedule.statements if isinstance(s, n.PipeDecl))
        raise refuse("E211", "the pipes have no micro-batches at all", span, help="give at least one micro-batch")
    header = Header(
        schedule=schedule.name.name,
        parameters={s.name.name: int(env[s.name.name]) for s in schedule.statements if isinstance(s, n.Param)},
        ranks=ranks,
        stages=stages,
        micro_batches=micro_batches,
        pipes=pipes,
        window=window,
        micro_batch_size=micro_batch_size(schedule),
        tied=tied_of(schedule, env, stages, budget),
        limits=limits_of(schedule, env, budget),
    )
    sync: n.SyncPolicy = next((s.policy for s in schedule.statements if isinstance(s, n.Sync)), "at end")
    limits = {s.what.name: s.span for s in schedule.statements if isinstance(s, n.MemoryLimit)}
    costs = costs_of(schedule, env, stages, budget)
    order = order_of(schedule, declared, env, budget)
    recomputed = recompute_of(declared, env, stages, budget) if recompute is None else (recompute.mask(stages),) * len(pipes)
    return Spec(header, costs, order, recomputed, sync, limits, recompute is not None)
