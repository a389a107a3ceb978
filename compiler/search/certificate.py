"""The certificate of a found order: the problem, the makespan, and why no order can be faster than the bound, as JSON."""

from __future__ import annotations

import json
from typing import Any

from chimerac.compiler.search.least_memory import LeastMemory
from chimerac.compiler.search.orders import State

FORMAT = "chimera-order-certificate"


def certificate(state: State, schedule: str, digest: str, least: LeastMemory | None = None) -> str:
    """Return the certificate of a found schedule as JSON.

    Args:
        schedule: its name.
        digest: that of its compiled program.
        least: what a search for the least memory has found; None without such a search, and for one that counted bytes.

    Times are integers in the unit of the schedule's costs; `per_unit` of them make one unit of the costs that were given.
    """
    problem, best = state.problem, state.best
    assert best is not None, "a search ends with an order"
    content: dict[str, Any] = {
        "format": FORMAT,
        "version": 1,
        "schedule": schedule,
        "digest": digest,
        "per_unit": str(problem.scale),
        "costs": dict(zip(problem.kinds, problem.durations, strict=True)),
        "links": problem.links,
        "activations": list(problem.activations),
        "limits": list(problem.limits),
        "makespan": best.makespan,
        "bound": state.bound,
        "proved_optimal": state.is_proved,
        "solver": _solver(state.solver_bound),
        "memory": _memory(least),
        "ranks": [
            {
                "rank": b.rank,
                "head": b.head,
                "head_by": b.head_by,
                "busy": b.busy,
                "tail": b.tail,
                "residence": b.residence,
                "attained_by": {"head": _task(b.attained_by[0]), "tail": _task(b.attained_by[1])},
            }
            for b in state.bounds
        ],
    }
    lines = [f" {json.dumps(k)}: {_value(v)}" for k, v in content.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _memory(least: LeastMemory | None) -> dict[str, Any] | None:
    """Return what is proved of the least memory; None if `least` is None, or if no fast enough order was found.

    `makespan` is the most time that an order may take. No order that keeps `own_limits`, and holds at most `ruled_out` on every
    rank, takes at most `makespan`.
    """
    if least is None or least.level is None:
        return None
    return {
        "makespan": least.makespan,
        "proved_least": least.is_proved,
        "own_limits": list(least.levels.problem.limits),
        "ruled_out": least.ruled_out,
        "solver": None if least.below is None else _solver(least.below.solver_bound),
    }


def _solver(bound: int) -> dict[str, Any] | None:
    """Return the fields of a bound of the solver; None if it has proved none."""
    return {"name": _solver_name(), "bound": bound} if bound else None


def _value(value: Any) -> str:
    """Return JSON with a line for each row or object of a list, and any other value on one line."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], dict | tuple):
        return "[\n  " + ",\n  ".join(json.dumps(x) for x in value) + "]"
    return json.dumps(value)


def _task(task: tuple[int, int, int]) -> dict[str, int]:
    """Return the fields of a task.

    Args:
        task: (pipe, stage, micro-batch).
    """
    return dict(zip(("pipe", "stage", "micro_batch"), task, strict=True))


def _solver_name() -> str:
    from importlib.metadata import version  # start-up: 13 ms, for a bound of the solver only

    return f"OR-tools CP-SAT {version('ortools')}"
