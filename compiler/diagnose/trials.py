"""Trials: edited texts of a schedule are compiled, and the best one is suggested.

An edit must run at the given size, and at a doubled one if trial_sizes.py has one. At sizes where the original text compiles,
the edited text must compile to the same program. An edit that runs at more of the other sizes is better.

Of edits that run at equally many, the best has the least makespan, then the fewest activations, then the earliest group of
edits, then the fewest reordered tasks. With `keep_order`, the fewest reordered tasks of one kind come before the makespan, and
the group of edits comes before the activations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.program import Ints, Machine, Program
from chimerac.compiler.diagnose.edits import Edit, edited
from chimerac.compiler.diagnose.trial_sizes import Sizes, TrialSize, trial_sizes
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

MAX_TRIED = 1_000_000  # limit of `spent` in the search for one suggestion
TASKS_PER_CHARACTER = 10  # parsing a character of the text counts as much as ordering this many tasks

_COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True, slots=True)
class TrialResult:
    """What a text compiles to.

    Attributes:
        makespan: of the tasks.
        activations: the most of any rank.
        tasks: the program of tasks.
        program: the lowered one.
    """

    makespan: int
    activations: int
    tasks: Program
    program: Program


@dataclass
class Trials:
    """The search for an edit under which a schedule's order runs, with a bound on its work.

    Attributes:
        attempt: compiles an edited text under parameters; returns None if that fails.
        sizes: where an edit is tried, the given size first.
        option_text: the part of the help that names the option which the trials add, '' if they add none.
        limited: whether the text has limits, which are not checked at other sizes.
        budget: operations of all trials together.
        spent: the effort so far, in tasks: for every text tried, the `tasks` of its `TrialSize`, and TASKS_PER_CHARACTER for
            each character outside of comments.
    """

    attempt: Callable[[str, Sizes], TrialResult | None]
    sizes: Sequence[TrialSize]
    option_text: str
    limited: bool
    budget: Budget
    spent: int = 0

    @staticmethod
    def of(
        source: Source,
        schedule: n.Schedule,
        spec: Spec,
        machine: Machine,
        arrange: bool,
        budget: Budget,
        recompute: StageChoice | None = None,
    ) -> Trials:
        """Return the trials for a schedule whose order cannot run: with its parameters as given, and at other sizes.

        On the machines whose transfers queue, transfers are arranged: without that few orders run there.

        Args:
            budget: operations of all trials together.
            recompute: as in `resolve`.
        """
        given = spec.header.parameters
        arranging = arrange or machine in ("paired", "serial")
        option_text = f" with --for {machine}" if arranging and not arrange else ""

        def attempt(text: str, parameters: Sizes) -> TrialResult | None:
            if budget.left <= 0:
                return None
            try:
                changed = resolve(parse(Source(source.name, text)), parameters, budget, recompute)
                tasks = order_tasks(changed, budget).program
                timing = checked_times(tasks)
                program = lower(tasks, timing, changed.sync, width=1, machine=machine, arrange=arranging)
                # The limits of a schedule may be meant for the size that was given.
                verify(program if parameters == given else program.with_header(limits={}))
            except ChimeraError:
                return None
            return TrialResult(int(timing.end.max(initial=0)), max(peaks(program).activations), tasks, program)

        def compile_original(parameters: Sizes) -> Program | None:
            result = attempt(source.text, parameters)
            return None if result is None else result.program

        sizes = trial_sizes(schedule, spec.header, budget, recompute, compile_original)
        return Trials(attempt, sizes, option_text, bool(spec.limits), budget)

    def compiled(self, text: str, size: TrialSize) -> TrialResult | None:
        """Return what a text compiles to. Return None if it does not compile, or if the trials have ended."""
        self.spent += size.tasks + TASKS_PER_CHARACTER * len(_COMMENT.sub("", text))
        return None if self.ended else self.attempt(text, size.parameters)

    @property
    def ended(self) -> bool:
        """Whether MAX_TRIED is exceeded or the budget is used up."""
        return self.spent > MAX_TRIED or self.budget.left <= 0

    def best(
        self,
        edits: Sequence[Iterator[Edit]],
        take_first: bool = False,
        original: Program | None = None,
        keep_order: bool = False,
    ) -> str:
        """Return the help with the best edit under which the order runs; '' if there is none.

        Args:
            edits: groups of edits; those that change less come first.
            take_first: take the first edit that runs at all sizes.
            original: the tasks in the order of the original text; None: how many tasks an edit reorders does not count.
            keep_order: prefer edits that keep the order among tasks of one kind.
        """
        candidates: list[tuple[tuple[int, ...], _Tried, Edit]] = []
        for group_number, edit in ((k, edit) for k, group in enumerate(edits) for edit in group):
            if self.ended:  # nothing more is compiled, and a long text has very many edits
                break
            tried = self._tried(edited(edit))
            if tried is not None:
                result = tried.result
                all_kinds, same_kind = _reordered(original, result.tasks) if original is not None else (0, 0)
                rest = (group_number, result.activations) if keep_order else (result.activations, group_number)
                key = (len(tried.failing), same_kind if keep_order else 0, result.makespan, *rest, all_kinds)
                candidates.append((key, tried, edit))
                if take_first and not tried.failing:
                    break
        if not candidates:
            return ""
        _, tried, edit = min(candidates, key=lambda x: x[0])
        lines = [
            f"{span}: " + (f"write '{new}' instead of '{span.text}'" if new else f"remove '{span.text}'") for span, new in edit
        ]
        return "\n".join(lines) + self._effect(tried)

    def _tried(self, text: str) -> _Tried | None:
        """Return what was found about an edited text; None if it is not to be suggested."""
        given, *others = self.sizes
        result = self.compiled(text, given)
        if result is None:
            return None
        failing = []
        for size in others:
            compiled = self.compiled(text, size)
            if compiled is None and (size.required or self.ended):
                return None
            if compiled is not None and size.original not in (None, compiled.program):
                return None
            if compiled is None:
                failing.append(size)
        return _Tried(result, failing)

    def _effect(self, tried: _Tried) -> str:
        """Return the end of the help: with which sizes an edit was tried, and what its effect was."""
        running = [x for x in self.sizes if x.original is None and x not in tried.failing]
        same = [x for x in self.sizes if x.original is not None]
        others = len(running) - 1  # besides the given size
        without_limits = f", at the other size{'s' * (others > 1)} without the limits" if self.limited and others else ""
        named = any(x.parameters for x in running)
        text = f"; tried{f' {_listed(running)}' if named else ''}{without_limits}: it then runs{self.option_text}, "
        text += f"makespan {tried.result.makespan}, activations {tried.result.activations}"
        text += f"; {_listed(same)} the program stays the same" if same else ""
        return text + (f"; it does not run {_listed(tried.failing)}" if tried.failing else "")


@dataclass(frozen=True, slots=True)
class _Tried:
    """An edited text that may be suggested.

    Attributes:
        result: at the given size.
        failing: the sizes at which neither this text nor the original one compiles.
    """

    result: TrialResult
    failing: Sequence[TrialSize]


def _listed(sizes: Sequence[TrialSize]) -> str:
    """Return sizes for messages: 'with D=2 N=2, with D=4 N=4 and with D=2 N=4'."""
    *first, last = ("with " + " ".join(f"{k}={v}" for k, v in x.parameters.items()) for x in sizes)
    return f"{', '.join(first)} and {last}" if first else last


def _keys(p: Program) -> Ints:
    """Return a key for each task of a program, the same wherever the task is in its stream."""
    h, t = p.header, p.table
    first_micro_batch = np.array([ids[0] for ids in p.micro_batch_lists], np.int64)[t.operand]
    return ((t.op.astype(np.int64) * len(h.pipes) + t.pipe) * h.stages + t.stage) * h.micro_batches + first_micro_batch


def _reordered(original: Program, other: Program) -> tuple[int, int]:
    """Return how many pairs of neighbours in `other` are in the opposite order in `original`.

    The first number counts neighbours in the stream of a rank, the second neighbours among its tasks of one kind. Both are 0 if
    the programs have different tasks.
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
