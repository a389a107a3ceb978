"""Search over orders: against brute force, its texts, its certificates, and bad input."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise, permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.instructions import Op
from chimerac.chimera_ir.partition import partition_for
from chimerac.compiler import compile_schedule, compile_text, simulate
from chimerac.compiler.analyze.durations import profiled_durations
from chimerac.compiler.command.main import main
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.profiles import find_profile
from chimerac.compiler.search import check, periodic
from chimerac.compiler.search.bounds import rank_bounds
from chimerac.compiler.search.fold import fold
from chimerac.compiler.search.given import Given, given_from_durations
from chimerac.compiler.search.orders import State, search
from chimerac.compiler.search.problem import Pipe, Problem
from chimerac.compiler.search.sequences import Order, anneal, greedy_orders, one_after_another
from chimerac.compiler.search.solver import solve
from chimerac.compiler.search.start import library_orders, order_of, problem_of
from chimerac.compiler.search.text import folded, pipe_names, schedule_text
from tests.contract.test_command import SIGINT_ON
from tests.helpers_loopback import deep_model, run_and_compare
from tools.bench_search import GROUPS, ROOT, settings_of


def uniform(pipes: list[tuple[int, ...]], counts: list[int], kinds: str, hop: int, limit: int | None, unit: int = 1) -> Problem:
    """Return a problem of equal stages; a full backward costs two units."""
    ranks, stages = max(max(p) for p in pipes) + 1, len(pipes[0])
    costs = {"F": unit, "B": 2 * unit, "I": unit, "W": unit}
    return Problem(
        ranks,
        stages,
        tuple(Pipe(f"p{k}", p, n) for k, (p, n) in enumerate(zip(pipes, counts, strict=True))),
        kinds,
        tuple((costs[k],) * stages for k in kinds),
        ((hop,) * ranks,) * ranks,
        (1,) * stages,
        (limit,) * ranks,
        Fraction(unit),
    )


def two_pipes(ranks: int, total: int, kinds: str, hop: int, unit: int = 1) -> Problem:
    down = tuple(range(ranks))
    return uniform([down, down[::-1]], [total // 2, total - total // 2], kinds, hop, ranks, unit)


def tiny(seed: int) -> Problem:
    """Return a problem that brute force can solve: two ranks, random costs, links and limits."""
    r = random.Random(seed)
    pipes, counts, kinds = r.choice(
        [
            ([(0, 1)], [3], "FB"),
            ([(0, 1)], [2], "FIW"),
            ([(0, 1), (1, 0)], [1, 1], "FIW"),
            ([(0, 1), (1, 0)], [2, 1], "FB"),
            ([(0, 1, 1, 0)], [1], "FIW"),
            ([(0, 1, 0)], [2], "FB"),
        ]
    )
    stages = len(pipes[0])
    weights = tuple(r.randint(0, 3) for _ in range(stages))
    free = Problem(
        2,
        stages,
        tuple(Pipe(f"p{k}", p, n) for k, (p, n) in enumerate(zip(pipes, counts, strict=True))),
        kinds,
        tuple(tuple(r.randint(0, 5) for _ in range(stages)) for _ in kinds),
        ((0, r.randint(0, 4)), (r.randint(0, 4), 0)),
        weights,
        (None, None),
    )
    limits = tuple(x + r.randint(0, 3) for x in free.least_limits())
    return Problem(2, stages, free.pipes, kinds, free.durations, free.links, weights, limits)


def least_makespan(problem: Problem) -> int:
    """Return the optimum, by trying every order of every rank, also those whose micro-batches do not ascend."""
    kinds, pipes = problem.kinds, problem.pipes
    tasks: list[list[tuple[int, int, int, str]]] = [[] for _ in range(problem.ranks)]
    for p, pipe in enumerate(pipes):
        for s, r in enumerate(pipe.placement):
            tasks[r] += [(p, s, m, k) for m in range(pipe.micro_batches) for k in kinds]

    def orders(r: int) -> Iterator[tuple[tuple[int, int, int, str], ...]]:
        for order in permutations(tasks[r]):
            place = {x: i for i, x in enumerate(order)}
            if any(place[p, s, m, a] > place[p, s, m, b] for p, s, m, _ in order for a, b in pairwise(kinds)):
                continue
            held, limit = 0, problem.limits[r]
            for _, s, _, k in order:
                held += problem.weights[s] * (k == kinds[0])
                if limit is not None and held > limit:
                    break
                held -= problem.weights[s] * (k == kinds[-1])
            else:
                yield order

    def makespan(chosen: tuple[tuple[tuple[int, int, int, str], ...], ...]) -> int:
        end: dict[tuple[int, int, int, str], int] = {}
        at, clock = [0] * problem.ranks, [0] * problem.ranks
        while any(at[r] < len(chosen[r]) for r in range(problem.ranks)):
            moved = False
            for r, order in enumerate(chosen):
                while at[r] < len(order):
                    p, s, m, k = x = order[at[r]]
                    waits = [(p, s, m, kinds[kinds.index(k) - 1])] * (k != "F")
                    waits += [(p, s - 1, m, "F")] * (k == "F" and s > 0)
                    waits += [(p, s + 1, m, k)] * (k == kinds[1] and s + 1 < problem.stages)
                    if any(y not in end for y in waits):
                        break
                    ready = [clock[r]]
                    for y in waits:
                        source = pipes[p].placement[y[1]]
                        ready.append(end[y] + (problem.links[source][r] if source != r else 0))
                    clock[r] = end[x] = max(ready) + problem.durations[kinds.index(k)][s]
                    at[r], moved = at[r] + 1, True
            if not moved:
                return 10**9
        return max(end.values())

    return min(map(makespan, product(*(list(orders(r)) for r in range(problem.ranks)))))


@pytest.mark.parametrize("seed", range(40))
def test_tiny_problems_are_solved_and_proved_as_by_brute_force(seed: int) -> None:
    problem = tiny(seed)
    optimum = least_makespan(problem)
    state = search(problem, [], 20, seed)
    assert state.best is not None
    assert max(b.value for b in rank_bounds(problem)) <= optimum
    assert (state.best.makespan, state.bound, state.is_proved) == (optimum, optimum, True)


@pytest.mark.parametrize(
    ("problem", "makespan"),
    [
        (two_pipes(8, 32, "FB", 0), 108),
        (two_pipes(8, 32, "FIW", 0), 99),
        (two_pipes(4, 4, "FIW", 1, unit=10), 135),
        (two_pipes(8, 16, "FIW", 1, unit=10), 520),
    ],
    ids=["fused", "split", "small", "hop"],
)
def test_published_placements_are_proved_optimal(problem: Problem, makespan: int) -> None:
    """1F1B takes 117 at the first setting, and Chimera by concatenation 126."""
    state = search(problem, [], 60)
    assert state.best is not None
    assert (state.best.makespan, state.bound) == (makespan, makespan)


def test_the_bound_with_hops_is_made_by_the_limit() -> None:
    """(D/2 - 1)(1 + h) until a micro-batch arrives, and (D - 1) h more: only D forwards fit before the first W."""
    for ranks, hop in ((8, 1), (8, 5), (16, 1)):
        problem = two_pipes(ranks, 2 * ranks, "FIW", hop, unit=10)
        best = max(rank_bounds(problem), key=lambda b: b.value)
        assert best.head == (ranks // 2 - 1) * (10 + hop) + (ranks - 1) * hop and best.head_by == "limit"


def test_a_mirrored_problem_is_folded_in_the_middle() -> None:
    problem = two_pipes(4, 8, "FIW", 2, unit=10)
    folded = fold(problem)
    assert folded is not None and folded.problem.ranks == 2 and len(folded.problem.tasks) * 2 == len(problem.tasks)
    for order in greedy_orders(folded.problem, 0, 30):
        whole = folded.unfolded(order)
        assert whole is not None and whole.makespan == order.makespan
        for r in range(4):  # mirrored ranks do the same at the same times
            assert sorted(whole.start[whole.rows(r)].tolist()) == sorted(whole.start[whole.rows(3 - r)].tolist())
    links = [list(row) for row in problem.links]
    links[0][1] = 3
    assert fold(replace(problem, links=tuple(map(tuple, links)))) is None
    assert fold(replace(problem, limits=(4, 4, 4, 5))) is None
    assert fold(uniform([(0, 1, 2, 3)], [4], "FB", 0, None)) is None
    odd = two_pipes(4, 7, "FB", 0)  # pipes of three and four micro-batches
    assert fold(odd) is None
    assert fold(replace(problem, limits=(1,) * 4)) is None  # no rank can hold a micro-batch and its mirror image


@pytest.mark.parametrize(
    ("name", "parameters"), [("chimera_any", {"D": 2, "N": 1}), ("gems", {"D": 4, "N": 4}), ("1f1b", {"D": 1, "N": 3})]
)
def test_unusual_placements_are_searched(name: str, parameters: dict[str, int]) -> None:
    """A pipe without micro-batches, a limit of one micro-batch, one rank."""
    problem = problem_of(compile_schedule(name, parameters).program, Given())
    state = search(problem, [], 0.5)
    assert state.best is not None
    _, compiled = schedule_text(problem, state.best, "found", [], [])
    assert simulate(compiled.program).makespan == state.best.makespan


@pytest.mark.parametrize("seed", range(6))
def test_incremental_times_are_those_of_the_whole_order(seed: int) -> None:
    r = random.Random(seed)
    kinds = r.choice(["FB", "FIW"])
    problem = two_pipes(4, r.randint(5, 12), kinds, r.randint(0, 3), unit=4)
    order = one_after_another(problem)
    for k in range(20):
        last, best = anneal(problem, order, 500, 6.0, 0.1, 0, seed * 100 + k)
        assert best.makespan <= order.makespan  # `least`, by which the best one is chosen, is computed incrementally
        for found in (last, best):
            again = Order.of(problem, found.sequence, found.length)
            assert again is not None and again.makespan == found.makespan
            assert sorted(np.concatenate([found.rows(x) for x in range(4)]).tolist()) == list(range(len(problem.tasks)))
        order = last


def test_every_order_keeps_the_limit_and_more_limit_is_never_worse() -> None:
    makespans = []
    for limit in (2, 3, 4, 8, None):
        down = tuple(range(4))
        problem = uniform([down, down[::-1]], [4, 4], "FIW", 1, limit, unit=5)
        orders = [one_after_another(problem), *greedy_orders(problem, 0, 40)]
        assert len(orders) > 20
        makespans.append(min(x.makespan for x in orders))
    assert makespans == sorted(makespans, reverse=True)


def test_an_order_of_few_micro_batches_is_continued() -> None:
    problem = two_pipes(4, 32, "FIW", 1, unit=10)
    small = periodic.smaller(problem)
    assert small is not None and [p.micro_batches for p in small.pipes] == [4, 4]
    state = search(small, [], 0.5)
    assert state.best is not None
    found = list(periodic.extended(small, state.best, problem))
    assert found and min(x.makespan for x in found) < one_after_another(problem).makespan / 2


@pytest.mark.parametrize("name", ["1f1b", "chimera_zb", "gpipe", "zb_v", "gems"])
def test_a_text_compiles_to_its_order(name: str) -> None:
    """A schedule of the library, read as an order and written as a listing, takes as long and has the same streams of tasks."""
    program = compile_schedule(name, {"D": 4, "N": 8}).program
    problem = problem_of(program, Given(hop=Fraction(1, 2)))
    order = order_of(problem, program)
    assert order is not None
    text, compiled = schedule_text(problem, order, "again", ["a comment"], ["sync eager"])
    assert len(text) < 6000
    times = simulate(program, {"hop": 0.5})
    assert Fraction(simulate(compiled.program).makespan) / problem.scale <= Fraction(times.makespan, times.scale)
    assert order_of(problem_of(compiled.program, Given()), compiled.program) is not None
    found = order_of(problem, compiled.program)
    assert found is not None and (found.sequence == order.sequence).all() and found.makespan == order.makespan


def test_the_library_gives_first_orders() -> None:
    program = compile_schedule("1f1b", {"D": 4, "N": 8}).program
    names = [name for name, _ in library_orders(problem_of(program, Given(split=True)))]
    assert {"1f1b", "zb_h1"} <= set(names) and not {"gpipe", "zb_h2"} & set(names)  # more than four activations
    both = compile_schedule("chimera", {"D": 4, "N": 8}).program
    assert {"chimera", "chimera_zb"} <= {name for name, _ in library_orders(problem_of(both, Given(split=True)))}


def test_repetitions_are_folded() -> None:
    words = list("ab" * 3 + "c" + "d" * 4 + "xyxyz" * 2)
    assert folded(words) == [(3, ["a", "b"]), "c", (4, ["d"]), (2, ["x", "y", "x", "y", "z"])]
    assert pipe_names(["down[0]", "F", "order", "down_0"]) == ["down_0", "F_", "order_", "down_0_"]


@pytest.mark.parametrize("group", GROUPS)
def test_the_settings_that_were_searched_are_drawn_from_their_seeds(group: str) -> None:
    stored = json.loads((ROOT / f"docs/searched/{group}.json").read_text(encoding="utf-8"))
    assert [{k: v for k, v in row.items() if k != "found"} for row in stored] == [vars(s) for s in settings_of(group)]
    for setting, row in zip(settings_of(group), stored, strict=True):
        problem, found = setting.problem(), row["found"]
        bound = float(max(b.value for b in rank_bounds(problem)) / problem.scale)
        assert bound <= found["bound"] <= found["makespan"] and found["proved"] == (found["bound"] == found["makespan"])
        assert found["shipped_makespan"] is None or found["makespan"] <= found["shipped_makespan"]


# --- the command ----------------------------------------------------------------------------------------------------------

ARGUMENTS = ["search", "chimera_zb", "-p", "D=4", "-p", "N=8", "--hop", "0.1", "--time", "2"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search")
    assert main([*ARGUMENTS, "-o", str(folder / "best.sched")]) == 0
    return folder


def test_a_result_is_simulated_as_certified(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certificate = json.loads((written / "best.json").read_text())
    text = (written / "best.sched").read_text()
    compiled = compile_text(text)
    assert simulate(compiled.program).makespan == certificate["makespan"]
    assert 254 <= certificate["bound"] <= certificate["makespan"] <= 265  # an order to begin with takes 26.5 units
    assert check.main([str(written / "best.json"), str(written / "best.sched")]) == 0
    assert "both hold" in capsys.readouterr().out
    assert main(["fmt", "--check", str(written / "best.sched")]) == 0


def test_a_result_trains_as_one_process(written: Path) -> None:
    run_and_compare(compile_schedule(written / "best.sched").program, deep_model(6), seed=1)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("makespan", lambda c: c["makespan"] - 1, "makespan: "),
        ("bound", lambda c: c["bound"] + 1, "bound: "),
        ("proved_optimal", lambda c: not c["proved_optimal"], "bound: "),
        ("limits", lambda c: [3] * 4, "its limit is 3"),
        ("digest", lambda c: "0" * 64, "digest"),
        ("links", lambda c: [[0] * 4] * 4, "makespan: "),
        ("costs", lambda c: {**c["costs"], "F": [9] * 4}, "costs of F: the certificate has [9, 9, 9, 9], and the schedule"),
        ("ranks", lambda c: [{**b, "head": b["head"] + 1} for b in c["ranks"]], "rank 0: "),
        ("ranks", lambda c: [{**b, "tail": b["tail"] + 1} for b in c["ranks"]], "rank 0: "),
        ("ranks", lambda c: [{**b, "busy": b["busy"] + 1} for b in c["ranks"]], "rank 0: "),
        ("ranks", lambda c: [], "rank 0: "),
        ("makespan", lambda c: None, "is no certificate"),
        ("costs", lambda c: dict(reversed(c["costs"].items())), ""),  # the order of kinds means nothing
        ("costs", lambda c: {"F": c["costs"]["F"], "B": c["costs"]["I"]}, "is no certificate"),
        ("costs", lambda c: {**c["costs"], "F": [-1] * 4}, "0 or more"),
        ("links", lambda c: [], "is no certificate"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_a_changed_certificate_is_refused(
    written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: Any, message: str
) -> None:
    certificate = json.loads((written / "best.json").read_text())
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps({**certificate, field: value(certificate)}))
    assert check.main([str(changed), str(written / "best.sched")]) == (1 if message else 0)
    assert message in capsys.readouterr().out


def test_what_is_no_certificate_is_refused(written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for k, text in enumerate(("[" * 100_000, "[]", "", "1")):
        (path := tmp_path / f"{k}.json").write_text(text)
        assert check.main([str(path), str(written / "best.sched")]) == 1
        assert "is no certificate" in capsys.readouterr().out


def test_a_bound_of_the_solver_is_proved_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Four micro-batches of two pipes at a hop of 0.1: 13.5, one tenth above the bound of the ranks."""
    paths = [str(tmp_path / "best.json"), str(tmp_path / "best.sched")]
    arguments = ["chimera_zb", "-p", "D=4", "--hop", "0.1", "--time", "60", "-o", paths[1]]
    assert main(["search", *arguments]) == 0
    certificate = json.loads(Path(paths[0]).read_text())
    assert (certificate["solver"]["bound"], certificate["makespan"]) == (135, 135)
    assert check.main(paths) == 0 and "was not proved again" in capsys.readouterr().out
    assert check.main([*paths, "--solve", "60"]) == 0 and "not proved again" not in capsys.readouterr().out
    certificate["solver"]["bound"] = certificate["bound"] = 136
    Path(paths[0]).write_text(json.dumps(certificate))
    assert check.main([*paths, "--solve", "60"]) == 1
    assert "the solver does not prove its bound 136 again" in capsys.readouterr().out


