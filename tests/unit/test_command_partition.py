"""`chimerac partition`: its table, its file for --partition, and options that need a model, such as --split."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.chimera_ir.jsonform import program_from_json
from chimerac.compiler.command.main import main
from chimerac.compiler.command.values import number_of_bytes
from chimerac.compiler.descriptions import preset
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan

SCHEDULE = ["chimera", "-p", "D=4"]
MODEL = ["--model", "gpt-small"]
STAGES = ((0, 1), (1, 3), (3, 5), (5, 6))  # of --split 1,2,2,1


def test_a_partition_goes_from_the_table_to_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut, compiled = str(tmp_path / "my cut.json"), str(tmp_path / "p.json")
    assert main(["partition", *SCHEDULE, *MODEL, "--split", "1,2,2,1", "-o", cut]) == 0
    # stderr ends with the command that compiles the schedule with this partition.
    command, *words = shlex.split(capsys.readouterr().err.partition("; next: ")[2])
    assert command == "chimerac" and words[-2:] == ["-o", "p.json"]
    assert main([*words[:-1], compiled]) == 0
    written = program_from_json(Path(compiled).read_text()).partition
    assert written is not None and written.stages == STAGES
    assert json.loads(Path(cut).read_text())["stages"] == [list(stage) for stage in STAGES]
    for choice in (["--partition", cut], ["--split", "1,2,2,1"]):
        assert main([*SCHEDULE, *MODEL, *choice, "--emit", "json", "-o", compiled]) == 0
        carried = program_from_json(Path(compiled).read_text()).partition
        for run in ([compiled], [*SCHEDULE, *MODEL, *choice], [compiled, "--split", "1,2,2,1"]):
            partition = make_plan(parse_options([*run, "--loopback"])).program.partition
            assert partition is not None and carried is not None
            assert partition == carried and partition.stages == STAGES
    assert make_plan(parse_options([*SCHEDULE, "--partition", cut, "--loopback"])).program.partition == carried


@pytest.mark.parametrize(
    ("words", "status", "fact"),
    [
        (["--split", "2,2,1"], 1, "E708: split 2,2,1 is for 3 stages, and the program has 4"),
        (["--split", "2,0,2,2"], 1, "E708: split 2,0,2,2 gives stage 1 no layer"),
        (["--split", "2,2,2,2"], 1, "E708: split 2,2,2,2 has 8 layers, and gpt-small has 6"),
        (["--split", "two"], 2, "for instance --split 3,2,2,3"),
        (["--optimizer", "adam"], 2, "expected adamw, momentum, sgd, none or a number"),
        (["--zero"], 2, "give --optimizer"),
        (["--micro-batch", "0"], 2, "expected a number from 1"),
        (["--memory", "1MB"], 1, "E709"),
    ],
)
def test_wrong_options_and_too_little_memory_are_refused(
    words: list[str], status: int, fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["partition", *SCHEDULE, *MODEL, *words]) == status
    error = capsys.readouterr().err
    assert all(part in error for part in fact.split(": ", 1))  # a finding begins with error[E708], not with E708


def test_a_number_of_bytes_may_have_a_unit_and_more_than_64_bits() -> None:
    for text, expected in (
        ("1.5GB", 1_500_000_000),
        ("24GiB", 24 * 2**30),
        ("18446744073709551616", 2**64),
        ("1000000", 10**6),
    ):
        assert number_of_bytes(text) == expected


@pytest.mark.parametrize("option", ["--memory", "--split", "--partition", "--micro-batch", "--seq-len"])
def test_options_about_a_model_need_a_model(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCHEDULE, option, "1"]) == 2
    assert f"{option} needs a model: --model NAME" in capsys.readouterr().err


def test_a_partition_for_another_model_or_program_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut = str(tmp_path / "cut.json")
    assert main(["partition", *SCHEDULE, *MODEL, "-o", cut]) == 0
    for words, fact in (
        ([*SCHEDULE, "--model", "gpt-micro"], "gpt-small with 6 layers"),
        (["chimera", "-p", "D=2", *MODEL], "the partition has 4"),
    ):
        assert main([*words, "--partition", cut, "--emit", "json"]) == 1
        error = capsys.readouterr().err
        assert "E706" in error and fact in error
        with pytest.raises(ChimeraError, match="E706"):
            make_plan(parse_options([*words, "--partition", cut, "--loopback"]))


def test_a_missing_folder_is_found_before_the_search(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", *SCHEDULE, *MODEL, "-o", "none/cut.json"]) == 2
    output = capsys.readouterr()
    assert "E003" in output.err and "there is no folder none" in output.err and not output.out


def test_the_table_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["partition", *SCHEDULE, *MODEL, "--optimizer", "adamw", "--zero"]) == 0
    lines = capsys.readouterr().out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.split()[:2] == ["stage", "layers"])
    rows = [line.replace(",", "").replace(" %", "").split() for line in lines[start + 1 : start + 5]]
    parameters, cost, gradients, optimizer = 2, 3, 5, 6  # the indices of the columns
    assert sum(int(row[parameters]) for row in rows) == preset("gpt-small").description(1).parameters
    assert abs(sum(float(row[cost]) for row in rows) - 100) < 0.2, "percentages, rounded"
    assert all(row[optimizer] == row[gradients] for row in rows), (
        "with --zero each of two copies holds half of AdamW's two numbers for each parameter"
    )


def test_recomputation_is_tried_before_it_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["partition", "gpipe", "-p", "D=2", "-p", "N=8", "--model", "gpt-nano"]
    assert main([*words, "--memory", "6MB"]) == 1
    assert "--recompute all; tried" in capsys.readouterr().err
    assert main([*words, "--memory", "1MB"]) == 1
    assert "recompute" not in capsys.readouterr().err
