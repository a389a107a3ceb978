"""`chimerac diff A B`: what differs between two schedules or programs, per rank, and what that does to times and memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from chimerac.chimera_ir.counts import count_text
from chimerac.chimera_ir.diagnostics import ChimeraError, refuse, visible
from chimerac.chimera_ir.numbers import number_text
from chimerac.chimera_ir.program import Program
from chimerac.compiler.analyze.diff import ProgramDiff, RankDiff, diff
from chimerac.compiler.analyze.memory import held_bytes
from chimerac.compiler.analyze.report import table
from chimerac.compiler.analyze.simulate import Simulation, simulate
from chimerac.compiler.command.compile import program_of
from chimerac.compiler.command.files import print_findings, write_product
from chimerac.compiler.command.modelled import (
    check_model_options,
    durations_for,
    model_for,
    profile_of,
    state_for,
    with_partition,
)
from chimerac.compiler.command.values import costs_of, parameters_of
from chimerac.compiler.command.verbs import diff_parser
from chimerac.compiler.verify import peaks

T = TypeVar("T")
EQUAL, DIFFERENT, TROUBLE = 0, 1, 2
MAX_SHOWN = 8  # instructions of a rank in each list, unless --all is given


class _Side(NamedTuple):
    """One of the two programs.

    Attributes:
        held: for each count, such as `activations`, the most that each rank holds; with a model also for `bytes`.
    """

    program: Program
    simulation: Simulation
    held: dict[str, tuple[int, ...]]


def run(argv: Sequence[str]) -> int:
    """Print the differences, and return the exit status: 0 for equal programs, 1 for different ones, 2 for an error."""
    options = diff_parser().parse_args(argv)
    try:
        if options.a == options.b == "-":
            raise refuse("E002", "both programs are -, and stdin has only one", help="give the path of the other one")
        check_model_options(options)
        a, b = (_side(path, options) for path in (options.a, options.b))
        found = diff(a.program, b.program)
        write_product("\n".join(_lines(found, a, b, options.all)) + "\n", options.output)
    except ChimeraError as error:
        print_findings(error)
        return TROUBLE
    return EQUAL if found.is_equal else DIFFERENT


def _side(path: str, options: argparse.Namespace) -> _Side:
    """Return one of the two programs with its simulation and what its ranks hold.

    Args:
        path: A or B of the command line.
    """
    own_options = argparse.Namespace(**{**vars(options), "schedule": path})
    profile = profile_of(options)
    state, costs = state_for(options, profile), costs_of(options.costs)
    program = program_of(own_options, parameters_of(options.parameters), ()).program
    model = model_for(program, options, profile)
    if model is not None:
        program = with_partition(program, model, options)
    peak = peaks(program)
    held = {
        "activations": tuple(peak.activations),
        "receive buffers": tuple(peak.receive_buffers),
        "copies of stages": tuple(peak.weight_copies),
    }
    if model is not None:
        held["bytes"] = tuple(rank.peak for rank in held_bytes(program, model, state).ranks)
    return _Side(program, simulate(program, costs, durations_for(program, model, profile, options)), held)


def _lines(found: ProgramDiff, a: _Side, b: _Side, shows_all: bool) -> Iterator[str]:
    for name, side in (("a", a), ("b", b)):
        given = " ".join(f"{k}={v}" for k, v in side.program.header.parameters.items())
        text = f"{name}: {visible(side.program.header.schedule)} {given}".rstrip()
        yield f"{text}; {count_text(len(side.program), 'instruction')}"
    if found.is_equal:
        yield "equal: the same instructions in the same order on every rank"
    yield from (f"different {fact}" for fact in found.header)
    yield ""
    totals = [*_totals(a, b)]
    width = max(len(row[0]) for row in totals)
    yield from table([" " * width, "a", "b", "difference", ""], [[f"{row[0]:<{width}}", *row[1:]] for row in totals])
    unit = a.simulation.unit or "units of cost"
    yield f"times in {unit}; below the bubble ratio: the most that any rank holds"
    if found.is_equal:
        return
    yield ""
    yield from table(
        ["rank", "same", "moved", "only in a", "only in b", "wall bubble a", "wall bubble b"],
        [[str(r.rank), *(str(x) for x in _counts(r)), *(_bubble(side, r.rank) for side in (a, b))] for r in found.ranks],
    )
    for rank in found.ranks:
        if not rank.is_equal:
            yield ""
            yield from _rank_lines(found, rank, a.program, b.program, shows_all)


def _totals(a: _Side, b: _Side) -> Iterator[list[str]]:
    s, t = a.simulation, b.simulation
    makespans = [x.makespan / x.scale for x in (s, t)]
    yield _row("makespan", s.time(s.makespan), t.time(t.makespan), *makespans)
    change = t.bubble_ratio - s.bubble_ratio
    yield ["bubble ratio", f"{s.bubble_ratio:.4f}", f"{t.bubble_ratio:.4f}", f"{change:+.4f}" if change else "", ""]
    for name in a.held:
        most_a, most_b = max(a.held[name]), max(b.held[name])
        yield _row(name, f"{most_a:,}", f"{most_b:,}", most_a, most_b)


def _row(name: str, text_a: str, text_b: str, a: float, b: float) -> list[str]:
    """Return a row of the table: the name, both numbers as texts, their difference, and the difference in percent of a.

    The last two are empty for equal numbers, and the last one also if a is 0.
    """
    if a == b:
        return [name, text_a, text_b, "", ""]
    return [name, text_a, text_b, number_text(b - a, flags="+,"), f"{100 * (b / a - 1):+.1f} %" if a else ""]


def _counts(rank: RankDiff) -> tuple[int, ...]:
    return rank.same, len(rank.moved), len(rank.removed), len(rank.added)


def _bubble(side: _Side, rank: int) -> str:
    if rank >= side.program.world:
        return "-"
    return side.simulation.time(side.simulation.wall_bubbles[rank])


def _rank_lines(found: ProgramDiff, rank: RankDiff, a: Program, b: Program, shows_all: bool) -> Iterator[str]:
    """Yield the lines of a rank: instructions that moved, and those that it has only in a or only in b, with their places."""
    yield f"rank {rank.rank}"
    begin_a, begin_b = (int(p.offsets[rank.rank]) if rank.rank < p.world else 0 for p in (a, b))
    moved = [
        f"  ~ {a.text(row_a)}: from {row_a - begin_a} to {row_b - begin_b}" for row_a, row_b in _first(rank.moved, shows_all)
    ]
    removed = [
        f"  - {a.text(row)}: at {row - begin_a}" + (f", in b on rank {found.gone_to[row]}" if row in found.gone_to else "")
        for row in _first(rank.removed, shows_all)
    ]
    added = [
        f"  + {b.text(row)}: at {row - begin_b}" + (f", in a on rank {found.come_from[row]}" if row in found.come_from else "")
        for row in _first(rank.added, shows_all)
    ]
    for lines, count, description in (
        (moved, len(rank.moved), "moved"),
        (removed, len(rank.removed), "this rank has only in a"),
        (added, len(rank.added), "this rank has only in b"),
    ):
        yield from lines
        if count > len(lines):
            yield f"    ... and {count - len(lines)} more that {description}; --all shows them"


def _first(values: Sequence[T], shows_all: bool) -> Sequence[T]:
    """Return the first MAX_SHOWN values, or all."""
    return values if shows_all else values[:MAX_SHOWN]
