"""Random schedules of the forms `greedy` and `listing` compile to correct programs, or are refused with a finding."""

from __future__ import annotations

import re
from collections import Counter

from hypothesis import event, example, given
from hypothesis import strategies as st

from chimerac.chimera_ir.diagnostics import ChimeraError, Source
from chimerac.chimera_ir.jsonform import program_from_json, program_to_json
from chimerac.chimera_ir.program import Program
from chimerac.chimera_ir.textform import program_from_text, program_to_text
from chimerac.compiler import compile_text
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.order.order import order_tasks
from chimerac.compiler.resolve.budget import Budget
from chimerac.compiler.resolve.resolve import resolve
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.syntax.printer import print_schedule
from chimerac.compiler.verify import verify
from tests.effort import examples
from tests.helpers_events import makespan
from tests.helpers_orders import GreedyCase, ListingCase, greedy_schedules, listings, shuffled_listings, task_orders
from tests.helpers_reference import find_error


def compile_and_check(text: str) -> Program:
    """Return the program of a schedule that must compile, after checking it in several independent ways."""
    p = compile_text(text).program
    assert not find_error(p)
    assert simulate(p).makespan == makespan(p)
    printed = print_schedule(parse(Source("drawn", text)))
    assert compile_text(printed).program == p
    assert verify(program_from_json(program_to_json(p))) == p
    assert program_from_text(program_to_text(p)) == p
    return p


@given(greedy_schedules(never_stuck=True))
@examples(50)
def test_a_scheduler_with_room_for_every_stage_is_never_stuck(case: GreedyCase) -> None:
    """A limit on F - W or F - B allows at least one group of forwards for each (pipe, stage) that it counts.

    The other limits count recomputations, and cannot get the scheduler stuck.
    """
    case.check(compile_and_check(case.text))


def with_limits(text: str, help: str) -> str:
    """Return the text of a schedule whose scheduler got stuck, with the limits that the help of the finding suggests."""
    lines = text.split("\n")
    edits = re.findall(r"line (\d+): write '(limit [^']*)'", help)
    assert edits and "tried: the scheduler then finishes" in help
    for number, limit in edits:
        assert lines[int(number) - 1].strip().startswith(limit.split("<=")[0])
        lines[int(number) - 1] = limit
    return "\n".join(lines)


@given(greedy_schedules(never_stuck=False))
@examples(50)
def test_a_scheduler_with_any_limits_ends_or_has_a_finding(case: GreedyCase) -> None:
    try:
        p = compile_text(case.text).program
    except ChimeraError as error:
        [d] = error.diagnostics
        assert d.code == "E305" and d.notes
        compile_and_check(with_limits(case.text, d.help))
    else:
        case.check(p)
        assert not find_error(p, range(1))


@given(listings())
@examples(50)
def test_a_listing_runs_the_tasks_that_it_lists(case: ListingCase) -> None:
    assert task_orders(compile_and_check(case.text())) == case.orders


@given(shuffled_listings())
@examples(50)
def test_a_shuffled_listing_is_correct_or_is_refused_with_findings(text: str) -> None:
    try:
        p = compile_text(text).program
    except ChimeraError as error:
        assert all(d.code.startswith("E30") and d.message and d.span for d in error.diagnostics)
    else:
        assert not find_error(p, range(1))


# Tasks of a listing. Those of ACTIONS name no micro-batch; R(0) is there twice, so that it is drawn more often. Those of NAMED
# name their micro-batches.
ACTIONS = ("F(0)", "B(0)", "I(0)", "I(1)", "W(0)", "W(1)", "W", "R(0)", "R(0)")
NAMED = ("F(0, 2)", "F(0, 0 .. 1)", "B(0, 1)", "I(0, 1)", "I(1, 2)", "W(0, 1)", "W(1, 2)", "R(0, 1)")


def looped_and_unrolled(count: int, named: list[str], blocks: list[tuple[int, list[str]]]) -> tuple[str, str]:
    """Return two texts of a listing of two stages on one rank: with loops, and with the loops unrolled.

    Args:
        count: the number of micro-batches.
        named: the first tasks, with their micro-batches.
        blocks: for each loop its repetitions and its tasks.
    """
    head = (
        f"schedule l ranks 1 stages 2 pipe main {{ stage s on rank 0 recompute   micro_batches {count} }}"
        " order listing for rank r {\n"
    )
    begin = head + " ".join(named) + "\n"
    looped = "\n".join(f"repeat {times} {{ {' '.join(body)} }}" for times, body in blocks)
    return f"{begin}{looped}\n}}\n", f"{begin}{' '.join(a for times, body in blocks for a in times * body)}\n}}\n"


@st.composite
def loops(draw: st.DrawFn) -> tuple[str, str]:
    """Draw a listing with loops; return it, and the same one with its loops unrolled."""
    count = draw(st.integers(3, 12))
    named = draw(st.lists(st.sampled_from(NAMED), max_size=3, unique=True))
    bodies = st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4)
    blocks = draw(st.lists(st.tuples(st.integers(1, 4), bodies), max_size=6))
    # How many tasks are listed so far, by the first characters of their text: kind and stage, such as "F(0", or "W" alone.
    listed = Counter(a[:3] for a in named) + Counter(a[:3] for times, body in blocks for a in times * body)
    if "F(0, 0 .. 1)" in named:  # one task of two micro-batches, which was counted once
        listed["F(0"] += 1
    for s in (0, 1):  # the remaining tasks, so that many of the listings are complete
        listed[f"I({s}"] += (missing := max(count - listed[f"B({s}"] - listed[f"I({s}"], 0))
        # A loop repeats nothing if its number of repetitions is negative.
        blocks += [(count - listed[f"F({s}"], [f"F({s})"]), (missing, [f"I({s})"])]
    blocks.append((listed["I(0"] + listed["I(1"] - listed["W(0"] - listed["W(1"] - listed["W"], ["W"]))
    return looped_and_unrolled(count, named, blocks)


@given(loops())
@example(looped_and_unrolled(3, [], [(3, ["I(0)"]), (2, ["W(0)", "W(0)"])]))
@example(looped_and_unrolled(3, [], [(2, ["R(0)"]), (2, ["B(0)", "R(0)"]), (1, ["B(0)"])]))
@example(looped_and_unrolled(4, [], [(1, ["R(0)"]), (2, ["R(0)", "B(0)"]), (2, ["B(0)"])]))
@example(looped_and_unrolled(4, [], [(2, ["B(0)", "R(0)"])]))
@examples(250)
def test_a_loop_lists_the_tasks_of_its_repetitions(case: tuple[str, str]) -> None:
    """The loop and its repetitions, written one after another, give the same orders or the same findings."""

    def listed(text: str) -> object:
        try:
            budget = Budget()
            return order_tasks(resolve(parse(Source("drawn", text)), {}, budget), budget).program
        except ChimeraError as error:
            return [(d.code, d.message) for d in error.diagnostics]

    looped, unrolled = map(listed, case)
    event("ordered" if isinstance(looped, Program) else "refused")
    assert looped == unrolled
