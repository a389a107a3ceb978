"""The path `-` of an option that writes a file: it means stdout, or is refused. An empty path is refused too."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from chimerac.compiler.command.main import main
from chimerac.compiler.command.usage import make_parser
from chimerac.interpreter.data.__main__ import main as data
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.profiling.__main__ import main as profiling
from chimerac.models.__main__ import main as models
from tests.helpers import EXAMPLE_PROFILE

SEARCH = ("search", "1f1b", "-p", "D=2", "-p", "N=2", "--time", "0.3")
PLAN = ("plan", "1f1b", "--model", "gpt-nano", "--ranks", "2", "--memory", "1GiB", "--batch", "4",
        "--profile", str(EXAMPLE_PROFILE))  # fmt: skip

# By verb, "" for none: a command line that ends with an option and its path -, and how its product begins on stdout.
TO_STDOUT: dict[str, tuple[tuple[str, ...], str]] = {
    "": (("1f1b", "-p", "D=2", "-o", "-"), "chimera-program 1"),
    "compare": (("compare", "1f1b", "-o", "-"), "D=4 ranks"),
    "diff": (("diff", "1f1b", "1f1b", "-o", "-"), "a: one_f_one_b"),
    "search": ((*SEARCH, "-o", "-"), "# Found by chimerac search"),
}
# By verb: a command line that ends with an option and its path -, and the message with which it is refused.
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "partition": (("partition", "1f1b", "--model", "gpt-nano", "-o", "-"), "-o -: stdout gets the table"),
    "plan": ((*PLAN, "--emit", "json", "-o", "-"), "-o -: stdout gets the JSON"),
    "search": ((*SEARCH, "--certificate", "-"), "--certificate -: stdout gets the schedule"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder the current one, and return it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("verb", TO_STDOUT)
def test_a_product_goes_to_stdout(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, begin = TO_STDOUT[verb]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith(begin)
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("verb", REFUSED)
def test_stdout_is_refused_for_a_file_beside_another_product(
    verb: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = REFUSED[verb]
    assert main(words) == 2
    output = capsys.readouterr()
    assert output.out == "" and message in output.err
    assert list(folder.iterdir()) == []


def test_every_verb_with_an_output_file_is_tested() -> None:
    parsers: Sequence[argparse.ArgumentParser] = make_parser().verbs  # type: ignore[attr-defined]
    options_by_verb = {
        parser.prog.removeprefix("chimerac").strip(): [action.dest for action in parser._actions]
        for parser in (make_parser(), *parsers)
    }
    assert {verb for verb, names in options_by_verb.items() if "output" in names} == {*TO_STDOUT, *REFUSED}
    assert [verb for verb, names in options_by_verb.items() if "certificate" in names] == ["search"]


def test_a_certificate_goes_to_stdout_beside_a_schedule_in_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEARCH, "-o", "found.sched", "--certificate", "-"]) == 0
    output = capsys.readouterr()
    assert json.loads(output.out)["makespan"] > 0
    assert "check them with" not in output.err, "the check needs both in files"
    assert [path.name for path in folder.iterdir()] == ["found.sched"]


@pytest.mark.parametrize("verb", [*REFUSED, "compare", "diff"])
def test_an_empty_path_is_refused_by_the_parser(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    *words, option, _ = {**TO_STDOUT, **REFUSED}[verb][0]
    with pytest.raises(SystemExit, match="2"):
        main([*words, option, ""])
    assert f"argument {option}: the path is empty" in capsys.readouterr().err


def test_a_description_goes_to_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert models(["describe", "--model", "gpt-nano", "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "gpt-nano"
    assert list(folder.iterdir()) == []


def test_a_tokenizer_is_not_written_to_stdout(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text.txt").write_text("the same words, the same words")
    assert data(["train-tokenizer", "text.txt", "-o", "-"]) == 1
    assert "written to -: stdout gets the summary" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["text.txt"]


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        (profiling, ("-o", "-"), "-o -: a profile is not written to stdout"),
        *((parse_options, (option, "-"), f"{option} -: stdout gets what the run prints: give a path")
          for option in ("--trace", "--timeline", "--log-file", "--export", "--save-dir", "--tensorboard")),
    ],
)  # fmt: skip
def test_a_run_and_the_profiler_refuse_stdout(
    command: Callable[[Sequence[str]], object], words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command(words)
    assert message in capsys.readouterr().err
