"""Data: the samples of a run with their descriptions, and what all samples of a text have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chimerac.interpreter.data.text import Encoding, Text
from chimerac.interpreter.runtime.batch import Samples

Baseline = tuple[str, float, str]  # name, loss in nats, remark


@dataclass(frozen=True)
class Data:
    """The samples of a run for training and evaluation, and their descriptions.

    Attributes:
        held_out_count: how many samples `held_out` has before it repeats.
        identity: a text that is equal for equal data; ranks compare it.
        summary, sample: descriptions of all the data and of one sample.
        tokens: how many a sample has, 1 for an image.
        target: what the loss is a mean over, such as `byte`.
        encoding: of a text, None for images.
        baselines: a function that returns the losses of simple predictions of the held-out part; it gets the number of the
            samples that are evaluated.
    """

    train: Samples
    held_out: Samples
    held_out_count: int
    identity: str
    summary: str
    sample: str
    tokens: int
    target: str
    baselines: Callable[[int], list[Baseline]]
    encoding: Encoding | None = None


@dataclass(frozen=True)
class TextSamples(Samples):
    """Samples of `length` tokens, made from a text, in an order that follows from the seed."""

    text: Text
    length: int
    seed: int

    @property
    def count(self) -> int:
        """Return how many samples the text has. The samples after these are read from it again, in another order."""
        return (len(self.text) - 1) // self.length


def summary_of(text: Text, held_out: Text, what: str) -> str:
    """Return the description of a text, with its note.

    Args:
        what: the part to train on, in words.
    """
    note = f" ({text.note})" if text.note else ""
    return f"text: {what}, {len(held_out):,} held out{note}"
