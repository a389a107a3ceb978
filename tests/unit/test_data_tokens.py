"""Tokens: tokenizers that are trained and loaded, the prepared files of tokenized texts, and samples of them."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.data.__main__ import main
from chimerac.interpreter.data.cifar import cifar10
from chimerac.interpreter.data.documents import PIECE, text_documents, tokenized
from chimerac.interpreter.data.folders import folder_documents
from chimerac.interpreter.data.pairs import Pairs, pair_data
from chimerac.interpreter.data.text import Text
from chimerac.interpreter.data.tokenizer import Tokenizer, load_tokenizer
from chimerac.interpreter.data.windows import text_data
from chimerac.interpreter.runtime.model import IGNORED
from tests.helpers_cost import peak

tokenizers = pytest.importorskip("tokenizers")

TEXT = "the quick brown fox jumps over the lazy dog while several small birds sing in old trees near a river"


def prose(count: int, seed: int = 0) -> str:
    """Return `count` words, each drawn at random from TEXT, in sentences of eleven words."""
    rng = np.random.default_rng(seed)
    return "".join(word + (".\n" if k % 11 == 10 else " ") for k, word in enumerate(rng.choice(TEXT.split(), count)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two texts, and with two tokenizers that were trained on them, in hidden files."""
    root = tmp_path_factory.mktemp("texts")
    (root / "a.txt").write_text(prose(4000) + "na\u00efve \U0001f600\n")
    (root / "b.txt").write_text(prose(3000, seed=1))
    assert main(["train-tokenizer", f"text:{root}", "-o", str(root / ".bpe.json"), "--vocabulary", "320"]) == 0
    words = ["train-tokenizer", str(root), "-o", str(root / ".wordpiece.json"), "--kind", "wordpiece", "--vocabulary", "120"]
    assert main([*words, "--special", "[DOC]", "--lowercase"]) == 0
    return root


def tokenizer_of(folder: Path, name: str) -> Tokenizer:
    return load_tokenizer(folder / f".{name}.json")


