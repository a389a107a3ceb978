"""The progress of `chimerac search` for stderr, and a summary of its result, for stderr and as comments of the schedule."""

from __future__ import annotations

import sys
import time
from decimal import Decimal
from fractions import Fraction
from importlib.util import find_spec
from typing import TYPE_CHECKING

from chimerac.chimera_ir.counts import count_text, sizes_text
from chimerac.chimera_ir.files import write_stderr
from chimerac.chimera_ir.numbers import number_text
from chimerac.chimera_ir.program import Program

if TYPE_CHECKING:
    from chimerac.compiler.search.least_memory import LeastMemory
    from chimerac.compiler.search.orders import State
    from chimerac.compiler.search.problem import Problem

UNEVEN = Fraction(103, 100)  # share of the mean work of the ranks: if the busiest rank has more, --placements is suggested
LINE_EVERY_S = 5.0  # the least time between two lines of progress, where there is no bar


def figure(value: Fraction) -> str:
    """Return the text of a time: an integer as it is, others as `number_text` rounds them to six digits."""
    return number_text(value, 6)


def exact_figure(value: Fraction) -> str:
    """Return the text of a time without rounding: a decimal number, or a fraction such as 44/3."""
    scaled, digits = value, 0
    while scaled.denominator % 2 == 0 or scaled.denominator % 5 == 0:
        scaled, digits = 10 * scaled, digits + 1
    if scaled.denominator > 1:
        return str(value)
    return f"{Decimal(f'{scaled.numerator}e-{digits}'):f}"


def summary(
    state: State, program: Program, problem: Problem, unit: str, bound_of_every_placement: int | None = None
) -> list[str]:
    """Return the lines of the summary.

    Args:
        state: of the search for an order.
        program: the given one.
        problem: the searched one.
        unit: what follows the makespan: ' ms', or '' if the costs have no named unit.
        bound_of_every_placement: a lower bound of the makespan, for all placements with the same number of stages of each pipe
            on each rank, in the integer times of `problem`. It is None without --placements.
    """
    assert state.best is not None, "a search ends with an order"
    makespan, bound = (Fraction(x) / problem.scale for x in (state.best.makespan, state.bound))
    for_placement = "" if bound_of_every_placement is None else " for this placement"
    gap = (
        f"proved optimal{for_placement}"
        if state.is_proved
        else f"bound{for_placement} {figure(bound)}, gap {float(1 - bound / makespan):.2%}"
    )
    busy = max(problem.busy()) / problem.scale
    h = program.header
    sizes = sizes_text(h.ranks, h.stages, h.micro_batches)
    is_given = [p.placement for p in problem.pipes] == [p.placement for p in h.pipes]
    lines = [
        f"Found by chimerac search for {'the' if is_given else 'another'} placement of {h.schedule}: {sizes}",
        f"makespan {figure(makespan)}{unit}, wall bubble of the busiest rank {figure(makespan - busy)}; {gap}; "
        f"by {state.best_by}",
    ]
    if bound_of_every_placement is not None:
        least = bound_of_every_placement / problem.scale
        lines += [f"pipe {p.name}: stages on ranks {' '.join(map(str, p.placement))}" for p in problem.pipes]
        same = "with the same number of stages of each pipe on each rank"
        lines.append(f"{same}, no placement has a makespan below {figure(least)}{unit}")
    if state.known is not None:
        known, name = state.known
        more = known / state.best.makespan - 1 if state.best.makespan else 0.0
        lines.append(f"best known order at the start: {name}, {figure(known / problem.scale)} ({more:.1%} more)")
    if problem.scale != 1:
        lines.append(f"costs in the schedule are multiplied by {problem.scale}")
    return lines


def memory_summary(least: LeastMemory, makespan: str, given: int | None, in_activations: bool) -> str:
    """Return the line about what the ranks hold, of a search that has found an order which is fast enough.

    Args:
        makespan: the most that an order may take, with its unit.
        given: the most that a rank holds in the given order; None if that cannot be run with the backwards of the search.
        in_activations: whether what a rank holds is a number of activations.
    """
    assert least.level is not None, "an order was found"
    held = count_text(least.level, "activation") if in_activations else f"{least.level:,}"
    proof = "proved least" if least.is_proved else f"at least {least.ruled_out + 1:,} are needed"
    by_given = "" if given is None else f"; the given order holds {given:,}"
    return f"no rank holds more than {held}: {proof} for a makespan of at most {makespan}{by_given}"


def uneven_ranks(problem: Problem) -> str | None:
    """Return a line that suggests --placements if the busiest rank has more than `UNEVEN` of the mean work; else None."""
    busy = problem.busy()
    rank, mean = max(range(len(busy)), key=lambda r: busy[r]), Fraction(sum(busy), len(busy))
    if busy[rank] <= UNEVEN * mean:
        return None
    figures = f"{figure(busy[rank] / problem.scale)}, the mean of all ranks is {figure(mean / problem.scale)}"
    return f"rank {rank} computes for {figures}: --placements also tries other placements"


class Progress:
    """Shows what a search knows as it changes: the best makespan, the bound and the gap, or what ranks hold.

    On a terminal, if tqdm is installed, they stand beside a bar of the time; else a line is written from time to time.

    Args:
        seconds: the time that the search may take.
        prefix: of the text.
    """

    def __init__(self, seconds: float, prefix: str = "") -> None:
        self.seconds, self.prefix, self.begun = seconds, prefix, time.monotonic()
        self.shown, self.shown_at = "", -LINE_EVERY_S  # the last line, and after how many seconds it was printed
        self.bar = None
        if sys.stderr is not None and sys.stderr.isatty() and find_spec("tqdm") is not None:
            from tqdm import tqdm  # start-up: 20 ms, on a terminal only

            layout = "{desc} |{bar}| {n:.0f}/{total:.0f} s"
            self.bar = tqdm(total=seconds, bar_format=layout, file=sys.stderr, leave=False)

    def show_memory(self, least: LeastMemory) -> None:
        """Show what a search for the least memory knows."""
        self.show_text(f"no rank holds more than {least.level:,}; at least {least.ruled_out + 1:,} are needed")

    def show_state(self, state: State) -> None:
        """Show what a search for an order knows."""
        assert state.best is not None, "a search reports states that have an order"
        self.show(state.best.makespan / state.problem.scale, state.bound / state.problem.scale)

    def show(self, best: Fraction, bound: Fraction) -> None:
        """Show the best makespan, the bound and the gap."""
        self.show_text(f"best {figure(best)}  bound {figure(bound)}  gap {float(1 - bound / best) if best else 0:.2%}")

    def show_text(self, text: str) -> None:
        """Show a text: beside the bar at once; as a line only if the last one is old and differs."""
        elapsed, text = time.monotonic() - self.begun, f"{self.prefix}{text}"
        if self.bar is not None:
            self.bar.set_description_str(text, refresh=False)
            self.bar.n = min(elapsed, self.seconds)
            self.bar.refresh()
        elif text != self.shown and elapsed - self.shown_at >= LINE_EVERY_S:
            write_stderr(f"{elapsed:6.0f} s  {text}\n")
            self.shown, self.shown_at = text, elapsed

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
