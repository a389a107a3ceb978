"""Pairs of sentences from the bytes of a text, as BERT is pre-trained on them (Devlin et al. 2019, section 3.1).

    [CLS] first sentence [SEP] second sentence [SEP] [PAD] ...

A sentence is a run of bytes. In half of the pairs the second one follows the first in the text, otherwise it is from any place.
One in ten pairs is shorter than the others and padded. Of the bytes, 15 % are targets: of these 80 % are replaced by [MASK],
10 % by any byte, and 10 % stay as they are. Sample k is a function of the seed and k alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.model import IGNORED, Values
from chimerac.interpreter.training.data import Data, identity_of, permutation
from chimerac.interpreter.training.text import Text, split_text, unigram_entropy

PAD, START, SEPARATOR, MASK = 256, 257, 258, 259  # the tokens below are bytes
MARKS = 3  # in a sample: one START and two SEPARATORs
TARGETS, MASKED, REPLACED = 0.15, 0.8, 0.1
SHORT = 0.1  # share of the pairs that are padded
SHORTEST = 8  # tokens of a sample

Array = npt.NDArray[np.int64]


class Pair(NamedTuple):
    """One sample of L tokens. tokens, types, targets: (L,); is_token: (L,) bool; is_random: whether the second is from any
    place."""

    tokens: Array
    types: Array
    is_token: npt.NDArray[np.bool_]
    targets: Array
    is_random: int


@dataclass(frozen=True)
class Pairs(Samples):
    """Samples of `length` tokens: the inputs, and the fields `token_types` and `attention_mask`."""

    text: Text
    length: int
    seed: int

    @property
    def count(self) -> int:
        """Return how many samples the text has. After these it is read again, in another order and with other masks."""
        return (len(self.text) - 1) // self.length

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return the tokens of these samples (b, L), in which targets are masked."""
        return (torch.from_numpy(np.stack([p.tokens for p in self._pairs(numbers)])),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the bytes that were masked (b, L), IGNORED elsewhere, and whether the second sentences are random (b,)."""
        pairs = self._pairs(numbers)
        return torch.from_numpy(np.stack([p.targets for p in pairs])), torch.tensor([p.is_random for p in pairs])

    def field(self, numbers: Sequence[int], name: str) -> Tensor:
        """Return `token_types` (b, L), 1 in the second sentence, or `attention_mask` (b, L) bool, False for padding."""
        pairs = self._pairs(numbers)
        if name == "token_types":
            return torch.from_numpy(np.stack([p.types for p in pairs]))
        if name == "attention_mask":
            return torch.from_numpy(np.stack([p.is_token for p in pairs]))
        return super().field(numbers, name)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return the number of masked bytes, and of pairs."""
        return sum(int((p.targets != IGNORED).sum()) for p in self._pairs(numbers)), len(numbers)

    def _pairs(self, numbers: Sequence[int]) -> list[Pair]:
        return [_pair(self, number) for number in numbers]


@lru_cache(maxsize=4096)  # a rank reads the fields, the inputs and the targets of a sample one after the other
def _pair(source: Pairs, number: int) -> Pair:
    """Return one sample."""
    draws = np.random.default_rng([source.seed, number])
    epoch, place = divmod(number, source.count)
    start = int(permutation(source.seed, epoch, source.count)[place]) * source.length
    total = source.length - MARKS
    if draws.random() < SHORT:
        total = int(draws.integers(SHORTEST - MARKS, total + 1))
    first, second = total // 2, total - total // 2
    is_random = int(draws.random() < 0.5)
    other = int(draws.integers(0, len(source.text) - second + 1)) if is_random else start + first
    sentences = [source.text.read(start, start + first), source.text.read(other, other + second)]
    original = np.full(source.length, PAD, np.int64)
    original[: total + MARKS] = [START, *sentences[0], SEPARATOR, *sentences[1], SEPARATOR]
    types = np.zeros(source.length, np.int64)
    types[first + 2 : total + MARKS] = 1
    places = np.flatnonzero(original < PAD)
    chosen = draws.permutation(places)[: max(1, round(TARGETS * len(places)))]
    tokens, targets = original.copy(), np.full(source.length, IGNORED, np.int64)
    targets[chosen] = original[chosen]
    kinds = draws.random(len(chosen))
    tokens[chosen[kinds < MASKED]] = MASK
    replaced = chosen[(kinds >= MASKED) & (kinds < MASKED + REPLACED)]
    tokens[replaced] = draws.integers(0, PAD, len(replaced))
    return Pair(tokens, types, original != PAD, targets, is_random)


def pair_data(text: Text, length: int, seed: int) -> Data:
    """Return samples of `length` tokens from a text whose last part is held out.

    Raises ChimeraError E803 for a text or for samples that are too short.
    """
    if length < SHORTEST:
        message = f"samples of {length} tokens are too short for two sentences and the {MARKS} marks between them"
        raise refuse("E803", message, help=f"give --seq-len {SHORTEST} or more")
    train, held_out = (Pairs(part, length, seed) for part in split_text(text, length))
    note = f" ({text.note})" if text.note else ""
    return Data(
        train,
        held_out,
        held_out.count,
        identity=identity_of(train.text),
        summary=f"text: {len(train.text):,} bytes in pairs of sentences, {len(held_out.text):,} held out{note}",
        sample=f"{length} tokens",
        tokens=length,
        target="masked byte, plus those per pair",
        baseline=lambda: (
            "without context",
            unigram_entropy(held_out.text) + math.log(2),
            "unigram entropy of the held-out text, plus ln 2",
        ),
    )