def test_uneven_stages_and_links_come_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs: dict[str, Any] = {"format": "chimera-search-costs", "version": 1, "F": [1, 1.5, 1, 2], "B": [2, 3, 2, 4.5]}
    costs |= {"links": [[abs(a - b) / 4 for a in range(4)] for b in range(4)], "activations": [30, 20, 20, 10]}
    costs |= {"limits": [90, 60, 40, 20]}
    path, out = tmp_path / "costs.json", tmp_path / "found.sched"
    path.write_text(json.dumps(costs))
    assert main(["search", "1f1b", "-p", "D=4", "-p", "N=6", "--costs", str(path), "--time", "5", "-o", str(out)]) == 0
    assert check.main([str(tmp_path / "found.json"), str(out)]) == 0
    certificate = json.loads((tmp_path / "found.json").read_text())
    assert certificate["costs"]["F"] == [4, 6, 4, 8] and certificate["links"][0] == [0, 1, 2, 3]
    assert certificate["proved_optimal"] and certificate["per_unit"] == "4"
    shown = capsys.readouterr().err
    assert "proved optimal" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1f1b", "--limit", "0"], "no order holds at most 0 on rank 0: one micro-batch there takes 1"),
        (["zb_v", "--limit", "1"], "the least limit of all ranks that has an order is 2"),
        (["1f1b", "--cost", "F=-1"], "expected a number like 2"),
        (["1f1b", "--time", "0"], "--time 0: expected seconds"),
        (["1f1b", "--time", "nan"], "--time nan: expected seconds"),
        (["1f1b", "--hop", "1", "--cost", "hop=1"], "leave one of them out"),
        (["1f1b", "--cost", "R=1"], "no recomputation"),
        (["chimera_recompute"], "orders no recomputation"),
        (["1f1b", "--costs", "negative.json"], "negative.json: F[1]: expected 0 or more, found -1"),
        (["1f1b", "--costs", "short.json"], "3 costs of F are given, and the schedule has 4 stages"),
        (["1f1b", "--costs", "links.json"], "links has 2 rows of 2 numbers; expected 4 rows of 4 numbers"),
        (["1f1b", "--costs", "held.json"], "no limit of what a rank may hold"),
        (["1f1b", "--costs", "other.json"], "is not a file of costs for a search"),
        (["1f1b", "-p", "N=20000"], "could not be written as a listing"),
        (["1f1b", "-o", "x.sched", "--certificate", "x.sched"], "is named twice"),
        (["1f1b", "-o", "x.sched", "--certificate", "./x.sched"], "is named twice"),
        (["1f1b", "-o", "none/x.sched"], "none/x.sched cannot be written: there is no folder none"),
        (["1f1b", "--seed", "-1"], "--seed -1: expected a number from 0"),
        (["1f1b", "--seed", "9999999999"], "--seed 9999999999: expected a number from 0"),
        (["1f1b", "--limit", "D"], "--limit D: expected a number of activations"),
        (["1f1b", "--costs", "both.json"], "both.json: hop and links both give the time of a message"),
        (["1f1b", "--tries", "5"], "--tries is for a search of texts"),
        (["1f1b", "--texts", "--profile", "p100", "-p", "D=4"], "is for a search of orders"),
        (["1f1b", "--texts", "-p", "D=4"], "-p is for a search of orders, not with --texts"),
        (["1f1b", "--model", "bert48"], "give --profile NAME, too"),
        (["1f1b", "--model", "bert48", "--profile", "p100", "--hop", "1"], "--profile and --hop both say"),
        (["1f1b", "--model", "bert48", "--profile", "p100", "--cost", "F=1"], "--profile and --cost both say"),
    ],
)
def test_bad_input_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    head = {"format": "chimera-search-costs", "version": 1}
    files = {
        "negative": {**head, "F": [1, -1, 1, 1]},
        "short": {**head, "F": [1, 1, 1]},
        "links": {**head, "links": [[0, 1], [1, 0]]},
        "both": {**head, "hop": 1, "links": [[0] * 4] * 4},
        "held": {**head, "activations": [10, 10, 10, 10]},
        "other": {"format": "chimera-partition", "version": 1},
    }
    for name, content in files.items():
        Path(f"{name}.json").write_text(json.dumps(content))
    given = arguments if "-p" in arguments else [*arguments, "-p", "D=4"]
    assert main(["search", *given]) == 2
    assert message in capsys.readouterr().err
    assert not Path("x.sched").exists()


