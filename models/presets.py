"""The sizes of the GPTs, by name. This module does not import torch, so a wrong name is reported at once."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from chimerac.chimera_ir.diagnostics import ChimeraError, did_you_mean, refuse

VOCABULARY = 256  # a token is a byte
MAX_BLOCKS = 10_000
DEFAULT = "gpt-small"
_BLOCKS = re.compile(r"[1-9][0-9]{0,8}")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a GPT. blocks: how many, each with attention and an MLP; width: of the residual stream."""

    blocks: int
    width: int
    heads: int

    @property
    def layers(self) -> int:
        """Return the number of layers: the embedding, the blocks and the head."""
        return self.blocks + 2

    def parameters(self, sequence_length: int) -> int:
        """Return the number of parameters for sequences of this length."""
        block = 12 * self.width**2 + 2 * self.width  # attention 4 width^2, MLP 8 width^2, two norms
        rest = (2 * VOCABULARY + sequence_length + 1) * self.width  # embeddings of bytes and positions, logits, a norm
        return self.blocks * block + rest


PRESETS = {
    "gpt-nano": Sizes(blocks=2, width=32, heads=2),
    "gpt-micro": Sizes(blocks=4, width=64, heads=4),
    "gpt-small": Sizes(blocks=4, width=128, heads=4),
    "gpt-medium": Sizes(blocks=8, width=256, heads=8),
    "gpt-large": Sizes(blocks=12, width=768, heads=12),
    "gpt-huge": Sizes(blocks=24, width=1024, heads=16),
}


def sizes_of(name: str) -> Sizes:
    """Return the sizes of a model: a preset, or NAME/BLOCKS for a preset with another number of blocks.

    Raises ChimeraError E801 for another name.
    """
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


def is_known(name: str) -> bool:
    """Return whether `sizes_of` has sizes for this name."""
    try:
        sizes_of(name)
    except ChimeraError:
        return False
    return True


def default_for(stages: int) -> str:
    """Return the name of the default model for a number of stages.

    It is gpt-small, with more blocks if there are more stages than gpt-small has layers.
    """
    sizes = PRESETS[DEFAULT]
    return DEFAULT if stages <= sizes.layers else f"{DEFAULT}/{stages - 2}"


def table(sequence_length: int = 128) -> str:
    """Return a table of the presets and their sizes as text, one preset in each line."""
    rows = [("model", "blocks", "width", "heads", f"parameters (--seq-len {sequence_length})")]
    for name, s in PRESETS.items():
        rows.append((name, str(s.blocks), str(s.width), str(s.heads), f"{s.parameters(sequence_length):,}"))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])] for name, *cells in rows)
    return "\n".join(map("  ".join, lines))
