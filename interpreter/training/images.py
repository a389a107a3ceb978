"""Images with classes: the handwritten digits that come with scikit-learn."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.model import Values
from chimerac.interpreter.training.data import Data, permutation

DIGITS = 8, 1  # side and channels of the digits of scikit-learn
HELD_OUT = 5  # one image in five is held out


@dataclass(frozen=True, eq=False)
class Images(Samples):
    """Images (n, channels, side, side) in float32 with their classes (n,), in one seeded order."""

    images: Tensor
    classes: Tensor
    seed: int

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return these images."""
        return (self.images[self._places(numbers)],)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the classes of these images."""
        return (self.classes[self._places(numbers)],)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many classes these images have: one each."""
        return (len(numbers),)

    def _places(self, numbers: Sequence[int]) -> list[int]:
        count = len(self.images)
        return [int(permutation(self.seed, number // count, count)[number % count]) for number in numbers]


def image_data(side: int, channels: int, seed: int) -> Data:
    """Return images of this size. Raises ChimeraError E802 if there are none."""
    if (side, channels) != DIGITS:
        message = f"there is no data set with images of {side} x {side} x {channels}"
        raise refuse("E802", message, help="take --model cnn-digits, for the digits of scikit-learn")
    try:
        from sklearn.datasets import load_digits  # optional: an extra of this project; 2 s
    except ImportError:
        message = "the digits come with scikit-learn, which is not installed"
        raise refuse("E802", message, help="pip install 'chimerac[images]'") from None
    found = load_digits()
    images = torch.from_numpy(found.images.astype(np.float32)).unsqueeze(1) / 16  # values from 0 to 16
    classes = torch.from_numpy(found.target.astype(np.int64))
    # The same split for every seed, so that held-out figures can be compared.
    places = torch.from_numpy(np.random.default_rng(0).permutation(len(images)))
    held_out, train = places[: len(places) // HELD_OUT], places[len(places) // HELD_OUT :]
    mean, deviation = images[train].mean(), images[train].std()
    images = (images - mean) / deviation
    digest = hashlib.sha256(images.numpy().tobytes() + classes.numpy().tobytes()).hexdigest()[:12]
    shares = torch.bincount(classes[held_out]) / len(held_out)
    entropy = -math.fsum(p * math.log(p) for p in shares.tolist())
    return Data(
        Images(images[train], classes[train], seed),
        Images(images[held_out], classes[held_out], seed),
        len(held_out),
        identity=f"{digest}, of {len(images)} images",
        summary=f"digits of scikit-learn: {len(train):,} images, {len(held_out):,} held out",
        sample=f"{side} x {side} x {channels}",
        tokens=1,
        target="image",
        baseline=lambda: ("entropy of the classes", entropy, "of the held-out images"),
    )