def test_a_program_without_backwards_is_refused() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    with pytest.raises(ChimeraError, match="forwards only"):
        problem_of(replace(program, header=replace(program.header, kind="evaluation")), Given())


def test_a_bound_is_the_solvers_only_where_it_proved_more() -> None:
    problem = two_pipes(4, 4, "FB", 0)
    optimum = search(problem, [], 20)
    assert optimum.best is not None and optimum.best.makespan == optimum.bound
    assert solve(problem, optimum.best, optimum.bound, 20, 0).bound == 0


def test_times_come_from_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each stage and link takes as long as in the simulation of the given schedule with the same profile."""
    path = tmp_path / "x.sched"
    words = [
        "search",
        "1f1b",
        "-p",
        "D=4",
        "-p",
        "N=8",
        "--model",
        "bert48",
        "--profile",
        "p100",
        "--time",
        "1",
        "-o",
        str(path),
    ]
    assert main(words) == 0
    shown = capsys.readouterr().err
    assert re.search(r"^makespan [0-9.]+ ms, wall", shown, re.MULTILINE) and "simulated with busy links" in shown
    assert check.main([str(tmp_path / "x.json"), str(path)]) == 0
    program = compile_schedule("1f1b", {"D": 4, "N": 8}).program
    profile = find_profile("p100", "bert48")
    model = find_model("bert48", program.header.samples, None, profile.seq_len)
    program = program.with_partition(partition_for(None, model, 4))
    durations = profiled_durations(program, model, profile)
    found = problem_of(program, given_from_durations(program, durations))
    certificate = json.loads((tmp_path / "x.json").read_text())
    assert certificate["costs"]["F"] == list(found.durations[0])
    assert found.durations[0] == tuple(int(x * found.scale / durations.scale) for x in durations.costs.FWD)
    sends = program.table.op == Op.SEND
    assert max(map(max, found.links)) == (durations.latency + durations.occupied)[sends].max() * found.scale / durations.scale


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("chimerac.compiler.command.search.find_spec", lambda name: None)
    assert main(["search", "1f1b"]) == 2
    assert "numba, ortools" in (err := capsys.readouterr().err) and "pip install 'chimerac[search]'" in err


def test_ctrl_c_writes_the_best_so_far(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first progress that is shown. The certificate of what is written holds."""

    def interrupt(self: object, state: State) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("chimerac.compiler.command.search._Progress.show", interrupt)
    path = tmp_path / "best.sched"
    assert main(["search", "chimera_zb", "-p", "D=4", "-p", "N=8", "--hop", "0.5", "--time", "600", "-o", str(path)]) == 130
    assert check.main([str(tmp_path / "best.json"), str(path)]) == 0


