"""Resolving: parameters, the names in formulas, placements, costs, sizes and limits."""

from __future__ import annotations

import pytest

from chimerac.chimera_ir.program import Costs, Pipe, Tied
from tests.helpers_text import findings_of, small, tasks_of


def codes(parameters: dict[str, int] | None = None, width: int = 1, **changes: str) -> list[str]:
    return [d.code for d in findings_of(parameters, width, **changes)]


def test_parameters_take_their_defaults_in_order() -> None:
    p = small(param="param D = 2   param N = D + 1   param k = N * D")
    assert p.header.parameters == {"D": 2, "N": 3, "k": 6}
    p = small({"D": 3}, param="param D = 2   param N = D + 1   param k = N * D")
    assert p.header.parameters == {"D": 3, "N": 4, "k": 12}
    p = small({"k": 1, "N": 2}, param="param D = 2   param N   param k = N * D")
    assert p.header.parameters == {"D": 2, "N": 2, "k": 1}


def test_given_parameters_must_be_known_and_complete() -> None:
    found = findings_of({"M": 3, "Dee": 1}, param="param D = 2   param N   param k")
    assert [(d.code, d.message) for d in found] == [
        ("E203", "schedule small has no parameter 'M'"),
        ("E203", "schedule small has no parameter 'Dee'"),
        ("E204", "parameter 'N' has no value"),
        ("E204", "parameter 'k' has no value"),
    ]


def test_a_failed_requirement_suggests_values_that_meet_it() -> None:
    param = "param D = 2 require D >= 1  param N = 3 require N % D == 1 and N > D"
    [d] = findings_of({"N": 8}, param=param)
    assert d.code == "E210"
    assert d.label == "N = 8, D = 2"
    assert d.notes == ("N was given: -p N=8",)
    assert d.help == "give -p N=7 or -p N=9"
    small({"N": 9}, param=param)
    # Every requirement that fails has a finding. One that cannot be computed has none if a requirement above it fails.
    assert len(findings_of({"N": 2, "D": 0}, param=param)) == 1
    assert len(findings_of({"N": 0}, param="param D = 2 require D > 2  param N = 3 require N > 0")) == 2


def test_two_parameters_are_changed_together_if_one_is_not_enough() -> None:
    param = "param D = 2 require D % 2 == 0  param k = 1  param N = 2 require N % D == 0 and N > D"
    for given, expected in (({"D": 5, "N": 3}, {"D": 2, "N": 4}), ({"D": 7, "N": 15}, {"D": 8, "N": 16})):
        found = findings_of(given, param=param)
        assert [d.code for d in found] == ["E210"] * 2
        assert {d.help for d in found} == {"give " + " ".join(f"-p {name}={v}" for name, v in expected.items())}
        small(expected, param=param)
    [d] = findings_of({"D": 3, "N": 4}, param="param D = 2  param N = 2 require D + N == 1000")
    assert d.help == ""  # no similar values meet the requirements


def test_names_are_known_after_their_definition() -> None:
    assert codes(param="let E = D   param D = 2   param N = 3") == ["E201"]
    assert codes(param="param D = N   param N = 3") == ["E201"]
    small(param="param D = 2   let E = D   param N = E + 1", rule1="F(s, m) at s + E*m")


def test_a_let_may_be_a_truth_value() -> None:
    p = small(param="param D = 2  param N = 3  let even = N % 2 == 0  let far = if even then 10 else 20",
              rule1="F(s, m) at s + 2*m + far", rule2="B(s, m) at (if even then 0 else 99) + 2*m - s")  # fmt: skip
    assert tasks_of(p, 0) == "F0 F1 F2 B0 B1 B2"


PLACEMENTS = [
    ("stage s on rank 0", (0, 0, 0, 0)),
    ("stage s on rank s % D", (0, 1, 0, 1)),
    ("stage s on rank if s < 2 then s else 3 - s", (0, 1, 1, 0)),
    ("stage s in 0 .. 1 on rank 1   stage t in 2 .. S - 1 on rank t - 2", (1, 1, 0, 1)),
    ("stage s in 2 .. 3 on rank 0   stage s in 3 .. 2 on rank 9   stage s in 0 .. 1 on rank 1", (1, 1, 0, 0)),
]


