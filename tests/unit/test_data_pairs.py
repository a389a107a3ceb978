"""Pairs of sentences: their tokens, types and padding, where the sentences are from, and how many words are masked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chimerac.chimera_ir.diagnostics import ChimeraError
from chimerac.interpreter.data.pairs import Pairs, pair_data
from chimerac.interpreter.data.text import BYTES, Text
from chimerac.interpreter.runtime.model import IGNORED

assert BYTES.special is not None
PAD, START, SEPARATOR, MASK = BYTES.special
LENGTH = 40
TEXT = Text([np.random.default_rng(1).integers(0, 256, 20_000).astype(np.uint8)])
MANY = range(600)  # the numbers of 600 samples
SOURCE = Pairs(TEXT, LENGTH, seed=5)


def original(numbers: range) -> torch.Tensor:
    """Return the tokens before any was replaced: the target where a token has one, and the input elsewhere."""
    (tokens,), (targets, _) = SOURCE.inputs(numbers), SOURCE.targets(numbers)
    return torch.where(targets != IGNORED, targets, tokens)


def test_a_pair_has_its_special_tokens_types_and_padding() -> None:
    tokens, mask = original(MANY), SOURCE.field(MANY, "attention_mask")
    types = SOURCE.field(MANY, "token_types")
    assert tokens.shape == mask.shape == types.shape == (600, LENGTH) and mask.dtype == torch.bool
    assert tokens.equal(tokens.where(mask, PAD)) and not (tokens[mask] == PAD).any()
    for row, kinds, is_token in zip(tokens.tolist(), types.tolist(), mask.tolist(), strict=True):
        used = sum(is_token)
        assert row[0] == START and row.count(SEPARATOR) == 2 and row[used - 1] == SEPARATOR and not any(is_token[used:])
        middle = row.index(SEPARATOR)
        assert kinds == [0] * (middle + 1) + [1] * (used - middle - 1) + [0] * (LENGTH - used)
    assert 0.05 < float((~mask[:, -1]).float().mean()) < 0.16, "about one in ten is padded"


def test_sentences_are_of_the_text_and_in_about_half_of_the_pairs_the_second_follows_the_first() -> None:
    text = bytes(TEXT.read(0, len(TEXT)))
    _, is_random = SOURCE.targets(MANY)
    for row, is_random_pair in zip(original(MANY).tolist(), is_random.tolist(), strict=True):
        middle = row.index(SEPARATOR)
        first = bytes(row[1:middle])
        second = bytes(row[middle + 1 : row.index(SEPARATOR, middle + 1)])
        assert first in text and second in text
        assert is_random_pair or first + second in text
    assert 0.43 < float(is_random.float().mean()) < 0.57


def test_masks_have_the_shares_of_the_bert_paper() -> None:
    (tokens,), (targets, _) = SOURCE.inputs(MANY), SOURCE.targets(MANY)
    chosen, is_byte = targets != IGNORED, original(MANY) < PAD
    assert not (chosen & ~is_byte).any() and chosen.any(1).all()
    # Words are bytes here. 0.15 of the words of each sample are targets, rounded to a whole number.
    assert float(chosen.sum() / is_byte.sum()) == pytest.approx(0.15, abs=0.02)
    masked, kept = (tokens == MASK) & chosen, (tokens == targets) & chosen
    assert float(masked.sum() / chosen.sum()) == pytest.approx(0.8, abs=0.02)
    assert float(kept.sum() / chosen.sum()) == pytest.approx(0.1, abs=0.02)
    assert (tokens[~chosen] != MASK).all() and tokens.max() <= MASK


def test_a_sample_is_a_function_of_seed_and_number() -> None:
    # Samples are cached by source. Sources with one Text object are equal, so the same text as another object is needed.
    again = Pairs(Text([TEXT.read(0, len(TEXT))]), LENGTH, seed=5)
    assert again.inputs([7, 3])[0].equal(SOURCE.inputs([3, 7])[0].flip(0))
    assert not Pairs(TEXT, LENGTH, seed=6).inputs([3])[0].equal(SOURCE.inputs([3])[0])
    assert SOURCE.count == 499 == (len(TEXT) - 1) // LENGTH
    assert not SOURCE.inputs([3])[0].equal(SOURCE.inputs([3 + SOURCE.count])[0]), "sample 3 of the next epoch is another one"


def test_valid_targets_are_counted_and_an_unknown_field_is_refused() -> None:
    counts = SOURCE.valid_targets(range(4))
    assert counts == (int((SOURCE.targets(range(4))[0] != IGNORED).sum()), 4)
    with pytest.raises(KeyError, match="no field mask"):
        SOURCE.field([0], "mask")


def test_short_samples_and_texts_are_refused() -> None:
    assert pair_data(TEXT, LENGTH, seed=0).tokens == LENGTH
    pair_data(TEXT, length=8, seed=0).train.inputs(range(50))  # the shortest samples
    with pytest.raises(ChimeraError, match=r"E803.*too short for two sentences"):
        pair_data(TEXT, length=7, seed=0)
    with pytest.raises(ChimeraError, match=r"E803"):
        pair_data(Text([np.zeros(60, np.uint8)]), LENGTH, seed=0)
