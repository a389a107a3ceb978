"""Budgets: a compilation counts its own operations, also in threads and inside another one, and ends at the limit."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.compiler.diagnose import trials
from chimerac.compiler.diagnose.edits import edited
from chimerac.compiler.diagnose.trials import Trials
from chimerac.compiler.library import find
from chimerac.compiler.pipeline import compile_source
from chimerac.compiler.resolve.budget import Budget
from tests.helpers import findings_of_call

TICKS = "schedule x ranks 4 stages 4 pipe p {{ stage s on rank s micro_batches 16 }} order ticks {{ {} }}"
RIGHT = TICKS.format("F(s, m) at s + m  B(s, m) at 100 + 3 - s + m")
# Two tasks of a rank are on one tick. So the compiler tries edits of the text.
WRONG = TICKS.format("F(s, m) at s + m  B(s, m) at 2 - s + 2*m")
# The requirement is not met. So the compiler tries other values of N.
UNMET = "schedule x param N = 3 require N % 4 == 0 " + RIGHT.removeprefix("schedule x")


def compile_and_count(source: Source, **given: int) -> tuple[str, int]:
    """Return the digest of the program, or the findings if there is none, and the operations that the compilation took."""
    budget = Budget()
    try:
        result = compile_source(source, given, budget=budget).program.digest
    except ChimeraError as error:
        result = "\n".join(f"{d.code} {d.message} {d.help}" for d in error.diagnostics)
    return result, budget.spent


CASES: list[Callable[[], tuple[str, int]]] = [
    lambda: compile_and_count(find("chimera"), D=4, N=8),
    lambda: compile_and_count(find("zb_v"), D=4, N=12),
    lambda: compile_and_count(find("hanayo"), D=4, N=8),
    lambda: compile_and_count(Source("right", RIGHT)),
    lambda: compile_and_count(Source("wrong", WRONG)),
    lambda: compile_and_count(Source("unmet", UNMET)),
]


@pytest.fixture
def _fast_switches() -> Iterator[None]:
    """Let the interpreter switch between threads every 10 microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_fast_switches")
def test_compilations_in_threads_count_the_same_operations_as_alone() -> None:
    alone = [case() for case in CASES]
    assert all(spent > 0 for _, spent in alone)
    with ThreadPoolExecutor(len(CASES)) as pool:
        for together in pool.map(lambda _: [case() for case in CASES], range(2 * len(CASES))):
            assert together == alone


def test_an_inner_compilation_does_not_change_the_budget_of_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The inner compilation runs inside a trial of the outer one."""
    alone = compile_and_count(Source("wrong", WRONG))
    compiled_by_trials, nested = Trials.compiled, []

    def compiling_meanwhile(self: Trials, *given: object) -> object:
        nested.append(compile_and_count(find("chimera"), D=4, N=8))
        return compiled_by_trials(self, *given)

    monkeypatch.setattr(Trials, "compiled", compiling_meanwhile)
    assert compile_and_count(Source("wrong", WRONG)) == alone
    assert nested and set(nested) == {compile_and_count(find("chimera"), D=4, N=8)}


def test_trials_are_not_counted_in_the_budget() -> None:
    """A wrong text, of which edits are tried, takes at most a tenth more operations than a right one of the same size."""
    result, spent = compile_and_count(Source("wrong", WRONG))
    assert "tried" in result
    assert spent <= 1.1 * compile_and_count(Source("right", RIGHT))[1]


def test_no_edit_is_made_after_the_last_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long formula has edits for each of its numbers, and making an edit copies the whole text."""
    made, compiled = [], []
    monkeypatch.setattr(trials, "MAX_TRIED", 20_000)  # enough for a few trials
    monkeypatch.setattr(trials, "edited", lambda edit: made.append(edit) or edited(edit))
    compiled_by_trials = Trials.compiled
    monkeypatch.setattr(Trials, "compiled", lambda *given: compiled.append(given) or compiled_by_trials(*given))
    compile_and_count(Source("long", TICKS.format(f"F(s, m) at 0*m{'+1' * 100}  B(s, m) at 99999 + m")))
    assert 0 < len(made) <= len(compiled) < 20


def test_two_compilations_of_one_budget_share_it() -> None:
    budget, (_, spent_once) = Budget(), compile_and_count(Source("right", RIGHT))
    for _ in range(2):
        compile_source(Source("right", RIGHT), {}, budget=budget)
    assert budget.spent == 2 * spent_once


@pytest.mark.parametrize("name", ["chimera", "zb_v", "hanayo"])  # order ticks, listing, greedy
def test_a_budget_that_is_used_up_is_a_finding(name: str) -> None:
    source, sizes = find(name), {"D": 4, "N": 8}
    enough = Budget()
    program = compile_source(source, sizes, budget=enough).program
    assert compile_source(source, sizes, budget=Budget(enough.spent)).program == program
    for total in (0, enough.spent // 2, enough.spent - 1):
        [d] = findings_of_call(compile_source, source, sizes, budget=Budget(total))
        assert d.code == "E211" and d.span is not None
        assert re.search(f"more than {total} operations", d.message)
        assert d.help == "take smaller sizes, or fewer and simpler formulas"


def test_the_check_of_each_limit_at_each_task_is_counted() -> None:
    def spent(limit_count: int, micro_batches: int) -> int:
        order = f"order greedy {{ prefer B, F {'limit F - B <= 4 ' * limit_count} }}"
        pipe = f"pipe p {{ stage s on rank s micro_batches {micro_batches} }}"
        return compile_and_count(Source("x", f"schedule x ranks 4 stages 4 {pipe} {order}"))[1]

    # Differences leave out the operations that do not grow with the number of tasks.
    assert spent(limit_count=16, micro_batches=40) - spent(limit_count=16, micro_batches=20) > 1.5 * (
        spent(limit_count=1, micro_batches=40) - spent(limit_count=1, micro_batches=20)
    )


def test_a_share_is_a_fraction_of_the_remaining_operations() -> None:
    budget = Budget(total=100, spent=20)
    assert (budget.share(4).left, budget.share().left, budget.left) == (20, 80, 80)
    assert Budget(total=100, spent=120).share().left == 0
