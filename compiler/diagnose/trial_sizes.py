"""The sizes at which an edited text of a schedule is tried: the given one, larger ones, and that of the default parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.header import Header
from chimerac.chimera_ir.program import Program
from chimerac.compiler.diagnose.edits.text import first_parameters
from chimerac.compiler.given import StageChoice
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.resolve.values import parameter_values
from chimerac.compiler.syntax import nodes as n

# With more tasks than this at the given size, edits are tried only there. Other sizes but the doubled one are left out if they
# have more tasks.
MAX_TASKS_FOR_LARGER_SIZE = 20_000
MAX_DIFFERENT = 2  # at most so many sizes are tried in which one parameter is two or three times as large

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TrialSize:
    """A size at which edited texts are tried.

    Attributes:
        parameters: of the schedule.
        tasks: what a trial at this size adds to `Trials.spent`, besides what it adds for the characters of its text. At the
            doubled size it is as much as at the given size.
        original: the program of the original text, which an edit must not change; None if that text does not compile at this
            size.
        required: whether an edited text must compile.
    """

    parameters: Sizes
    tasks: int
    original: Program | None = None
    required: bool = True


def trial_sizes(
    schedule: n.Schedule,
    given: Header,
    budget: Budget,
    recompute: StageChoice | None,
    compile_original: Callable[[Sizes], Program | None],
) -> Sequence[TrialSize]:
    """Return the sizes at which edits are tried. The first one is the given size, at which the original text does not compile.

    Args:
        given: the header at the given size.
        budget, recompute: as in `resolve`.
        compile_original: returns the program of the original text at a size, None if it does not compile there.
    """
    found = [TrialSize(given.parameters, _tasks(given))]
    if _tasks(given) > MAX_TASKS_FOR_LARGER_SIZE:
        return found

    def header_at(parameters: Sizes) -> Header | None:
        """Return the header at a size; None if the schedule does not allow the size, or if the budget is used up."""
        try:
            return resolve(schedule, parameters, budget, recompute).header
        except ChimeraError:
            return None

    for parameters in _doubled(given.parameters):
        if parameters != given.parameters and header_at(parameters) is not None:
            found.append(TrialSize(parameters, _tasks(given), compile_original(parameters)))
            break
    others = _with_other_ratios(given, first_parameters(schedule), header_at)
    # At the size of the defaults, parameters that have no default keep their given values.
    needed = {s.name.name for s in schedule.statements if isinstance(s, n.Param) and s.default is None}
    defaults = parameter_values(schedule, {k: v for k, v in given.parameters.items() if k in needed}, budget)
    for header in (*others, None if defaults is None else header_at(defaults)):
        if header is None or any(header.parameters == x.parameters for x in found):
            continue
        if _tasks(header) <= MAX_TASKS_FOR_LARGER_SIZE:
            original = compile_original(header.parameters)
            found.append(TrialSize(header.parameters, _tasks(header), original, required=original is not None))
    return found


def _tasks(header: Header) -> int:
    """Return the number of forwards and backwards, counted by micro-batch. A split backward counts once."""
    return 2 * header.stages * header.micro_batches


def _doubled(given: Sizes) -> Iterator[Sizes]:
    """Yield larger sizes: all positive parameters are doubled, then only those above 2."""
    return ({k: 2 * v if v > least else v for k, v in given.items()} for least in (0, 2))


def _with_other_ratios(given: Header, names: Sequence[str], header_at: Callable[[Sizes], Header | None]) -> list[Header]:
    """Return at most MAX_DIFFERENT headers in which two of the named parameters have another ratio than in the given one.

    One parameter is two or three times as large. Sizes with more micro-batches on as many ranks and stages come first.
    """
    headers = [
        (name, header)
        for factor in (2, 3)
        for name in names
        if given.parameters[name] > 0
        and (header := header_at({**given.parameters, name: factor * given.parameters[name]})) is not None
    ]
    headers.sort(
        key=lambda x: (x[1].ranks, x[1].stages) != (given.ranks, given.stages) or x[1].micro_batches <= given.micro_batches
    )
    same = {*combinations(sorted(names), 2)}  # pairs of parameters with one ratio in the given header and in those found
    found: list[Header] = []
    for name, header in headers:
        if len(found) < MAX_DIFFERENT and any(name in pair for pair in same):
            same = {pair for pair in same if name not in pair}
            found.append(header)
    return found
