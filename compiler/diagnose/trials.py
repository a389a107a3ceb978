"""Trials: edited texts of a schedule are compiled, and the best one is suggested.

The best has the least makespan, then the fewest activations, then the earliest group of edits, then the fewest reordered tasks.
With `keep_order`, the fewest reordered tasks of one kind come first, and the group of edits comes before the activations.
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
from chimerac.compiler.given import StageChoice
from chimerac.compiler.lower.lower import lower
from chimerac.compiler.order.order import order_tasks
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.resolve.spec import Spec
from chimerac.compiler.syntax import nodes as n
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.tasks import checked_times
from chimerac.compiler.verify import peaks, verify

MAX_TASKS_FOR_LARGER_SIZE = 20_000  # schedules with more tasks at the given size are tried only at that size
MAX_TRIED = 1_000_000  # limit of `spent` in the search for one suggestion
TASKS_PER_CHARACTER = 10  # parsing a character of the text counts as much as ordering this many tasks

Sizes = Mapping[str, int]
_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What an edited text compiles to: the makespan, the peak of activations, and the program of its tasks in their order."""

    makespan: int
    activations: int
    tasks: Program


@dataclass
class Trials:
    """The search for an edit under which a schedule's order runs, with a bound on its work.

    attempt: compiles an edited text under parameters; returns None if that fails; sizes: the parameters as given, then
    others under which the schedule should work too; tasks: the number of tasks at the given size; option_text: the part of
    the help that names the option with which texts are compiled; limited: the text has limits, which are not checked at
    other sizes; spent: the effort so far: for every text tried, the tasks at the given size, and its characters.
    """

    attempt: Callable[[str, Sizes], TrialResult | None]
    sizes: Sequence[Sizes]
    tasks: int
    option_text: str
    limited: bool = False
    spent: int = 0

    @staticmethod
    def of(
        name: str,
        schedule: n.Schedule,
        spec: Spec,
        machine: Machine,
        arrange: bool,
        budget: Budget,
        recompute: StageChoice | None = None,
    ) -> Trials:
        """Return the trials for a schedule whose order cannot run: with its parameters as given, and at a larger size.

        On the machines whose transfers queue, transfers are arranged: without that few orders run there.
        budget: operations of all trials together; recompute: as in `resolve`.
        """
        given = spec.header.parameters
        arranging = arrange or machine in ("paired", "serial")
        option_text = f" with --for {machine}" if arranging and not arrange else ""

        def attempt(text: str, parameters: Sizes) -> TrialResult | None:
            if budget.left <= 0:
                return None
            try:
                changed = resolve(parse(Source(name, text)), parameters, budget, recompute)
                tasks = order_tasks(changed, budget).program
                timing = checked_times(tasks)
                program = lower(tasks, timing, changed.sync, width=1, machine=machine, arrange=arranging)
                # The limits of a schedule may be meant for the size that was given.
                verify(program if parameters == given else program.with_header(limits={}))
            except ChimeraError:
                return None
            return TrialResult(int(timing.end.max(initial=0)), max(peaks(program).activations), tasks)

        count = 2 * spec.header.stages * spec.header.micro_batches  # forwards and backwards
        # At the larger size all parameters are doubled; if that is not a valid size, only those above 2.
        larger = ({k: 2 * v if v > least else v for k, v in given.items()} for least in (0, 2))
        for parameters in larger if count <= MAX_TASKS_FOR_LARGER_SIZE else ():
            try:
                if parameters != given:
                    resolve(schedule, parameters, budget, recompute)
                    return Trials(attempt, (given, parameters), count, option_text, limited=bool(spec.limits))
            except ChimeraError:
                pass
        return Trials(attempt, (given,), count, option_text)

    def compiled(self, text: str, size: Sizes) -> TrialResult | None:
        """Return what a text compiles to. Return None if it does not compile, or if MAX_TRIED is exceeded."""
        self.spent += self.tasks + TASKS_PER_CHARACTER * len(_COMMENT.sub("", text))
        return None if self.spent > MAX_TRIED else self.attempt(text, size)

    def best(
        self,
        edits: Sequence[Iterator[Edit]],
        take_first: bool = False,
        original: Program | None = None,
        keep_order: bool = False,
    ) -> str:
        """Return the help with the best edit under which the order runs at all sizes; '' if there is none.

        edits: groups of edits; those that change less come first. take_first: take the first edit that works. original: the
        tasks in the order of the original text. keep_order: prefer edits that keep the order among tasks of one kind.
        """
        found: list[tuple[tuple[int, ...], TrialResult, Edit]] = []
        for number, edit in ((number, edit) for number, group in enumerate(edits) for edit in group):
            if self.spent > MAX_TRIED:  # nothing more is compiled, and a long text has very many edits
                break
            text = edited(edit)
            tried = self.compiled(text, self.sizes[0])
            if tried is not None and all(self.compiled(text, size) is not None for size in self.sizes[1:]):
                all_kinds, same_kind = _reordered(original, tried.tasks) if original is not None else (0, 0)
                rest = (number, tried.activations) if keep_order else (tried.activations, number)
                found.append(((same_kind if keep_order else 0, tried.makespan, *rest, all_kinds), tried, edit))
                if take_first:
                    break
        if not found:
            return ""
        _, tried, edit = min(found, key=lambda x: x[0])
        lines = [
            f"{span}: " + (f"write '{new}' instead of '{span.text}'" if new else f"remove '{span.text}'") for span, new in edit
        ]
        sizes = " and with ".join(" ".join(f"{k}={v}" for k, v in size.items()) for size in self.sizes)
        without_limits = ", at the larger size without the limits" if self.limited else ""
        return (
            "\n".join(lines)
            + f"; tried{' with ' if sizes else ''}{sizes}{without_limits}: it then runs{self.option_text}, "
            + f"makespan {tried.makespan}, activations {tried.activations}"
        )


def _keys(p: Program) -> Ints:
    """Return a key for each task of a program, the same wherever the task is in its stream."""
    h, t = p.header, p.table
    first_micro_batch = np.array([ids[0] for ids in p.micro_batch_lists], np.int64)[t.operand]
    return ((t.op.astype(np.int64) * len(h.pipes) + t.pipe) * h.stages + t.stage) * h.micro_batches + first_micro_batch


def _reordered(original: Program, other: Program) -> tuple[int, int]:
    """Return how many pairs of neighbours in `other` are in the opposite order in `original`.

    The first number counts neighbours in the stream of a rank, the second neighbours among its tasks of one kind.
    """
    before, after = _keys(original), _keys(other)
    if len(before) != len(after) or (np.sort(before) != np.sort(after)).any():
        return 0, 0
    place = np.argsort(before)[np.searchsorted(np.sort(before), after)]
    kind = np.where(other.table.op == Op.BWD_INPUT, Op.BWD, other.table.op)  # B and I count as one kind
    by_kind = np.lexsort((kind, other.rank_of))  # stable: within a kind the order stays
    all_kinds = (np.diff(place) < 0) & (np.diff(other.rank_of) == 0)
    group = other.rank_of[by_kind] * len(Op) + kind[by_kind]
    same_kind = (np.diff(place[by_kind]) < 0) & (np.diff(group) == 0)
    return int(all_kinds.sum()), int(same_kind.sum())
