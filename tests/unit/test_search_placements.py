"""Other placements of the stages: `chimerac search --placements`, and placements.py."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from chimerac.chimera_ir.partition import partition_for
from chimerac.compiler import compile_schedule, compile_text
from chimerac.compiler.analyze.memory import memory
from chimerac.compiler.command import search_memory
from chimerac.compiler.command.main import main
from chimerac.compiler.command.search_memory import SearchMemory
from chimerac.compiler.command.values import state_of
from chimerac.compiler.descriptions import find_model
from chimerac.compiler.search import check
from chimerac.compiler.search.memory_limits import excess, memory_limits
from chimerac.compiler.search.orders import search
from chimerac.compiler.search.placements import best_placement, bound_of_every_placement
from chimerac.compiler.search.problem import Problem
from tests.helpers_search import two_pipes, uniform


def uneven(problem: Problem, seed: int) -> Problem:
    """Return the problem with tasks that take 2 to 9, and messages that take 0 to 6."""
    r = random.Random(seed)
    durations = tuple(tuple(r.randint(2, 9) for _ in column) for column in problem.durations)
    links = tuple(tuple(r.randint(0, 6) for _ in row) for row in problem.links)
    return replace(problem, durations=durations, links=links)


@pytest.mark.parametrize("seed", range(3))
def test_of_all_placements_of_a_pipe_the_best_one_is_found(seed: int) -> None:
    problem = uneven(uniform([(0, 1, 2)], [4], "FB", hop=0, limit=3), seed)
    optima = []
    for placement in permutations(range(3)):
        moved = replace(problem, pipes=(replace(problem.pipes[0], placement=placement),))
        state = search(moved, [], seconds=20)
        assert state.is_proved and state.best is not None
        optima.append(state.best.makespan)
    placed = best_placement(problem, [], seconds=2)
    assert placed.bound <= min(optima) == placed.order.makespan
    assert placed.order.makespan < max(optima), "placements of this problem differ"


def test_each_rank_keeps_its_number_of_stages_of_each_pipe_and_its_limit() -> None:
    problem = uneven(two_pipes(4, 8, "FIW", hop=0), seed=1)
    given = search(problem, [], seconds=2)
    assert given.best is not None
    placed = best_placement(problem, [("given", given.best)], seconds=4)
    assert placed.known == (given.best.makespan, "given")
    assert placed.order.makespan < given.best.makespan
    for before, after in zip(problem.pipes, placed.problem.pipes, strict=True):
        assert sorted(before.placement) == sorted(after.placement)
    assert replace(placed.problem, pipes=problem.pipes) == problem
    assert placed.bound <= min(placed.order.makespan, bound_of_every_placement(placed.problem))


def test_the_given_placement_stays_if_none_is_faster() -> None:
    problem = two_pipes(2, 4, "FB", hop=0)
    known = search(problem, [], seconds=5)
    assert known.is_proved and known.best is not None
    placed = best_placement(problem, [("given", known.best)], seconds=2)
    assert placed.problem is problem and placed.order is known.best


def test_a_placement_whose_limits_no_order_keeps_is_left_out() -> None:
    """Another placement is faster. But with it a rank may hold only 1 activation, and one micro-batch needs 2 on each rank."""
    problem = uniform([(0, 1, 0, 1)], [6], "FB", hop=0, limit=12)
    problem = replace(problem, durations=((3, 1, 3, 1), (6, 2, 6, 2)))
    assert best_placement(problem, [], 1).problem.pipes != problem.pipes
    placed = best_placement(problem, [], 1, limits_for=lambda pipes: problem.limits if pipes == problem.pipes else (1, 1))
    assert placed.problem.pipes == problem.pipes


COSTS = {"F": [3, 1, 3, 1], "B": [6, 2, 6, 2]}


def test_the_command_balances_uneven_stages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two stages on each rank: the given placement has both long stages on rank 0."""
    (tmp_path / "two.sched").write_text(
        "schedule two\nranks 2\nstages 4\npipe p { stage s on rank s % 2   micro_batches 6 }\norder greedy { prefer B, F }\n"
    )
    (tmp_path / "costs.json").write_text(json.dumps({"format": "chimera-search-costs", "version": 1, **COSTS}))
    given = ["search", str(tmp_path / "two.sched"), "--costs", str(tmp_path / "costs.json"), "--time", "15", "--limit", "12"]
    assert main([*given, "-o", str(tmp_path / "a.sched")]) == 0
    assert "rank 0 computes for 108, the mean of all ranks is 72: --placements" in capsys.readouterr().err
    assert main([*given, "--placements", "-o", str(tmp_path / "b.sched")]) == 0
    told = capsys.readouterr().err
    a, b = (json.loads((tmp_path / f"{x}.json").read_text()) for x in "ab")
    assert a["makespan"] >= 108 and b["makespan"] < 0.8 * a["makespan"]
    assert check.main([str(tmp_path / "b.json"), str(tmp_path / "b.sched")]) == 0
    placement = compile_text((tmp_path / "b.sched").read_text()).program.header.pipes[0].placement
    assert f"pipe p: stages on ranks {' '.join(map(str, placement))}" in told
    assert (
        "another placement of two" in told
        and "with the same number of stages of each pipe on each rank, no placement has" in told
    )
    assert {placement[0], placement[2]} == {0, 1}