@pytest.mark.parametrize(("clauses", "expected"), PLACEMENTS)
def test_the_rank_of_every_stage_follows_from_the_clauses_of_a_pipe(clauses: str, expected: tuple[int, ...]) -> None:
    p = small(param="param D = 2 param N = 2 let S = 4", stages="stages S", pipe=f"pipe main {{ {clauses} micro_batches N }}",
              rule1="F(s, m) at s + 99*m", rule2="B(s, m) at 50 - s + 99*m")  # fmt: skip
    assert p.header.pipes == (Pipe("main", expected, (0, 1)),)
    assert [{i.stage for i in p.stream(g) if i.op == "FWD"} for g in range(2)] == [
        {s for s, r in enumerate(expected) if r == g} for g in range(2)
    ]


def test_families_continue_the_numbering_of_micro_batches() -> None:
    p = small(
        param="param D = 2",
        pipe="pipe a { stage s on rank s micro_batches 2 } pipe b[i in 1 .. 2] { stage s on rank (s + i) % D micro_batches i }",
        # A formula without a pipe applies to pipes without their own. b[2] has its own formula for its last forward.
        rule1="F(s, m) at 10*s + m   F b[j](s, m) when j < 2 or m == 0 at 100*j + 10*s + m\n"
        "F b[2](s, m) when m == 1 at 290 + s",
        rule2="B(s, m) at 1000 - 10*s + m   B b[j](s, m) at 1000 + 100*j - 10*s + m",
    )
    assert [(x.name, x.placement, x.micro_batches) for x in p.header.pipes] == [
        ("a", (0, 1), (0, 1)),
        ("b[1]", (1, 0), (2,)),
        ("b[2]", (0, 1), (3, 4)),
    ]
    assert tasks_of(p, 0) == "F0.0 F1.0 F2.1 F3.0 F4.0 B0.0 B1.0 B2.1 B3.0 B4.0"


def test_a_pipe_without_micro_batches_places_its_stages_and_has_no_tasks() -> None:
    p = small(pipe="pipe a { stage s on rank s micro_batches N } pipe b { stage s on rank 1 - s micro_batches 0 }")
    assert p.header.pipes[1].micro_batches == ()
    assert sorted(i.group for i in p.stream(0) if i.op == "ALLREDUCE") == ["stage 0", "stage 1"]


def test_a_cost_is_a_number_or_a_formula_of_the_stage() -> None:
    assert small().costs == Costs.default(2)
    # A cost of B that is not given is I + W.
    assert small(extra="cost F = 3, I = 2, W(k) = 5 + k, hop = 4").costs == Costs(
        FWD=(3, 3), BWD=(7, 8), BWD_INPUT=(2, 2), BWD_WEIGHT=(5, 6), hop=4
    )
    assert small(extra="cost B(s) = 9 - s").costs.BWD == (9, 8)
    assert codes(extra="cost F = 0 - 1") == ["E211"]
    assert codes(extra="cost hop(s) = 1") == ["E202"]


def test_the_window_and_tied_sets_are_in_the_header() -> None:
    p = small(extra="window 5  tied shared on stages D - 1, 0")
    assert p.header.window == 5
    assert p.header.tied == (Tied("shared", (0, 1)),)
    assert codes(extra="tied shared on stages 0, D") == ["E220"]
    assert codes(extra="window 0 - 1") == ["E211"]


def test_sizes_that_are_too_small_or_too_large_are_refused() -> None:
    assert codes(ranks="ranks 0") == ["E211"]
    assert codes(stages="stages 99999999") == ["E211"]
    assert codes(pipe="pipe p[i in 0 .. 99999] { stage s on rank s micro_batches 1 }") == ["E211"]
    assert codes(pipe="pipe p[i in 1 .. 0] { stage s on rank s micro_batches 1 }") == ["E211"]
    assert codes({"N": 2**40}) == ["E211"]
    assert codes({"N": 2**62}) == ["E206"]
    assert codes(width=0) == ["E211"]
    assert codes(width=2**20) == ["E211"]