def test_a_trained_tokenizer_can_be_read_by_the_package_tokenizers(folder: Path) -> None:
    bpe, wordpiece = (tokenizers.Tokenizer.from_file(str(folder / f".{name}.json")) for name in ("bpe", "wordpiece"))
    assert bpe.get_vocab_size() <= 320 and bpe.token_to_id("<|endoftext|>") is not None
    text = "The fox \u00e9\n\tsings.  Twice \U0001f600"
    assert bpe.decode(bpe.encode(text).ids) == text, "every text comes back, because its tokens are made of bytes"
    assert [wordpiece.token_to_id(t) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[DOC]")] == list(range(6))
    ours = tokenizer_of(folder, "wordpiece")
    assert ours.encoding.special == (0, 2, 3, 4) and not {0, 1, 2, 3, 4, 5} & set(ours.encoding.words)
    assert ours.encode(["the Fox"])[0].tolist() == wordpiece.encode("the fox", add_special_tokens=False).ids


def test_tokens_of_a_folder_are_those_of_its_documents_with_an_end_after_each(folder: Path, tmp_path: Path) -> None:
    package_tokenizer = tokenizers.Tokenizer.from_file(str(folder / ".bpe.json"))
    end = package_tokenizer.token_to_id("<|endoftext|>")
    expected = [t for name in "ab" for t in [*package_tokenizer.encode((folder / f"{name}.txt").read_text()).ids, end]]
    text = tokenized(text_documents(folder), tokenizer_of(folder, "bpe"), tmp_path, limit_s=5)
    assert text.read(0, len(text)).tolist() == expected and text.note == "2 files read, 2 hidden skipped"
    (file,) = tmp_path.iterdir()
    again = tokenized(text_documents(folder), tokenizer_of(folder, "bpe"), tmp_path, limit_s=5)
    assert again.identity(trained=9) == text.identity(trained=9) and list(tmp_path.iterdir()) == [file]
    # Another tokenizer makes another file, and so does a changed text.
    tokenized(text_documents(folder), tokenizer_of(folder, "wordpiece"), tmp_path, limit_s=5)
    (folder / "b.txt").write_text(prose(3001, seed=1))
    assert tokenized(text_documents(folder), tokenizer_of(folder, "bpe"), tmp_path, limit_s=5).identity(
        trained=9
    ) != text.identity(trained=9)
    assert len(list(tmp_path.iterdir())) == 3


def test_samples_are_windows_of_the_tokens_and_the_bigram_model_beats_the_unigram_entropy(folder: Path, tmp_path: Path) -> None:
    text = tokenized(text_documents(folder), tokenizer_of(folder, "bpe"), tmp_path, limit_s=5)
    data = text_data(text, length=16, seed=0)
    (inputs,), (targets,) = data.train.inputs(range(20)), data.train.targets(range(20))
    assert inputs.dtype == torch.int64 and inputs[:, 1:].equal(targets[:, :-1])
    assert data.identity != text_data(text, length=8, seed=0).identity, "their samples are others"
    joined = " ".join(map(str, text.read(0, len(text)).tolist()))
    assert all(" ".join(map(str, row)) in joined for row in inputs.tolist())
    (unigram, entropy, _), (bigram, loss, _) = data.baselines(5)  # of five samples
    assert (unigram, bigram) == ("unigram entropy", "bigram model") and 0 < loss < entropy


def test_a_long_file_is_tokenized_in_bounded_memory(folder: Path, tmp_path: Path) -> None:
    tokenizer, prepared, peaks = tokenizer_of(folder, "bpe"), tmp_path / "prepared", []
    for size in (20 * PIECE, 60 * PIECE):
        path = tmp_path / f"{size}.txt"
        path.write_text((prose(5000) * (size // 20_000 + 1))[:size])  # prose(5000) has more than 20,000 characters
        found: list[Text] = []
        peaks.append(peak(lambda: found.append(tokenized(text_documents(path), tokenizer, prepared, limit_s=60))))  # noqa: B023
        assert len(found[0]) > size / 8, "the whole text is tokenized: a token has fewer than 8 bytes on average"
    assert peaks[1] < 1.2 * peaks[0], "three times the text takes at most a fifth more memory"


def test_masks_have_the_shares_of_the_collator_of_hugging_face(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizer_of(folder, "wordpiece")
    assert tokenizer.encoding.special is not None
    pad, start, separator, mask_token = tokenizer.encoding.special
    text, length = tokenized(text_documents(folder), tokenizer, tmp_path, limit_s=5), 64
    source = Pairs(text, length, seed=0)
    numbers = range(400)  # of samples
    (tokens,), (targets, _) = source.inputs(numbers), source.targets(numbers)
    original = torch.where(targets != IGNORED, targets, tokens)
    their_tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(folder / ".wordpiece.json"),
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        unk_token="[UNK]",
    )
    collate = transformers.DataCollatorForLanguageModeling(their_tokenizer, mlm_probability=0.15)
    torch.manual_seed(0)
    theirs = collate([{"input_ids": row} for row in original.tolist()])

    def shares(tokens: torch.Tensor, targets: torch.Tensor) -> list[float]:
        """Return the share of words that are targets, and the shares of targets that are masked and kept."""
        chosen = targets != IGNORED
        words = torch.isin(original, torch.tensor(tokenizer.encoding.special), invert=True)
        assert not (chosen & ~words).any(), "special tokens are no targets"
        count, masked, kept = chosen.sum(), (tokens == mask_token) & chosen, (tokens == targets) & chosen
        return [float(count / words.sum()), float(masked.sum() / count), float(kept.sum() / count)]

    ours, expected = shares(tokens, targets), shares(theirs["input_ids"], theirs["labels"])
    assert ours == pytest.approx(expected, abs=0.025) and ours == pytest.approx([0.15, 0.8, 0.1], abs=0.025)
    # The special tokens are where BERT has them in a pair.
    for row, types, mask in zip(
        original.tolist(),
        source.field(numbers, "token_types").tolist(),
        source.field(numbers, "attention_mask").tolist(),
        strict=True,
    ):
        used = sum(mask)
        first = row.index(separator)
        second = row.index(separator, first + 1)
        assert row[0] == start and second == used - 1 and row[used:] == [pad] * (length - used)
        assert types == [0] * (first + 1) + [1] * (used - first - 1) + [0] * (length - used)


def test_the_number_of_targets_needs_no_text() -> None:
    class Unread(Text):
        def read(self, begin: int, end: int) -> np.ndarray:
            raise AssertionError("the text is read")

    tokens = [np.random.default_rng(0).integers(0, 256, 9000).astype(np.uint8)]
    source, unread = Pairs(Text(tokens), length=40, seed=3), Pairs(Unread(tokens), length=40, seed=3)
    expected = int((source.targets(range(100))[0] != IGNORED).sum())
    assert unread.valid_targets(range(100)) == (expected, 100)


def test_tokenizers_that_do_not_fit_or_cannot_be_read_or_written_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tokenized(text_documents(folder), tokenizer_of(folder, "bpe"), tmp_path, limit_s=5)
    with pytest.raises(ChimeraError, match=r"E861.*has not all of the tokens \[PAD\], \[CLS\]"):
        pair_data(text, length=64, seed=0)
    (tmp_path / "no.json").write_text("{}")
    reasons = {"gone": "cannot be read: no such file", "no.json": "is no file of the library"}
    for name, reason in reasons.items():
        with pytest.raises(ChimeraError, match=f"E861.*{reason}"):
            load_tokenizer(tmp_path / name)
    assert main(["train-tokenizer", str(folder), "-o", str(tmp_path / "x.json"), "--vocabulary", "200"]) == 1
    assert "give --vocabulary 257 or more" in capsys.readouterr().err
    assert main(["train-tokenizer", str(folder), "-o", str(tmp_path / "no" / "x.json")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert main(["train-tokenizer", str(folder), "-o", "."]) == 1
    assert "the tokenizer cannot be written to .: it is a folder" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.partial"))


def test_a_path_that_is_too_long_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ("x" * 300)
    for message, read in {
        "E861": lambda: load_tokenizer(path),
        "E802": lambda: folder_documents(path, "text"),
        "E802: CIFAR-10 is not there": lambda: cifar10(path, tmp_path, limit_s=5),
    }.items():
        with pytest.raises(ChimeraError, match=message):
            read()
    assert main(["train-tokenizer", "-o", str(path)]) == 1
    assert "error[E861]: the tokenizer cannot be written to" in capsys.readouterr().err


def test_a_file_that_is_removed_before_it_is_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("text\n" * 99)
    documents = text_documents(tmp_path)
    (tmp_path / "a.txt").unlink()
    with pytest.raises(ChimeraError, match=r"E802: the data .*a\.txt cannot be read: no such file"):
        tokenized(documents, tokenizer=None, folder=tmp_path, limit_s=5)
    with patch("chimerac.interpreter.data.sources.text_documents", lambda _: documents):
        assert main(["train-tokenizer", str(tmp_path), "-o", str(tmp_path / "x.json")]) == 1
    assert "error[E802]" in capsys.readouterr().err and not list(tmp_path.glob(".*.partial"))
