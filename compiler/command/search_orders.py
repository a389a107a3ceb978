"""The search of `chimerac search` for an order: for the best placement first, with --placements, and within --memory.

This module loads numba and OR-tools, which takes 1.3 s. So it is imported only after the options have been checked.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from math import floor

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.profile import Profile
from chimerac.chimera_ir.program import Program
from chimerac.compiler.command.search_given import SPLIT, given_for, makespan_of
from chimerac.compiler.command.search_memory import SearchMemory
from chimerac.compiler.command.search_progress import Progress, exact_figure, memory_summary, summary, uneven_ranks
from chimerac.compiler.exchange.listing_text import with_suffix
from chimerac.compiler.search.certificate import certificate
from chimerac.compiler.search.from_program import given_of, problem_of
from chimerac.compiler.search.given import Given
from chimerac.compiler.search.known_orders import library_orders, order_of
from chimerac.compiler.search.least_memory import LeastMemory, Levels, least_memory
from chimerac.compiler.search.orders import State, search
from chimerac.compiler.search.placements import Placed, best_placement
from chimerac.compiler.search.problem import Problem
from chimerac.compiler.search.sequences import Order, one_after_another
from chimerac.compiler.search.text import schedule_text

PLACEMENTS = 0.4  # share of --time in which --placements compares placements; the best one is searched in the rest
EXACT = 8  # orders whose bytes are counted exactly, at most: those that hold least, as the search counts bytes
ATTEMPTS = 4  # with --memory: the most searches, each with lower limits than the one before, until a found order fits


@dataclass(frozen=True)
class FoundOrder:
    """An order that was found.

    Attributes:
        proved: what a search for the least memory has found; None without such a search, and for one that counted bytes, for
            which it proves nothing.
        program, text: of the schedule that has the order.
        lines: the summary.
        hints: lines of advice.
    """

    state: State
    proved: LeastMemory | None
    program: Program
    text: str
    lines: list[str]
    hints: list[str]

    @property
    def certificate(self) -> str:
        """Return the text of the certificate."""
        return certificate(self.state, self.program.header.schedule, self.program.digest, self.proved)


class OrderSearch:
    """A search for an order of the tasks of a schedule.

    Args:
        statements: those that the found schedule repeats.
        program, given, memory: of the placement that is searched, which is that of `given_program` at first.
        memory: None if the search counts no bytes.
        profile: None without --profile.

    Attributes:
        given_program: the schedule, compiled; with --model with a partition.
        placed: the best placement, with --placements.
        least: what the search found, with --objective memory.
    """

    def __init__(
        self,
        program: Program,
        statements: Sequence[str],
        given: Given,
        profile: Profile | None,
        memory: SearchMemory | None,
        options: argparse.Namespace,
    ) -> None:
        self.given_program = self.program = program
        self.statements, self.given, self.profile, self.memory, self.options = statements, given, profile, memory, options
        self.placed: Placed | None = None
        self.least: LeastMemory | None = None
        self.name = with_suffix(program.header.schedule, "_found")

    def run(self, seconds: float) -> FoundOrder:
        """Search, and return the best order. Ctrl-C ends the search early.

        Raises ChimeraError E002 if a rank needs more than the bytes of --memory even if micro-batches run one at a time; others
        as `problem_of`, `schedule_text`, `SearchMemory.within`, `_search_least_memory` and `_least_bytes`.
        """
        if self.options.placements:
            self._place(PLACEMENTS * seconds)
            seconds -= PLACEMENTS * seconds
        memory = self.memory
        is_objective = self.options.objective == "memory"
        if memory is None:
            return self._written(self._search_least_memory(seconds).state if is_objective else self._search(seconds))
        problem = self._problem()
        memory.check(self._compiled(problem, one_after_another(problem)))
        if is_objective:
            return self._written(self._least_bytes(self._search_least_memory(seconds), memory))
        for attempt in range(ATTEMPTS):
            state = self._search(seconds)
            found = self._written(state)
            if memory.fits(found.program):
                return found
            if state.is_interrupted or attempt == ATTEMPTS - 1 or not memory.lower(found.program):
                break
        return self._slower(state, memory)

    def _place(self, seconds: float) -> None:
        """Search for the best placement, and go on with it."""
        problem, progress = self._problem(), Progress(seconds, "placements: ")
        placed = self.placed = best_placement(
            problem,
            self._known_orders(problem),
            seconds,
            self.options.seed,
            lambda best: progress.show(best.order.makespan / problem.scale, best.bound / problem.scale),
            None if self.memory is None else partial(self.memory.limits_for, self.program),
        )
        progress.close()
        if placed.problem.pipes == problem.pipes:
            return
        self.program = self._compiled(placed.problem, placed.order)
        self.memory = SearchMemory.of(self.program, self.profile, self.options, SPLIT[self.options.backward])
        self.given = given_of(placed.problem)
        if self.profile is not None:  # other stages send messages over each link
            self.given = replace(self.given, links=given_for(self.program, self.profile, self.options).links)
        if self.memory is not None:  # `_problem` adds its limits
            self.given = replace(self.given, activations=None, limits=None)

    def _search(self, seconds: float) -> State:
        """Search for an order; with --memory, within the limits that it has now."""
        problem, placed, progress = self._problem(), self.placed, Progress(seconds)
        is_interrupted = placed is not None and placed.is_interrupted
        known = self._known_orders(problem)
        state = search(problem, known, 0 if is_interrupted else seconds, self.options.seed, progress.show_state)
        progress.close()
        if placed is not None:
            if placed.known is not None:
                makespan, name = placed.known
                state.known = round(_rescaled(makespan, placed.problem, problem)), name
            state.is_interrupted |= placed.is_interrupted
        return state

    def _search_least_memory(self, seconds: float) -> LeastMemory:
        """Search for the order that holds least of those that take at most `_longest_makespan`.

        Raises ChimeraError E002 if it is proved that no order takes so little time; others as `_longest_makespan`.
        """
        problem, progress = self._problem(), Progress(seconds)
        levels = Levels(problem, (0,) * problem.ranks if self.memory is None else self.memory.limits.aside)
        makespan, tasks = self._longest_makespan(problem), problem.tasks
        self._check_possible(makespan, int((tasks.head + tasks.duration + tasks.tail).max(initial=0)), problem, False)
        known = self._known_orders(problem)
        self.least = least_memory(levels, makespan, known, seconds, self.options.seed, progress.show_memory)
        progress.close()
        # With bytes the limits are larger than any need: `SearchMemory.of` takes `NO_LIMIT` for this objective.
        limits_matter = self.memory is None and any(x is not None for x in problem.limits)
        self._check_possible(makespan, self.least.state.bound, problem, limits_matter)
        return self.least

    def _least_bytes(self, least: LeastMemory, memory: SearchMemory) -> State:
        """Return the state with the order that needs fewest bytes, of those that hold least as the search counts them.

        If no order was found that takes at most `least.makespan`, the state stays as it is. Raises ChimeraError E002 if its
        order needs more than the bytes of --memory.
        """
        if least.level is not None:
            levels = least.levels
            candidates = sorted(least.reached, key=lambda named: (levels.of(named[1]), named[1].makespan))[:EXACT]
            exact = [memory.needed(self._compiled(levels.problem, order)) for _, order in candidates]
            by, order = candidates[exact.index(min(exact))]
            least.keep(order, by)
        needed = memory.needed(self._compiled(least.state.problem, least.state.best))
        if needed > memory.most:
            makespan = exact_figure(least.makespan / least.levels.problem.scale)
            message = f"no order was found that takes at most {makespan} within --memory"
            help = "give more bytes, a longer --makespan, or more --time"
            raise refuse("E002", f"{message}: the best one needs {needed:,} bytes", help=help)
        return least.state

    def _compiled(self, problem: Problem, order: Order | None) -> Program:
        """Return the program of an order, with the partition of --model if there is one."""
        assert order is not None, "a search ends with an order"
        _, compiled = schedule_text(problem, order, self.name, [], self.statements)
        return compiled.program.with_partition(self.program.partition)

    def _longest_makespan(self, problem: Problem) -> int:
        """Return the makespan that an order may take with --objective memory, in times of the problem.

        Raises ChimeraError E002 if --makespan is no number above 0, or if it is missing and the given order cannot be run.
        """
        if self.options.makespan is None:
            order = self._given_order(problem)
            if order is None:
                raise refuse("E002", "the order of the schedule cannot be run with these backwards", help="give --makespan")
            return order.makespan
        return floor(makespan_of(self.options.makespan) * problem.scale)

    def _problem(self) -> Problem:
        """Return the problem; with --memory, with the limits that it has now."""
        return problem_of(self.program, self.given if self.memory is None else self.memory.within(self.given))

    def _known_orders(self, problem: Problem) -> Iterator[tuple[str, Order]]:
        """Yield the orders with which a search begins, as far as they fit the problem.

        They are that of the search for a placement, that of `program`, and those of the library.
        """
        placed = self.placed
        # The limits may be lower than in that search, and the links other ones.
        if placed is not None and (order := Order.of(problem, placed.order.sequence, placed.order.length)) is not None:
            yield "the search for a placement", order
        if (order := order_of(problem, self.program)) is not None:
            yield "the given schedule" if self.program is self.given_program else "the search for a placement", order
        yield from library_orders(problem)

    def _written(self, state: State) -> FoundOrder:
        """Return the schedule with the best order of a search."""
        assert state.best is not None, "a search ends with an order"
        problem, bound = state.problem, None
        if self.placed is not None:
            bound = floor(_rescaled(self.placed.bound, self.placed.problem, problem))
        unit = "" if self.profile is None else " ms"
        lines = summary(state, self.given_program, problem, unit, bound)
        if self.least is not None:
            lines[1:1] = self._memory_lines(self.least, unit)
        text, compiled = schedule_text(problem, state.best, self.name, lines, self.statements)
        program = compiled.program.with_partition(self.program.partition)
        hint = None if self.options.placements else uneven_ranks(problem)
        hints = [] if hint is None else [hint]
        return FoundOrder(state, self.least if self.memory is None else None, program, text, lines, hints)

    def _check_possible(self, makespan: int, bound: int, problem: Problem, depends_on_limits: bool) -> None:
        """Raise ChimeraError E002 if a lower bound of the makespan of all orders exceeds the given makespan.

        Args:
            depends_on_limits: whether larger limits may lower the bound.
        """
        if bound <= makespan:
            return
        unit = "" if self.profile is None else " ms"
        given, least = (exact_figure(x / problem.scale) for x in (makespan, bound))
        whose = ", as the given order does" if self.options.makespan is None else ""
        message = f"no order within the limits takes at most {given}{unit}{whose}: each takes at least {least}{unit}"
        larger_limits = "larger limits, or " if depends_on_limits else ""
        raise refuse("E002", message, help=f"give {larger_limits}--makespan with more than {given}")

    def _given_order(self, problem: Problem) -> Order | None:
        """Return the order of the given schedule, also if it exceeds limits; None if tasks wait for each other in it."""
        return order_of(replace(problem, limits=(None,) * problem.ranks), self.given_program)

    def _memory_lines(self, least: LeastMemory, unit: str) -> list[str]:
        """Return the lines of the summary about what the ranks hold.

        Args:
            unit: what follows a makespan.
        """
        makespan = f"{exact_figure(least.makespan / least.levels.problem.scale)}{unit}"
        if least.level is None:
            return [f"no order was found that takes at most {makespan}: this is the fastest that was found"]
        if self.memory is None:
            order = self._given_order(least.levels.problem)
            given = None if order is None else least.levels.of(order)
            return [memory_summary(least, makespan, given, self.given.activations is None)]
        needed = self.memory.needed(self._compiled(least.state.problem, least.state.best))
        given_needed = self.memory.needed(self.given_program)
        return [
            f"no rank needs more than {needed:,} bytes, for a makespan of at most {makespan}; given: {given_needed:,} bytes"
        ]

    def _slower(self, state: State, memory: SearchMemory) -> FoundOrder:
        """Return the schedule with the fastest order that needs few enough bytes, of all that the last search has kept.

        If none of them does, return the one that runs micro-batches one at a time.
        """
        for order in (*state.pool, one_after_another(state.problem)):
            if order is not state.best:
                state.best, state.best_by = order, "a slower order that needs fewer bytes"
            found = self._written(state)
            if memory.fits(found.program):
                break
        return found


def _rescaled(makespan: int, before: Problem, after: Problem) -> Fraction:
    """Return a makespan in times of one problem in those of another one."""
    return Fraction(makespan * after.scale, before.scale)
