"""Exported weights generate text, and the accuracy of a classifier is the one that one process computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.data.digits import digits
from chimerac.interpreter.data.images import image_data
from chimerac.interpreter.generate import main
from chimerac.interpreter.launch.generating import Sampling, generator_of
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.planning import make_plan
from chimerac.interpreter.launch.start import start
from chimerac.interpreter.runtime.model import Stage
from chimerac.interpreter.training.reference import train, whole_model
from chimerac.interpreter.training.settings import Settings
from chimerac.models.families import preset

CYCLE = "0123456789 abcdef"


def run(tmp_path: Path, words: str) -> list[dict[str, Any]]:
    """Train with Chimera on two ranks in this process; return the lines of the log."""
    options = (
        f"schedules/chimera.sched -p D=2 --loopback --no-check-gradients --log-file run.jsonl --work-dir {tmp_path} {words}"
    )
    settings = parse_options(options.split())
    assert start(make_plan(settings), settings) == 0
    return [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train gpt-nano on CYCLE, and return the path of its weights: w.safetensors. The same weights are beside it in w.pt."""
    pytest.importorskip("safetensors")
    folder = tmp_path_factory.mktemp("run")
    (folder / "text").write_text(CYCLE * 500)
    words = "-p N=2 --model gpt-nano --seq-len 24 --micro-batch 8 --iterations 80 --lr 1e-2 --data-dir {0} --data text:text"
    lines = run(folder, words.format(folder) + " --export w.safetensors")
    assert lines[-1]["held_out_loss"] < 0.1
    from safetensors.torch import load_file

    torch.save(load_file(folder / "w.safetensors"), folder / "w.pt")
    return folder / "w.safetensors"


def test_a_model_goes_on_with_what_it_has_learnt(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = "789" + (" abcdef0123456789" * 4)[:60]  # longer than the samples of the training
    assert main([str(weights), "--prompt", "789", "--tokens", "60", "--temperature", "0"]) == 0
    assert capsys.readouterr().out == expected + "\n"
    words = ["--model", "gpt-nano", "--seq-len", "24", "--tokens", "9", "--prompt", "ab", "--top-k", "1"]
    assert main([str(weights.with_suffix(".pt")), *words]) == 0
    assert capsys.readouterr().out == "abcdef01234\n"


def test_draws_follow_temperature_seed_and_top_k(weights: Path) -> None:
    generator = generator_of(weights, model=None, length=None, tokenizer=None)

    def drawn(temperature: float, top_k: int | None = None, seed: int = 0) -> str:
        return generator.continued("a", Sampling(count=40, temperature=temperature, top_k=top_k, seed=seed))

    assert drawn(5.0) == drawn(5.0) != drawn(5.0, seed=1)
    assert len(set(drawn(5.0))) > len(set(CYCLE)), "at a high temperature other characters are drawn too"
    assert drawn(1e-40) == drawn(1e-30) == drawn(0, seed=3)
    after_a = CYCLE.index("a") + 1
    assert drawn(5.0, top_k=1) == drawn(0, seed=3) == (CYCLE * 4)[after_a : after_a + 40]


def test_a_file_that_does_not_fit_is_refused(weights: Path, tmp_path: Path) -> None:
    def refused(path: Path, reason: str, model: str | None = None, length: int | None = None) -> None:
        with pytest.raises(ChimeraError, match=f"E862.*{reason}"):
            generator_of(path, model, length, tokenizer=None)

    refused(tmp_path / "gone.safetensors", "no such file")
    refused(weights.with_suffix(".pt"), "does not say what was trained")
    refused(weights, "its weights are not those of gpt-micro", "gpt-micro")
    refused(weights, r"its weights are not those of gpt-nano/1: .* is of no layer of the model", "gpt-nano/1")
    refused(weights, "its weights are not those of gpt-nano", length=12)
    refused(weights, "bert-nano does not predict the next token", "bert-nano")
    (tmp_path / "x.safetensors").write_bytes(b"not weights")
    refused(tmp_path / "x.safetensors", "")
    torch.save({3: torch.zeros(1)}, tmp_path / "numbers.pt")
    refused(tmp_path / "numbers.pt", "no mapping from names to tensors", "gpt-nano", length=24)


def test_a_wrong_prompt_and_weights_that_are_not_finite_are_refused(weights: Path) -> None:
    generator = generator_of(weights, model=None, length=None, tokenizer=None)
    one_token = Sampling(count=1, temperature=1.0, top_k=None, seed=0)
    with pytest.raises(ChimeraError, match=r"E862.*no token"):
        generator.continued("", one_token)
    with pytest.raises(ChimeraError, match=r"E862.*the prompt is not UTF-8"):
        generator.continued("a\udcff", one_token)
    next(generator.whole.parameters()).data.fill_(torch.nan)
    with pytest.raises(ChimeraError, match=r"E862.*not finite"):
        generator.continued("a", one_token)


def test_a_wrong_length_in_a_file_is_not_used(weights: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    for length in ("many", "-24", "24" * 20):
        save_file(load_file(weights), tmp_path / "w.safetensors", {"model": "gpt-nano", "sequence_length": length})
        with pytest.raises(ChimeraError, match=r"E862.*does not say what was trained"):
            generator_of(tmp_path / "w.safetensors", model=None, length=None, tokenizer=None)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tokens", "0"], "argument --tokens: expected 1 or more, found 0"),
        (["--seq-len", "-3"], "argument --seq-len: expected 1 or more, found -3"),
        (["--temperature", "nan"], "argument --temperature: expected a finite number of 0 or more, found nan"),
        (["--temperature", "inf"], "argument --temperature: expected a finite number of 0 or more, found inf"),
        (["--seed", str(10**20)], "argument --seed: expected a number from 0 to"),
    ],
)
def test_a_wrong_number_is_named(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["w.safetensors", *words])
    assert message in capsys.readouterr().err


@pytest.mark.timeout(300)
def test_a_classifier_through_chimera_is_as_good_as_in_one_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    words = "-p N=4 --model cnn-digits-gn --micro-batch 16 --iterations 75 --lr 3e-3 --eval-samples 1000 --eval-every 50"
    lines = run(tmp_path, words + " --export w.pt")
    shown = capsys.readouterr().out
    assert " images/s" in shown and "images per second" in shown and "token" not in shown
    evaluated = [line for line in lines if "held_out_accuracy" in line]
    assert [line["iteration"] for line in evaluated] == [50, 75] and evaluated[-1]["held_out_accuracy"] >= 0.97
    data, model = image_data(digits(), seed=0, augments=False), preset("cnn-digits-gn", sequence_length=128)
    held_out = range(data.held_out_count)

    def accuracy(whole: Stage) -> float:
        with torch.no_grad():
            (logits,) = whole.eval()(*data.held_out.inputs(held_out))
        return float((logits.argmax(1) == data.held_out.targets(held_out)[0]).double().mean())

    whole = whole_model(model, seed=0)
    settings = Settings(iterations=75, seed=0, micro_batch=16, rate=3e-3)
    losses = [result.loss for result in train(whole, model, data.train, settings, samples=4 * 16)]
    # The first line of the log is its header.
    assert [line["loss"] for line in lines[1:11]] == pytest.approx(losses[:10], rel=1e-3)
    assert accuracy(whole) >= 0.97
    trained = torch.load(tmp_path / "w.pt")
    for name, p in whole.parameters_by_name().items():
        p.data = trained[name]
    assert evaluated[-1]["held_out_accuracy"] == pytest.approx(accuracy(whole)), (
        "the pipeline's weights, evaluated in one process"
    )
