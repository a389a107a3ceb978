"""Images with classes, normalized, in an order that the seed gives.

With --augment, the images to train on are moved at random, and in some data sets mirrored too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from chimerac.interpreter.data.order import sample_at
from chimerac.interpreter.data.source import Data
from chimerac.interpreter.runtime.batch import Samples
from chimerac.interpreter.runtime.model import Values

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """A data set.

    Attributes:
        pixels: (n, channels, side, side).
        classes: (n,).
        train, held_out: the indices of the images of each part.
        mean, deviation: of the pixels to train on, by channel.
        shift: by how many pixels augmentation moves an image at most.
        flips: whether it also mirrors images.
        identity: a text that is equal for equal data.
    """

    name: str
    pixels: Pixels
    classes: npt.NDArray[np.uint8]
    train: npt.NDArray[np.int64]
    held_out: npt.NDArray[np.int64]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    shift: int
    flips: bool
    identity: str


@dataclass(frozen=True, eq=False)
class Images(Samples):
    """One part of a data set, in an order that the seed gives.

    Attributes:
        part: the indices of its images.
        augments: whether they are changed at random.
    """

    data: ImageSet
    part: npt.NDArray[np.int64]
    seed: int
    augments: bool = False

    def inputs(self, numbers: Sequence[int]) -> Values:
        """Return these images (b, channels, side, side): float32, normalized for each channel."""
        images = np.stack([self._image(k) for k in numbers]).astype(np.float32)
        mean, deviation = (np.array(v, np.float32)[:, None, None] for v in (self.data.mean, self.data.deviation))
        return (torch.from_numpy((images - mean) / deviation),)

    def targets(self, numbers: Sequence[int]) -> Values:
        """Return the classes of these images (b,)."""
        return (torch.from_numpy(self.data.classes[[self._place(k) for k in numbers]].astype(np.int64)),)

    def valid_targets(self, numbers: Sequence[int]) -> tuple[int, ...]:
        """Return how many targets these images have: one for each image."""
        return (len(numbers),)

    def _place(self, number: int) -> int:
        """Return the index of the image that is read as sample `number`."""
        return int(self.part[sample_at(self.seed, number, len(self.part))])

    def _image(self, number: int) -> Pixels:
        image = self.data.pixels[self._place(number)]
        return augmented(image, self.data, np.random.default_rng([self.seed, number])) if self.augments else image


def augmented(image: Pixels, data: ImageSet, draws: np.random.Generator) -> Pixels:
    """Return an image (channels, side, side), moved at random by up to `data.shift` pixels down or up, and right or left.

    The edge that this leaves free is black. If `data.flips`, the image is also mirrored, with probability 1/2.
    """
    top, left = draws.integers(0, 2 * data.shift + 1, 2)
    side, edges = image.shape[1], (data.shift, data.shift)
    moved = np.pad(image, ((0, 0), edges, edges))[:, top : top + side, left : left + side]
    return moved[:, :, ::-1] if data.flips and draws.random() < 0.5 else moved


def image_data(data: ImageSet, seed: int, augments: bool) -> Data:
    """Return the samples of a data set.

    Args:
        augments: whether images to train on are changed at random, anew in each epoch.

    The images that are held out are never changed.
    """
    channels, side, _ = data.pixels.shape[1:]
    counts = np.bincount(data.classes[data.held_out])
    shares = counts[counts > 0] / counts.sum()
    entropy = -math.fsum(p * math.log(p) for p in shares.tolist())
    return Data(
        Images(data, data.train, seed, augments),
        Images(data, data.held_out, seed),
        len(data.held_out),
        identity=data.identity,
        summary=f"{data.name}: {len(data.train):,} images, {len(data.held_out):,} held out",
        sample=f"{side} x {side} x {channels}",
        tokens=1,
        target="image",
        baselines=lambda _: [("entropy of the classes", entropy, "of the held-out images")],
    )


def statistics(pixels: Pixels) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel of images (n, channels, side, side). A deviation is at least 0.001."""
    counts = np.stack([np.bincount(pixels[:, c].reshape(-1), minlength=256) for c in range(pixels.shape[1])])
    values, number = np.arange(256), counts.sum(1)
    mean = (counts * values).sum(1) / number
    deviation = np.sqrt((counts * (values - mean[:, None]) ** 2).sum(1) / number)
    return tuple(mean.tolist()), tuple(np.maximum(deviation, 1e-3).tolist())
