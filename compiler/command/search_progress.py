"""The progress of `chimerac search` for stderr, and a summary of its result, for stderr and as comments of the schedule."""

from __future__ import annotations

import sys
import time
from fractions import Fraction
from importlib.util import find_spec
from typing import TYPE_CHECKING

from chimerac.chimera_ir.counts import sizes_text
from chimerac.chimera_ir.files import write_stderr
from chimerac.chimera_ir.numbers import number_text
from chimerac.chimera_ir.program import Program

if TYPE_CHECKING:
    from chimerac.compiler.search.orders import State
    from chimerac.compiler.search.problem import Problem

LINE_EVERY_S = 5.0  # the least time between two lines of progress, where there is no bar


def figure(value: Fraction) -> str:
    """Return the text of a time, with six significant digits."""
    return number_text(value, 6)


def summary(state: State, program: Program, problem: Problem, unit: str) -> list[str]:
    """Return the lines of the summary. unit: what follows the makespan, such as ' ms'; '' if the costs have no named unit."""
    assert state.best is not None, "a search ends with an order"
    makespan, bound = (Fraction(x) / problem.scale for x in (state.best.makespan, state.bound))
    gap = "proved optimal" if state.is_proved else f"bound {figure(bound)}, gap {float(1 - bound / makespan):.2%}"
    busy = max(problem.busy()) / problem.scale
    h = program.header
    sizes = sizes_text(h.ranks, h.stages, h.micro_batches)
    lines = [
        f"Found by chimerac search for the placement of {h.schedule}: {sizes}",
        f"makespan {figure(makespan)}{unit}, wall bubble of the busiest rank {figure(makespan - busy)}; {gap}; "
        f"by {state.best_by}",
    ]
    if state.known is not None:
        known, name = state.known
        more = known / state.best.makespan - 1 if state.best.makespan else 0.0
        lines.append(f"best known order at the start: {name}, {figure(known / problem.scale)} ({more:.1%} more)")
    if problem.scale != 1:
        lines.append(f"costs in this file are multiplied by {problem.scale}")
    return lines


class Progress:
    """Shows the best makespan, the bound and the gap as they change.

    On a terminal, if tqdm is installed, they stand beside a bar of the time; else a line is written now and then. seconds: the
    time that the search may take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.begun = seconds, time.monotonic()
        self.shown, self.shown_at = "", -LINE_EVERY_S  # the last line, and after how many seconds it was printed
        self.bar = None
        if sys.stderr is not None and sys.stderr.isatty() and find_spec("tqdm") is not None:
            from tqdm import tqdm  # start-up: 20 ms, on a terminal only

            layout = "{desc} |{bar}| {n:.0f}/{total:.0f} s"
            self.bar = tqdm(total=seconds, bar_format=layout, file=sys.stderr, leave=False)

    def show(self, state: State) -> None:
        """Show a state: beside the bar at once; as a line only if the last one is old enough and differs."""
        assert state.best is not None, "a search reports states that have an order"
        elapsed = time.monotonic() - self.begun
        best, bound = (Fraction(x) / state.problem.scale for x in (state.best.makespan, state.bound))
        text = f"best {figure(best)}  bound {figure(bound)}  gap {float(1 - bound / best) if best else 0:.2%}"
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
