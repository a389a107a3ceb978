"""The data of models that a user brings to a run: a text or images, as the fields of the model need it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from chimerac.interpreter.launch.settings import RunSettings

if TYPE_CHECKING:
    from chimerac.interpreter.data.images import ImageSet
    from chimerac.interpreter.data.source import Data
    from chimerac.interpreter.data.text import Text
    from chimerac.interpreter.runtime.model import Model


def own_data(
    settings: RunSettings, model: Model, text: Callable[[], Text], images: Callable[[tuple[int, int]], ImageSet]
) -> Data:
    """Return the data of a user's model: images if it reads pixels, otherwise a text, as its fields need it.

    Args:
        text, images: functions that load the data; `images` gets the side and the number of channels.

    Raises ChimeraError: E803 for a text that is too short, E861 for a masked language model if the tokenizer lacks one of
    BERT's special tokens, and the errors of `text` and `images`.
    """
    # These import torch, which takes 2 s.
    from chimerac.interpreter.data.fields import continued, masked, named
    from chimerac.interpreter.data.images import image_data
    from chimerac.interpreter.data.windows import text_data

    fields = model.example(1).fields
    name, first = next(iter(fields.items()))
    if first.is_floating_point():  # pixels (b, channels, side, side)
        return named(image_data(images((first.shape[-1], first.shape[1])), settings.seed, settings.augment), name)
    data = text_data(text(), settings.seq_len, settings.seed)
    if "decoder_input_ids" in fields:
        return continued(data, name)
    return masked(data, name) if model.name.endswith("MaskedLM") else named(data, name)