@pytest.mark.parametrize("surplus", [0, 1_000_000])
def test_a_limit_in_bytes_is_kept_with_another_placement(
    surplus: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """surplus: by how many bytes the limits are too high at first.

    With a surplus, the order that the search for a placement finds needs too many bytes. The limits are then lowered, and the
    next search must not begin with this order.
    """
    exact = search_memory.memory_limits
    monkeypatch.setattr(search_memory, "memory_limits", lambda *given: exact(*given).lowered([-surplus] * 4))
    path, most_bytes, state = tmp_path / "found.sched", 6_500_000, state_of("adamw", zero=False)
    costs = {"F": [1, 3, 3, 1], "I": [1, 3, 3, 1], "W": [1, 3, 3, 1]}
    (tmp_path / "costs.json").write_text(json.dumps({"format": "chimera-search-costs", "version": 1, **costs}))
    words = ["chimera_zb", "-p", "D=4", "-p", "N=8", "--model", "gpt-nano", "--optimizer", "adamw"]
    words += ["--memory", str(most_bytes), "--placements", "--time", "20", "--costs", str(tmp_path / "costs.json")]
    assert main(["search", *words, "-o", str(path)]) == 0
    assert surplus or "searching again with lower limits" not in capsys.readouterr().err
    assert check.main([str(tmp_path / "found.json"), str(path)]) == 0
    program = compile_schedule(path).program
    assert [x.placement for x in program.header.pipes] != [(0, 1, 2, 3), (3, 2, 1, 0)]
    model = find_model("gpt-nano", program.header.samples)
    program = program.with_partition(partition_for(None, model, stages=4))
    assert not any(excess(program, model, state, most_bytes))


def test_limits_of_another_placement_differ_by_what_ranks_hold_all_the_time() -> None:
    state, program = state_of("adamw", zero=True), compile_schedule("chimera_zb", {"D": 4, "N": 8}).program
    model = find_model("gpt-nano", program.header.samples)
    program = program.with_partition(partition_for(None, model, stages=4))
    limits = memory_limits(program, model, state, 10**9)
    h = program.header
    down, up = h.pipes
    moved_pipes = (replace(down, placement=(2, 1, 3, 0)), replace(up, placement=(2, 0, 1, 3)))
    lines = ["schedule moved", "ranks 4", "stages 4"]
    for name, pipe in zip("ab", moved_pipes, strict=True):
        clauses = " ".join(f"stage s in {s} .. {s} on rank {r}" for s, r in enumerate(pipe.placement))
        lines.append(f"pipe {name} {{ {clauses} micro_batches 4 }}")
    lines.append("order greedy { prefer I, F, W }")
    moved = compile_text("\n".join(lines) + "\n").program.with_partition(program.partition)
    fixed = [[x.weights + x.gradients + x.optimizer for x in memory(y, model, state)] for y in (program, moved)]
    expected = tuple(limit + a - b for limit, a, b in zip(limits.limits, *fixed, strict=True))
    assert SearchMemory(model, state, 10**9, limits).limits_for(program, moved_pipes) == expected
    assert expected != limits.limits


def test_placements_are_not_for_texts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "chimera_zb", "--texts", "--placements"]) == 2
    assert "--placements is for a search of orders, not with --texts" in capsys.readouterr().err
