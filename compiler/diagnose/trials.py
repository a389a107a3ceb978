"""Trials: changed texts of a schedule are compiled, and the best one is suggested.

The best is the one with the least makespan, among equals the one with the fewest activations, then the one with the fewest
reordered tasks.
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

LARGE = 20_000  # tasks: a schedule with more is not also tried at a larger size
MAX_TRIED = 1_000_000  # tasks ordered in the search for one suggestion
TASKS_PER_CHARACTER = 10  # parsing a character of the text counts as much as ordering this many tasks

Sizes = Mapping[str, int]
_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a changed text compiles to: the makespan and the peak of activations. tasks: its order."""

    makespan: int
    activations: int
    tasks: Program


@dataclass
class Trials:
    """The search for an edit under which a schedule's order runs, with a bound on its work.

    attempt: compiles a changed text under parameters; returns None if that fails; sizes: the parameters as given, then
    others under which the schedule should work too; tasks: their number; how: the option with which texts are compiled;
    limited: the text has limits, which are not checked at other sizes; spent: tasks ordered and characters read so far.
    """

    attempt: Callable[[str, Sizes], TrialResult | None]
    sizes: Sequence[Sizes]
    tasks: int
    how: str
    limited: bool = False
    spent: int = 0

    @staticmethod
    def of(name: str, schedule: n.Schedule, spec: Spec, machine: Machine, arrange: bool, budget: Budget) -> Trials:
        """Return the trials for a schedule whose order cannot run: with its parameters as given, and at a larger size.

        On the machines whose transfers queue, transfers are arranged: without that few orders run there.
        budget: operations of all trials together.
        """
        given = spec.header.parameters
        arranging = arrange or machine in ("paired", "serial")
        how = f" with --for {machine}" if arranging and not arrange else ""

        def attempt(text: str, parameters: Sizes) -> TrialResult | None:
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
            return TrialResult(int(timing.end.max(initial=0)), max(peaks(program).activations), tasks)

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

    def compiled(self, text: str, size: Sizes) -> TrialResult | None:
        """Return what a text compiles to. Return None if it does not compile, or if MAX_TRIED is exceeded."""
        self.spent += self.tasks + TASKS_PER_CHARACTER * len(_COMMENT.sub("", text))
        return None if self.spent > MAX_TRIED else self.attempt(text, size)

    def best(
        self, edits: Sequence[Iterator[Edit]], first: bool = False, written: Program | None = None, keep: bool = False
    ) -> str:
        """Return the help with the best edit under which the order runs at all sizes; '' if there is none.

        edits: those that change less come first; first: take the first edit that works; written: the order of the
        original text; keep: prefer edits that keep the order among tasks of one kind.
        """
        found: list[tuple[tuple[int, ...], TrialResult, Edit]] = []
        for change, edit in ((k, edit) for k, group in enumerate(edits) for edit in group):
            text = edited(edit)
            tried = self.compiled(text, self.sizes[0])
            if tried is not None and all(self.compiled(text, size) is not None for size in self.sizes[1:]):
                all_kinds, same_kind = _reordered(written, tried.tasks) if written is not None else (0, 0)
                rest = (change, tried.activations) if keep else (tried.activations, change)
                found.append(((same_kind if keep else 0, tried.makespan, *rest, all_kinds), tried, edit))
                if first:
                    break
        if not found:
            return ""
        _, tried, edit = min(found, key=lambda x: x[0])
        lines = [
            f"{span}: " + (f"write '{new}' instead of '{span.text}'" if new else f"remove '{span.text}'") for span, new in edit
        ]
        sizes = " and with ".join(" ".join(f"{k}={v}" for k, v in size.items()) for size in self.sizes)
        without_limits = ", there without the limits" if self.limited else ""
        return (
            "\n".join(lines)
            + f"; tried{' with ' if sizes else ''}{sizes}{without_limits}: it then runs{self.how}, "
            + f"makespan {tried.makespan}, activations {tried.activations}"
        )


def _keys(p: Program) -> Ints:
    """Return a number for each task of a program that does not depend on its position."""
    h, x = p.header, p.table
    return ((x.op.astype(np.int64) * len(h.pipes) + x.pipe) * h.stages + x.stage) * len(p.micro_batch_lists) + x.operand


def _reordered(written: Program, other: Program) -> tuple[int, int]:
    """Return how many neighbours in `other` have the opposite order in `written`: all of a rank, and those of one kind."""
    before, after = _keys(written), _keys(other)
    if len(before) != len(after) or (np.sort(before) != np.sort(after)).any():
        return 0, 0
    place = np.argsort(before)[np.searchsorted(np.sort(before), after)]
    kind = np.where(other.table.op == Op.BWD_INPUT, Op.BWD, other.table.op)
    by_kind = np.lexsort((kind, other.rank_of))  # stable: within a kind the order stays
    all_kinds = (np.diff(place) < 0) & (np.diff(other.rank_of) == 0)
    group = other.rank_of[by_kind] * 8 + kind[by_kind]
    same_kind = (np.diff(place[by_kind]) < 0) & (np.diff(group) == 0)
    return int(all_kinds.sum()), int(same_kind.sum())
