"""Baselines of a text: its unigram entropy, and the loss of a bigram model on held-out samples."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from chimerac.interpreter.data.baselines import bigram_loss, unigram_entropy
from chimerac.interpreter.data.text import Text
from chimerac.interpreter.data.windows import text_data

CYCLE = "0123456789 abcdef"


def test_the_bigram_loss_follows_from_the_counts() -> None:
    rng, vocabulary, count = np.random.default_rng(0), 256, 3000
    tokens = rng.choice(vocabulary, count, p=rng.dirichlet(np.full(vocabulary, 0.05))).astype(np.uint8)
    text = Text([tokens[:1000], tokens[1000:]])
    singles, pairs = Counter(tokens.tolist()), Counter(zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True))

    def loss(before: int, byte: int) -> float:
        unigram = (singles[byte] + 1) / (count + vocabulary)
        return -math.log((pairs[before, byte] + unigram) / (sum(n for (x, _), n in pairs.items() if x == before) + 1))

    inputs, targets = tokens[5:40], tokens[6:41]
    found = bigram_loss(text, [(inputs[:10], targets[:10]), (inputs[10:], targets[10:])])
    assert found == pytest.approx(np.mean([loss(x, y) for x, y in zip(inputs.tolist(), targets.tolist(), strict=True)]))
    # With the formula above, the probabilities of all bytes that may follow a byte sum to 1.
    assert sum(math.exp(-loss(int(inputs[0]), byte)) for byte in range(vocabulary)) == pytest.approx(1)


def test_baselines_of_a_text_in_which_each_byte_decides_the_next() -> None:
    text = Text([np.frombuffer((CYCLE * 400).encode(), np.uint8)])
    data = text_data(text, length=24, seed=0)
    (_, unigram, _), (name, bigram, _) = data.baselines(8)  # of eight samples
    assert unigram == pytest.approx(math.log(len(CYCLE)), abs=1e-3) and name == "bigram model" and bigram < 0.05


def test_unigram_entropy_of_known_texts() -> None:
    assert unigram_entropy(Text([np.zeros(9, np.uint8)])) == 0
    assert unigram_entropy(Text([np.array([1, 2, 3, 4], np.uint8)] * 5)) == pytest.approx(np.log(4))
