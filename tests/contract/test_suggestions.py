"""For a misspelt word the message suggests a similar one, and for a command of another tool one that does the same."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from chimerac.compiler.command.find_schedule import OTHER_WORDS
from chimerac.compiler.command.main import VERBS, main
from chimerac.compiler.explain.entries import entries
from chimerac.compiler.library import names
from chimerac.interpreter.launch.options import parse_options
from chimerac.models.__main__ import main as models_main

# Correct texts: a schedule in each of the three order forms, and a program as text and as JSON.
TICKS = entries()["E208"].right
LISTING = entries()["E306"].right
GREEDY = entries()["E305"].right
PROGRAM = entries()["E410"].right
JSON = entries()["E601"].right

# A correct text, a part of it, what replaces the first occurrence of this part, and what then follows "did you mean". Where the
# correct text lacks the word that is to be misspelt, the replacement adds it.
MISSPELT = [
    (TICKS, "schedule", "schedul", "'schedule'"),
    (TICKS, "param D", "pram D", "'param'"),
    (TICKS, "require", "requires", "'require'"),
    (TICKS, "ranks D", "rank D", "'ranks'"),
    (TICKS, "stages D", "stagse D", "'stages'"),
    (TICKS, "pipe main", "pip main", "'pipe'"),
    (TICKS, "stage s", "stge s", "'stage'"),
    (TICKS, "micro_batches", "microbatches", "'micro_batches'"),
    (TICKS, "order ticks", "oder ticks", "'order'"),
    (TICKS, "order ticks", "order tick", "'ticks'"),
    (TICKS, "order ticks {", "order ticks { lett k = 1 ", "'let' instead of 'lett'"),
    (TICKS, "F(s, m) at", "F(s, m) wen m > 0 at", "'when'"),
    (TICKS, "order ticks", "tyed x on stages 0, 1 order ticks", "'tied'"),
    (TICKS, "order ticks", "sync eagr order ticks", "'eager'"),
    (TICKS, "order ticks", "windw 3 order ticks", "'window'"),
    (TICKS, "order ticks", "cst F = 1 order ticks", "'cost'"),
    (TICKS, "order ticks", "limit activation <= 3 order ticks", "'activations'"),
    (TICKS, "order ticks", "cost Hop = 1 order ticks", "'hop'"),
    (TICKS, "at s + 2*m", "at s + 2*max(m, mim(m, 3))", "'min'"),
    (TICKS, "micro_batches N", "micro_batches n", "'N'"),
    (TICKS, "F(s, m)", "F mian(s, m)", "'main'"),
    (LISTING, "repeat warm_up { F }", "repeet warm_up { F }", "'repeat' instead of 'repeet'"),
    (LISTING, "{ B  F }", "{ B  F mian }", "'main'"),
    (LISTING, "repeat warm_up { F }", "if r == 0 { repeat warm_up { F } } esle { }", "'else' instead of 'esle'"),
    (LISTING, "repeat warm_up { F }", "repeat warmup { F }", "'warm_up'"),
    (GREEDY, "prefer", "prefers", "'prefer'"),
    (GREEDY, "limit", "limits", "'limit'"),
    (GREEDY, "limit", "then smallr m limit", "'smaller'"),
    (PROGRAM, "costs", "cost", "'costs'"),
    (PROGRAM, "  BWD main", "  BWDD main", "'BWD'"),
    (PROGRAM, "  BWD main", "  BWD mian", "'main'"),
    (PROGRAM, "\npipe", "\nlimits activation=1\npipe", "'activations'"),
    (JSON, '"stages"', '"stage"', "'stages'"),
    (JSON, '"op": "BWD"', '"op": "BWDD"', "'BWD'"),
]


@pytest.mark.parametrize(("text", "right", "wrong", "suggestion"), MISSPELT, ids=[x[2].strip() for x in MISSPELT])
def test_a_misspelt_word_in_a_file_has_a_suggestion(
    text: str, right: str, wrong: str, suggestion: str,
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert right in text
    path = tmp_path / "example"
    path.write_text(text.replace(right, wrong, 1))
    assert main([str(path)]) == 1
    assert f"did you mean {suggestion}?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("chimara", "'chimera'"),
        ("explian", "'explain'"),
        ("fmtt", "'fmt'"),
        ("mine.shed", "'mine.sched'"),
        ("mine", "'mine.sched'"),
        ("chimera -p d=4", "'D'"),
        ("chimera --emit timelin", "'timeline'"),
        ("chimera --machine seriel", "'serial'"),
        ("chimera --for pared", "'paired'"),
        ("chimera --modell m.json", "'--model'"),
        ("chimera --emit report --cost Hop=1", "'hop'"),
        ("fmt --chek mine.sched", "'--check'"),
    ],
)
def test_a_misspelt_word_on_the_command_line_has_a_suggestion(
    line: str, suggestion: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.sched").write_text(TICKS)
    try:
        status = main(shlex.split(line))
    except SystemExit as end:
        status = end.code
    assert status in (1, 2)
    assert f"did you mean {suggestion}?" in capsys.readouterr().err


def test_a_wrong_option_transport_or_preset_has_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    for words, suggestion in ((["--iteration-count", "3"], "--iterations"), (["--transport", "nccll"], "nccl")):
        with pytest.raises(SystemExit, match="2"):
            parse_options(words)
        assert f"did you mean '{suggestion}'?" in capsys.readouterr().err
    assert models_main(["describe", "--model", "gpt-smal"]) == 1
    assert "did you mean 'gpt-small'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["--nproc-per-node", "4"],
        ["--nproc_per_node=4"],
        ["--ranks", "4"],
        ["--nproc", "4"],
        ["--world-size", "4"],
        ["--num-gpus", "4"],
    ],
)
def test_an_option_for_the_number_of_ranks_gets_the_way_to_set_it(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(words)
    message = capsys.readouterr().err
    assert "did you mean" not in message and "-p D=4; --width W" in message


@pytest.mark.parametrize("word", ["--costs", "--nodes", "--depth"])
def test_dashes_do_not_count_when_options_are_compared(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the dashes counted, each word would be similar enough to an option: --loss, --model and --width."""
    with pytest.raises(SystemExit, match="2"):
        parse_options([word, "4"])
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "command"),
    [
        ("run mine.sched", "python interpreter/run.py mine.sched"),
        ("train mine.sched -p D=2", "python interpreter/run.py mine.sched"),
        ("verify mine.sched", "chimerac mine.sched"),
        ("check", "chimerac SCHEDULE"),
        ("draw 'a b.sched'", "chimerac 'a b.sched' --emit timeline"),
        ("format mine.sched", "chimerac fmt mine.sched"),
    ],
)
def test_a_command_of_other_tools_gets_the_one_that_does_the_same(
    line: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.sched").write_text(TICKS)
    assert main(shlex.split(line)) == 2
    assert f"= help: write: {command}\n" in capsys.readouterr().err


def test_no_command_of_other_tools_is_a_verb_or_a_schedule() -> None:
    assert not {*OTHER_WORDS} & {*VERBS} and not {*OTHER_WORDS} & {*names()}


def test_nothing_is_suggested_if_no_name_is_near(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(json.loads(JSON) | {"speed": 9}))
    assert main([str(path)]) == 1
    path.write_text(TICKS.replace("param D", "zebra D"))
    assert main([str(path)]) == 1
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--quux"])
    assert "did you mean" not in capsys.readouterr().err
