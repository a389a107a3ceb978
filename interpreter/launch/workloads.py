"""The model and the data of a run. No other module of the interpreter names a model or a data set.

What needs torch is imported when it is called: torch takes 2 s to import, and a wrong option is reported before that.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.interpreter.launch.own_models import check_own, is_own, own_data, own_model
from chimerac.interpreter.launch.settings import RunSettings
from chimerac.interpreter.training.settings import samples_per_micro_batch
from chimerac.models.presets import Cnn, check_sequence, default_for, is_known, sizes_of, table

if TYPE_CHECKING:
    from chimerac.chimera_ir.program import Program
    from chimerac.interpreter.runtime.model import Model
    from chimerac.interpreter.training.data import Data
    from chimerac.interpreter.training.text import Text


def model_table() -> str:
    """Return the models that can be chosen, and their sizes, as text."""
    return table()


def model_of(settings: RunSettings, program: Program) -> Model:
    """Return the model of a run. Raises ChimeraError: E801 an unknown one, E821 samples that are too long for it.

    A model of the user's own: also E850 to E855.
    """
    if is_own(settings.model):
        return own_model(settings, samples_per_micro_batch(program, settings.micro_batch))
    from chimerac.models.families import preset  # with torch, 2 s

    return preset(_name(settings, program), settings.seq_len, settings.dropout)


def data_of(settings: RunSettings, program: Program, model: Model) -> Data:
    """Return the data that the model of a run needs.

    Raises ChimeraError: E802 the data cannot be read, E803 a text that is too short.
    """
    if is_own(settings.model):
        return own_data(settings, model, lambda: _text(settings.data))
    sizes = sizes_of(_name(settings, program))
    # With torch, 2 s.
    if isinstance(sizes, Cnn):
        from chimerac.interpreter.training.images import image_data

        _check_no_text(settings)
        return image_data(sizes.side, sizes.channels, settings.seed)
    if sizes.data == "pairs":
        from chimerac.interpreter.training.pairs import pair_data

        return pair_data(_text(settings.data), settings.seq_len, settings.seed)
    from chimerac.interpreter.training.data import text_data

    return text_data(_text(settings.data), settings.seq_len, settings.seed)


def check_options(settings: RunSettings) -> None:
    """Check, without torch, the options that choose model and data. Raises ChimeraError: E801, E802, E803, E821."""
    from chimerac.interpreter.training.text import split_text  # with numpy, 0.1 s that --help does not need

    if is_own(settings.model):
        check_own(str(settings.model))
    elif settings.model is not None:
        check_sequence(settings.model, settings.seq_len)
        if sizes_of(settings.model).data == "images":
            _check_no_text(settings)
    if settings.timed is None and settings.data is not None:
        split_text(_text(settings.data), settings.seq_len)


def _check_no_text(settings: RunSettings) -> None:
    """Raise ChimeraError E802 if a text was given to a model that is trained on images."""
    if settings.data is not None:
        message = f"--data {settings.data} is text, and {settings.model or 'the model'} is trained on images"
        raise refuse("E802", message, help="leave out --data, or take a model that is trained on text")


def check_depth(settings: RunSettings, program: Program) -> None:
    """Check, without torch, that the model has a layer for each stage. Raises ChimeraError E705."""
    # It imports pydantic, which takes 0.1 s that --help does not need.
    from chimerac.chimera_ir.partition import check_layers

    if is_own(settings.model):
        return  # the layers of such a model are known when it has been traced
    name, stages = _name(settings, program), program.header.stages
    if settings.timed is None:
        check_layers(name, sizes_of(name).layers, stages, f"--model {default_for(stages)}")


def _name(settings: RunSettings, program: Program) -> str:
    """Return the name of the model: the one chosen, the one that the program is cut for, or the default for its stages."""
    if settings.model is not None:
        return settings.model
    if program.partition is not None and is_known(program.partition.model):
        return program.partition.model
    return default_for(program.header.stages)


@lru_cache(maxsize=1)  # it is checked early, and used when torch is imported
def _text(path: Path | None) -> Text:
    from chimerac.interpreter.training.text import load_text  # with numpy, 0.1 s that --help does not need

    return load_text(path)
