"""Samples: windows of bytes from a text, numbered as docs/semantics.md says, in one seeded order.

Sample k is a window of the text, chosen by the seed and k alone. So every schedule, depth and width trains on the same
samples in the same iterations, and their loss curves can be compared.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.model import Values
from chimerac.interpreter.training.text import Text, split_text, unigram_entropy, windows


@dataclass(frozen=True)
class Data:
    """The samples of a run for training and evaluation, and their descriptions.

    held_out_count: how many samples `held_out` has before it repeats. identity: a text that is the same for the same data;
    ranks compare it. summary, sample: descriptions of all the data and of one sample. tokens: of one sample; an image counts as
    one. target: what one target is, such as `byte`. baseline: returns the name of a prediction without a model, its loss in
    nats per target, and a remark on it.
    """

    train: Samples
    held_out: Samples
    held_out_count: int
    identity: str
    summary: str
    sample: str
    tokens: int
    target: str
    baseline: Callable[[], tuple[str, float, str]]


@dataclass(frozen=True)
class Windows(Samples):
    """Samples of `length` bytes. The targets are the inputs shifted by one byte. The inputs of samples do not overlap."""

    text: Text
    length: int
    seed: int

    @property
    def count(self) -> int:
        """Return how many samples the text has. After these the text is read again, in another order."""
        return (len(self.text) - 1) // self.length

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return the bytes of these samples, (samples, length)."""
        return (self._read(numbers, 0),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the byte after each of them, (samples, length)."""
        return (self._read(numbers, 1),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many targets these samples have: every byte counts."""
        return (len(numbers) * self.length,)

    def _read(self, numbers: Sequence[int], offset: int) -> Tensor:
        """Return the bytes of these samples from their byte `offset` on, (samples, length)."""
        starts = [self._window_of(k) * self.length + offset for k in numbers]
        return torch.from_numpy(windows(self.text, starts, self.length).astype(np.int64))

    def _window_of(self, number: int) -> int:
        """Return the window of a sample. Each epoch has all windows of the text, in an order of its own."""
        epoch, position = divmod(number, self.count)
        return int(permutation(self.seed, epoch, self.count)[position])


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, count: int) -> npt.NDArray[np.int64]:
    """Return the order in which `count` samples are read in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(count)


def text_data(text: Text, length: int, seed: int) -> Data:
    """Return samples of `length` bytes from a text whose last part is held out.

    Raises ChimeraError E803 for a text that is too short.
    """
    train, held_out = (Windows(part, length, seed) for part in split_text(text, length))
    note = f" ({text.note})" if text.note else ""
    return Data(
        train,
        held_out,
        held_out.count,
        identity=identity_of(train.text),
        summary=f"text: {len(train.text):,} bytes, {len(held_out.text):,} held out{note}",
        sample=f"{length} bytes",
        tokens=length,
        target="byte",
        baseline=lambda: ("unigram entropy", unigram_entropy(held_out.text), "of the held-out text"),
    )


def identity_of(text: Text) -> str:
    """Return the length of a text, and a digest of its beginning and end: reading a large text whole would take long."""
    ends = bytes(text.read(0, 2**16)) + bytes(text.read(len(text) - 2**16, len(text)))
    return f"{hashlib.sha256(ends).hexdigest()[:12]}, of {len(text)} bytes"
