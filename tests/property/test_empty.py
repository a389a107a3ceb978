"""Pipes without micro-batches, clauses without stages, rules without tasks.

A formula that applies to nothing is not evaluated. A drawn schedule becomes a program, or gets findings.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.diagnostics import ChimeraError, render
from chimerac.compiler import compile_text
from tests.effort import examples
from tests.helpers import replaced

PIPES = "pipe a { stage s on rank s micro_batches Z } pipe b { stage s on rank s micro_batches 2 }"
RULES = "F b(s, m) at s + 2*m  B b(s, m) at 3 - s + 2*m"
HEAD = "schedule x param Z = 0 ranks 2 stages 2"


@pytest.mark.parametrize(
    "text",
    [
        f"{HEAD} {PIPES} order ticks {{ F a(s, m) at m // 0  B a(s, m) at 1 // 0  {RULES} }}",
        f"{HEAD} {PIPES} order ticks {{ F a(s, m) at m % Z  B a(s, m) when s // Z == 0 at 0  {RULES} }}",
        f"{HEAD} {PIPES} order ticks {{ let y = m // Z let z = 7 // Z  F a(s, m) at y  B a(s, m) at z {RULES} }}",
        f"{HEAD} {PIPES} order ticks {{ F a(s, m) when s < 0 at m // Z  B a(s, m) at 0  {RULES} }}",
        f"{HEAD} {PIPES} order ticks {{ F a(s, m) when 1 // Z > 0 at if 1 // Z > 0 then 1 else 2  B a(s, m) at 0 {RULES} }}",
        f"{HEAD} {PIPES} order ticks {{ F a(s, m = g // Z .. g // Z) at m  B a(s, m) at 0  {RULES} }}",
        f"{HEAD} {PIPES} order ticks {{ F b(s, m) when s < 0 at m // Z  {RULES} }}",
        f"{HEAD} {PIPES} order greedy {{ prefer B, F  limit F - B <= 8 // p per pipe }}",
        f"{HEAD} {PIPES} order greedy {{ prefer B, F  limit F - B <= 8 per stage  then smaller 8 // p }}",
        f"{HEAD} {PIPES.replace('stage s on', 'stage s in 1 .. 0 on rank s // Z recompute when s // Z > 0 stage s on')} "
        f"order ticks {{ {RULES} }}",
        f"{HEAD} {PIPES.replace('stage s on', 'stage s in 1 .. Z on rank 1 // Z stage s on')} order ticks {{ {RULES} }}",
        f"{HEAD} pipe a[i in 1 .. 0] {{ stage s on rank i // Z micro_batches 1 // Z }} {PIPES.replace('pipe a', 'pipe c')} "
        f"order ticks {{ F a[i](s, m) at 1 // i {RULES} }}",
    ],
)
def test_expressions_that_apply_to_nothing_are_not_evaluated(text: str) -> None:
    """Each text divides by zero in an expression that applies to no task, no stage or no pipe."""
    without_division = f"{HEAD} {PIPES} order ticks {{ {RULES} }}"
    compiled, expected = compile_text(text).program, compile_text(without_division).program
    assert len(compiled) == len(expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("F b(s, m) at s + 2*m", "F b(s, m) at s + 2*m // Z"),
        ("F b(s, m) at s + 2*m", "F b(s, m) when 1 // Z > 0 at s + 2*m"),
        ("stage s on rank s", "stage s on rank s % Z"),
    ],
)
def test_expressions_that_apply_to_a_task_or_a_stage_are_evaluated(old: str, new: str) -> None:
    text = replaced(f"{HEAD} {PIPES} order ticks {{ {RULES} }}", (old, new))
    with pytest.raises(ChimeraError) as caught:
        compile_text(text)
    [d] = caught.value.diagnostics
    assert d.code == "E205" and d.span is not None and d.span.text == "Z"


def test_a_listed_task_of_a_pipe_without_micro_batches_is_refused() -> None:
    with pytest.raises(ChimeraError, match=r"lists F of a s0, micro-batch 0; it has none"):
        compile_text(f"{HEAD} {PIPES} order listing for rank r {{ F a(r) }}")


# --- drawn ----------------------------------------------------------------------------------------------------------------


def formulas(names: str) -> st.SearchStrategy[str]:
    """Return a strategy of integer expressions of these names, Z, N and numbers, with many divisions whose divisor may be 0.

    Args:
        names: the names, each of one letter.
    """
    leaf = st.sampled_from([*names, *names, "Z", "N", "0", "1", "2"])  # the names twice, so that they are drawn more often
    return st.recursive(
        leaf,
        lambda e: (
            st.tuples(e, st.sampled_from([" // ", " % ", " + ", "*", " - "]), e).map(lambda x: f"({''.join(x)})")
            | st.tuples(e, e, e).map(lambda x: f"(if {x[0]} < {x[1]} // {x[2]} then {x[1]} else {x[2]})")
            | st.tuples(e, e).map(lambda x: f"min({x[0]}, {x[1]})")
        ),
        max_leaves=5,
    )


# Numbers of micro-batches. i is the index of the pipe in its family.
counts = st.sampled_from(["0", "0", "Z", "1", "2", "N", "if i == 0 then 0 else 2", "N // 2 - 1", "i"])


@st.composite
def schedules(draw: st.DrawFn) -> str:
    """Draw a small schedule in which pipes, clauses and families of pipes may be empty."""
    # e[names]: six expressions of these names.
    e = {names: draw(st.lists(formulas(names), min_size=6, max_size=6)) for names in ("", "s", "sm", "g", "smpr", "r", "rp")}
    pipes = []
    for name in draw(st.sampled_from(["a", "ab", "abc"])):
        family = draw(st.sampled_from(["[i in 0 .. 1]", "[i in 1 .. 0]", "[i in Z .. 2]"]))
        extra = draw(st.sampled_from(["", f"stage s in 1 .. Z on rank {e['s'][0]}", f"stage s in 2 .. 1 on rank {e['s'][1]}"]))
        recompute = draw(st.sampled_from(["", "recompute", f"recompute when {e['s'][2]} > 0"]))
        pipes.append(f"pipe {name}{family} {{ {extra} stage s on rank s {recompute} micro_batches {draw(counts)} }}")
    pipes += draw(st.sampled_from([["pipe z { stage s on rank s micro_batches 2 }"]] * 3 + [[]]))
    statement = draw(
        st.sampled_from(["", f"cost F(s) = {e['s'][3]}", f"cost hop = {e[''][1]}", "tied t on stages 0, 1", "window Z"])
    )
    when = draw(st.sampled_from(["", f"when {e['sm'][0]} == 0", f"when {e['sm'][1]} // {e['s'][4]} > 0 or s >= 0"]))
    group = draw(st.sampled_from(["m", f"m = {e['g'][0]} .. {e['g'][1]}", "m = 2*g .. 2*g + 1"]))
    ref = draw(st.sampled_from(["", " a[i]", " a[0]", f" a[{e[''][2]}]"]))
    order = draw(
        st.sampled_from(
            [
                f"ticks {{ let y = {e['sm'][2]} F{ref}(s, {group}) {when} at {e['sm'][3]} + y B(s, m) at {e['sm'][4]} + y }}",
                f"ticks {{ F(s, m) {when} at s + 2*m F{ref}(s, m) at s + 2*m B(s, m) at 3 - s + 2*m }}",
                f"ticks {{ let y = {e['r'][0]} F(s, m) at s + 2*m I(s, m) at 9 - s + 2*m fill W(r, k) at k + 20 + y }}",
                f"greedy {{ prefer B, F then smaller {e['smpr'][0]}, larger {e['smpr'][1]} group F by {e[''][3]} }}",
                f"greedy {{ prefer I, F, W limit F - W <= {e['rp'][0]} per pipe limit F <= 9 + {e['r'][0]} }}",
                f"listing for rank r {{ let y = {e['r'][1]} repeat i in y .. {e['r'][2]} {{ F a[{e['r'][3]}](r, i) }} }}",
                f"listing for rank r {{ repeat {e['r'][4]} {{ F B }} if {e['r'][5]} == 0 {{ I(r) W }} else {{ F }} }}",
            ]
        )
    )
    return f"schedule x param N = 2 param Z = 0 ranks 2 stages 2 {' '.join(pipes)} {statement} order {order}"


@examples(60)
@given(schedules())
def test_a_drawn_schedule_becomes_a_program_or_gets_findings(text: str) -> None:
    try:
        compile_text(text)
    except ChimeraError as error:
        assert render(error.diagnostics)
        assert not any(d.code.startswith("E1") for d in error.diagnostics), "the drawn texts keep to the grammar"
