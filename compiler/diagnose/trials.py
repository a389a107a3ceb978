"""Trials: changed texts of a schedule are compiled, and the best one is suggested.

The best is the one with the least makespan, among equals the one with the fewest activations, then the one with the fewest
tasks in another order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Ints, Machine, Program
from chimerac.compiler.diagnose.edits import Edit, edited
from chimerac.compiler.lower.lower import lower
from chimerac.compiler.order.order import order_tasks
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.tasks import checked_times
from chimerac.compiler.verify import peaks, verify

LARGE = 20_000  # tasks from which on changes are not tried at a larger size too
MAX_TRIED = 1_000_000  # tasks ordered for one suggestion
A_CHARACTER = 10  # tasks that cost as much as reading a character of the text

Sizes = Mapping[str, int]
_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class Tried:
    """The makespan and the peak of activations of a changed text. tasks: its order."""

    makespan: int
    activations: int
    tasks: Program


@dataclass
class Trials:
    """What is tried, and how often.

    attempt: compiles a changed text under these parameters, None if it is refused; sizes: the parameters as given, then
    others under which the schedule should work too; tasks: how many there are; how: the option with which it is tried;
    limited: the text has limits, which are not checked at other sizes; spent: tasks ordered and characters read so far.
    """

    attempt: Callable[[str, Sizes], Tried | None]
    sizes: Sequence[Sizes]
    tasks: int
    how: str
    limited: bool = False
    spent: int = 0

    @staticmethod
    def of(name: str, schedule: n.Schedule, spec: Spec, machine: Machine, arrange: bool, budget: Budget) -> Trials:
        """Return what tries changed texts of a schedule whose order cannot run: as it was given, and at a larger size.

        On the machines whose transfers queue, transfers are arranged: few orders are right for them as they are.
        budget: of all trials together.
        """
        given = spec.header.parameters
        arranging = arrange or machine in ("paired", "serial")
        how = f" with --for {machine}" if arranging and not arrange else ""

        def attempt(text: str, parameters: Sizes) -> Tried | None:
            if budget.left <= 0:
                return None
            try:
                changed = resolve(parse(Source(name, text)), parameters, budget)
                tasks = order_tasks(changed, budget).program
                timing = checked_times(tasks)
                program = lower(tasks, timing, changed.sync, 1, machine, arranging)
                # The limits of a schedule may be meant for the size that was given.
                verify(program if parameters == given else program.with_header(limits={}))
            except ChimeraError:
                return None
            return Tried(int(timing.end.max(initial=0)), max(peaks(program).activations), tasks)

        count = 2 * spec.header.stages * spec.header.micro_batches
        larger = () if count > LARGE else ({k: v + (v if v > least else 0) for k, v in given.items()} for least in (0, 2))
        for parameters in larger:
            try:
                if parameters != given:
                    resolve(schedule, parameters, budget)
                    return Trials(attempt, (given, parameters), count, how, bool(spec.limits))
            except ChimeraError:
                pass
        return Trials(attempt, (given,), count, how)

    def costs(self, text: str, size: Sizes) -> Tried | None:
        """Return what a text compiles to; None if it is refused, or if too much has been tried."""
        self.spent += self.tasks + A_CHARACTER * len(_COMMENT.sub("", text))
        return None if self.spent > MAX_TRIED else self.attempt(text, size)

    def best(
        self, edits: Sequence[Iterator[Edit]], first: bool = False, written: Program | None = None, keep: bool = False
    ) -> str:
        """Return the help with the best edit under which the order runs at all sizes; '' if there is none.

        edits: those that change less come first; first: take the first edit that works; written: the order that the text
        has; keep: prefer edits that keep the order among tasks of one kind.
        """
        found: list[tuple[tuple[int, ...], Tried, Edit]] = []
        for change, edit in ((k, edit) for k, some in enumerate(edits) for edit in some):
            text = edited(edit)
            tried = self.costs(text, self.sizes[0])
            if tried is not None and all(self.costs(text, size) is not None for size in self.sizes[1:]):
                every, alike = _moved(written, tried.tasks) if written is not None else (0, 0)
                held = (change, tried.activations) if keep else (tried.activations, change)
                found.append(((alike if keep else 0, tried.makespan, *held, every), tried, edit))
                if first:
                    break
        if not found:
            return ""
        _, tried, edit = min(found, key=lambda x: x[0])
        lines = [
            f"{span}: " + (f"write '{new}' instead of '{span.text}'" if new else f"remove '{span.text}'") for span, new in edit
        ]
        sizes = " and with ".join(" ".join(f"{k}={v}" for k, v in size.items()) for size in self.sizes)
        beyond = ", there without the limits" if self.limited else ""
        return (
            "\n".join(lines)
            + f"; tried{' with ' if sizes else ''}{sizes}{beyond}: it then runs{self.how}, "
            + f"makespan {tried.makespan}, activations {tried.activations}"
        )


def _keys(p: Program) -> Ints:
    """Return a number for each task of a program that does not depend on its place."""
    h, x = p.header, p.table
    return ((x.op.astype(np.int64) * len(h.pipes) + x.pipe) * h.stages + x.stage) * len(p.batches) + x.batch


def _moved(written: Program, other: Program) -> tuple[int, int]:
    """Return how many tasks come after one that they preceded as written: on their rank, and among those of one kind."""
    before, after = _keys(written), _keys(other)
    if len(before) != len(after) or (np.sort(before) != np.sort(after)).any():
        return 0, 0
    place = np.argsort(before)[np.searchsorted(np.sort(before), after)]
    kind = np.where(other.table.op == Op.BWD_INPUT, Op.BWD, other.table.op)
    by_kind = np.lexsort((kind, other.rank_of))  # stable: within a kind the order stays
    every = (np.diff(place) < 0) & (np.diff(other.rank_of) == 0)
    group = other.rank_of[by_kind] * 8 + kind[by_kind]
    alike = (np.diff(place[by_kind]) < 0) & (np.diff(group) == 0)
    return int(every.sum()), int(alike.sum())
