"""A search for a text of a schedule that is good at several sizes and hop costs at once.

An order that is found for one size is of little use at another. A text with parameters holds for all of them. Every try
changes the best text a little, or begins anew. If the text was not tried before, its tasks are ordered at every size, and their
times are computed at every hop cost. The mean of makespan / lower bound decides. The best text is compiled and simulated at the
end. The same seed gives the same result, unless Ctrl-C ends the search.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TypeVar

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Source, refuse
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Costs, Header, Pipe, Program
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.format import format_schedule
from chimerac.compiler.order.order import order_tasks
from chimerac.compiler.pipeline import compile_source, parse_source
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.search.spaces import GreedyTexts, Space, TickTexts
from chimerac.compiler.size import check_sizes
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.syntax.printer import expression, print_schedule
from chimerac.compiler.tasks import task_times

State = TypeVar("State")
DEFAULT_LIMIT = "D"  # of activations, where neither the caller nor the schedule gives one
ANEW = 0.15  # the share of the tries that begin with a text that does not depend on the best one


@dataclass(frozen=True, slots=True)
class Point:
    """One size, with what holds for every text at this size.

    Attributes:
        pipes: with their placements, which every text keeps.
        costs, bounds: for each hop cost, the costs and the lower bound of the makespan, as integers.
        scales: for each hop cost, how many of these integers make one unit of the schedule's costs.
        activations: the most that a rank may hold, None without a limit.
    """

    parameters: Mapping[str, int]
    pipes: tuple[Pipe, ...]
    costs: tuple[Costs, ...]
    scales: tuple[int, ...]
    bounds: tuple[int, ...]
    activations: int | None

    def time(self, k: int, value: int) -> Fraction:
        """Return a time at the k-th hop cost, in the unit of the schedule's costs.

        Args:
            value: the same time as an integer.
        """
        return Fraction(value, self.scales[k])


@dataclass(frozen=True, slots=True)
class EvaluatedText:
    """A text and its makespans, by point and hop cost, in the integers of the point.

    Attributes:
        score: the mean of makespan / bound.
        is_interrupted: whether Ctrl-C ended the search.
    """

    text: str
    makespans: tuple[tuple[int, ...], ...]
    score: float
    is_interrupted: bool = False


def limited(source: Source, activations: str | None) -> tuple[Source, str]:
    """Return a schedule with a limit of activations, and the formula of the limit.

    Args:
        activations: the formula that replaces the schedule's own limit, '' for no limit. None: the schedule's own limit, or
            DEFAULT_LIMIT if it has none.
    """
    schedule = parse_source(source)
    own = [s for s in schedule.statements if isinstance(s, n.MemoryLimit) and s.what.name == "activations"]
    if activations is None and own:
        return source, expression(own[0].value)
    formula = DEFAULT_LIMIT if activations is None else activations
    rest = replace(schedule, statements=tuple(s for s in schedule.statements if s not in own))
    limit = f"limit activations <= {formula}\n" if formula else ""
    return Source(f"{source.name} with --limit {formula or 'none'}", print_schedule(rest) + limit), formula


def points_of(schedule: n.Schedule, sizes: Sequence[Mapping[str, int]], hops: Sequence[Fraction]) -> list[Point]:
    """Return a point for each size.

    Args:
        hops: in units of the first stage's forward.

    Raises ChimeraError if the schedule does not resolve at one of the sizes, or is too large there (E211).
    """
    result = []
    for size in sizes:
        spec = resolve(schedule, size, Budget())
        check_sizes(schedule.name.name, spec.header, spec.costs, 1)
        limit = spec.header.limits.get("activations")
        scales = tuple(hop.denominator for hop in hops)
        costs = tuple(_scaled(spec.costs, hop, scale) for hop, scale in zip(hops, scales, strict=True))
        bounds = tuple(lower_bound(spec.header, c, limit) for c in costs)
        result.append(Point(size, spec.header.pipes, costs, scales, bounds, limit))
    return result


def _scaled(costs: Costs, hop: Fraction, scale: int) -> Costs:
    """Return the costs times `scale`, with another cost of a hop.

    Args:
        hop: in units of the first stage's forward.
    """
    times = {name: tuple(x * scale for x in value) for name, value in costs.given().items() if name != "hop"}
    return Costs(**times, hop=int(hop * costs.FWD[0] * scale))


def lower_bound(header: Header, costs: Costs, activations: int | None) -> int:
    """Return a lower bound of the makespan of any order of a placement.

    A rank is idle until the first forward reaches it. Before the first backward reaches it, it can run no more forwards than
    it may hold activations. Then it has to be busy with everything else. Source: docs/schedules.md.
    """
    backward = [min(b, i + w) for b, i, w in zip(costs.BWD, costs.BWD_INPUT, costs.BWD_WEIGHT, strict=True)]
    # By rank: when the first forward and the first backward reach it, how long it is busy, the part of that for forwards, and
    # its longest forward.
    first_forward: dict[int, int] = {}
    first_backward: dict[int, int] = {}
    busy: dict[int, int] = {}
    forwards: dict[int, int] = {}
    longest_forward: dict[int, int] = {}
    for pipe in (p for p in header.pipes if p.micro_batches):
        ranks, count = pipe.placement, len(pipe.micro_batches)
        clock = 0
        for s, r in enumerate(ranks):
            clock += costs.hop if s > 0 and ranks[s - 1] != r else 0
            first_forward[r] = min(first_forward.get(r, clock), clock)
            clock += costs.FWD[s]
            busy[r] = busy.get(r, 0) + count * (costs.FWD[s] + backward[s])
            forwards[r] = forwards.get(r, 0) + count * costs.FWD[s]
            longest_forward[r] = max(longest_forward.get(r, 0), costs.FWD[s])
        for s in reversed(range(len(ranks))):
            r = ranks[s]
            clock += costs.hop if s + 1 < len(ranks) and ranks[s + 1] != r else 0
            first_backward[r] = min(first_backward.get(r, clock), clock)
            clock += min(costs.BWD_INPUT[s], costs.BWD[s])
    bound = 0
    for r in busy:
        busy_before = forwards[r] if activations is None else min(forwards[r], activations * longest_forward[r])
        bound = max(bound, busy[r] + max(first_forward[r], first_backward[r] - busy_before))
    return bound


def evaluated(text: str, points: Sequence[Point]) -> EvaluatedText | None:
    """Return a text with its makespans.

    None if it does not parse, if it does not resolve or its tasks cannot be ordered at one of the sizes, if it has other pipes
    or puts them on other ranks, if tasks wait for each other, or if a rank holds too many activations.
    """
    makespans: list[tuple[int, ...]] = []
    try:
        schedule = parse(Source("text", text))
        for point in points:
            budget = Budget()
            spec = resolve(schedule, point.parameters, budget)
            if spec.header.pipes != point.pipes:
                return None
            tasks = order_tasks(spec, budget).program
            if point.activations is not None and _most_alive(tasks) > point.activations:
                return None
            timings = [task_times(replace(tasks, costs=costs)) for costs in point.costs]
            if any(t.stuck for t in timings):
                return None
            makespans.append(tuple(int(t.end.max()) for t in timings))
    except ChimeraError:
        return None
    return EvaluatedText(text, tuple(makespans), _score(makespans, points))


def _score(makespans: Sequence[Sequence[int]], points: Sequence[Point]) -> float:
    """Return the mean of makespan / bound over all points and hop costs."""
    ratios = [m / b for ms, point in zip(makespans, points, strict=True) for m, b in zip(ms, point.bounds, strict=True)]
    return sum(ratios) / len(ratios)


def _most_alive(tasks: Program) -> int:
    """Return the most activations that a rank holds at once."""
    t = tasks.table
    count = np.array([len(ids) for ids in tasks.micro_batch_lists], np.int64)[t.operand]
    change = np.where(t.op == Op.FWD, count, np.where((t.op == Op.BWD) | (t.op == Op.BWD_WEIGHT), -count, 0))
    alive = np.cumsum(change)  # one sum over all ranks: nothing is alive at the end of each
    return int(alive.max(initial=0))


def tried(space: Space[State], points: Sequence[Point], tries: int, seed: int) -> Iterator[EvaluatedText]:
    """Yield each text that is better than all drawn before it.

    Args:
        tries: how many texts are drawn; some may be equal.
    """
    rng = random.Random(seed)
    best: EvaluatedText | None = None
    state = space.start(rng)
    seen: set[str] = set()
    for _ in range(tries):
        candidate = space.start(rng) if best is None or rng.random() < ANEW else space.near(state, rng)
        if best is not None and rng.random() < 0.5:
            candidate = space.near(candidate, rng)
        text = space.text(candidate)
        if text in seen:
            continue
        seen.add(text)
        found = evaluated(text, points)
        if found and (best is None or found.score <= best.score):  # an equal one may lead to a better one
            state = candidate
            if best is None or found.score < best.score:
                best = found
                yield found


def search(
    source: Source,
    sizes: Sequence[Mapping[str, int]],
    hops: Sequence[Fraction],
    activations: str | None,
    tries: int = 300,
    seed: int = 0,
    report: Callable[[EvaluatedText], None] = lambda found: None,
) -> tuple[EvaluatedText, list[Point]]:
    """Return the best text found, compiled and verified at every size, and the sizes with their bounds.

    Args:
        source: the schedule whose placement is kept and whose order is replaced by another one of its form.
        sizes: for each size, the parameters of the schedule, by name.
        hops: in units of the first stage's forward.
        activations: as in `limited`.
        report: called with each text that is better than the schedule's own and all before it.

    Ctrl-C ends the search early. It raises KeyboardInterrupt only before the first text is found, and while the best text is
    compiled and simulated at the end.

    Raises ChimeraError: E002 for a schedule with an order listing, for no size or no hop cost, and if no text compiles at every
    size; the findings about the schedule, and the errors of `points_of`.
    """
    source, activations = limited(source, activations)
    schedule = parse_source(source)
    order = next((s for s in schedule.statements if isinstance(s, n.Order)), None)
    if not sizes or not hops:
        raise refuse("E002", "a search of texts needs at least one size and one hop cost")
    points = points_of(schedule, sizes, hops)
    if not isinstance(order, n.Greedy | n.Ticks):
        help = "give a schedule whose order is greedy or ticks"
        raise refuse("E002", f"{source.name} has an order listing, which has no formulas to change", help=help)
    best: EvaluatedText | None = None
    results: Iterator[EvaluatedText]
    if isinstance(order, n.Greedy):
        results = tried(GreedyTexts(schedule, activations), points, tries, seed)
    else:
        results = tried(TickTexts(schedule), points, tries, seed)
    try:
        best = evaluated(source.text, points)
        for found in results:
            if best is None or found.score < best.score:
                best = found
                report(best)
    except KeyboardInterrupt:
        if best is None:
            raise
        best = replace(best, is_interrupted=True)
    if best is None:
        held = f" with at most {activations} activations on a rank" if activations else ""
        help = "allow more activations, or try more texts" if activations else "try more texts"
        raise refuse("E002", f"none of the {tries} texts compiles at every size{held}", help=help)
    return _simulated(best, points), points


def _simulated(found: EvaluatedText, points: Sequence[Point]) -> EvaluatedText:
    """Return a text with the makespans of its verified programs: in their simulation SENDs also wait for the window."""
    makespans = []
    for point in points:
        program = compile_source(Source("found", found.text), point.parameters).program
        simulations = [simulate(replace(program, costs=costs)) for costs in point.costs]
        makespans.append(tuple(-(-s.makespan // s.scale) for s in simulations))  # rounded up
    return replace(found, makespans=tuple(makespans), score=_score(makespans, points))


def table(found: EvaluatedText, points: Sequence[Point], hops: Sequence[Fraction]) -> list[str]:
    """Return the lines of a table: for each size and hop cost the makespan beside the bound, and the difference."""
    sizes = [" ".join(f"{k}={v}" for k, v in point.parameters.items()) for point in points]
    shown = [f"{float(hop):g}" for hop in hops]
    width, hop_width = max(map(len, ["size", *sizes])), max(5, *map(len, shown))
    lines = [f"{'size':{width}}  {'hop':{hop_width}} makespan      bound      above"]
    for name, point, makespans in zip(sizes, points, found.makespans, strict=True):
        for k, (hop, makespan) in enumerate(zip(shown, makespans, strict=True)):
            m, b = point.time(k, makespan), point.time(k, point.bounds[k])
            lines.append(f"{name:{width}}  {hop:{hop_width}}{float(m):9g}  {float(b):9g}  {float(m - b):9g}")
    return lines


def result_text(found: EvaluatedText, points: Sequence[Point], hops: Sequence[Fraction]) -> str:
    """Return the text as a file: formatted, after a comment with its table."""
    return "".join(f"# {line}\n" for line in table(found, points, hops)) + "\n" + format_schedule(Source("found", found.text))
