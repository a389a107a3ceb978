"""`chimerac diff`: which instructions of a rank moved, which only one program has, and how times and memory differ."""

from __future__ import annotations

import random
from io import BytesIO, TextIOWrapper
from itertools import combinations
from pathlib import Path

import pytest

from chimerac.chimera_ir.program import Program
from chimerac.compiler import compile_schedule
from chimerac.compiler.analyze.diff import _longest_ascending, diff
from chimerac.compiler.command.main import main
from chimerac.compiler.library import find
from tests.helpers import streams, with_streams
from tests.helpers_cost import lines


def with_stream(program: Program, rank: int, order: list[int]) -> Program:
    """Return a program in which a rank has another stream.

    Args:
        order: the instructions of this stream, by number in the old one.
    """
    changed = streams(program)
    changed[rank] = [changed[rank][k] for k in order]
    return with_streams(program, changed)


def test_only_the_instruction_that_moved_is_reported_as_moved() -> None:
    program = compile_schedule("1f1b", {"D": 4, "N": 6}).program
    order = [*range(len(program.stream(2)))]
    order.insert(9, order.pop(3))
    found = diff(program, with_stream(program, 2, order))
    begin = int(program.offsets[2])
    assert [r.rank for r in found.ranks if not r.is_equal] == [2]
    assert found.ranks[2].moved == ((begin + 3, begin + 9),)
    assert (found.ranks[2].same, found.ranks[2].removed, found.ranks[2].added) == (len(order) - 1, (), ())


def test_a_missing_instruction_does_not_make_others_count_as_moved() -> None:
    program = compile_schedule("zb_v", {"D": 2, "N": 4}).program
    order = [*range(len(program.stream(1)))]
    del order[5]
    shorter = with_stream(program, 1, order)
    found = diff(program, shorter)
    assert found.ranks[1].removed == (int(program.offsets[1]) + 5,) and not found.ranks[1].moved and not found.is_equal
    assert diff(shorter, program).ranks[1].added == found.ranks[1].removed
    assert diff(program, program).is_equal


def test_a_task_on_another_rank_is_named_with_that_rank() -> None:
    a, b = (compile_schedule(name, {"D": 2, "N": 4}).program for name in ("interleaved", "zb_v"))
    found = diff(a, b)
    gone = {a.text(row): rank for row, rank in found.gone_to.items()}
    assert gone["FWD main s2 m0"] == 1 and gone["FWD main s3 m1"] == 0 and "FWD main s0 m0" not in gone
    assert any("stage 2 is on rank 0 in a, and on rank 1 in b" in fact for fact in found.header)


def test_the_other_rank_of_a_task_is_one_of_the_same_replica() -> None:
    a, b = (compile_schedule(name, {"D": 2, "N": 4}, width=2).program for name in ("interleaved", "zb_v"))
    found = diff(a, b)
    assert {int(a.rank_of[row]) // 2 for row in found.gone_to} == {0, 1}, "tasks of both replicas are on other ranks"
    assert all(int(a.rank_of[row]) // 2 == rank // 2 for row, rank in found.gone_to.items())
    assert all(int(b.rank_of[row]) // 2 == rank // 2 for row, rank in found.come_from.items())


def test_as_many_instructions_as_possible_have_not_moved() -> None:
    rng = random.Random(1)
    for size in range(8):
        for _ in range(20):
            given = rng.sample(range(20), size)
            stays = [x for x, stay in zip(given, _longest_ascending(given), strict=True) if stay]
            longest = max((n for n in range(size + 1) for c in combinations(given, n) if list(c) == sorted(c)), default=0)
            assert stays == sorted(stays) and len(stays) == longest


def test_the_lines_executed_to_find_what_moved_grow_linearly() -> None:
    """The inputs are places in a reversed and in an equal stream: for other algorithms of diff, the worst and the best case."""
    for order in (lambda n: range(n, 0, -1), range):
        once, twice = (lines(lambda n=n: _longest_ascending(order(n))) for n in (1000, 2000))  # noqa: B023
        assert twice < 2.1 * once
    assert sum(_longest_ascending(range(200_000, 0, -1))) == 1
    assert all(_longest_ascending(range(200_000)))


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["1f1b", "1f1b", "-p", "N=5"], 0, "equal: the same instructions"),
        (["gpipe", "1f1b", "-p", "D=2", "-p", "N=4"], 1, "~ BWD main s1 m0: from 14 to 4"),
        (["1f1b", "zb_h1", "-p", "D=2", "-p", "N=3"], 1, "- BWD main s0 m0: at 6"),
        (["1f1b", "zb_h1", "-p", "D=2", "-p", "N=3"], 1, "makespan 12 10 -2 -16.7 %"),
        (["gpipe", "1f1b", "-p", "D=2", "-p", "N=8"], 1, "more that moved; --all shows them"),
        (["gpipe", "1f1b", "-p", "D=2", "--model", "gpt-nano"], 1, "bytes"),
    ],
)
def test_the_command_says_what_differs(words: list[str], status: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *words]) == status
    assert says in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["gpipe", "1f1b", "-p", "D=x"], "-p D=x: 'x' is not an integer"),
        (["gpipe", "none"], "there is no file none, and no schedule of that name"),
        (["gpipe", "1f1b", "--optimizer", "adamw"], "--optimizer counts bytes of a model: give --model NAME, too"),
    ],
)
def test_wrong_arguments_are_findings(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *words]) == 2
    out, err = capsys.readouterr()
    assert not out and message in err


def test_stdin_can_be_one_of_the_two_programs_but_not_both(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = find("1f1b").text
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(text.encode())))
    assert main(["diff", "-", "1f1b"]) == 0
    assert main(["diff", "-", "-"]) == 2
    assert "E002]: both programs are -, and stdin has only one" in capsys.readouterr().err


def test_a_file_and_its_schedule_are_equal_and_an_input_is_refused_as_the_output(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    assert main(["zb_v", "-p", "D=2", "-p", "N=4", "--emit", "torch-csv", "-o", str(path)]) == 0
    schedule = tmp_path / "zb.sched"
    assert main([str(path), "--emit", "sched", "-o", str(schedule)]) == 0
    assert main(["diff", str(path), str(schedule)]) == 0
    assert main(["diff", str(path), str(schedule), "-o", str(path)]) == 2