def test_ctrl_c_stops_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it comes before the solver has begun: `solve` ends although its time would be an hour."""
    problem = two_pipes(4, 16, "FIW", 1, unit=10)
    calls = []

    def interrupted(running: list[Future[object]], timeout: float) -> None:
        calls.append(timeout)
        if len(calls) == 1:
            raise KeyboardInterrupt
        wait(running, timeout)

    monkeypatch.setattr("chimerac.compiler.search.solver.wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(problem, one_after_another(problem), 494, 3600, 0)
    assert len(calls) > 1


INTERRUPTED = """
import os, signal, threading
from chimerac.compiler.search.sequences import one_after_another
from chimerac.compiler.search.solver import solve
from tests.unit.test_search import two_pipes

problem = two_pipes(4, 16, "FIW", 1, unit=10)
order = one_after_another(problem)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    solve(problem, order, 494, 3600, 0)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_stops_the_solver() -> None:
    """In a process of its own, where the test is in the main thread: the solver catches no signals itself."""
    command = [sys.executable, "-c", INTERRUPTED]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=SIGINT_ON, timeout=100)
    assert completed.stdout.split() == ["interrupted"], completed.stderr


def test_the_checker_imports_nothing_of_the_search() -> None:
    code = "import sys, chimerac.compiler.search.check; print(*(m for m in sys.modules if 'compiler.search.' in m))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["chimerac.compiler.search.check"]
