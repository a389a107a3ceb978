"""The model and the data of a run. No other module of the interpreter names a model or a data set.

Importing torch takes 2.6 s. So modules that need it are imported inside functions, and a wrong option is reported before that.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from chimerac.chimera_ir.diagnostics import refuse
from chimerac.chimera_ir.files import read
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
    """Return the model of a run. Raises ChimeraError: E801 for an unknown one, E821 for samples that are too long for it.

    A model of the user's own: also E850 to E855.
    """
    if is_own(settings.model):
        return own_model(settings, samples_per_micro_batch(program, settings.micro_batch))
    from chimerac.models.families import preset  # with torch, 2.6 s

    return preset(_name(settings, program), settings.seq_len, settings.dropout)


def data_of(settings: RunSettings, program: Program, model: Model) -> Data:
    """Return the data for the model of a run.

    Raises ChimeraError: E802 for data that cannot be read, E803 for a text that is too short.
    """
    if is_own(settings.model):
        return own_data(settings, model, lambda: _text(settings.data))
    sizes = sizes_of(_name(settings, program))
    if isinstance(sizes, Cnn):
        from chimerac.interpreter.training.images import image_data  # with torch, 2.6 s

        _check_no_text(settings)
        return image_data(sizes.side, sizes.channels, settings.seed)
    if sizes.data == "pairs":
        from chimerac.interpreter.training.pairs import pair_data  # with torch, 2.6 s

        return pair_data(_text(settings.data), settings.seq_len, settings.seed)
    from chimerac.interpreter.training.data import text_data  # with torch, 2.6 s

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


def with_partition(settings: RunSettings, program: Program) -> Program:
    """Return the program with the partition of --split or --partition, if one is given.

    Raises ChimeraError: E706 a partition of another model, E707 no partition, E708 a split that does not fit.
    """
    if settings.split is None and settings.partition is None:
        return program
    # It imports pydantic, which takes 0.1 s that --help does not need.
    from chimerac.chimera_ir.partition import check_fits, partition_from_json, split_by_counts

    stages = program.header.stages
    if settings.partition is not None:
        given = partition_from_json(read(settings.partition), str(settings.partition))
        name = settings.model or given.model
    else:
        name = _name(settings, program)
    layers = sizes_of(name).layers
    if settings.split is not None:
        given = split_by_counts(name, layers, settings.split, stages)
    check_fits(given, name, layers, stages)
    return program.with_partition(given)


def _name(settings: RunSettings, program: Program) -> str:
    """Return the name of the model: that of --model, else that of the program's partition, else the default for its stages."""
    if settings.model is not None:
        return settings.model
    if program.partition is not None and is_known(program.partition.model):
        return program.partition.model
    return default_for(program.header.stages)


@lru_cache(maxsize=1)  # it is read for the checks, and again after torch is imported
def _text(path: Path | None) -> Text:
    from chimerac.interpreter.training.text import load_text  # with numpy, 0.1 s that --help does not need

    return load_text(path)
