"""Images: CIFAR-10 from files made here, the digits of scikit-learn, normalization, augmentation, and data that is refused."""

from __future__ import annotations

import errno
import io
import os
import pickle
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.data.cifar import cifar10
from chimerac.interpreter.data.digits import digits
from chimerac.interpreter.data.images import augmented, image_data
from chimerac.interpreter.launch.options import parse_options
from chimerac.interpreter.launch.workloads import check_options

NAMES = [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]


def batch(seed: int, count: int = 20) -> dict[bytes, Any]:
    """Return a batch of random images, as a file of CIFAR-10 has it."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3072)).astype(np.uint8)
    return {b"batch_label": b"batch", b"labels": rng.integers(0, 10, count).tolist(), b"data": pixels, b"filenames": [b"x"]}


def python_2_pickle(batch: dict[bytes, Any]) -> bytes:
    """Return a pickle like the published ones, which Python 2 wrote: texts are bytes, and numpy has its old names.

    It is written opcode by opcode, because Python 3 cannot write it. U and T begin a short and a long text, K, M and J
    an integer of 1, 2 and 4 bytes, and c a global name. After its parts, t ends a tuple, R calls, and b sets a state.
    """
    pixels = batch[b"data"]
    raw = pixels.tobytes()

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85" + text(b"b") + b"tR("
    shape = b"(M" + len(pixels).to_bytes(2, "little") + b"M\x00\x0ct"
    kind = (
        b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    array += b"K\x01" + shape + kind + b"\x89T" + len(raw).to_bytes(4, "little") + raw + b"tb"
    labels = b"](" + b"".join(b"K" + bytes([n]) for n in batch[b"labels"]) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + labels + b"u."


def write_archive(path: Path, contents: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in {"readme.html": b"about", **contents}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


@pytest.mark.parametrize("form", ["archive", "folder", "python 2", "protocol 5"])
def test_cifar_is_read_from_an_archive_and_from_a_folder_with_pickles_of_several_versions(form: str, tmp_path: Path) -> None:
    batches = [batch(k) for k in range(6)]
    protocol = 5 if form == "protocol 5" else 2
    write = python_2_pickle if form == "python 2" else lambda b: pickle.dumps(b, protocol)
    contents = {name: write(b) for name, b in zip(NAMES, batches, strict=True)}
    if form == "archive":
        write_archive(tmp_path / "cifar-10-python.tar.gz", contents)
    else:
        (tmp_path / "cifar-10-batches-py").mkdir()
        for name, content in contents.items():
            (tmp_path / "cifar-10-batches-py" / name).write_bytes(content)
    data = cifar10(tmp_path, tmp_path / "prepared", limit_s=5)
    pixels = np.concatenate([b[b"data"] for b in batches]).reshape(-1, 3, 32, 32)
    classes = [n for b in batches for n in b[b"labels"]]
    assert np.array_equal(data.pixels, pixels) and data.classes.tolist() == classes
    assert data.train.tolist() == list(range(100)) and data.held_out.tolist() == list(range(100, 120))
    assert data.mean == pytest.approx(pixels[:100].mean((0, 2, 3))) and data.deviation == pytest.approx(
        pixels[:100].std((0, 2, 3))
    )
    assert data.name == "CIFAR-10, from other files than those published"
    assert isinstance(data.pixels.base, np.memmap) or isinstance(data.pixels, np.memmap), (
        "the pixels are mapped into memory, where the ranks of a host share them"
    )
    found = image_data(data, seed=1, augments=False)
    (images,), (targets,) = found.train.inputs(range(100)), found.train.targets(range(100))
    assert images.shape == (100, 3, 32, 32) and images.mean((0, 2, 3)).abs().max() < 1e-5
    assert (images.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-4
    class_by_pixels = {pixels[k].tobytes(): classes[k] for k in range(100)}
    mean, deviation = (np.array(v)[:, None, None] for v in (data.mean, data.deviation))
    raw = (images.numpy() * deviation + mean).round().astype(np.uint8)
    assert [class_by_pixels[image.tobytes()] for image in raw] == targets.tolist()


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "ran"),)

    contents = {name: pickle.dumps(batch(0), protocol=2) for name in NAMES} | {"data_batch_3": pickle.dumps(Evil())}
    write_archive(tmp_path / "cifar-10-python.tar.gz", contents)
    with pytest.raises(ChimeraError, match=r"E802.*data_batch_3: it holds an object of posix.mkdir, which is never built"):
        cifar10(tmp_path, tmp_path / "prepared", limit_s=5)
    assert not (tmp_path / "ran").exists()


def test_missing_and_damaged_files_are_refused_with_the_name_of_the_published_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(reason: str) -> None:
        with pytest.raises(ChimeraError, match=f"E802.*{reason}") as error:
            cifar10(tmp_path, tmp_path / "prepared", limit_s=5)
        (note,) = error.value.diagnostics[0].notes
        assert "cifar-10-python.tar.gz" in note and "170,498,071 bytes, MD5 c58f30108f718f92721af3b95e74349a" in note

    refused("neither the folder .*cifar-10-batches-py nor .*cifar-10-python.tar.gz")
    path, contents = tmp_path / "cifar-10-python.tar.gz", {name: pickle.dumps(batch(0), protocol=2) for name in NAMES}
    write_archive(path, {name: content for name, content in contents.items() if name != "data_batch_2"})
    refused("it has no file data_batch_2")
    write_archive(path, contents | {"test_batch": contents["test_batch"][:-100]})
    refused("test_batch: ")
    wrong = batch(0) | {b"labels": [10] * 20}
    write_archive(path, contents | {"test_batch": pickle.dumps(wrong)})
    refused("labels are not 20 integers from 0 to 9")
    write_archive(path, contents | {"test_batch": pickle.dumps(batch(0) | {b"data": np.zeros((20, 100), np.uint8)})})
    refused(r"expected uint8 of \(n, 3072\)")
    write_archive(path, contents)
    path.write_bytes(path.read_bytes()[:-2000])
    refused("cannot be read from")
    path.write_bytes(b"no archive")
    refused("it is no complete archive")
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py" / "data_batch_1").touch()
    monkeypatch.setattr(Path, "read_bytes", Mock(side_effect=PermissionError(errno.EACCES, "Permission denied")))
    refused("cannot be read from .*cifar-10-batches-py: permission denied")


def test_digits_are_those_of_scikit_learn_split_once_and_shuffled_by_the_seed() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    data, other = image_data(digits(), seed=0, augments=False), image_data(digits(), seed=1, augments=False)
    assert data.held_out_count == 359 and data.identity == other.identity
    count = 1797 - 359  # digits of scikit-learn that are not held out
    (images,), (classes,) = data.train.inputs(range(count)), data.train.targets(range(count))
    assert images.shape == (count, 1, 8, 8) and images.dtype == torch.float32 and set(classes.tolist()) == set(range(10))
    assert float(images.mean()) == pytest.approx(0, abs=1e-5) and float(images.std()) == pytest.approx(1, abs=1e-3)
    theirs = datasets.load_digits()
    (tested,), (labels,) = data.held_out.inputs(range(359)), data.held_out.targets(range(359))
    every = torch.cat([images, tested]).double().flatten(1)
    raw = (every - every.min()) / (every.max() - every.min()) * 16  # pixels of the digits go from 0 to 16
    ours = sorted(zip(raw.round().int().tolist(), [*classes.tolist(), *labels.tolist()], strict=True))
    assert ours == sorted(zip(theirs.data.astype(int).tolist(), theirs.target.tolist(), strict=True)), "each image occurs once"
    assert not other.train.inputs(range(count))[0].equal(images) and data.train.valid_targets(range(3)) == (3,)
    assert sorted(tested.flatten(1).tolist()) == sorted(other.held_out.inputs(range(359))[0].flatten(1).tolist())


def test_an_image_is_moved_in_the_same_way_in_whatever_order_images_are_read() -> None:
    pytest.importorskip("sklearn")
    plain, changed = (image_data(digits(), seed=0, augments=augments) for augments in (False, True))
    (images,), (again,) = changed.train.inputs(range(50)), changed.train.inputs([*range(49, -1, -1)])
    assert images.flip(0).equal(again) and not images.equal(plain.train.inputs(range(50))[0])
    assert changed.train.targets(range(50))[0].equal(plain.train.targets(range(50))[0])
    assert changed.held_out.inputs(range(50))[0].equal(plain.held_out.inputs(range(50))[0]), "held-out images stay"
    black = float(plain.train.inputs(range(1))[0].min())
    for image, original in zip(images[:, 0], plain.train.inputs(range(50))[0][:, 0], strict=True):
        padded = torch.nn.functional.pad(original, (1, 1, 1, 1), value=black)
        moved = [padded[y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
        assert any(image.equal(m) for m in moved)
    # In eight epochs one image is changed in at least two ways.
    train, count = changed.train, len(digits().train)
    numbers = [_number_of(train, image=5, epoch=epoch, count=count) for epoch in range(8)]
    assert len({tuple(train.inputs([k])[0].flatten().tolist()) for k in numbers}) > 1


def _number_of(samples: Any, image: int, epoch: int, count: int) -> int:
    """Return the number of the sample that is this image in an epoch.

    Args:
        image: its index in the part of the data set that `samples` reads.
        count: how many samples an epoch has.
    """
    (number,) = (k for k in range(epoch * count, (epoch + 1) * count) if samples._place(k) == samples.part[image])
    return number


def test_about_half_of_the_images_are_mirrored() -> None:
    pytest.importorskip("sklearn")
    data = replace(digits(), shift=0, flips=True)
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    found = [augmented(image, data, np.random.default_rng(k)) for k in range(200)]
    mirrored = sum(np.array_equal(f, image[:, :, ::-1]) for f in found)
    assert 70 < mirrored < 130 and mirrored + sum(np.array_equal(f, image) for f in found) == 200


def test_data_that_is_missing_or_does_not_fit_the_model_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("some text " * 100)
    for words, reason in (
        (["--model", "cnn-digits", "--data", str(tmp_path / "text")], "cnn-digits is trained on images of 8 x 8 x 1"),
        (["--model", "cnn-cifar", "--data", "digits"], "cnn-cifar is trained on images of 32 x 32 x 3"),
        (["--model", "gpt-nano", "--data", "digits"], "gpt-nano is trained on text"),
        (["--model", "cnn-cifar", "--data-dir", str(tmp_path)], "CIFAR-10 is not there"),
    ):
        with pytest.raises(ChimeraError, match=f"E802.*{reason}"):
            check_options(parse_options(words))
    with pytest.raises(ChimeraError, match="E821"):  # samples of text that are too long
        check_options(parse_options(["--model", "bert-nano", "--seq-len", "513"]))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ChimeraError, match=r"E802.*scikit-learn, which is not installed"):
        check_options(parse_options(["--model", "cnn-digits"]))
