"""Samples: windows of bytes from a text, numbered as docs/semantics.md says, in one seeded order.

Sample k is a window of the text; which one depends on the seed and k alone. So every schedule, depth and width trains
on the same samples in the same iterations, and loss curves can be laid over each other.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chimera_ir.diagnostics import refuse
from models.draws import Draws

Bytes = npt.NDArray[np.uint8]
Values = tuple[Tensor, ...]

DEFAULT_BYTES = 4_000_000  # of the standard library: enough that a short run sees no sample twice
HELD_OUT = 20  # the last byte in so many is held out
# Others' code, tests, and files that are tables rather than text.
_SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}


class Samples(Protocol):
    """Where samples come from, by their numbers."""

    def read(self, numbers: Sequence[int]) -> tuple[Values, Tensor]:
        """Return the inputs and the targets of these samples, stacked in this order."""

    def valid_targets(self, numbers: Sequence[int]) -> int:
        """Return how many targets of these samples count."""


@dataclass(frozen=True)
class Windows:
    """Samples of `length` bytes, each to predict the bytes one further on; windows do not overlap in their inputs."""

    text: Bytes
    length: int
    seed: int

    @property
    def count(self) -> int:
        """Return how many samples the text has before it begins anew, in another order."""
        return (len(self.text) - 1) // self.length

    def read(self, numbers: Sequence[int]) -> tuple[Values, Tensor]:
        """Return inputs and targets of these samples."""
        starts = np.array([self._window(k) for k in numbers]) * self.length
        windows = self.text[starts[:, None] + np.arange(self.length + 1)]
        tokens = torch.from_numpy(windows.astype(np.int64))  # (b, L + 1)
        return (tokens[:, :-1],), tokens[:, 1:]  # (b, L) each

    def valid_targets(self, numbers: Sequence[int]) -> int:
        """Return how many targets these samples have: every byte counts."""
        return len(numbers) * self.length

    def _window(self, number: int) -> int:
        epoch, place = divmod(number, self.count)
        return int(_order(self.seed, epoch, self.count)[place])


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng([seed, epoch]).permutation(count)


@dataclass(frozen=True)
class Batch:
    """What one replica trains on in one iteration. size: samples of a micro-batch."""

    source: Samples
    seed: int
    iteration: int
    replica: int
    width: int
    micro_batches: int
    size: int

    def numbers(self, micro_batch: int) -> range:
        """Return the numbers of a micro-batch's samples: ((t W + w) N + m) b + j for j < b."""
        place = (self.iteration * self.width + self.replica) * self.micro_batches + micro_batch
        return range(place * self.size, (place + 1) * self.size)

    def inputs(self, micro_batch: int) -> Values:
        """Return the inputs of a micro-batch."""
        return self.source.read(self.numbers(micro_batch))[0]

    def targets(self, micro_batch: int) -> Tensor:
        """Return the targets of a micro-batch."""
        return self.source.read(self.numbers(micro_batch))[1]

    def draws(self, micro_batch: int) -> Draws:
        """Return what a micro-batch's random numbers depend on."""
        return Draws(self.seed, self.iteration, tuple(self.numbers(micro_batch)))

    @cached_property
    def valid_targets(self) -> int:
        """Return the number of valid targets of the whole iteration: all micro-batches of all replicas."""
        samples = self.width * self.micro_batches * self.size
        return self.source.valid_targets(range(self.iteration * samples, (self.iteration + 1) * samples))


def load_text(path: Path | None) -> Bytes:
    """Return the bytes of a file, of all files of a folder, or by default of Python's own standard library.

    Raises ChimeraError E802 where there is nothing to read.
    """
    if path is None:
        root = Path(sysconfig.get_path("stdlib"))
        files = (p for p in root.rglob("*.py") if not _SKIPPED & set(p.relative_to(root).parts))
        return _joined(root, files, DEFAULT_BYTES)
    try:
        if path.is_dir():
            return _joined(path, (p for p in path.rglob("*") if p.is_file() and not p.name.startswith(".")), None)
        if path.stat().st_size:
            return np.memmap(path, np.uint8, mode="r")
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise refuse("E802", f"the data {path} cannot be read: {reason}", help=_DATA_HELP) from None
    raise refuse("E802", f"the data {path} is empty", help=_DATA_HELP)


_DATA_HELP = "give --data a text file or a folder of them, or leave it out to take Python's standard library"


def _joined(root: Path, files: Iterable[Path], limit: int | None) -> Bytes:
    """Return the files' bytes, in the order of their paths below `root`, up to a limit."""
    parts, size = [], 0
    for file in sorted(files, key=lambda p: p.relative_to(root).parts):
        part = file.read_bytes()
        parts.append(part)
        size += len(part)
        if limit is not None and size >= limit:
            break
    if not size:
        raise refuse("E802", f"the data {root} holds no text", help=_DATA_HELP)
    return np.frombuffer(b"".join(parts)[:limit], np.uint8)


def split_text(text: Bytes, length: int) -> tuple[Bytes, Bytes]:
    """Return the part to train on and the part held out, its last twentieth or at least one sample.

    Raises ChimeraError E803 where the text is shorter than one sample for each.
    """
    needed = 2 * (length + 1)
    if len(text) < needed:
        raise refuse(
            "E803",
            f"the data has {len(text)} bytes, one sample to train on and one held out take {needed}",
            notes=(f"a sample is --seq-len {length} bytes and the byte after them",),
            help="give longer data or a smaller --seq-len",
        )
    held_out = max(len(text) // HELD_OUT, length + 1)
    return text[:-held_out], text[-held_out:]


def unigram_entropy(text: Bytes) -> float:
    """Return the entropy of single bytes, in nats: the best loss of a model that looks at no context."""
    counts = np.bincount(text, minlength=256)
    shares = counts[counts > 0] / len(text)
    return float(-(shares * np.log(shares)).sum())
