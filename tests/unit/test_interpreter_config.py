"""Config files of run.py: what they may hold, what overrides what, and the message for each mistake."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from chimerac.interpreter.launch.config import as_yaml, config_values
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.settings import RunSettings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "run.yaml"


# Most options. All but --transport have a value other than the default. Some of the options that are missing here
# exclude one of these.
WORDS = shlex.split("""
s.sched -p D=4 -p N=8 --width 2 --model gpt-nano --data text --transport gloo --loopback --machine serial --iterations 9
--micro-batch 3 --accumulate 2 --seq-len 9 --dtype bf16 --lr 1e-2 --lr-schedule linear --lr-floor 0 --warm-up 0 --betas 0 0.5
--weight-decay 0 --clip 2 --skip-nonfinite --max-skipped 7 --dropout 0.5 --seed 7 --compile --zero --save-dir saved
--save-every 3 --keep 2 --async-save --resume auto --export model.pt --eval-every 2 --eval-samples 5 --log-file log
--tensorboard board --trace t.json --profile-ranges --check-gradients --no-memory-check --timeout 1e1
""")


def test_a_file_holds_every_setting_with_its_type(file: Path) -> None:
    settings = parse_options(WORDS)
    file.write_text(as_yaml(settings))
    assert config_values(file).keys() == {f.name for f in fields(RunSettings)}
    assert parse_options(["--config", str(file)]) == settings


def test_the_command_line_overrides_the_file(file: Path) -> None:
    file.write_text("seed: 3\nmicro-batch: 2\nzero: true\nparameters: {D: 4, N: 8}\n")
    settings = parse_options(["--config", str(file), "--seed", "5", "--no-zero", "-p", "N=16"])
    assert (settings.seed, settings.micro_batch, settings.zero, dict(settings.parameters)) == (5, 2, False, {"D": 4, "N": 16})


@pytest.mark.parametrize("text", ["split: [1, 3]", "split: 1,3", "split: '1,3'"])
def test_a_split_is_a_list_or_a_text_as_on_the_command_line(file: Path, text: str) -> None:
    file.write_text(text)
    assert parse_options(["--config", str(file)]).split == (1, 3)


def test_an_empty_file_changes_nothing(file: Path) -> None:
    file.write_text("# nothing\n")
    assert parse_options(["--config", str(file)]) == parse_options([])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sead: 1", "unknown key 'sead'; did you mean 'seed'?"),
        ("D: 4", "unknown key 'D'; parameters of the schedule are below the key 'parameters'"),
        ("seq-len: 1\nseq_len: 2", "seq_len: this key is given twice"),
        ("seed: '1'", "seed: expected an integer, found '1'"),
        ("lr: no", "lr: expected a number, found 'no'"),
        ("zero: yes", "zero: expected true or false, found 'yes'"),
        ("betas: [0.1]", "betas: value 2: expected a list of two numbers, found"),
        ("split: '1,x'", "split: value 2: expected an integer, found 'x'"),
        ("split: 3", "split: expected a list of numbers, as in [1, 2], found 3"),
        ("parameters: {D: two}", "parameters: D: expected an integer, found 'two'"),
        ("- seed", "expected lines of the form 'key: value', found ['seed']"),
        ("seed: 1\n  x: [", "run.yaml, line 2: "),
    ],
)
def test_a_mistake_is_named_with_its_file(file: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--config", str(file)])
    printed = capsys.readouterr().err
    assert "run.yaml" in printed and message in printed


def test_a_file_that_is_missing_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_options(["--config", str(file)])
    printed = capsys.readouterr().err
    assert "argument --config: " in printed and "run.yaml cannot be read" in printed
