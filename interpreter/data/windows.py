"""Samples of a language model: windows of a text, numbered as docs/semantics.md says, in an order that the seed gives.

For a given text and length, sample k depends only on the seed and k. So schedules, depths and widths whose iterations have the
same number of samples train on the same samples in the same iterations, and their loss curves can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chimerac.interpreter.data.baselines import bigram_loss, unigram_entropy
from chimerac.interpreter.data.order import sample_at
from chimerac.interpreter.data.source import Baseline, Data, TextSamples, summary_of
from chimerac.interpreter.data.text import Text, split_text, windows
from chimerac.interpreter.runtime.model import Values


@dataclass(frozen=True)
class Windows(TextSamples):
    """Windows of a text. The targets are the inputs shifted by one. Inputs of different windows do not overlap."""

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return the tokens of these samples (b, L)."""
        return (self._read(numbers, offset=0),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return for each token the next one (b, L)."""
        return (self._read(numbers, offset=1),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many targets of these samples count in the one loss: all, one for each token."""
        return (len(numbers) * self.length,)

    def _read(self, numbers: Sequence[int], offset: int) -> Tensor:
        starts = [sample_at(self.seed, k, self.count) * self.length + offset for k in numbers]
        return torch.from_numpy(windows(self.text, starts, self.length).astype(np.int64))


def text_data(text: Text, length: int, seed: int) -> Data:
    """Return samples of `length` tokens from a text whose last part is held out.

    Raises ChimeraError E803 for a text that is too short.
    """
    train, held_out = (Windows(part, length, seed) for part in split_text(text, length))
    unit = text.encoding.unit

    def baselines(count: int) -> list[Baseline]:
        unigram = ("unigram entropy", unigram_entropy(held_out.text), "of the held-out text")
        pairs = ((held_out.inputs([k])[0][0].numpy(), held_out.targets([k])[0][0].numpy()) for k in range(count))
        bigram = bigram_loss(train.text, pairs)
        return [unigram] if bigram is None else [unigram, ("bigram model", bigram, "held-out loss of the same samples")]

    return Data(
        train,
        held_out,
        held_out.count,
        identity=f"{text.identity(len(train.text))}, in samples of {length}",
        summary=summary_of(text, held_out.text, f"{len(train.text):,} {unit}s"),
        sample=f"{length} {unit}s",
        tokens=length,
        target=unit,
        baselines=baselines,
        encoding=text.encoding,
    )
