"""The search for a text that is good at several sizes and hop costs: its bound, its result, and how it ends."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from chimerac.chimera_ir.diagnostics import Source
from chimerac.compiler import compile_text
from chimerac.compiler.analyze.simulate import simulate
from chimerac.compiler.command.main import main
from chimerac.compiler.library import find, names
from chimerac.compiler.pipeline import parse_source
from chimerac.compiler.search import texts
from chimerac.compiler.search.spaces import GreedyTexts
from chimerac.compiler.search.texts import EvaluatedText, evaluated, limited, lower_bound, points_of, search
from chimerac.compiler.syntax.parse import parse
from chimerac.compiler.verify import peaks
from tests.helpers import SMALL, library_program

TENTH = Fraction(1, 10)
SIZES = [{"D": 4, "N": 8}, {"D": 4, "N": 12}]


@pytest.mark.parametrize("name", names())
def test_no_schedule_is_below_its_bound(name: str) -> None:
    for parameters in SMALL[name]:
        p = library_program(name, tuple(parameters.items()))
        most = max(peaks(p).activations)
        for hop in (0, 1):
            s = simulate(p, {"hop": hop})
            costs = replace(p.costs, hop=hop)
            assert lower_bound(p.header, costs, None) <= lower_bound(p.header, costs, most) <= s.makespan


@pytest.mark.parametrize(("D", "hop"), [(4, 0), (8, 0), (8, 1), (16, 2)])
def test_the_bound_of_two_pipes(D: int, hop: int) -> None:  # noqa: N803
    """The middle ranks wait for D/2 - 1 forwards and as many transfers, and for D - 1 transfers more until a first backward."""
    p = library_program("chimera_zb", (("D", D), ("N", 2 * D), ("hop", hop)))
    idle = (D // 2 - 1) * (1 + hop) + (D - 1) * hop
    busy = 2 * D * 3  # F, I and W of 2D micro-batches
    assert lower_bound(p.header, p.costs, D) == busy + idle


# "": no limit of activations. chimera_zb limits F - W, but not the activations, so None becomes the default, D.
@pytest.mark.parametrize(("given", "formula", "limit"), [(None, "D", 4), ("2*D", "2*D", 8), ("", "", None)])
def test_the_text_has_the_given_limit_or_the_default(given: str | None, formula: str, limit: int | None) -> None:
    source, used = limited(find("chimera_zb"), given)
    limits = compile_text(source.text, {"D": 4, "N": 8}).program.header.limits
    assert (used, limits.get("activations")) == (formula, limit)


def test_a_text_that_places_the_stages_on_other_ranks_is_left_out() -> None:
    source = find("gpipe")
    points = points_of(parse_source(source), [{"D": 4, "N": 8}], [Fraction(0)])
    mirrored = source.text.replace("on rank s ", "on rank D - 1 - s ")
    assert compile_text(mirrored, {"D": 4, "N": 8}).program.header.pipes[0].placement == (3, 2, 1, 0)
    assert evaluated(source.text, points) is not None and evaluated(mirrored, points) is None


def test_without_a_given_limit_a_schedule_keeps_its_own_or_gets_the_default() -> None:
    assert limited(find("chimera_fill"), None) == (find("chimera_fill"), "D")
    assert limited(Source("x", FILLED), None)[1] == "D"  # FILLED has no limit


def run(seed: int, tries: int = 20, name: str = "chimera_zb") -> EvaluatedText:
    """Return the best text of a search at SIZES."""
    return search(find(name), SIZES, hops=[Fraction(0), TENTH], activations="D", tries=tries, seed=seed)[0]


def test_the_same_seed_finds_the_same_text() -> None:
    assert run(1) == run(1)


def test_the_result_is_better_than_the_schedule_and_keeps_the_limit() -> None:
    reported: list[float] = []
    hops = [TENTH, Fraction(1, 2)]
    found, points = search(
        find("chimera_zb"), SIZES, hops, activations="D", tries=30, seed=1, report=lambda x: reported.append(x.score)
    )
    before = texts.evaluated(find("chimera_zb").text, points)
    assert before is not None and found.score < before.score
    assert reported == sorted(reported, reverse=True) and reported
    for size, makespans in zip(SIZES, found.makespans, strict=True):
        p = compile_text(found.text, size).program
        assert max(peaks(p).activations) <= 4
        for hop, makespan in zip(hops, makespans, strict=True):
            s = simulate(p, {"F": 1, "I": 1, "W": 1, "hop": hop})
            assert Fraction(s.makespan, s.scale) == Fraction(makespan, hop.denominator)


FILLED = """schedule filled  param D = 4  param N = 6  ranks D  stages D
pipe down { stage s on rank s          micro_batches N // 2 }
pipe up   { stage s on rank D - 1 - s  micro_batches N // 2 }
order ticks {
    F(s, m) at 2*(s + 2*m)
    I(s, m) at 2*(2*D + 1 - s + 2*m)
    fill W(r, k) at 6*k + 2*D + 1
}
"""


def test_the_formulas_of_an_order_of_ticks_are_changed() -> None:
    """The fill makes ranks 0 and 3 idle for one unit of time. Several changes avoid this, such as another start of the fill."""
    size = {"D": 4, "N": 6}
    assert simulate(compile_text(FILLED, size).program).makespan == 20
    found, _ = search(Source("filled", FILLED), [size], hops=[Fraction(0)], activations="", tries=20, seed=4)
    assert found.makespans == ((19,),) and found.score == 1  # the score is makespan / bound
    assert "order ticks" in found.text and simulate(compile_text(found.text, size).program).makespan == 19


def test_the_ratios_of_the_costs_of_tasks_stay() -> None:
    """A tried text may scale the costs of all tasks, but their ratios are those of the schedule."""
    text = """schedule x  ranks 2  stages 2  cost F(s) = 1 + s, B = 5
    pipe p { stage s on rank s   micro_batches 4 }
    order greedy { prefer B, F }"""
    space = GreedyTexts(parse(Source("x", text)), "2")
    rng = random.Random(0)
    state = space.start(rng)
    for _ in range(30):
        state = space.near(state, rng)
        costs = compile_text(space.text(state)).program.costs
        unit = costs.FWD[0]
        assert ((unit, 2 * unit), (5 * unit, 5 * unit)) == (costs.FWD, costs.BWD)


def test_an_interrupted_search_returns_the_best_text(monkeypatch: pytest.MonkeyPatch) -> None:
    real = texts.evaluated

    def interrupt_at_call(count: int) -> None:
        calls = iter(range(1, count + 1))

        def interrupted(text: str, points: list[texts.Point]) -> EvaluatedText | None:
            if next(calls) == count:
                raise KeyboardInterrupt
            return real(text, points)

        monkeypatch.setattr(texts, "evaluated", interrupted)

    interrupt_at_call(10)
    found = run(1, tries=1000)
    assert found.is_interrupted and compile_text(found.text, SIZES[0]).program
    interrupt_at_call(1)  # nothing was found yet
    with pytest.raises(KeyboardInterrupt):
        run(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zb_h1", "--sizes", "D"], "--sizes D: expected NAME=VALUE"),
        (["zb_h1", "--sizes", "D=x,N=8"], "--sizes D=x: 'x' is not an integer"),
        (["zb_h1", "--hops=-1"], "--hops -1: expected a number like 2, 0.5 or 1/3"),
        (["zb_h1", "--hops", "1e999999999"], "--hops 1e999999999: expected a number"),
        (["zb_h1", "--hops", "1001"], "--hops 1001: expected 0 to 1000"),
        (["zb_h1", "--hops", "fast"], "--hops fast: expected a number like 2, 0.5 or 1/3"),
        (["zb_h1", "--sizes", "D=0,N=1"], "error[E2"),
        (["zb_h1", "--tries", "0"], "--tries 0: expected 1 or more"),
        (["zb_h1", "--limit", "D +"], "error[E1"),
        (["zb_h1", "-o", "none/x.sched"], "none/x.sched cannot be written"),
        (["dualpipe"], "has an order listing, which has no formulas to change"),
        (["chimera_zb", "--limit", "1", "--tries", "5"], "none of the 5 texts compiles at every size with at most 1"),
        (["zb_h1", "--memory", "1GB"], "--memory is for a search of orders, not with --texts"),
        (["zb_h1", "--zero"], "--zero is for a search of orders, not with --texts"),
        (["zb_h1", "--precision", "bfloat16"], "--precision is for a search of orders, not with --texts"),
        (["zb_h1", "--micro-batch", "2"], "--micro-batch is for a search of orders, not with --texts"),
        (["zb_h1", "--link", "1us,1GB/s"], "--link is for a search of orders, not with --texts"),
        (["nothing"], "there is no file nothing, and no schedule of that name"),
    ],
)
def test_bad_input_is_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--texts", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err


def test_the_command_prints_a_schedule_with_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "chimera_zb", "--texts", "--sizes", "D=4,N=8", "--hops", "0.5", "--tries", "20"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("# size     hop   makespan      bound      above\n# D=4 N=8  0.5")
    p = compile_text(text, {"D": 4, "N": 8}).program
    s = simulate(p, {"F": 1, "I": 1, "W": 1, "hop": Fraction(1, 2)})
    assert f"{float(Fraction(s.makespan, s.scale)):g}" in text.split("\n")[1].split()
