"""Values of parameters that meet the requirements of a schedule (E210), found by ordering its tasks with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from chimerac.chimera_ir.diagnostics import ChimeraError, Diagnostic
from chimerac.compiler.given import StageChoice
from chimerac.compiler.order.order import order_tasks
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.resolve.values import parameter_values, requirements_hold
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.walk import names_in
from chimerac.compiler.tasks import checked_times

MAX_CHANGE = 64  # the largest change of a parameter in the search for a value that meets a requirement
MAX_PAIR_CHANGE = 8  # the same for two parameters that change at once: the largest sum of the two changes, without their signs
MAX_PAIRS = 4  # pairs of parameters that are tried
MAX_SEARCH = 2**20  # operations of the search for one requirement, without the compilations
MAX_TRIED = 400_000  # tasks of the schedules that are compiled in the search for one requirement (`_Trial.tasks`)
MAX_COMPILED = 16  # compilations in the search for one requirement (`_Trial.compiled`)
_PAIR_CHANGES = range(-MAX_PAIR_CHANGE, MAX_PAIR_CHANGE + 1)
# What is added to the two parameters of a pair, small changes first.
_SHIFTS = sorted(
    ((a, b) for a in _PAIR_CHANGES for b in _PAIR_CHANGES if a and b and abs(a) + abs(b) <= MAX_PAIR_CHANGE),
    key=lambda shift: (abs(shift[0]) + abs(shift[1]), shift),
)

Values = Mapping[str, int]


def suggest_parameters(
    error: ChimeraError, schedule: n.Schedule, given: Values, budget: Budget, recompute: StageChoice | None
) -> ChimeraError:
    """Return the findings about requirements that are not met, with values of parameters that were tried as their help.

    With these values all requirements hold, and the tasks can be ordered. Limits of memory are not checked. A finding for which
    no such values are found has no help.

    Args:
        given: the parameters of the compilation.
        budget: operations of all trials together.
        recompute: as in `resolve`.
    """

    def helped(d: Diagnostic) -> Diagnostic:
        requirement = next((s for s in schedule.statements if isinstance(s, n.Require) and s.span == d.span), None)
        if d.code != "E210" or requirement is None:
            return d
        return replace(d, help=_help(schedule, requirement, given, _Trial(schedule, given, budget, recompute)))

    return ChimeraError(map(helped, error.diagnostics))


@dataclass
class _Trial:
    """Compiles a schedule with other parameters.

    Attributes:
        given: the parameters of the compilation.
        budget, recompute: as in `resolve`.
        searched: operations so far, without those of compilations.
        compiled: how many compilations so far have passed `resolve`.
        tasks: how many forwards and backwards these had together, two for each stage and micro-batch.
    """

    schedule: n.Schedule
    given: Values
    budget: Budget
    recompute: StageChoice | None
    searched: int = 0
    compiled: int = 0
    tasks: int = 0

    def works(self, changed: Values) -> bool:
        """Return whether the schedule meets its requirements with these parameters changed, and its tasks get times.

        Once MAX_SEARCH, MAX_COMPILED or the budget is reached, return False without trying.
        """
        if self.searched > MAX_SEARCH or self.compiled >= MAX_COMPILED or self.budget.left <= 0:
            return False
        parameters, before = {**self.given, **changed}, self.budget.spent
        is_allowed = requirements_hold(self.schedule, parameters, self.budget)
        self.searched += self.budget.spent - before
        return is_allowed and self._compiles(parameters)

    def _compiles(self, parameters: Values) -> bool:
        """Return whether the passes up to the times of the tasks accept these parameters; False above MAX_TRIED tasks."""
        try:
            spec = resolve(self.schedule, parameters, self.budget, self.recompute)
            self.compiled += 1
            self.tasks += 2 * spec.header.stages * spec.header.micro_batches
            if self.tasks > MAX_TRIED:
                return False
            checked_times(order_tasks(spec, self.budget).program)
        except ChimeraError:
            return False
        return True


def _help(schedule: n.Schedule, requirement: n.Require, given: Values, trial: _Trial) -> str:
    """Return the help with values that work (`_Trial.works`): the nearest ones of one parameter, else of two.

    Args:
        requirement: the one that is not met.

    Return '' if no such values are found.
    """
    params = [p.name.name for p in schedule.statements if isinstance(p, n.Param)]
    current = parameter_values(schedule, given, trial.budget)
    if current is None:
        return ""
    names = set(names_in(requirement.condition))
    # Of the parameters that a requirement names, the one that is declared last is changed first: for `N % D == 0` this is N,
    # if `param N` comes after `param D`.
    involved = [p for p in params if p in names][::-1]
    for name in involved:
        value = current[name]
        ranges = (range(value - 1, max(-1, value - MAX_CHANGE - 1), -1), range(max(0, value + 1), value + MAX_CHANGE + 1))
        nearest = [next((v for v in values if trial.works({name: v})), None) for values in ranges]  # below, above
        if any(v is not None for v in nearest):
            return "give " + " or ".join(f"-p {name}={v}" for v in nearest if v is not None)
    for pair in _pairs(involved, params):
        for shift in _SHIFTS:
            changed = {name: current[name] + by for name, by in zip(pair, shift, strict=True)}
            if min(changed.values()) >= 0 and trial.works(changed):
                return "give " + " ".join(f"-p {name}={v}" for name, v in changed.items())
    return ""


def _pairs(involved: list[str], params: list[str]) -> list[tuple[str, str]]:
    """Return the pairs of parameters to change together, each pair in the order of the text.

    Args:
        involved: the parameters that the requirement names, in the reverse order of the text.

    Every pair has the first of these and another parameter.
    """
    others = [*involved[1:], *(name for name in params if name not in involved)]
    pairs = [(a, b) for a in involved[:1] for b in others[:MAX_PAIRS]]
    return [(a, b) if params.index(a) < params.index(b) else (b, a) for a, b in pairs]
