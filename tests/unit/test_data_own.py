"""The data of models that a user brings: tokens, also in two halves or with masks, and images, as the fields of the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.data.__main__ import main
from chimerac.interpreter.data.digits import digits
from chimerac.interpreter.data.documents import text_documents, tokenized
from chimerac.interpreter.data.text import Text, load_text
from chimerac.interpreter.data.tokenizer import load_tokenizer
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.own_data import own_data
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.launch.workloads import data_of
from chimerac.interpreter.runtime.model import IGNORED, Example

LENGTH = 16
SETTINGS = RunSettings(seq_len=LENGTH, seed=3)
TOKENS = torch.zeros(1, LENGTH, dtype=torch.int64)  # an example of a field


def model(name: str, **fields: Tensor) -> Any:
    """Return what own_data reads of a model: its name and an example of its fields."""
    return SimpleNamespace(name=f"config.json:{name}", example=lambda samples: Example(inputs=(), targets=None, fields=fields))


def unused(*_: object) -> Any:
    """Stand for the function that loads the kind of data which the model does not read: a text or images."""
    raise AssertionError("other data is read")


def text_of(folder: Path, kind: str) -> Text:
    """Return a text in the tokens of a tokenizer that was trained on it."""
    source, path = folder / "texts", folder / f"{kind}.json"
    source.mkdir()
    (source / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 300)
    assert main(["train-tokenizer", str(source), "-o", str(path), "--kind", kind, "--vocabulary", "280"]) == 0
    return tokenized(text_documents(source), load_tokenizer(path), folder, limit_s=5)


@pytest.mark.parametrize(("name", "length"), [("BartForConditionalGeneration", 16), ("T5ForConditionalGeneration", 15)])
def test_an_encoder_reads_the_first_half_and_a_decoder_the_second(name: str, length: int, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_bytes(bytes(range(256)) * 9)  # each token is the one before it + 1, modulo 256
    tokens = torch.zeros(1, length // 2, dtype=torch.int64)
    fields = {"input_ids": tokens, "decoder_input_ids": tokens}
    settings = RunSettings(seq_len=length, seed=3)
    data = own_data(settings, model(name, **fields), lambda: load_text(text), unused)
    numbers = range(3)
    encoder, decoder = (data.train.field(numbers, field) for field in fields)
    (targets,) = data.train.targets(numbers)
    assert encoder.shape == decoder.shape == targets.shape == (3, length // 2)
    assert decoder[:, 0].equal((encoder[:, -1] + 1) % 256) and targets.equal((decoder + 1) % 256)
    assert targets[:, :-1].equal(decoder[:, 1:])
    assert data.train.valid_targets(numbers) == (targets.numel(),)


def test_a_masked_language_model_gets_the_mask_token_of_its_tokenizer(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    text = text_of(tmp_path, "wordpiece")
    data = own_data(SETTINGS, model("BertForMaskedLM", input_ids=TOKENS), lambda: text, unused)
    numbers = range(40)
    tokens, (targets,) = data.train.field(numbers, "input_ids"), data.train.targets(numbers)
    plain = own_data(SETTINGS, model("AnyForCausalLM", ids=TOKENS), lambda: text, unused)
    original = plain.train.field(numbers, "ids")
    is_target = targets != IGNORED
    (mask_token,) = set(tokens[is_target].tolist())
    assert text.encoding.special is not None and mask_token == text.encoding.special.mask
    assert mask_token not in original.unique() and tokens[~is_target].equal(original[~is_target])
    assert targets[is_target].equal(original[is_target]) and 0.1 < is_target.float().mean() < 0.2
    assert data.train.valid_targets(numbers) == (int(is_target.sum()),)


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    text = text_of(tmp_path, "bpe")
    with pytest.raises(ChimeraError, match="E861"):
        own_data(SETTINGS, model("BertForMaskedLM", input_ids=TOKENS), lambda: text, unused)


def test_a_model_of_images_gets_the_data_set_of_its_image_size() -> None:
    pytest.importorskip("sklearn")
    asked, side, channels = [], 8, 1

    def images(size: tuple[int, int]) -> Any:
        asked.append(size)
        return digits()

    pixels = torch.zeros(1, channels, side, side)
    data = own_data(SETTINGS, model("ViTForImageClassification", pixel_values=pixels), unused, images)
    found, (classes,) = data.train.field(range(5), "pixel_values"), data.train.targets(range(5))
    assert asked == [(side, channels)] and found.shape == (5, 1, 8, 8) and found.dtype == torch.float32
    assert classes.shape == (5,) and set(classes.tolist()) <= set(range(10)) and data.train.inputs(range(5)) == ()


def test_a_model_of_images_for_which_there_is_no_data_set_is_not_told_to_leave_out_the_data() -> None:
    program: Any = None  # the data does not depend on it
    for more in ([], ["--data", "digits"], ["--data", "text"]):
        settings = parse_options(["--model", "hf:config.json", *more])
        pixels = model("ViTForImageClassification", pixel_values=torch.zeros(1, 3, 224, 224))
        with pytest.raises(ChimeraError, match=r"E802.*reads images of 224 x 224 x 3, and there is no data set") as error:
            data_of(settings, program, pixels)
        assert error.value.diagnostics[0].help.startswith("there are images of 8 x 8 x 1 (digits), 32 x 32 x 3 (cifar10)")
    settings = parse_options(["--model", "hf:config.json", "--data", "digits"])
    pixels = model("ViTForImageClassification", pixel_values=torch.zeros(1, 3, 32, 32))
    with pytest.raises(ChimeraError, match=r"(?s)E802.*--data digits does not fit.*leave out --data"):
        data_of(settings, program, pixels)
