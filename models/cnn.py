"""A residual network for small images (He et al. 2016, section 4.2): a stem, blocks of two convolutions, and a linear head.

The blocks are in three groups. If there are fewer than three blocks, each is a group. The second and the third group each halve
the sides of the image and double the channels. With norms over the micro-batch, the result of an image depends in training on
the other images of its micro-batch. With norms over groups of channels, it does not.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chimerac.interpreter.adapters.losses import cross_entropies
from chimerac.interpreter.runtime.model import Example, LayeredModel, Values
from chimerac.models.presets import Cnn, sizes_in

GROUP = 8  # channels that are normalized together


def norm(sizes: Cnn, channels: int) -> nn.Module:
    """Return the norm of a network of these sizes.

    Args:
        channels: the number of channels that it normalizes.
    """
    return nn.BatchNorm2d(channels) if sizes.norm == "batch" else nn.GroupNorm(max(1, channels // GROUP), channels)


def convolution(inputs: int, outputs: int, side: int = 3, stride: int = 1) -> nn.Conv2d:
    """Return a convolution that divides the sides of the image by the stride.

    Args:
        side: that of the kernel.
    """
    conv = nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class Stem(nn.Module):
    """A convolution of the images: (b, channels, side, side) -> (b, width, side, side)."""

    def __init__(self, sizes: Cnn) -> None:
        super().__init__()
        self.conv, self.norm = convolution(sizes.channels, sizes.width), norm(sizes, sizes.width)

    def forward(self, images: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(images)))


class Block(nn.Module):
    """Two convolutions, added to the input: (b, inputs, side, side) -> (b, outputs, side / stride, side / stride).

    Args:
        block: its number, from 0.

    The first blocks of the second and the third group double the channels and halve the sides. In these blocks a convolution
    brings the input to the same shape.
    """

    def __init__(self, sizes: Cnn, block: int) -> None:
        super().__init__()
        inputs, outputs = sizes.channels_of(block)
        stride = outputs // inputs  # 2 if the channels are doubled, otherwise 1
        self.conv_1, self.norm_1 = convolution(inputs, outputs, stride=stride), norm(sizes, outputs)
        self.conv_2, self.norm_2 = convolution(outputs, outputs), norm(sizes, outputs)
        self.shortcut = nn.Sequential()  # the identity
        if stride > 1:
            self.shortcut = nn.Sequential(convolution(inputs, outputs, side=1, stride=stride), norm(sizes, outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm_2(self.conv_2(F.relu(self.norm_1(self.conv_1(x)))))
        return F.relu(y + self.shortcut(x))


class Head(nn.Module):
    """The mean of each channel, then the logits of the classes: (b, channels, side, side) -> (b, classes)."""

    def __init__(self, sizes: Cnn) -> None:
        super().__init__()
        self.logits = nn.Linear(sizes.channels_of(sizes.blocks - 1)[1], sizes.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.logits(x.mean((2, 3)))  # type: ignore[no-any-return]


def correct_classes(outputs: Values, targets: Values) -> Tensor:
    """Return how many images have their largest logit at their class, as a tensor of one number."""
    (logits,), (classes,) = outputs, targets  # (b, classes) and (b,)
    return (logits.argmax(1) == classes).sum()


def cnn(name: str) -> LayeredModel:
    """Return a CNN preset (models/presets.py). Raises ChimeraError E801 for a name that is not of a CNN."""
    sizes = sizes_in(Cnn, name)

    def example(samples: int) -> Example:
        images = torch.zeros(samples, sizes.channels, sizes.side, sizes.side)
        return Example((images,), (torch.zeros(samples, dtype=torch.int64),))

    blocks = [(f"block {k + 1}", partial(Block, sizes, k)) for k in range(sizes.blocks)]
    return LayeredModel(
        name=name,
        layers=(("stem", partial(Stem, sizes)), *blocks, ("head", partial(Head, sizes))),
        loss=cross_entropies,
        correct=correct_classes,
        example=example,
    )