def test_a_name_means_one_thing_at_a_place() -> None:
    assert codes(rule1="F(D, m) at m") == ["E207"]
    assert "E207" in codes(pipe="pipe main { stage N on rank N micro_batches N }")
    assert codes(param="param D = 2 param N = 3 param D = 2") == ["E207"]
    assert "E207" in codes(order="order ticks { let m = 3", rule1="F(s, m) at s + 2*m + m")


def test_a_second_definition_names_the_place_of_the_first() -> None:
    for changes, first in (
        ({"order": "order ticks { let s = 1", "rule1": "F(s, m) at s + 2*m"}, "<text>:8:3"),  # one finding for both rules
        ({"order": "order ticks { let D = 1", "rule1": "F(s, m) at D + s + 2*m"}, "<text>:2:7"),
        ({"rule1": "F(s, N) at s"}, "<text>:2:21"),
        ({"rule1": "F(s, s) at s"}, "<text>:8:3"),
        ({"pipe": "pipe main { stage D on rank D   micro_batches N }"}, "<text>:2:7"),
        ({"order": "order listing for rank r {", "rule1": "let k = 1", "rule2": "repeat k in 0 .. 1 { F B }"}, "<text>:8:5"),
    ):
        [d] = findings_of(**changes)
        assert (d.code, len(d.notes)) == ("E207", 1)
        assert d.notes[0] == f"first at {first}"


@pytest.mark.parametrize(
    ("limit", "message", "help"),
    [
        ("F - B < D", "a limit is written with <=, not <", "a limit is an upper bound: limit F - B <= D - 1"),
        ("F - B > 2*D", "a limit is written with <=, not >", "a limit is an upper bound: limit F - B <= 2 * D"),
        ("F == N", "a limit is written with <=, not ==", "a limit is an upper bound: limit F <= N"),
        ("D + 1 >= F - B", "a limit is written with <=, not >=", "a limit is an upper bound: limit F - B <= D + 1"),
        ("D > F - B", "a limit is written with <=, not >", "a limit is an upper bound: limit F - B <= D - 1"),
        ("B - B <= 2*D", "the limit counts B twice", "name each kind once: limit F - W <= D"),
        ("F - D <= 2", "a limit is counts <= an integer", "write counts of F, B, I, W, R on the left: limit F - W <= D"),
        ("F - B", "a limit is counts <= an integer", "write counts of F, B, I, W, R on the left: limit F - W <= D"),
    ],
)
def test_an_invalid_limit_is_explained(limit: str, message: str, help: str) -> None:
    [d] = findings_of(order="order greedy {", rule1="prefer B, F", rule2=f"limit {limit}")
    assert (d.code, d.message, d.help) == ("E202", message, help)
    if "upper bound: " in help:
        small(order="order greedy {", rule1="prefer B, F", rule2=help.split("upper bound: ")[1])


def test_trying_a_change_that_divides_by_zero_does_not_hide_the_finding() -> None:
    """To find a help, the compiler also tries ranges and branches changed by one. Here some of these divide by zero."""
    for pipe, message in (
        (
            "pipe main { stage s in 1 .. 6 on rank 12 // s   micro_batches 2 }",
            "pipe main places stages 1 .. 6, but stages are 0 .. 5",
        ),
        (
            "pipe main { stage s in 1 .. 5 on rank if s == 1 then 9 else 2 // s   micro_batches 2 }",
            "stage 1 of pipe main is placed on rank 9, but ranks are 0 .. 2",
        ),
    ):
        [d] = findings_of(param="param D = 3   param N = 2", stages="stages 6", pipe=pipe)
        assert (d.code, d.message) == ("E220", message)


def test_the_help_for_a_placement_is_about_its_pipe() -> None:
    correct = "pipe b { stage s on rank if s < 9 then s else 0   micro_batches 2 }"
    [d] = findings_of(pipe=f"pipe a {{ stage s on rank 7 - s   micro_batches 2 }} {correct}")
    assert (d.code, d.help) == ("E220", "write '(7 - s) % D' instead of '7 - s'; stages then wrap around")


def test_a_family_of_no_pipes_may_begin_anywhere() -> None:
    none = "pipe none[i in -3 .. -D*9] { stage s on rank i   micro_batches 1 }"
    assert [p.name for p in small(extra=none).header.pipes] == ["main"]
    assert codes(extra=none.replace("-D*9", "0")) == ["E211"]
