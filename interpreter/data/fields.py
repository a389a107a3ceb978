"""Samples for models that read named fields: the tokens or images of another source under these names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from chimerac.interpreter.data.source import Data
from chimerac.interpreter.data.text import BYTES, special_tokens_of
from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.model import IGNORED, Values

TARGETS = 0.15  # share of the tokens that a masked language model predicts
MASK = 0  # the byte that replaces such a token if there is no tokenizer; texts hardly ever have it


@dataclass(frozen=True)
class Named(Samples):
    """The samples of a source, whose only input is the field `name`."""

    source: Samples
    name: str

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return no tensors: the model reads fields."""
        return ()

    def field(self, numbers: Sequence[int], name: str) -> Tensor:
        """Return the field. Raises KeyError for another name."""
        return self.source.inputs(numbers)[0] if name == self.name else super().field(numbers, name)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the targets of the source."""
        return self.source.targets(numbers)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many targets of these samples count."""
        return self.source.valid_targets(numbers)


@dataclass(frozen=True)
class Continued(Named):
    """For an encoder and a decoder: the encoder reads the first half of a sample, and the decoder predicts the second half.

    The decoder reads the field `decoder`: for each target the token before it.

    Attributes:
        half: the number of tokens of a half. If a sample has an odd number of tokens, the last one is left out.

    Every token of the source must have a target that counts.
    """

    half: int
    decoder: str = "decoder_input_ids"

    def field(self, numbers: Sequence[int], name: str) -> Tensor:
        """Return one half of the tokens (b, half)."""
        if name not in (self.name, self.decoder):
            return super().field(numbers, name)
        (tokens,) = self.source.inputs(numbers)
        return tokens[:, : self.half].contiguous() if name == self.name else self._second(tokens)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the next tokens of the second half (b, half)."""
        (targets,) = self.source.targets(numbers)
        return (self._second(targets),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many targets these samples have: one for each token of the second half."""
        return (len(numbers) * self.half,)

    def _second(self, tokens: Tensor) -> Tensor:
        return tokens[:, self.half : 2 * self.half].contiguous()


@dataclass(frozen=True)
class Masked(Named):
    """For a masked language model: some tokens are replaced by `mask`, and are the targets (Devlin et al. 2019).

    Unlike there, every target is replaced by `mask`. The number of a sample alone decides which of its tokens these are.
    """

    mask: int = MASK

    def field(self, numbers: Sequence[int], name: str) -> Tensor:
        """Return the tokens (b, L) with masks."""
        tokens = super().field(numbers, name)
        return tokens.masked_fill(self._places(numbers, tokens.shape[1]), self.mask)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the original tokens (b, L) where they are masked, IGNORED elsewhere."""
        (tokens,) = self.source.inputs(numbers)
        return (tokens.masked_fill(~self._places(numbers, tokens.shape[1]), IGNORED),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many tokens of these samples are masked."""
        return (int((self.targets(numbers)[0] != IGNORED).sum()),)

    @staticmethod
    def _places(numbers: Sequence[int], length: int) -> Tensor:
        """Return whether each token of these samples is masked (b, length)."""
        return torch.from_numpy(np.stack([np.random.default_rng(k).random(length) < TARGETS for k in numbers]))


def named(data: Data, name: str) -> Data:
    """Return data whose samples are read as the field `name`."""
    return _with(data, lambda source: Named(source, name))


def continued(data: Data, name: str) -> Data:
    """Return data for an encoder, which reads the field `name`, and a decoder."""
    return _with(data, lambda source: Continued(source, name, data.tokens // 2))


def masked(data: Data, name: str) -> Data:
    """Return data for a masked language model. Raises ChimeraError E861 for a tokenizer that lacks a special token of BERT."""
    mask = MASK if data.encoding in (None, BYTES) else special_tokens_of(data.encoding).mask
    return _with(data, lambda source: Masked(source, name, mask))


def _with(data: Data, wrapped: Callable[[Samples], Samples]) -> Data:
    """Return the data, with `wrapped` applied to the samples of both parts."""
    return replace(data, train=wrapped(data.train), held_out=wrapped(data.held_out))
