"""The shipped descriptions of presets: equal to fresh measurements, at several sizes; `--model` takes the presets' names."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from chimerac.chimera_ir.model import model_to_json
from chimerac.chimera_ir.preset import preset_from_json, preset_to_json
from chimerac.compiler.command.main import main
from chimerac.compiler.descriptions import find_model, preset, preset_names
from chimerac.interpreter.runtime.describe import describe
from chimerac.models import families
from chimerac.models.__main__ import main as models_main
from chimerac.models.presets import PRESETS, sizes_of
from tools.descriptions import in_order, preset_of


def test_every_preset_has_a_description() -> None:
    assert set(preset_names()) == set(PRESETS)


def test_the_shipped_description_of_gpt_nano_is_up_to_date_and_can_be_read_back() -> None:
    assert preset_of("gpt-nano") == preset("gpt-nano")
    text = preset_to_json(preset("gpt-nano"))
    assert preset_to_json(preset_from_json(text)) == text


@pytest.mark.parametrize(
    ("name", "samples", "seq_len"),
    [
        ("gpt-nano", 4, 128),
        ("gpt-nano/1", 5, 33),
        ("gpt-micro/7", 1, 7),
        ("gpt-small", 3, 100),
        ("gpt2-nano/4", 3, 50),
        ("bert-nano/1", 3, 20),
        ("cnn-digits", 3, 128),
    ],
)
def test_the_sizes_are_those_of_a_fresh_measurement(name: str, samples: int, seq_len: int) -> None:
    found = find_model(name, samples=lambda b: b, micro_batch=samples, seq_len=seq_len)
    assert in_order(found) == in_order(describe(families.preset(name, seq_len), samples))


def test_the_descriptions_have_the_parameters_of_the_presets() -> None:
    for name, sizes in PRESETS.items():
        assert find_model(name, samples=lambda b: b).parameters == sizes.parameters(sequence_length=128)


@pytest.mark.parametrize(
    ("model", "status", "code", "fact"),
    [
        ("gpt-nono", 1, "E801", "did you mean 'gpt-nano'? the presets are bert-base"),
        ("gpt-nono/8", 1, "E801", "did you mean 'gpt-nano'?"),
        ("gpt-nano/2000", 1, "E801", "1 to 1022 blocks"),
        ("gpt-nano/0", 1, "E801", "1 to 1022 blocks"),
        ("gpt-nano/-1", 1, "E801", "1 to 1022 blocks"),
        ("cnn-digits/9", 1, "E801", "describe --model cnn-digits/9 -o m.json"),
        ("hf:config.json", 1, "E801", "describe --model hf:config.json -o m.json"),
        ("mine.py:build", 1, "E801", "describe --model mine.py:build -o m.json"),
        ("", 1, "E801", "unknown model ''"),
        ("gpt-nono.json", 2, "E001", "gpt-nono.json cannot be read: no such file"),
        ("gpt-nono.txt", 2, "E001", "gpt-nono.txt cannot be read: no such file"),
        ("models/gpt-nano", 2, "E001", "models/gpt-nano cannot be read: no such file"),
        ("gpt-nano/two", 2, "E001", "gpt-nano/two cannot be read: no such file"),
    ],
)
def test_a_model_without_a_description_is_refused_as_a_name_or_as_a_file(
    model: str, status: int, code: str, fact: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chimera", "-p", "D=2", "--model", model, "--emit", "report"]) == status
    error = capsys.readouterr().err
    assert f"error[{code}]" in error and fact in error


@pytest.mark.parametrize("name", ["gpt2-64", "bert-nano/5"])
def test_a_sample_longer_than_the_positions_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    positions = sizes_of(name).positions
    words = ["chimera", "-p", "D=4", "--model", name, "--emit", "report", "--seq-len"]
    assert positions is not None and main([*words, str(positions)]) == 0
    assert main([*words, str(positions + 1)]) == 1
    assert f"E821]: samples of {positions + 1} tokens do not fit the {positions} positions of" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--layers", "blocks"], ["--head", "Bert"], ["--loss", "next-token"]])
def test_an_option_that_a_preset_does_not_read_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        models_main(["describe", "--model", "gpt-nano", *words])
    assert f"{words[0]} is for a model of your own, and 'gpt-nano' is none: leave out {words[0]}" in capsys.readouterr().err


def test_a_model_of_one_s_own_is_described_for_the_compiler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from torch import nn\n"
        "def build():\n"
        "    return nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 8), nn.Linear(8, 256))\n"
    )
    name, out = f"{path}:build", str(tmp_path / "m.json")
    assert models_main(["describe", "--model", name, "--seq-len", "16", "-o", out]) == 0
    assert main(["partition", "chimera", "-p", "D=2", "--model", out]) == 0
    assert f"{name}: 3 layers, {256 * 8 + (8 + 1) * 8 + (8 + 1) * 256:,} parameters" in capsys.readouterr().out
    assert models_main(["describe", "--model", f"{path}:other"]) == 1
    assert "has no function other" in capsys.readouterr().err


def test_a_description_file_has_the_sizes_with_which_it_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "my model.json")
    assert models_main(["describe", "--model", "gpt-nano", "--seq-len", "16", "-o", path]) == 0
    output = capsys.readouterr()
    command = shlex.split(output.err.partition("; next: ")[2])
    assert output.out == "" and command == ["chimerac", "chimera", "--model", path, "--emit", "report"]
    assert Path(path).read_text() == model_to_json(describe(families.preset("gpt-nano", 16), samples=4))
    reports = []
    for words in (["--model", path], ["--model", "gpt-nano", "--seq-len", "16"], ["--model", path, "--micro-batch", "4"]):
        assert main(["chimera", "-p", "D=4", "--emit", "report", *words]) == 0
        reports.append(capsys.readouterr().out)
    assert len(set(reports)) == 1
    for words, measured in (
        (["--micro-batch", "3"], "micro-batches of 4 samples"),
        (["--seq-len", "16"], "one sequence length"),
    ):
        assert main(["chimera", "-p", "D=4", "--emit", "report", "--model", path, *words]) == 2
        assert f"was measured for {measured}" in capsys.readouterr().err


def test_halved_micro_batches_have_half_the_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chimera_halving", "-p", "D=4", "--model", "gpt-nano", "--micro-batch", "6", "--emit", "report"]) == 0
    assert "micro-batches of 3 samples" in capsys.readouterr().out
    assert main(["chimera_halving", "-p", "D=4", "--model", "gpt-nano", "--micro-batch", "5", "--emit", "report"]) == 1
    assert "E804" in capsys.readouterr().err


def test_a_preset_is_read_without_torch() -> None:
    script = (
        "import sys; from chimerac.compiler.command.main import main; main(sys.argv[1:]); assert 'torch' not in sys.modules"
    )
    command = [sys.executable, "-c", script, "partition", "chimera", "-p", "D=4", "--model", "gpt-nano"]
    assert "4 layers" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
