"""CIFAR-10 from its published files for Python (Krizhevsky 2009): the archive, or the folder that is in it.

The files are pickles. They are read by an unpickler that builds only numpy arrays, their dtypes, and values of built-in types:
dictionaries, lists, numbers, texts and the like.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import pickle
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from chimerac.chimera_ir.diagnostics import ChimeraError, refuse
from chimerac.chimera_ir.files import reason, short_path
from chimerac.interpreter.data.images import ImageSet, Pixels, statistics
from chimerac.interpreter.data.prepared import Writer, key_of, prepared

SIDE, CHANNELS, CLASSES = 32, 3, 10
PIXELS = CHANNELS * SIDE * SIDE  # numbers of an image, one for each channel of a pixel
PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"
FOLDER, ARCHIVE, ARCHIVE_BYTES = "cifar-10-batches-py", "cifar-10-python.tar.gz", 170_498_071
ARCHIVE_MD5 = "c58f30108f718f92721af3b95e74349a"
PUBLISHED = f"{ARCHIVE} of {PAGE}: {ARCHIVE_BYTES:,} bytes, MD5 {ARCHIVE_MD5}"
TRAIN = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
}
FILES = TRAIN | {"test_batch": "40351d587109b95175f43aff81a1287e"}  # by name, their MD5
MAX_FILE_BYTES = 2**28  # a published file has 31 million bytes


class _RefusedError(Exception):
    """A file does not have the form of the published ones."""


class _Unpickler(pickle.Unpickler):
    """Builds only the objects of the published files, and of copies that a later Python has written."""

    def find_class(self, module: str, name: str) -> Any:
        """Return what `_BUILT` has for a name in a pickle. Raises _RefusedError for a name that is not in `_BUILT`."""
        place = module.replace("numpy._core", "numpy.core")  # numpy 2 has renamed numpy.core
        if (place, name) not in _BUILT:
            raise _RefusedError(f"it holds an object of {module}.{name}, which is never built")
        return _BUILT[place, name]


def _empty_array(kind: Any, shape: Any, code: Any) -> Any:
    """Return an array, whose contents the unpickler sets afterwards."""
    if kind is not np.ndarray:
        raise _RefusedError("it holds an array of an unknown kind")
    return np.ndarray((0,), np.uint8)


def _array_of(content: Any, kind: Any, shape: Any, order: Any) -> Any:
    return np.frombuffer(content, kind).reshape(shape, order=order)


def _bytes_of(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise _RefusedError(f"it holds a text in {encoding}")
    return text.encode("latin1")


_BUILT: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy.core.numeric", "_frombuffer"): _array_of,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _bytes_of,
}


def cifar10(data_dir: Path, prepared_dir: Path, limit_s: float) -> ImageSet:
    """Return CIFAR-10 from `data_dir`. Its pixels are mapped into memory, from a file in `prepared_dir`.

    Args:
        limit_s: as in `prepared`.

    Raises ChimeraError E802 if the files are not there, cannot be read or are damaged, and E860 as `prepared` does.
    """
    source = next((path for path in (data_dir / FOLDER, data_dir / ARCHIVE) if os.path.exists(path)), None)
    if source is None:
        raise refuse(
            "E802",
            f"CIFAR-10 is not there: neither the folder {short_path(data_dir / FOLDER)} nor {short_path(data_dir / ARCHIVE)}",
            notes=(PUBLISHED,),
            help=f"put that file into {short_path(data_dir)}, unpacked or not, or give the folder where it is as --data-dir",
        )

    def write(writer: Writer) -> dict[str, Any]:
        batches, published = dict[str, Pixels](), True
        for name, content in _contents(source):
            batches[name] = _batch(source, name, content)
            published &= hashlib.md5(content, usedforsecurity=False).hexdigest() == FILES[name]
        if missing := [name for name in FILES if name not in batches]:
            raise _damaged(source, f"it has no file {', '.join(missing)}")
        for name in FILES:
            writer.append(batches[name])
        train = np.concatenate([batches[name] for name in TRAIN])
        mean, deviation = statistics(_images(train))
        return {"train": len(train), "mean": mean, "deviation": deviation, "published": published}

    try:
        files = [source] if source.is_file() else [source / name for name in FILES if (source / name).is_file()]
        key = key_of(*((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files))
        found = prepared(prepared_dir / f"cifar10-{key}.images", "u1", write, limit_s)
    except OSError as error:
        raise _damaged(source, reason(error)) from None
    rows, about = found.array.reshape(-1, 1 + PIXELS), found.about
    return ImageSet(
        "CIFAR-10" if about["published"] else "CIFAR-10, from other files than those published",
        _images(rows),
        rows[:, 0],
        np.arange(about["train"]),
        np.arange(about["train"], len(rows)),
        tuple(about["mean"]),
        tuple(about["deviation"]),
        shift=4,
        flips=True,
        identity=f"{found.digest[:12]}, of {len(rows)} images",
    )


def _images(rows: Pixels) -> Pixels:
    """Return the pixels of the images in `rows`. A row has the class of an image and then its PIXELS numbers."""
    return rows[:, 1:].reshape(-1, CHANNELS, SIDE, SIDE)


def _contents(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of those FILES that a folder or an archive has. Nothing is unpacked to the disk."""
    try:
        if source.is_dir():
            for name in FILES:
                if (source / name).is_file():
                    yield name, (source / name).read_bytes()
            return
        with tarfile.open(source) as archive:
            for member in archive:
                name = Path(member.name).name
                if name in FILES and member.isfile():
                    if member.size > MAX_FILE_BYTES:
                        raise _damaged(source, f"{name} has {member.size:,} bytes")
                    opened = archive.extractfile(member)
                    assert opened is not None, "it is a file"
                    yield name, opened.read()
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise _damaged(source, f"it is no complete archive: {error}") from None
    except OSError as error:
        raise _damaged(source, reason(error)) from None


def _batch(source: Path, name: str, content: bytes) -> Pixels:
    """Return the images of a file (n, 1 + PIXELS): the class and the pixels of each."""
    try:
        found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(found, dict) or not {b"data", b"labels"} <= set(found):
            raise _RefusedError("it has no data and labels")
        pixels, labels = np.asarray(found[b"data"]), np.asarray(found[b"labels"])
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != PIXELS:
            raise _RefusedError(f"its data is {pixels.dtype} of shape {pixels.shape}, expected uint8 of (n, {PIXELS})")
        is_class = labels.dtype.kind in "iu" and bool(((labels >= 0) & (labels < CLASSES)).all())
        if labels.shape != pixels.shape[:1] or not is_class:
            raise _RefusedError(f"its labels are not {len(pixels)} integers from 0 to {CLASSES - 1}")
    except Exception as error:  # a damaged pickle raises almost anything
        raise _damaged(source, f"{name}: {error}") from None
    return np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1)


def _damaged(source: Path, why: str) -> ChimeraError:
    what = f"CIFAR-10 cannot be read from {short_path(source)}: {why}"
    return refuse("E802", what, notes=(PUBLISHED,), help="put the published file there again, unpacked or not")
