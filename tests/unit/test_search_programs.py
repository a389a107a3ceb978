"""Programs and the search: problems and orders from programs, and the texts of orders."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.search.from_program import problem_of
from chimerac.compiler.search.given import Given
from chimerac.compiler.search.known_orders import library_orders, order_of
from chimerac.compiler.search.orders import search
from chimerac.compiler.search.text import schedule_text


@pytest.mark.parametrize(
    ("name", "parameters"), [("chimera_any", {"D": 2, "N": 1}), ("gems", {"D": 4, "N": 4}), ("1f1b", {"D": 1, "N": 3})]
)
def test_unusual_programs_are_searched(name: str, parameters: dict[str, int]) -> None:
    """In this order: a pipe without micro-batches, a limit of one micro-batch, one rank."""
    problem = problem_of(compile_schedule(name, parameters).program, Given())
    state = search(problem, known=[], seconds=0.5)
    assert state.best is not None
    _, compiled = schedule_text(problem, state.best, "found", comment=[], statements=[])
    assert simulate(compiled.program).makespan == state.best.makespan


@pytest.mark.parametrize("name", ["1f1b", "chimera_zb", "gpipe", "zb_v", "gems"])
def test_a_text_compiles_to_its_order(name: str) -> None:
    """The order of a schedule of the library is written as a listing. The listing has this order and is no slower."""
    program = compile_schedule(name, {"D": 4, "N": 8}).program
    problem = problem_of(program, Given(hop=Fraction(1, 2)))
    order = order_of(problem, program)
    assert order is not None
    text, compiled = schedule_text(problem, order, "again", comment=["a comment"], statements=["sync eager"])
    assert len(text) < 6000  # repeated tasks are loops
    before = simulate(program, {"hop": 0.5})
    assert Fraction(simulate(compiled.program).makespan) / problem.scale <= Fraction(before.makespan, before.scale)
    assert order_of(problem_of(compiled.program, Given()), compiled.program) is not None
    again = order_of(problem, compiled.program)
    assert again is not None and (again.sequence == order.sequence).all() and again.makespan == order.makespan


def test_schedules_of_the_library_that_keep_the_limits_are_known_orders() -> None:
    program = compile_schedule("1f1b", {"D": 4, "N": 8}).program
    # The limit is the peak of 1f1b, which is four activations. gpipe and zb_h2 hold more.
    names = [name for name, _ in library_orders(problem_of(program, Given(split=True)))]
    assert {"1f1b", "zb_h1"} <= set(names) and not {"gpipe", "zb_h2"} & set(names)
    chimera = compile_schedule("chimera", {"D": 4, "N": 8}).program
    assert {"chimera", "chimera_zb"} <= {name for name, _ in library_orders(problem_of(chimera, Given(split=True)))}


def test_a_program_without_backwards_is_refused() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    with pytest.raises(ChimeraError, match="forwards only"):
        problem_of(replace(program, header=replace(program.header, kind="evaluation")), Given())
