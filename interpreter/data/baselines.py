"""Baselines: the losses of predictions without a neural network, with which held-out losses are compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from chimerac.interpreter.data.text import COUNTED, Text

MAX_VOCABULARY = 4096  # of a bigram model, whose table has a row and a column for each token
MAX_COUNTED = 10**8  # tokens, at most, at the beginning of the text, which a bigram model counts


def unigram_entropy(text: Text) -> float:
    """Return the entropy of single tokens, in nats: the lowest loss of a model that sees no context."""
    counts = text.counts()
    shares = counts[counts > 0] / len(text)
    return float(-(shares * np.log(shares)).sum())


def bigram_loss(train: Text, samples: Iterable[tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> float | None:
    """Return the mean loss, in nats per token, of a bigram model that has counted the first MAX_COUNTED tokens of `train`.

    Args:
        samples: the tokens of each sample, and for each of these tokens the next one.

    The probability of token b after token a is (n(a, b) + p(b)) / (n(a, *) + 1), where p(b) = (n(b) + 1) / (n + V) is that of
    the unigram model. Among the counted tokens, n(a, b) is the number of pairs of neighbours a b, n(a, *) that of pairs that
    begin with a, and n(b) that of tokens b. n is the number of all counted tokens, and V is the size of the vocabulary.

    Returns None if V is larger than MAX_VOCABULARY.
    """
    size = train.encoding.vocabulary
    if size > MAX_VOCABULARY:
        return None
    pairs, counted = np.zeros(size * size, np.int64), min(len(train), MAX_COUNTED)
    for start in range(0, counted - 1, COUNTED):
        part = train.read(start, min(start + COUNTED + 1, counted)).astype(np.int64)
        pairs += np.bincount(part[:-1] * size + part[1:], minlength=size * size)
    counts = pairs.reshape(size, size)
    singles = train.part(0, counted).counts()
    unigram = (singles + 1) / (singles.sum() + size)
    rows, total, number = counts.sum(1), 0.0, 0
    for a, b in samples:
        total -= float(np.log((counts[a, b] + unigram[b]) / (rows[a] + 1)).sum())
        number += len(b)
    return total / max(1, number)
