"""`chimerac tour`: each part runs alone, the idle slots that it draws can be counted, and it asks only on a terminal."""

from __future__ import annotations

import builtins
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chimerac.compiler import compile_schedule, simulate
from chimerac.compiler.command.main import main
from chimerac.compiler.command.verbs import TOUR_PARTS
from chimerac.compiler.draw.slots import draw_slots
from chimerac.compiler.tour.guide import Guide

NEED_NO_TORCH = [name for name in TOUR_PARTS if name != "train"]
Answer = Callable[[str], str]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[str]]:
    """Return a function that makes stdin and stdout a terminal.

    Its argument computes the answer to each question. It returns a list, which gets the questions as they are asked.
    """

    def make(answer: Answer) -> list[str]:
        questions: list[str] = []

        def ask(prompt: str = "") -> str:
            questions.append(prompt)
            return answer(prompt)

        monkeypatch.setattr(builtins, "input", ask)
        for stream in ("stdin", "stdout"):
            monkeypatch.setattr(f"sys.{stream}.isatty", lambda: True)
        return questions

    return make


@pytest.mark.parametrize("part", NEED_NO_TORCH)
def test_each_part_that_needs_no_torch_runs_alone_and_without_questions(
    part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(prompt: str = "") -> str:
        raise AssertionError(f"asked: {prompt}")

    monkeypatch.setattr(builtins, "input", fail)
    assert main(["tour", part, "--yes"]) == 0
    text = capsys.readouterr().out
    assert main(["tour", part]) == 0, "stdin is no terminal here"
    assert capsys.readouterr().out == text
    assert "$ chimerac " in text and max(len(line) for line in prose(text)) <= 100
    commands = [line.removeprefix("$ chimerac ").split() for line in text.splitlines() if line.startswith("$ chimerac")]
    for words in commands:
        main(words)
        assert capsys.readouterr().out in text, "what the tour shows is what the command prints"


def prose(text: str) -> Iterator[str]:
    """Yield the lines of most paragraphs: of the blocks between empty lines that begin with a word such as `The` or `With`.

    Blocks with three spaces in a row are left out: they have columns.
    """
    for block in text.split("\n\n"):
        if re.match(r"[A-Z][a-z]+ ", block) and "   " not in block:
            yield from block.splitlines()


@pytest.mark.parametrize("ranks", [2, 4, 6])
def test_the_idle_slots_can_be_counted(ranks: int, capsys: pytest.CaptureFixture[str], terminal: Any) -> None:
    """In the drawing each rank has 2(D - 1) idle slots with GPipe and 1F1B, and D - 2 with Chimera, as published."""
    questions = terminal(lambda prompt: str(ranks) if "How many ranks" in prompt else "")
    assert main(["tour", "schedule"]) == 0
    text = capsys.readouterr().out
    drawings = re.findall(r"^(\w+), D=\d ranks, N=\d micro-batches\n((?:rank \d.*\n)+)", text, re.MULTILINE)
    assert [name for name, _ in drawings] == ["gpipe", "1f1b", "chimera"] and len(questions) == 3
    for name, drawing in drawings:
        expected = ranks - 2 if name == "chimera" else 2 * (ranks - 1)
        rows = drawing.splitlines()
        assert len(rows) == ranks
        for row in rows:
            assert [int(k) for k in re.findall(r"\[(\d+)\]", row)] == list(range(1, expected + 1))
            assert row.endswith(f"  {expected} idle")
            assert sorted(re.findall(r"[FB]\d", row)) == sorted(f"{kind}{m}" for kind in "FB" for m in range(ranks))
    words = " ".join(text.split())
    assert f"Every rank has {2 * (ranks - 1)} of them. That is 2 x (D - 1) for D = {ranks} ranks" in words
    assert f"Now there are {ranks - 2} idle slots on every rank: D - 2" in words


def test_slots_are_drawn_only_if_every_task_takes_one_unit() -> None:
    program = compile_schedule("1f1b", {"D": 2, "N": 2}).program
    assert draw_slots(program, simulate(program, {"F": 1, "B": 1}).timeline) == (
        "rank 0 |  F0  F1 [1]  B0 [2]  B1 |  2 idle\nrank 1 | [1]  F0  B0  F1  B1 [2] |  2 idle\n"
    )
    with pytest.raises(ValueError, match="one unit"):
        draw_slots(program, simulate(program).timeline)


def test_the_plan_of_the_tour_follows_the_answers(capsys: pytest.CaptureFixture[str], terminal: Any) -> None:
    """If something fits, the tour also shows the command with -o. If nothing fits, it says so and shows no such command."""
    for batch, memory in (("16", "3GiB"), ("32", "1GiB")):
        terminal(
            lambda prompt, batch=batch, memory=memory: batch if "samples" in prompt else memory if "memory" in prompt else ""
        )
        assert main(["tour", "autotune"]) == 0
        output = capsys.readouterr()
        (command,) = re.findall(r"^\$ chimerac (plan .*)$", output.out, re.MULTILINE)
        assert f"--batch {batch} --memory {memory}" in command
        assert ("There is no plan" in output.out) == ("error[E718]" in output.err) == (memory == "1GiB")
        assert (f"chimerac {command} -o plan.yaml" in output.out) == (memory != "1GiB")


def test_ctrl_c_in_the_plan_of_the_tour_ends_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Guide, "command", lambda self, *words: 130)
    assert main(["tour", "autotune"]) == 130
    assert "There is no plan" not in capsys.readouterr().out


def test_wrong_answers_are_asked_again_and_q_ends_the_tour(capsys: pytest.CaptureFixture[str], terminal: Any) -> None:
    answers = iter(["nonsense", "performance", "5", "8", "q"])
    questions = terminal(lambda prompt: next(answers))
    assert main(["tour"]) == 0
    text = capsys.readouterr().out
    assert "Performance" in text and "Partition" not in text
    assert "-p D=8 -p N=8" in text
    assert [q for q in questions if q.startswith("one of ")] == [
        f"one of {', '.join(TOUR_PARTS)}, or q: ",
        "one of 4, 8, or q: ",
    ]
    assert not list(answers)


def test_the_end_of_the_input_and_ctrl_c_end_the_tour_quietly(capsys: pytest.CaptureFixture[str], terminal: Any) -> None:
    for error, status in ((EOFError, 0), (KeyboardInterrupt, 130)):

        def end(prompt: str, error: type[BaseException] = error) -> str:
            raise error

        terminal(end)
        assert main(["tour", "schedule"]) == status
        assert capsys.readouterr().err == ""


def test_without_torch_the_last_part_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert main(["tour", "train", "--yes"]) == 1
    assert "pip install 'chimerac[train]'" in " ".join(capsys.readouterr().out.split())


def test_the_last_part_trains(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "chimerac", "tour", "train", "--yes"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    losses = [float(x) for x in re.findall(r"^iteration .* loss +([\d.]+) ", done.stdout, re.MULTILINE)]
    assert losses[-1] < losses[0] and "gradients equal one process" in done.stdout
    assert done.stdout.index("Now the training") < done.stdout.index("iteration     1") < done.stdout.index("measured bubble")


def test_a_part_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["tour", "schedul"])
    error = capsys.readouterr().err
    assert end.value.code == 2 and "invalid choice: 'schedul'" in error and error.endswith("did you mean 'schedule'?\n")
