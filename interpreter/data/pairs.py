"""Pairs of sentences from the tokens of a text, as BERT is pre-trained on them (Devlin et al. 2019, section 3.1).

    [CLS] first sentence [SEP] second sentence [SEP] [PAD] ...

A sentence is a sequence of consecutive tokens of the text, which are called words here. With probability 1/2 the second
sentence is from a random place of the text, otherwise it follows the first. With probability 1/10 a pair has a random number
of words, and padding fills the rest. Otherwise it has as many words as fit. 15 % of the words, rounded, are targets, at least
one. A target is replaced by [MASK] with probability 0.8, by a random word with probability 0.1, and otherwise stays as it is.
For a given text and length, sample k depends only on the seed and k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.data.baselines import unigram_entropy
from chimerac.interpreter.data.order import sample_at
from chimerac.interpreter.data.source import Data, TextSamples, summary_of
from chimerac.interpreter.data.text import SpecialTokens, Text, special_tokens_of, split_text
from chimerac.interpreter.runtime.model import IGNORED, Values

SPECIAL_COUNT = 3  # special tokens of a sample, without padding: one [CLS] and two [SEP]
TARGETS = 0.15  # share of the words that are targets
MASKED = 0.8  # share of the targets that become [MASK]
REPLACED = 0.1  # share of the targets that become random words
SHORT = 0.1  # share of the pairs whose number of words is random; the others have as many as fit
SHORTEST = 8  # the smallest number of tokens of a sample, without padding

Array = npt.NDArray[np.int64]


class Pair(NamedTuple):
    """One sample of L tokens.

    Attributes:
        tokens: (L,), in which most targets are replaced.
        types: (L,), 1 in the second sentence and its [SEP], otherwise 0.
        is_token: (L,), False for padding.
        targets: (L,), the words to predict, IGNORED elsewhere.
        is_random: 1 if the second sentence is from a random place, 0 if it follows the first.
    """

    tokens: Array
    types: Array
    is_token: npt.NDArray[np.bool_]
    targets: Array
    is_random: int


@dataclass(frozen=True)
class Pairs(TextSamples):
    """Pairs of sentences, with the fields `token_types` and `attention_mask`."""

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return the tokens of these samples (b, L), in which most targets are replaced."""
        return (torch.from_numpy(np.stack([p.tokens for p in self._pairs(numbers)])),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the words to predict (b, L), IGNORED elsewhere, and whether the second sentences are random (b,)."""
        pairs = self._pairs(numbers)
        return torch.from_numpy(np.stack([p.targets for p in pairs])), torch.tensor([p.is_random for p in pairs])

    def field(self, numbers: Sequence[int], name: str) -> Tensor:
        """Return `token_types` (b, L), as `Pair.types`, or `attention_mask` (b, L) bool, False for padding."""
        pairs = self._pairs(numbers)
        if name == "token_types":
            return torch.from_numpy(np.stack([p.types for p in pairs]))
        if name == "attention_mask":
            return torch.from_numpy(np.stack([p.is_token for p in pairs]))
        return super().field(numbers, name)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many words are targets, and how many pairs there are. The text is not read."""
        word_counts = (_draw_word_count(np.random.default_rng([self.seed, k]), self.length) for k in numbers)
        return sum(map(_target_count, word_counts)), len(numbers)

    @cached_property
    def special(self) -> SpecialTokens:
        """Return the special tokens of the encoding."""
        return special_tokens_of(self.text.encoding)

    @cached_property
    def words(self) -> Array:
        """Return the tokens that may replace others."""
        return np.array(self.text.encoding.words, np.int64)

    def _pairs(self, numbers: Sequence[int]) -> list[Pair]:
        return [_pair(self, number) for number in numbers]


def _draw_word_count(draws: np.random.Generator, length: int) -> int:
    """Draw how many words a sample of `length` tokens has. It is drawn first, so `valid_targets` has to draw nothing else."""
    total = length - SPECIAL_COUNT
    return int(draws.integers(SHORTEST - SPECIAL_COUNT, total + 1)) if draws.random() < SHORT else total


def _target_count(word_count: int) -> int:
    return max(1, round(TARGETS * word_count))


@lru_cache(maxsize=4096)  # a rank reads the fields, the inputs and the targets of a sample one after the other
def _pair(source: Pairs, number: int) -> Pair:
    """Return one sample."""
    draws, special = np.random.default_rng([source.seed, number]), source.special
    word_count = _draw_word_count(draws, source.length)
    first_start = sample_at(source.seed, number, source.count) * source.length
    first_length, second_length = word_count // 2, word_count - word_count // 2
    is_random = int(draws.random() < 0.5)
    second_start = int(draws.integers(0, len(source.text) - second_length + 1)) if is_random else first_start + first_length
    first = source.text.read(first_start, first_start + first_length)
    second = source.text.read(second_start, second_start + second_length)
    original = np.full(source.length, special.pad, np.int64)
    original[: word_count + SPECIAL_COUNT] = [special.start, *first, special.separator, *second, special.separator]
    places, first_separator, last_separator = np.arange(source.length), first_length + 1, word_count + SPECIAL_COUNT - 1
    is_token = places <= last_separator
    types = ((places > first_separator) & is_token).astype(np.int64)
    is_word = (places > 0) & (places < last_separator) & (places != first_separator)
    chosen = draws.permutation(np.flatnonzero(is_word))[: _target_count(word_count)]
    tokens, targets = original.copy(), np.full(source.length, IGNORED, np.int64)
    targets[chosen] = original[chosen]
    uniform = draws.random(len(chosen))
    tokens[chosen[uniform < MASKED]] = special.mask
    replaced = chosen[(uniform >= MASKED) & (uniform < MASKED + REPLACED)]
    tokens[replaced] = source.words[draws.integers(0, len(source.words), len(replaced))]
    return Pair(tokens, types, is_token, targets, is_random)


def pair_data(text: Text, length: int, seed: int) -> Data:
    """Return samples of `length` tokens from a text whose last part is held out.

    Raises ChimeraError: E803 for a text or for samples that are too short, E861 for a tokenizer without the special tokens.
    """
    if length < SHORTEST:
        message = f"samples of {length} tokens are too short for two sentences and {SPECIAL_COUNT} special tokens"
        raise refuse("E803", message, help=f"give --seq-len {SHORTEST} or more")
    unit = text.encoding.unit
    special_tokens_of(text.encoding)  # raises E861
    train, held_out = (Pairs(part, length, seed) for part in split_text(text, length))
    return Data(
        train,
        held_out,
        held_out.count,
        identity=f"{text.identity(len(train.text))}, in pairs of {length}",
        summary=summary_of(text, held_out.text, f"{len(train.text):,} {unit}s in pairs of sentences"),
        sample=f"{length} tokens",
        tokens=length,
        target=f"masked {unit}, plus those per pair",
        baselines=lambda _: [
            (
                "without context",
                unigram_entropy(held_out.text) + math.log(2),
                "unigram entropy of the held-out text, plus ln 2",
            )
        ],
        encoding=text.encoding,
    )
