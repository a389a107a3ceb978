"""The presets, models that `--model` chooses by name: their families, sizes and numbers of parameters.

This module does not import torch, so a wrong name is reported at once, and `--help` shows the table at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

from chimerac.chimera_ir.diagnostics import ChimeraError, did_you_mean, refuse
from chimerac.chimera_ir.sequences import check_positions

BYTES = 256  # tokens of models on bytes
BYTES_AND_MARKS = 260  # with four more tokens: padding, start, separator, mask
MAX_BLOCKS = 10_000
DEFAULT = "gpt-small"
_BLOCKS = re.compile(r"[1-9][0-9]{0,8}")

Data = Literal["text", "pairs", "images"]


@dataclass(frozen=True, slots=True)
class Blocks:
    """What the sizes of every family have: the number of blocks between the first and the last layer, and a width.

    Each family says what its width is.
    """

    blocks: int
    width: int

    @property
    def layers(self) -> int:
        """Return the number of layers: the blocks, and one before and one after them."""
        return self.blocks + 2


@dataclass(frozen=True, slots=True)
class Gpt(Blocks):
    """A GPT without biases, which has as many positions as a sample has tokens. width: of the residual stream."""

    family: ClassVar[str] = "gpt"
    data: ClassVar[Data] = "text"
    positions: ClassVar[None] = None  # samples may have any length
    heads: int
    vocabulary: int = BYTES

    def parameters(self, sequence_length: int) -> int:
        """Return the number of parameters for sequences of this length."""
        block = 12 * self.width**2 + 2 * self.width  # attention 4 width^2, MLP 8 width^2, two norms
        rest = (2 * self.vocabulary + sequence_length + 1) * self.width  # embeddings of tokens and positions, logits, a norm
        return self.blocks * block + rest


@dataclass(frozen=True, slots=True)
class Gpt2(Blocks):
    """GPT-2 with an untied head (Radford et al. 2019).

    width: of the residual stream.

    Attributes:
        positions: the number of tokens of the longest sequence.
    """

    family: ClassVar[str] = "gpt2"
    data: ClassVar[Data] = "text"
    heads: int
    vocabulary: int = 50257
    positions: int = 1024

    def parameters(self, sequence_length: int = 0) -> int:
        """Return the number of parameters, the same for sequences of every length."""
        embedding = (self.vocabulary + self.positions) * self.width
        head = (self.vocabulary + 2) * self.width  # logits, a norm
        return embedding + self.blocks * _block_with_biases(self.width) + head


@dataclass(frozen=True, slots=True)
class Bert(Blocks):
    """BERT with both heads of its pre-training and without tied weights (Devlin et al. 2019).

    width: of the residual stream.

    Attributes:
        positions: the number of tokens of the longest sequence.
    """

    family: ClassVar[str] = "bert"
    data: ClassVar[Data] = "pairs"
    heads: int
    vocabulary: int = 30522
    positions: int = 512

    def parameters(self, sequence_length: int = 0) -> int:
        """Return the number of parameters, the same for sequences of every length."""
        w, v = self.width, self.vocabulary
        embedding = (v + self.positions + 2) * w + 2 * w  # words, positions, two token types, a norm
        masked = w**2 + 3 * w + v * w + v  # a linear map, a norm, the logits of the words
        pair = w**2 + w + 2 * w + 2  # a linear map, two logits
        return embedding + self.blocks * _block_with_biases(w) + masked + pair


def _block_with_biases(width: int) -> int:
    """Return the number of parameters of a block of GPT-2 or BERT."""
    return 12 * width**2 + 13 * width  # attention 4 width^2, MLP 8 width^2; biases 9 width, two norms 4 width


@dataclass(frozen=True, slots=True)
class Cnn(Blocks):
    """A residual network for small square images (He et al. 2016, section 4.2).

    Its blocks are in three groups. If there are fewer than three blocks, each is a group.

    width: the channels of the first group of blocks, doubled from group to group.

    Attributes:
        side, channels: of an image: its height and width in pixels, and its channels.
        norm: "batch" normalizes over the micro-batch, "group" over groups of channels in each image.
        classes: the number of classes of the images.
    """

    family: ClassVar[str] = "cnn"
    data: ClassVar[Data] = "images"
    heads: ClassVar[None] = None  # there is no attention
    positions: ClassVar[None] = None  # samples are no sequences
    side: int
    channels: int
    norm: Literal["batch", "group"] = "batch"
    classes: int = 10

    def channels_of(self, block: int) -> tuple[int, int]:
        """Return the numbers of channels of a block's input and output.

        Args:
            block: from 0.
        """
        group_of = [0, *(k * 3 // self.blocks for k in range(self.blocks))]  # of the stem, then of each block
        group_before, own_group = group_of[block : block + 2]
        return self.width << group_before, self.width << own_group

    def parameters(self, sequence_length: int = 0) -> int:
        """Return the number of parameters, the same for images of every size."""
        total, outputs = 9 * self.channels * self.width + 2 * self.width, self.width  # the stem: a convolution and a norm
        for inputs, outputs in map(self.channels_of, range(self.blocks)):
            shortcut = inputs * outputs + 2 * outputs if inputs != outputs else 0
            total += 9 * inputs * outputs + 9 * outputs**2 + 4 * outputs + shortcut
        return total + outputs * self.classes + self.classes


Sizes = Gpt | Gpt2 | Bert | Cnn
S = TypeVar("S", Gpt, Gpt2, Bert, Cnn)

PRESETS: dict[str, Sizes] = {
    "gpt-nano": Gpt(blocks=2, width=32, heads=2),
    "gpt-micro": Gpt(blocks=4, width=64, heads=4),
    "gpt-small": Gpt(blocks=4, width=128, heads=4),
    "gpt-medium": Gpt(blocks=8, width=256, heads=8),
    "gpt-large": Gpt(blocks=12, width=768, heads=12),
    "gpt-huge": Gpt(blocks=24, width=1024, heads=16),
    "gpt2-nano": Gpt2(blocks=2, width=32, heads=2, vocabulary=BYTES),
    "gpt2-mini": Gpt2(blocks=6, width=192, heads=6, vocabulary=BYTES),
    "gpt2-small": Gpt2(blocks=12, width=768, heads=12),
    "gpt2-32": Gpt2(blocks=32, width=1280, heads=20),
    "gpt2-64": Gpt2(blocks=64, width=1280, heads=20),
    "bert-nano": Bert(blocks=2, width=32, heads=2, vocabulary=BYTES_AND_MARKS),
    "bert-mini": Bert(blocks=6, width=192, heads=6, vocabulary=BYTES_AND_MARKS),
    "bert-base": Bert(blocks=12, width=768, heads=12),
    "bert48": Bert(blocks=48, width=1024, heads=16),
    "cnn-digits": Cnn(blocks=6, width=16, side=8, channels=1),
    "cnn-digits-gn": Cnn(blocks=6, width=16, side=8, channels=1, norm="group"),
    "cnn-cifar": Cnn(blocks=9, width=16, side=32, channels=3),
    "cnn-cifar-gn": Cnn(blocks=9, width=16, side=32, channels=3, norm="group"),
    "cnn-cifar-wide": Cnn(blocks=9, width=64, side=32, channels=3),
}


def sizes_of(name: str, vocabulary: int | None = None) -> Sizes:
    """Return the sizes of a model: a preset, or NAME/BLOCKS for a preset with another number of blocks.

    Args:
        vocabulary: how many tokens a tokenizer has; None without a tokenizer. A model on bytes gets a vocabulary of this size.
            A model on tokens keeps its own, which must be at least as large. A CNN has none.

    Raises ChimeraError: E801 for another name, E861 for a vocabulary that is too large.
    """
    sizes = _named(name)
    if vocabulary is None or isinstance(sizes, Cnn):
        return sizes
    if sizes.vocabulary <= BYTES_AND_MARKS:  # a model on bytes
        return replace(sizes, vocabulary=vocabulary)
    if vocabulary > sizes.vocabulary:
        message = f"the tokenizer has {vocabulary} tokens, and {name} a vocabulary of {sizes.vocabulary}"
        help = "choose a tokenizer with fewer tokens, or a model on bytes, which takes the vocabulary of the tokenizer"
        raise refuse("E861", message, help=help)
    return sizes


def _named(name: str) -> Sizes:
    """Return the sizes of a preset, or of NAME/BLOCKS. Raises ChimeraError E801 for another name."""
    preset, slash, blocks = name.partition("/")
    if preset not in PRESETS:
        raise refuse("E801", f"unknown model '{name}'", help=did_you_mean(preset, PRESETS))
    if not slash:
        return PRESETS[preset]
    if not _BLOCKS.fullmatch(blocks) or int(blocks) > MAX_BLOCKS:
        raise refuse(
            "E801",
            f"model '{name}': '{blocks}' is not a number of blocks from 1 to {MAX_BLOCKS}",
            help=f"write the number after the slash, as in {preset}/{PRESETS[preset].blocks}",
        )
    return replace(PRESETS[preset], blocks=int(blocks))


def sizes_in(family: type[S], name: str, vocabulary: int | None = None) -> S:
    """Return the sizes of a model of one family, as `sizes_of` does.

    Raises ChimeraError: E801 also for a model of another family, E861 as `sizes_of`.
    """
    sizes = sizes_of(name, vocabulary)
    if not isinstance(sizes, family):
        names = [n for n, s in PRESETS.items() if isinstance(s, family)]
        raise refuse("E801", f"{name} is no {family.family}", help=f"the models of this family are {', '.join(names)}")
    return sizes


def is_known(name: str) -> bool:
    """Return whether `sizes_of` has sizes for this name."""
    try:
        sizes_of(name)
    except ChimeraError:
        return False
    return True


def check_sequence(name: str, sequence_length: int) -> None:
    """Raise ChimeraError E801 for an unknown model, E821 for one that has fewer positions than a sample has tokens."""
    check_positions(name, sequence_length, sizes_of(name).positions)


def default_for(stages: int) -> str:
    """Return the name of the default model for a number of stages.

    It is gpt-small, with more blocks if there are more stages than gpt-small has layers.
    """
    sizes = PRESETS[DEFAULT]
    return DEFAULT if stages <= sizes.layers else f"{DEFAULT}/{stages - 2}"


def table(sequence_length: int = 128) -> str:
    """Return a table of the presets and their sizes as text, one preset in each line below the names of the columns.

    Args:
        sequence_length: the tokens of a sample; only the numbers of parameters of the family gpt depend on it.
    """
    rows = [("model", "blocks", "width", "heads", "parameters", "trained on")]
    for name, s in PRESETS.items():
        trained_on = f"{s.side} x {s.side} x {s.channels} {s.data}" if isinstance(s, Cnn) else s.data
        rows.append((name, str(s.blocks), str(s.width), str(s.heads or "-"), f"{s.parameters(sequence_length):,}", trained_on))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:-1]), data] for name, *cells, data in rows)
    return "\n".join(map("  ".join, lines))
