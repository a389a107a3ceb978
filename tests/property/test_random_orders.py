"""Random schedules of the forms `greedy` and `listing`: they compile and are right, or are refused with a finding."""

from __future__ import annotations

import re
from typing import get_args

from hypothesis import given
from hypothesis import strategies as st

from chimera_ir.diagnostics import ChimeraError, Source
from chimera_ir.jsonform import program_from_json, program_to_json
from chimera_ir.program import Machine, Program
from chimera_ir.textform import program_from_text, program_to_text
from compiler import compile_text
from compiler.pipeline import compile_source
from compiler.simulate import simulate
from compiler.syntax.parse import parse
from compiler.syntax.printer import print_schedule
from compiler.verify import verify
from tests.effort import examples
from tests.helpers import makespan
from tests.helpers_orders import GreedyCase, ListingCase, computed, greedy_schedules, listings, shuffled_listings
from tests.helpers_reference import wrong


def right(text: str) -> Program:
    """Return the program of a schedule that must compile, after everything has agreed that it is right."""
    p = compile_text(text).program
    assert not wrong(p)
    assert simulate(p).makespan == makespan(p)
    printed = print_schedule(parse(Source("drawn", text)))
    assert compile_text(printed).program == p
    assert verify(program_from_json(program_to_json(p))) == p
    assert program_from_text(program_to_text(p)) == p
    return p


@given(greedy_schedules(roomy=True))
@examples(100)
def test_a_scheduler_with_a_place_for_every_stage_is_never_stuck(case: GreedyCase) -> None:
    """Every limit is F - W or F - B and has a place, or a group's, for each (pipe, stage) it bounds together."""
    case.check(right(case.text))


def with_limits(text: str, help: str) -> str:
    """Return the text of a stuck order with the limits that its finding says have been tried."""
    lines = text.split("\n")
    edits = re.findall(r"line (\d+): write '(limit [^']*)'", help)
    assert edits and "tried: the scheduler then ends" in help
    for number, limit in edits:
        assert lines[int(number) - 1].strip().startswith(limit.split("<=")[0])
        lines[int(number) - 1] = limit
    return "\n".join(lines)


@given(greedy_schedules(roomy=False))
@examples(100)
def test_a_scheduler_with_any_limits_works_or_says_that_it_is_stuck(case: GreedyCase) -> None:
    try:
        p = compile_text(case.text).program
    except ChimeraError as error:
        [d] = error.diagnostics
        assert d.code == "E305" and d.notes
        right(with_limits(case.text, d.help))
    else:
        case.check(p)
        assert not wrong(p, range(1))


@given(listings())
@examples(100)
def test_a_listing_runs_what_it_lists(case: ListingCase) -> None:
    assert computed(right(case.text())) == case.orders


@given(shuffled_listings())
@examples(100)
def test_any_listing_works_or_is_refused_with_a_finding(text: str) -> None:
    try:
        p = compile_text(text).program
    except ChimeraError as error:
        assert all(d.code.startswith("E30") and d.message and d.span for d in error.diagnostics)
    else:
        assert not wrong(p, range(1))


texts = st.one_of(listings().map(ListingCase.text), greedy_schedules(roomy=True).map(lambda case: case.text))


@given(texts, st.sampled_from(get_args(Machine)))
@examples(60)
def test_any_order_can_be_arranged_for_any_machine(text: str, machine: Machine) -> None:
    p = compile_source(Source("drawn", text), {}, machine=machine, arrange=True).program
    assert p.header.machine == machine
    assert not wrong(p, range(1))
