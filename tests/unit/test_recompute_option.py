"""The stages that recompute, chosen by an option instead of the schedule's text: --recompute, and recompute= in Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.compiler import compile_schedule, compile_text
from chimerac.compiler.command.main import main
from chimerac.compiler.library import find
from chimerac.interpreter import Pipeline
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from tests.helpers import SMALL
from tests.helpers_pipeline import Decoder, batch, gradients, in_loopback, one_process

FOUR = {"D": 4, "N": 4}


@pytest.mark.parametrize("name", SMALL)
def test_chosen_stages_equal_the_text_that_names_them(name: str) -> None:
    """The expected program is that of the text as a user would edit it, with `condition` in every `stage` clause."""
    sizes, source = SMALL[name][1], find(name)
    stages = compile_schedule(source.name, sizes).program.header.stages
    # The text without its own `recompute` clauses.
    plain = re.sub(r" recompute( when [^\n}]*?)?(?=\s+(micro_batches|stage)\b)", "", source.text)
    for choice, condition, chosen in (
        ("all", "0 == 0", tuple(range(stages))),
        ("0,2", "s == 0 or s == 2", (0, 2)),
        ("1 .. 2", "1 <= s and s <= 2", (1, 2)),
        ("none", "s < 0", ()),
    ):
        text = re.sub(r"(\bon rank .*?)(\s+(?:micro_batches|stage)\b)", rf"\1 recompute when {condition}\2", plain)
        expected = compile_text(text, sizes).program
        program = compile_schedule(source.name, sizes, recompute=choice).program
        assert program == expected and program.header == expected.header
        assert program.recomputed_stages == chosen


@pytest.mark.parametrize(
    ("choice", "stages"),
    [
        ("0", (0,)),
        ("0,2..3", (0, 2, 3)),
        (" 3 , 1..1", (1, 3)),
        ([3, 0], (0, 3)),
        (range(2), (0, 1)),
        ([], ()),
        ("2..2,2", (2,)),
    ],
)
def test_stages_are_given_as_text_or_as_numbers(choice: Any, stages: tuple[int, ...]) -> None:
    assert compile_schedule("1f1b", FOUR, recompute=choice).program.recomputed_stages == stages


@pytest.mark.parametrize(
    ("choice", "fact"),
    [
        ("4", "there is no stage 4"),
        ("0,2..9", "there is no stage 9"),
        ("0..999999999", "there is no stage 999999999"),
        ("3..1", "3..1 is empty"),
        ("", "'' is no stage"),
        ("every", "'every' is no stage"),
        ("0-3", "'0-3' is no stage"),
        ("-1", "'-1' is no stage"),
        ("0," * 5000, "'' is no stage"),
        ([-1], "'-1' is no stage"),
        ([0.5], "a stage to recompute is 0.5: expected an integer"),
        (True, "recompute is True: that is no list of stages"),
        (2, "recompute is 2: that is no list of stages"),
    ],
)
def test_a_choice_that_is_no_list_of_existing_stages_is_refused(choice: Any, fact: str) -> None:
    with pytest.raises(ChimeraError, match="E002") as caught:
        compile_schedule("1f1b", FOUR, recompute=choice)
    finding = caught.value.diagnostics[0]
    assert fact in finding.message and (finding.help or "integer" in fact) and len(finding.message) < 200


def test_the_help_for_an_r_of_a_stage_that_does_not_recompute_names_the_option() -> None:
    text = """schedule r  ranks 2  stages 2  pipe main { stage s on rank s recompute   micro_batches 1 }
              order listing for rank r { F  R  B }"""
    assert compile_text(text, recompute="0,1").program == compile_text(text).program
    with pytest.raises(ChimeraError, match="E307") as caught:
        compile_text(text, recompute="1")
    assert "choose stage 0 too (--recompute)" in caught.value.diagnostics[0].help


def test_the_stages_of_a_compiled_program_cannot_be_chosen_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "p.json")
    assert main(["1f1b", "-p", "D=2", "--recompute", "1", "--emit", "json", "-o", path]) == 0
    assert main([path, "--recompute", "all"]) == 2
    assert "--recompute are for schedules" in capsys.readouterr().err
    with pytest.raises(ChimeraError, match=r"E808.*which of its stages recompute is fixed"):
        make_plan(parse_options([path, "--recompute", "all", "--loopback"]))
    with pytest.raises(ChimeraError, match="E808"):
        in_loopback(
            "1f1b", {"D": 2}, lambda: Decoder(1), lambda pipe: None, given=compile_schedule("1f1b").program, recompute="all"
        )
    assert make_plan(parse_options([path, "--loopback"])).program.recomputed_stages == (1,)


def test_report_and_partition_say_which_stages_recompute(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gpipe", "-p", "D=4", "--recompute", "0,2..3", "--emit", "report"]) == 0
    assert "recomputed      stages 0,2..3 " in capsys.readouterr().out
    words = ["partition", "gpipe", "-p", "D=2", "-p", "N=8", "--model", "gpt-nano"]  # it fits in 6 MB only with recomputation
    assert main([*words, "--memory", "6MB"]) == 1
    assert main([*words, "--memory", "6MB", "--recompute", "all"]) == 0
    table = capsys.readouterr().out.splitlines()
    column = table[3].split().index("recompute")  # below it are the rows of the two stages; " %" is no cell of its own
    assert [row.replace(" %", "").split()[column] for row in table[4:6]] == ["yes", "yes"]


def test_a_run_takes_the_option_from_the_command_line_and_from_a_file(tmp_path: Path) -> None:
    """The programs of different choices have different digests. Ranks compare these, so ranks with different choices stop."""
    config = tmp_path / "run.yaml"
    config.write_text("recompute: all\nparameters: {D: 2}\n")
    programs = [
        make_plan(parse_options([*words, "--loopback"])).program
        for words in (["--config", str(config)], ["--config", str(config), "--recompute", "0"], ["-p", "D=2"])
    ]
    assert [p.recomputed_stages for p in programs] == [(0, 1), (0,), ()]
    assert len({p.digest for p in programs}) == 3


@pytest.mark.parametrize("recompute", ["all", [0]])
def test_a_pipeline_recomputes_the_stages_that_it_is_given(recompute: Any) -> None:
    """The loss and the gradients stay those of one process without recomputation."""

    def run(pipe: Pipeline) -> tuple[tuple[int, ...], float, dict[str, torch.Tensor]]:
        return pipe.program.recomputed_stages, pipe.step(*batch(0, micro_batches=4)), gradients(pipe)

    model = Decoder(blocks=2)
    expected_loss = one_process(model, 0, micro_batches=4)
    expected = gradients(model)
    results = in_loopback("chimera", {"D": 2, "N": 4}, lambda: Decoder(blocks=2), run, recompute=recompute)
    for stages, loss, own in results:
        assert stages == ((0, 1) if recompute == "all" else (0,))
        assert loss == pytest.approx(expected_loss, rel=1e-5)
        for name, gradient in own.items():
            torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
