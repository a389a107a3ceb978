"""From the name of a preset to its model."""

from __future__ import annotations

from typing import assert_never

from chimerac.interpreter.runtime.model import LayeredModel
from chimerac.models.bert import bert
from chimerac.models.cnn import cnn
from chimerac.models.gpt import gpt
from chimerac.models.gpt2 import gpt2
from chimerac.models.presets import Bert, Cnn, Gpt, Gpt2, check_sequence, sizes_of


def preset(name: str, sequence_length: int, dropout: float = 0.0, vocabulary: int | None = None) -> LayeredModel:
    """Return the model of a preset.

    Args:
        name, vocabulary: as in `sizes_of`.
        sequence_length: tokens of a sample.
        dropout: the probability of every dropout.

    The CNNs use the name alone.

    Raises ChimeraError: E801 for an unknown name, E821 for samples that are too long, E861 for a vocabulary that is too large.
    """
    check_sequence(name, sequence_length)
    sizes = sizes_of(name)
    match sizes:
        case Gpt():
            return gpt(name, sequence_length, dropout, vocabulary)
        case Gpt2():
            return gpt2(name, sequence_length, dropout, vocabulary)
        case Bert():
            return bert(name, sequence_length, dropout, vocabulary)
        case Cnn():
            return cnn(name)
        case _:
            assert_never(sizes)
