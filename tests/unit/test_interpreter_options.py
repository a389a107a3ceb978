"""The command line of run.py: its defaults, its help, and wrong options."""

import re
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
import torch
from torch.distributed.run import get_args_parser

from chimerac.interpreter.launch.options import parse_options
from chimerac.models.families import preset
from chimerac.models.presets import PRESETS


def test_the_options_of_the_first_run_in_the_readme() -> None:
    options = parse_options(["schedules/chimera.sched", "-p", "D=2", "-p", "N=8"])
    assert options.schedule == Path("schedules/chimera.sched")
    assert dict(options.parameters) == {"D": 2, "N": 8}
    assert (options.width, options.data, options.check_gradients) == (None, None, None)


def test_without_arguments_the_schedule_is_chimera() -> None:
    options = parse_options([])
    assert (options.schedule, options.parameters, options.iterations) == (Path("schedules/chimera.sched"), (), None)
    assert options.model is None and not options.loopback and options.timed is None


def test_torchrun_takes_no_option_of_run_py() -> None:
    """The parser of torchrun also reads the options after the script, and refuses an ambiguous prefix of its own options."""
    options_of_torchrun = [word for action in get_args_parser()._actions for word in action.option_strings]
    options_of_run = re.findall(r"--[a-z][a-z-]+", help_text())
    assert "--log-file" in options_of_run
    # The examples in the help also have options of torchrun and chimerac. Both parsers have --help.
    for option in set(options_of_run) - {"--nproc-per-node", "--emit", "--help"}:
        assert not [word for word in options_of_torchrun if word.startswith(option)], option


def help_text() -> str:
    with redirect_stdout(StringIO()) as out, pytest.raises(SystemExit, match="0"):
        parse_options(["--help"])
    return out.getvalue()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-p", "D=2", "-p", "N=2", "-p", "D=4"], "argument -p: D is given twice"),
        (["--width", "0"], "argument --width: expected 1 or more, found '0'"),
        (["--timed", "0"], "argument --timed: expected more than 0, found '0'"),
        (["--transport", "mpi"], "invalid choice: 'mpi'"),
        (["-p", "D"], "argument -p: 'D' is not NAME=VALUE"),
        (["-p", "D=two"], "argument -p: D: expected an integer, found 'two'"),
        (["--iterations", "0"], "expected 1 or more, found '0'"),
        (["--micro-batch", str(10**21)], f"expected 2147483647 or less, found '{10**21}'"),
        (["--split", "1,x"], "argument --split: value 2: expected an integer, found 'x'"),
        (["--iterations", "x"], "expected an integer, found 'x'"),
        (["--lr", "nan"], "expected a finite number, found 'nan'"),
        (["--lr", "inf"], "expected a finite number, found 'inf'"),
        (["--dropout", "1"], "expected less than 1, found '1'"),
        (["--betas", "0.9", "1"], "argument --betas: value 2: expected less than 1, found '1'"),
        (["--weight-decay", "-1"], "expected 0 or more, found '-1'"),
        (["--lr-floor", "1.5"], "expected 1 or less, found '1.5'"),
        (["--timeout", "0"], "expected 0.001 or more, found '0'"),
        (["--timeout", "1e14"], "expected 31536000 or less, found '1e14'"),
        (["--dtype", "fp8"], "invalid choice: 'fp8'"),
        (["--timed", "3", "--tensorboard", "x"], "--timed trains nothing and has no figures for TensorBoard"),
        (["--trace", "./x", "--log-file", "x"], "--trace and --log-file are the same file"),
        (["--timeline", "y/x", "--trace", "y/./x"], "--trace and --timeline are the same file"),
        (["--keep", "2"], "--keep needs --save-dir"),
        (["--resume", "auto"], "--resume auto needs --save-dir"),
        (["--machine", "serial"], "--machine is for --loopback"),
        (["--layers", "blocks"], "--layers is for a model of your own, and the default model is none: leave out --layers, or"),
        (["--model", "gpt-nano", "--loss", "next-token"], "--loss is for a model of your own, and 'gpt-nano' is none"),
        (["--model", "bert-nano/3", "--head", "Bert"], "--head is for a model of your own, and 'bert-nano/3' is none"),
        (["--model", "a.py:net", "--head", "Bert"], "--head is for a Hugging Face model, and 'a.py:net' is none"),
    ],
)
def test_a_wrong_option_ends_with_code_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_options(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_the_options_of_a_model_of_one_s_own_are_taken() -> None:
    options = parse_options(["--model", "hf:folder", "--layers", "blocks", "--head", "Bert", "--loss", "next-token"])
    assert (options.layers, options.head, options.loss) == ("blocks", "Bert", "next-token")
    assert parse_options(["--model", "a.py:net", "--layers", "blocks", "--loss", "next-token"]).layers == "blocks"


def test_with_stderr_closed_the_usage_is_not_printed_on_stdout(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--lr", "nan"])
    assert capsys.readouterr().out == ""


def test_every_preset_and_its_size_is_in_the_help() -> None:
    shown = help_text()
    for name, sizes in PRESETS.items():
        row = next(line.split() for line in shown.splitlines() if line.startswith(f"{name} "))
        with torch.device("meta"):  # without memory
            layers = [build() for _, build in preset(name, sequence_length=128).layers]
        parameters = sum(p.numel() for layer in layers for p in layer.parameters())
        assert row[1:5] == [str(sizes.blocks), str(sizes.width), str(sizes.heads or "-"), f"{parameters:,}"]
        assert len(layers) == sizes.layers
