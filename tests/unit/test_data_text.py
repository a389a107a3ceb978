"""Texts and their samples: the default text, files and folders, windows and their order, and texts that are refused."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.data.text import CHECKED_BYTES, MAPPED_BYTES, Text, load_text, split_text
from chimerac.interpreter.data.windows import Windows, text_data
from chimerac.interpreter.runtime.batch import Batch
from tests.helpers import findings_of_call
from tools import ROOT

HUNDRED = np.arange(100, dtype=np.uint8)
TEXT = Text([HUNDRED[:30], HUNDRED[30:31], HUNDRED[:0], HUNDRED[31:]])  # a window may span several parts


def all_of(text: Text) -> bytes:
    return text.read(0, len(text)).tobytes()


def test_a_sample_is_a_window_and_the_targets_are_shifted_by_one() -> None:
    source = Windows(TEXT, length=9, seed=0)
    (inputs,), (targets,) = source.inputs(range(11)), source.targets(range(11))
    assert inputs.shape == targets.shape == (11, 9)
    assert targets.equal(inputs + 1)
    # Eleven windows of nine bytes: each byte but the last is an input once.
    assert sorted(inputs.flatten().tolist()) == list(range(99))


def test_the_order_depends_only_on_seed_and_epoch() -> None:
    def first_bytes(seed: int, numbers: range) -> list[int]:
        (inputs,) = Windows(TEXT, length=9, seed=seed).inputs(numbers)
        return inputs[:, 0].tolist()

    epoch = first_bytes(0, range(11))
    assert epoch == first_bytes(0, range(11)) != first_bytes(1, range(11))
    next_epoch = first_bytes(0, range(11, 22))
    assert next_epoch != epoch and sorted(next_epoch) == sorted(epoch)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(0, 9))
def test_sample_numbers_count_every_sample_once_in_the_documented_order(
    width: int, micro_batches: int, samples: int, iteration: int
) -> None:
    """The order of docs/semantics.md: replica by replica, then micro-batch by micro-batch."""
    source = Windows(TEXT, length=9, seed=0)
    batches = [
        Batch(source, 0, number=iteration, replica=replica, width=width, micro_batches=micro_batches, size=samples)
        for replica in range(width)
    ]
    found = [number for batch in batches for m in range(micro_batches) for number in batch.numbers(m)]
    count = width * micro_batches * samples  # of the samples of an iteration
    assert found == list(range(iteration * count, (iteration + 1) * count))
    assert batches[0].divisors == (count * 9,), "a sample has nine targets"


def test_inputs_and_targets_of_a_micro_batch_are_of_its_samples() -> None:
    source = Windows(TEXT, length=9, seed=5)
    batch = Batch(source, 5, number=1, replica=0, width=1, micro_batches=2, size=2)  # samples 4 and 5, then 6 and 7
    (inputs,), (targets,) = source.inputs([6, 7]), source.targets([6, 7])
    assert batch.inputs(1)[0].equal(inputs) and batch.targets(1)[0].equal(targets)
    assert batch.draws(1).samples == (6, 7)


def test_the_default_text_is_the_standard_library_and_deterministic() -> None:
    text = load_text(None)
    assert len(text) == 4_000_000
    assert b"import" in text.read(0, 100_000).tobytes()
    assert all_of(text) == all_of(load_text(None))


def test_a_folder_is_its_files_in_the_order_of_their_paths(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_text("second ")
    (tmp_path / "a.txt").write_text("first ")
    (tmp_path / "c").write_text("third")
    (tmp_path / ".hidden").write_text("never")
    assert all_of(load_text(tmp_path)) == b"first second third"
    assert all_of(load_text(tmp_path / "c")) == b"third"


def test_hidden_files_and_files_that_are_not_text_are_skipped_and_counted(tmp_path: Path) -> None:
    for name, content in {
        "a.txt": b"first ",
        "sub/b.txt": "zweite \u00fc ".encode(),
        "long.txt": b"x" * (CHECKED_BYTES - 1) + "\u00fc".encode(),  # the checked part ends inside a character
        ".git/objects/pack": b"never",
        ".git/config": b"never",
        "sub/.cache/x": b"never",
        "sub/.hidden": b"never",
        "program": b"\x7fELF\0\0\0",
        "picture.png": b"\x89PNG\r\n\x1a\n",
        "latin-1.txt": b"caf\xe9 au lait",
        "empty": b"",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    # Not counted: a link to a folder, a link to nothing, and a pipe.
    (tmp_path / "sub" / "loop").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    text = load_text(tmp_path)
    assert all_of(text) == b"first " + b"x" * (CHECKED_BYTES - 1) + "\u00fczweite \u00fc ".encode()
    assert text.note == "4 files read, 3 hidden and 3 not text skipped"  # a hidden folder counts as one
    assert text_data(text, length=8, seed=0).summary.endswith("held out (4 files read, 3 hidden and 3 not text skipped)")


def test_a_file_that_is_named_is_read_whatever_it_holds(tmp_path: Path) -> None:
    (tmp_path / ".tokens.bin").write_bytes(bytes(range(256)))
    text = load_text(tmp_path / ".tokens.bin")
    assert all_of(text) == bytes(range(256)) and text.note == ""


def test_data_without_any_text_is_refused_with_help(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "binary").write_bytes(b"\0")
    for path, reason in (
        (tmp_path / "gone", "cannot be read: no such file"),
        (tmp_path / "empty", "is empty"),
        (tmp_path / "folder", "holds no text"),
        (Path("nul\0"), "cannot be read: .*null"),
    ):
        with pytest.raises(ChimeraError, match=f"E802.*{reason}") as error:
            load_text(path)
        assert error.value.diagnostics[0].help.startswith("give a text file, a folder of them, or the name text")
    assert findings_of_call(load_text, tmp_path / "folder")[0].notes == ("0 files read, 1 not text skipped",)


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "secret").mkdir()
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("secret"):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    for path in (tmp_path, tmp_path / "secret"):
        with pytest.raises(ChimeraError, match=r"E802: the data .*/secret cannot be read: permission denied"):
            load_text(path)


def test_a_text_shorter_than_two_samples_is_refused_with_both_numbers() -> None:
    train, held_out = split_text(TEXT.part(0, 20), length=9)
    assert (len(train), len(held_out)) == (10, 10)
    assert Windows(train, length=9, seed=0).count == Windows(held_out, length=9, seed=0).count == 1
    with pytest.raises(ChimeraError, match=r"E803: the data has 19 bytes; .* need 10 each"):
        split_text(TEXT.part(0, 19), length=9)


def test_held_out_is_the_end_of_a_long_text() -> None:
    train, held_out = split_text(Text([HUNDRED] * 20), length=9)
    assert len(train) == 1900 and all_of(held_out) == HUNDRED.tobytes()


@given(st.lists(st.binary(max_size=5), max_size=6), st.integers(0, 30), st.integers(0, 30))
def test_a_text_reads_like_its_parts_joined(parts: list[bytes], begin: int, end: int) -> None:
    text, whole = Text(np.frombuffer(part, np.uint8) for part in parts), b"".join(parts)
    assert len(text) == len(whole)
    assert text.read(begin, end).tobytes() == whole[begin:end] == all_of(text.part(begin, end))
    assert text.counts().tolist() == [whole.count(byte) for byte in range(256)]


def test_large_files_are_mapped_in_a_folder_too(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"small")
    (tmp_path / "b").write_bytes(b"x" * MAPPED_BYTES)
    for path, begin in ((tmp_path, len(b"small")), (tmp_path / "b", 0)):
        train, held_out = split_text(load_text(path), length=9)
        for part, start in ((train, begin), (held_out, 0)):
            found = part.read(start, start + 50)
            assert isinstance(found, np.memmap) and found.tobytes() == b"x" * 50


def test_a_file_of_a_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("words")

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ChimeraError, match=r"E802: the data .*secret cannot be read: permission denied"):
        load_text(tmp_path)


def test_a_folder_of_more_files_than_the_limit_of_open_files_is_read(tmp_path: Path) -> None:
    """Each mapped file stays open, and the process raises its limit."""
    for k in range(70):
        with (tmp_path / f"{k}.txt").open("wb") as file:
            file.write(b"x" * CHECKED_BYTES)
            file.truncate(MAPPED_BYTES)  # makes the file longer without writing: it is sparse
    options = ["--loopback", "--model", "gpt-nano", "--iterations", "1", "--eval-samples", "1", "--data", str(tmp_path)]
    command = ["bash", "-c", 'ulimit -Sn 64 && exec "$@"', "-", sys.executable, "interpreter/run.py", "-p", "D=2", *options]
    completed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "") and "70 files read" in completed.stdout
