"""Data: what a run needs to know of its samples, whatever they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chimerac.interpreter.data.text import Encoding
from chimerac.interpreter.runtime.batch import Samples

Baseline = tuple[str, float, str]  # name, loss in nats, remark


@dataclass(frozen=True)
class Data:
    """The samples of a run for training and evaluation, and their descriptions.

    held_out_count: how many samples `held_out` has before it repeats. identity: a text that is equal for equal data; ranks
    compare it. summary, sample: descriptions of all the data and of one sample; tokens: of one sample, an image counts as one;
    target: the unit that the loss is a mean over, such as `byte`; encoding: of a text, None for images.
    baselines: from a number of held-out samples, the losses of simple predictions of them.
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
